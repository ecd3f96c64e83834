"""Side-by-side measurements: `python -m benchmarks.NAME` prints a table, and writes its rows with `--json FILE`."""
