"""`python -m marin_assets.cli`: the same as `marin`."""

import sys

from marin_assets.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
