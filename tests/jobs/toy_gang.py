"""`python -m marin_jobs` whose job `summary` is a toy that runs in several processes and does what its configuration says."""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import marin_jobs.summary as job_module
from marin_core.errors import DataError, PreemptedError
from marin_core.report import Report
from marin_jobs.process import main
from marin_jobs.runtime import JobContext

STEPS = 3


def run(job: JobContext) -> Report:
    """Steps of a collective, from the last saved one; in step 1 of the first attempt something may happen to process 1."""
    import jax  # as late as a real job's module does: the number of devices is set before
    import numpy as np
    from jax.experimental import multihost_utils

    from marin_core import distributed

    job.reporter.log(f"sees {jax.device_count()} devices")
    saved = job.output / f"saved-{job.process}"
    first = int(saved.read_text()) + 1 if saved.exists() else 0
    happens = job.spec.config["happens"] if job.spec.attempt == 1 and not distributed.is_lead() else None
    total = 0
    for step in range(first, STEPS):
        if step == 1:
            happen(happens)
        total += int(multihost_utils.process_allgather(np.int32(step + job.process)).sum())
        saved.write_text(f"{step}")
        if distributed.anywhere(job.reporter.stop_requested()):
            raise PreemptedError(f"saved after step {step}", advice="Start it again.")
    return Report(metrics={"total": total, "first_step": first})


def happen(what: str | None) -> None:
    match what:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGTERM)  # this process alone
        case "bad data":
            raise DataError("shard 7 is broken", advice="Repair it.")


def carry_over(earlier: Path, output: Path) -> None:
    for file in earlier.iterdir():
        shutil.copy(file, output / file.name)


def install() -> None:
    """Put the toy in the place of the job `summary`, in this process."""
    module: Any = job_module
    module.GANG, module.run, module.carry_over = True, run, carry_over


if __name__ == "__main__":
    install()
    sys.exit(main(sys.argv[1:]))
