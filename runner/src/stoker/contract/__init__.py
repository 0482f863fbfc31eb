"""What parts that never import each other must agree on: exit codes, variables, files."""
