"""The job `summary` replaced by a toy of one process that does what its configuration says, in every process of an environment."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import marin_jobs.summary as job_module
from marin_core.errors import DataError, InfrastructureError, PreemptedError
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    """Say that it runs, do what is asked for, and write a file that counts how many pods have worked on it."""
    saved = job.output / "saved"
    pods = int(saved.read_text()) + 1 if saved.exists() else 1
    job.reporter.log(f"toy runs in {os.getpid()}, number {pods}")
    match job.spec.config["happens"]:
        case "wait until told" if pods == 1:
            wait(job, lambda: False)
        case "wait for a file":
            wait(job, Path(job.spec.config["file"]).exists)
        case "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            job.reporter.log("deaf")
            wait(job, lambda: False)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "abort":
            print("Terminating process because the JAX distributed service detected fatal errors.", flush=True)
            os.abort()
        case "exit":
            os._exit(3)
        case "bad data":
            raise DataError("shard 7 is broken", advice="Repair it.")
        case "bad luck":
            raise InfrastructureError("the disk is gone", advice="Try again.")
        case "talk":
            wait(job, Path(job.spec.config["talk"]).exists)
            for number in range(500):
                job.reporter.log(f"line {number}")
            wait(job, Path(job.spec.config["file"]).exists)
    saved.write_text(str(pods))
    return Report(metrics={"pods": pods})


def wait(job: JobContext, condition: Any) -> None:
    """Until the condition holds; what is saved when the job is asked to stop is that it ran."""
    while not condition():
        if job.reporter.stop_requested():
            (job.output / "saved").write_text("1")
            raise PreemptedError("saved", advice="Start it again.")
        time.sleep(0.01)


def carry_over(earlier: Path, output: Path) -> None:
    if (earlier / "saved").exists():
        (output / "saved").write_text((earlier / "saved").read_text())


def install() -> None:
    module: Any = job_module
    module.run, module.carry_over = run, carry_over
