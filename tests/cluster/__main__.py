"""Run the command line: ``python3 -m cluster``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
