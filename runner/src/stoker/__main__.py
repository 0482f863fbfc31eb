"""Lets `python -m stoker` do what the console script `stoker` does."""

from stoker.cli import main

if __name__ == "__main__":
    main()
