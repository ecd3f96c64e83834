"""The jobs whose later attempts go on with what earlier ones left are the ones that say so."""

import importlib

from marin_core.artifact.job import RESUMED_JOBS
from marin_jobs.runtime import JOBS


def test_the_jobs_that_are_resumed_are_those_that_can_carry_over() -> None:
    assert {job for job in JOBS if hasattr(importlib.import_module(f"marin_jobs.{job}"), "carry_over")} == set(RESUMED_JOBS)
