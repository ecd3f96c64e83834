"""`python -m marin_jobs <spec URI>`: build one artifact and commit it. Exit codes as in `marin_core.errors.ExitCode`."""

import sys

from marin_jobs.runtime import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
