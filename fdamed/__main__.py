"""`python -m fdamed` is `fdamed`."""

import sys

from fdamed.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
