"""Entry point of `python -m snowmelt`, the same as the command `snowmelt`."""

import sys

from snowmelt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
