"""The lab on one machine for real: PostgreSQL, and the services as their units start them, killed while they make something."""

import getpass
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from marin_assets.keys import asset_key
from marin_core.artifact import ArtifactId
from tests.deploy import postgresql
from tests.deploy.machine import PROJECT, SERVICES, Machine, installed
from tests.integration.deployment import Deployment, free_port, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
EXPERIMENTS = "tests.deploy.experiments"


class Lab(Deployment):
    """The services of a machine, which can be killed one by one and started again."""

    def __init__(self, machine: Machine, port: int) -> None:
        super().__init__(machine.path("/var/lib/marin"), port, EXPERIMENTS)
        self.machine = machine
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ever: set[psutil.Process] = set()

    def start(self) -> None:
        """Whatever doesn't run, as systemd would."""
        for service in SERVICES:
            if service not in self.running:
                self.running[service] = self.machine.start(service, {"PYTHONPATH": str(PROJECT)})
        wait_for("the code location", self._is_loaded, 300)

    def _is_loaded(self) -> bool:
        dead = [service for service, process in self.running.items() if process.poll() is not None]
        assert not dead, "\n".join((self.machine.root / f"{service}.log").read_text()[-3000:] for service in dead)
        query = "{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError { __typename } } } } }"
        try:
            entries = self.graphql(query)["workspaceOrError"]["locationEntries"]
        except OSError:
            return False
        return [(each["name"], each["locationOrLoadError"]["__typename"]) for each in entries] == [("marin", "RepositoryLocation")]

    def tree(self) -> list[psutil.Process]:
        """Every process of the services: run workers and jobs too."""
        tops = [psutil.Process(process.pid) for process in self.running.values()]
        found = [*tops, *(child for top in tops for child in top.children(recursive=True))]
        self.ever |= set(found)
        return found

    def kill_services(self) -> None:
        """SIGKILL for the main process of each, as `KillMode=process` would have it: what they started lives on."""
        self.tree()
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait(timeout=30)
        self.running = {}

    def lose_power(self) -> None:
        """SIGKILL for everything there is."""
        tree = self.tree()
        for process in [*tree, *self.ever]:
            if process.is_running():
                process.kill()
        psutil.wait_procs(list(self.ever), timeout=30)
        self.running = {}

    def launch_and_see_it_work(self, artifact: ArtifactId) -> str:
        """A run whose job has been started and has made nothing yet."""
        run = self.launch(asset_key(artifact).path)
        jobs = self.folder / "store" / ".jobs"

        def works() -> bool:
            return any((jobs / attempt.claim.job / "process.json").exists() for attempt in self.store.attempts(artifact))

        wait_for(f"the job of {artifact}", works)
        return run

    def finish(self, run: str) -> str:
        wait_for(f"the end of run {run}", lambda: self.status(run) in ("SUCCESS", "FAILURE", "CANCELED"), 600)
        return self.status(run)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with postgresql.server() as sockets, installed() as machine:
        port = free_port()
        unit = machine.path("/etc/systemd/system/marin-webserver.service")
        unit.write_text(unit.read_text().replace("--port 3000", f"--port {port}"))
        environment = machine.path("/etc/marin/lab.env")
        text = environment.read_text().replace("PGHOST=/run/postgresql", f"PGHOST={sockets}")
        text = text.replace("PGUSER=marin", f"PGUSER={getpass.getuser()}") + f"MARIN_EXPERIMENTS={EXPERIMENTS}\n"
        environment.write_text(text)
        made = Lab(machine, port)
        try:
            made.start()
            yield made
        finally:
            made.lose_power()


def states(lab: Lab, artifact: ArtifactId) -> list[str]:
    return [attempt.state for attempt in lab.store.attempts(artifact)]


def test_services_killed_in_the_middle_of_a_run_change_nothing(lab: Lab) -> None:
    artifact = ArtifactId("raw/topics", "v1")
    run = lab.launch_and_see_it_work(artifact)
    lab.kill_services()
    assert lab.store.record(artifact) is None
    lab.start()
    assert lab.finish(run) == "SUCCESS"
    assert lab.store.record(artifact) is not None
    assert states(lab, artifact) == ["succeeded"]
    assert [each["runId"] for each in lab.runs()] == [run]


def test_after_a_loss_of_power_the_run_fails_and_its_retry_makes_it_once(lab: Lab) -> None:
    artifact = ArtifactId("raw/docstrings", "v1")
    run = lab.launch_and_see_it_work(artifact)
    lab.lose_power()
    assert lab.store.record(artifact) is None
    lab.start()
    assert lab.finish(run) == "FAILURE"

    def retried() -> str | None:
        tags = {each["runId"]: {tag["key"]: tag["value"] for tag in each["tags"]} for each in lab.runs()}
        return next((name for name, tag in tags.items() if tag.get("dagster/parent_run_id") == run), None)

    wait_for("the retry", retried)
    assert lab.finish(str(retried())) == "SUCCESS"
    assert lab.store.record(artifact) is not None
    assert states(lab, artifact) == ["lost", "succeeded"]


def test_everything_is_kept_in_postgresql(lab: Lab) -> None:
    assert lab.runs()
    assert not list(lab.machine.root.rglob("*.db"))
    made = {path.name for path in lab.machine.path("/var/lib/marin").iterdir()}
    assert {"dagster", "store", "sockets"} <= made
    assert Path(lab.machine.path("/var/lib/marin/sockets/code")).is_socket()
