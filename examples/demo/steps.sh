# shellcheck shell=bash
# What both demos share: the clock, headlines, one way to fail, the Python to use. To be sourced.

# Print a headline with the seconds since the start.
step() {
  printf '\n[%3d s] %s\n' "$SECONDS" "$*"
}

# Print why the demo cannot go on and what to do, and end it.
fail() {
  printf '\ndemo: %s\n' "$*" >&2
  exit 1
}

# Print a command as a person would type it.
show() {
  printf '$ %s\n' "${*//"$HOME"\//\~/}"
}

# Print a command and run it.
run() {
  show "$@"
  "$@"
}

# Print the Python to use: $PYTHON, else the first of the usual names that is new enough.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "${PYTHON:-none of python3, python3.13, python3.12, python3.11}: no Python 3.11 or newer with the module" \
    "ensurepip. Install one (Debian and Ubuntu: apt install python3-venv), or name it:" \
    "PYTHON=/path/to/python make demo"
}
