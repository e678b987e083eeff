"""Entry point of `python -m snowmelt`, which equals the command `snowmelt`."""

import sys

from snowmelt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
