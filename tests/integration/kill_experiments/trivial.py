"""A family of 200 partitions that are made in a moment, in the run worker itself."""

import os

from benchmarks.orchestration_lab import trivial_family
from marin_core import experiment as lab

PARTITIONS = int(os.environ.get("MARIN_TEST_PARTITIONS", "200"))
"""Fewer, to try the test itself."""

family = trivial_family(PARTITIONS)

EXPERIMENT = lab.experiment("trivial", family, question="Is every partition built once?", hypothesis="Yes, whatever is killed meanwhile.")
