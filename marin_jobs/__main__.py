"""`python -m marin_jobs <spec URI>`: build one artifact and commit it. Exit codes as in `marin_core.errors.ExitCode`.

A spec with several processes is kept by this one, which starts the others; `--process I --coordinator HOST:PORT` makes it one of them.
"""

import sys

from marin_jobs.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
