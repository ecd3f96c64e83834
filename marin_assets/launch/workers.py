"""Run workers of one machine: the machine is asked who lives, so a lost one is noticed after a restart of all that watched it."""

import signal

import psutil
from dagster import DagsterEventType, DagsterRun, DagsterRunStatus
from dagster._core.errors import DagsterUserCodeProcessError, DagsterUserCodeUnreachableError
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus

STARTED = "Started process for run (pid: "
"""How the event begins in which a run worker names its process, before anything else."""

CLOCK_SLACK_SECONDS = 5.0
"""By which a process may seem younger than what it said; less than a machine takes to boot."""

ANSWER_SECONDS = 5
"""How long a code server may take to say that it is there."""


class MachineRunLauncher(DefaultRunLauncher):
    """Dagster's own launcher, where code server, daemon and run workers share one table of processes.

    The code server that started a run worker notices its end. One that died with it, on a machine that was rebooted, can't, and Dagster
    then shows the run as started for ever, with its places in the queue and the pools (dagster #4319). Here run monitoring looks for the
    process that the run's log names. A run that lost its worker fails, `run_retries` tries it again, and the retry finds the job or its
    record. The other gap: a code server doesn't know the workers of the one before it, so they couldn't be terminated.
    """

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Whether the run's worker lives. A run without one, such as that of a command line, is left alone.

        A loss is told once the code server answers: Dagster tries a failed run again at once, or never where it can't.
        """
        named = self._named(run.run_id)
        if named is None or _living(*named) is not None or not self._can_be_retried(run.run_id):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"process {named[0]} is gone")

    def terminate(self, run_id: str) -> bool:
        """Ask the code server to end a run, or its worker where the code server is another one by now; whether there was one to ask."""
        try:
            if super().terminate(run_id):  # type: ignore[no-untyped-call]
                return True
        except (DagsterUserCodeProcessError, DagsterUserCodeUnreachableError):
            pass  # not a run of this code server, or there is none
        run = self._instance.get_run_by_id(run_id)
        named = self._named(run_id)
        worker = _living(*named) if named is not None else None
        if worker is None or run is None or run.status != DagsterRunStatus.CANCELING:
            return False
        try:
            worker.send_signal(signal.SIGINT)  # what it would send itself
        except psutil.NoSuchProcess:
            return False
        return True

    def _can_be_retried(self, run_id: str) -> bool:
        client = self._get_grpc_client_for_termination(run_id)  # type: ignore[no-untyped-call]
        try:
            return client is None or bool(client.get_server_id(timeout=ANSWER_SECONDS))
        except DagsterUserCodeUnreachableError:
            return False

    def _named(self, run_id: str) -> tuple[int, float] | None:
        """pid of the run's worker, and when it named it, in seconds since 1970."""
        events = self._instance.get_records_for_run(run_id, of_type=DagsterEventType.ENGINE_EVENT).records
        for entry in (record.event_log_entry for record in reversed(events)):
            message = entry.get_dagster_event().message or ""
            if message.startswith(STARTED):
                return int(message.removeprefix(STARTED).rstrip(").")), entry.timestamp
        return None


def _living(pid: int, said: float) -> psutil.Process | None:
    """The process that had a pid at a time, if it lives: pids are reused, but by younger processes."""
    try:
        process = psutil.Process(pid)
        lives = process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= said + CLOCK_SLACK_SECONDS
    except psutil.NoSuchProcess:
        return None
    return process if lives else None
