"""The lab of `deploy/machine` with all it makes in a bucket: PostgreSQL, fake-gcs-server, and the services as their units start them."""

import getpass
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from marin_core.artifact import Store
from tests.deploy import postgresql
from tests.deploy.machine import FILES, PROJECT, SERVICES, Machine, installed
from tests.integration import standing_clock
from tests.integration.deployment import Deployment, free_port, wait_for
from tests.storage.gcs import FakeGcs, ask

EXPERIMENTS = Path(__file__).with_name("mix_experiments")
PACKAGE = "lab_experiments"
"""The copied experiments' name, in a checkout of their own."""

LOCATION = {"repositoryLocationName": "marin", "repositoryName": "__repository__"}


class Checkout:
    """A git repository with the lab's experiments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(EXPERIMENTS, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        self.git("init", "--quiet")

    @property
    def experiment(self) -> Path:
        return self.folder / PACKAGE / "published.py"

    def edit(self, old: str, new: str) -> None:
        text = self.experiment.read_text()
        assert text.count(old) == 1, old
        self.experiment.write_text(text.replace(old, new))

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=self.folder, check=True, capture_output=True, timeout=60)  # noqa: S607


class LabOnGcs(Deployment):
    """The running services; a clock that the test moves; the experiments' checkout."""

    def __init__(self, machine: Machine, gcs: FakeGcs, port: int) -> None:
        super().__init__(machine.path("/var/lib/marin"), port, PACKAGE)
        self.machine = machine
        self.gcs = gcs
        self.store = Store(gcs.prefix(f"{gcs.bucket}/store"))
        self.checkout = Checkout(machine.root / "experiments")
        self.clock = machine.root / "clock"
        self.extra = {
            **gcs.environment(),
            "PYTHONPATH": f"{PROJECT}{os.pathsep}{self.checkout.folder}",
            "PYTHONDONTWRITEBYTECODE": "1",  # an edit of the same length within a second would be served from yesterday's bytes
            standing_clock.CLOCK_VARIABLE: str(self.clock),
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ever: set[psutil.Process] = set()

    def start(self) -> None:
        """Whatever doesn't run, as systemd would."""
        for service in SERVICES:
            if service not in self._running:
                self._running[service] = self.machine.start(service, self.extra)
            if service == "code":  # the daemon's unit asks for it with a Python every two seconds
                wait_for("the code server", self.machine.path("/var/lib/marin/sockets/code").exists, 300)
        wait_for("the code location", self._is_loaded, 300)

    def _is_loaded(self) -> bool:
        dead = [service for service, process in self._running.items() if process.poll() is not None]
        assert not dead, "\n".join(self.log(service)[-3000:] for service in dead)
        query = """{ workspaceOrError { ... on Workspace { locationEntries {
                     locationOrLoadError { __typename ... on PythonError { message } } } } } }"""
        try:
            entries = self.graphql(query)["workspaceOrError"]["locationEntries"]
        except OSError:
            return False
        assert entries[0]["locationOrLoadError"]["__typename"] == "RepositoryLocation", entries
        return True

    def objects(self) -> list[str]:
        """Names of all objects in the bucket."""
        found: list[str] = []
        token = ""
        while True:
            status, answer = ask(self.gcs.url, "GET", f"/storage/v1/b/{self.gcs.bucket}/o?maxResults=1000&pageToken={quote(token)}")
            assert status == 200, answer
            page = json.loads(answer)
            found += [item["name"] for item in page.get("items", [])]
            token = page.get("nextPageToken", "")
            if not token:
                return found

    def log(self, service: str) -> str:
        return (self.machine.root / f"{service}.log").read_text()

    def stop_daemon(self) -> None:
        """As `systemctl stop marin-daemon`."""
        self._tree()
        daemon = self._running.pop("daemon")
        daemon.terminate()
        daemon.wait(timeout=60)

    def close(self) -> None:
        """End everything that was started here: services, run workers, jobs."""
        self._tree()
        for process in self._ever:
            if process.is_running():
                process.kill()
        psutil.wait_procs(list(self._ever), timeout=30)

    def _tree(self) -> None:
        for top in (psutil.Process(process.pid) for process in self._running.values() if process.poll() is None):
            self._ever |= {top, *top.children(recursive=True)}

    # The curator ----------------------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """What the UI's button does after an edit."""
        mutation = 'mutation { reloadRepositoryLocation(repositoryLocationName: "marin") { __typename ... on PythonError { message } } }'
        answer = self.graphql(mutation)
        assert answer["reloadRepositoryLocation"]["__typename"] == "WorkspaceLocationEntry", answer

    def command_on_the_machine(self, *command: str) -> tuple[int, str]:
        """`lab COMMAND`: its exit code and all it says, in a terminal that is wide enough."""
        environment = {"PATH": os.environ["PATH"], "COLUMNS": "400", **self.extra}
        lab = str(self.machine.path("/usr/local/bin/lab"))
        done = subprocess.run([lab, *command], env=environment, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout + done.stderr

    # The UI ---------------------------------------------------------------------------------------------------------------

    def materialize(self, assets: Sequence[str], partition: str | None = None) -> str:
        """What the UI's button does for assets with one partition, or none, in common; the run's id, once it has succeeded."""
        tags = [] if partition is None else [{"key": "dagster/partition", "value": partition}]
        selection = [{"path": asset.split("/")} for asset in assets]
        answer = self.graphql(
            """mutation Launch($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
                 __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }""",
            {
                "params": {
                    "mode": "default",
                    "selector": {**LOCATION, "pipelineName": "__ASSET_JOB", "assetSelection": selection},
                    "executionMetadata": {"tags": tags},
                }
            },
        )["launchPipelineExecution"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return self.finished(str(answer["run"]["runId"]))

    def finished(self, run: str) -> str:
        """The same id, once the run has succeeded."""
        wait_for(f"the end of run {run}", lambda: self.status(run) in ("SUCCESS", "FAILURE", "CANCELED"), 600)
        assert self.status(run) == "SUCCESS", self.errors(run)
        return run

    def errors(self, run: str) -> str:
        query = """query E($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
                     ... on ExecutionStepFailureEvent { error { message cause { message } } } ... on RunFailureEvent { message } } } } }"""
        return json.dumps([event for event in self.graphql(query, {"id": run})["logsForRun"]["events"] if event], indent=1)

    def tags(self, run: str) -> dict[str, str]:
        return {tag["key"]: tag["value"] for each in self.runs() if each["runId"] == run for tag in each["tags"]}

    def switch_on(self, schedule: str) -> None:
        mutation = """mutation On($selector: ScheduleSelector!) { startSchedule(scheduleSelector: $selector) {
                        __typename ... on PythonError { message } } }"""
        answer = self.graphql(mutation, {"selector": {**LOCATION, "scheduleName": schedule}})["startSchedule"]
        assert answer["__typename"] == "ScheduleStateResult", answer

    def ticks(self, schedule: str) -> list[dict[str, Any]]:
        """Ticks that have ended, oldest first: timestamp, status, skipReason, runIds."""
        query = """query T($selector: ScheduleSelector!) { scheduleOrError(scheduleSelector: $selector) { ... on Schedule {
                     scheduleState { ticks(limit: 100) { timestamp status skipReason runIds error { message } } } } } }"""
        found = self.graphql(query, {"selector": {**LOCATION, "scheduleName": schedule}})["scheduleOrError"]["scheduleState"]["ticks"]
        return sorted((tick for tick in found if tick["status"] != "STARTED"), key=lambda tick: float(tick["timestamp"]))

    def partitions_made(self, asset: str) -> int:
        """How many partitions the UI shows as materialized."""
        query = (
            "query N($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode { partitionStats { numMaterialized } } } }"
        )
        return int(self.graphql(query, {"key": {"path": asset.split("/")}})["assetNodeOrError"]["partitionStats"]["numMaterialized"])


def _configure(machine: Machine, settings: Mapping[str, str], port: int) -> None:
    """What an operator edits: the bucket, the database's socket, the port; and whose clock the programs go by."""
    environment = machine.path("/etc/marin/lab.env")
    lines = [line for line in environment.read_text().splitlines() if line.partition("=")[0] not in settings]
    environment.write_text("\n".join([*lines, *(f"{name}={value}" for name, value in settings.items())]) + "\n")
    with (machine.path("/var/lib/marin/dagster") / "dagster.yaml").open("a") as home:
        home.write((FILES / "compute-logs-gcs.yaml").read_text())
    clocked = f"{sys.executable} -m {standing_clock.__name__}"
    binaries = PROJECT / ".venv" / "bin"
    for service in SERVICES:
        unit = machine.path(f"/etc/systemd/system/marin-{service}.service")
        text = unit.read_text().replace("--port 3000", f"--port {port}")
        text = text.replace("--module-name marin_assets.definitions", "--module-name tests.integration.standing_definitions")
        for program in ("dagster-daemon", "dagster-webserver"):
            text = text.replace(f"ExecStart={binaries}/{program}", f"ExecStart={clocked} {program}")
        unit.write_text(text)


@contextmanager
def running(at: datetime) -> Iterator[LabOnGcs]:
    """All of it, with the clock at a time, until the block ends; then nothing of it is left."""
    with postgresql.server() as sockets, FakeGcs() as gcs, installed() as machine, pytest.MonkeyPatch.context() as patch:
        port = free_port()
        for variable, value in gcs.environment().items():
            patch.setenv(variable, value)
        lab = LabOnGcs(machine, gcs, port)
        database = {"PGHOST": str(sockets), "PGUSER": getpass.getuser()}
        logs = {"MARIN_LOG_BUCKET": gcs.bucket, "MARIN_LOG_STAGING": str(machine.path("/var/lib/marin/dagster/staging"))}
        place = {"MARIN_PREFIX": lab.store.prefix, "MARIN_EXPERIMENTS": PACKAGE}
        _configure(machine, {**database, **logs, **place}, port)
        standing_clock.move(lab.clock, at)
        try:
            yield lab
        finally:
            lab.close()
