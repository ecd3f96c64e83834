"""A backfill of 200 partitions whose daemon and webserver are killed again and again, and everything else once: each is built once."""

import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from marin_assets.keys import asset_key
from marin_core.artifact import ArtifactId
from tests.integration.deployment import BIN, PROJECT, Deployment, free_port, wait_for
from tests.integration.kill_experiments.trivial import PARTITIONS, family

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

AT_ONCE = 4
PATIENCE_SECONDS = 6000
"""For all the run workers, each of which takes some CPU-seconds to start, on a machine that others use too."""

INSTANCE = f"""
telemetry: {{enabled: false}}
nux: {{enabled: false}}
storage: {{custom: {{module: marin_assets.sqlite, class: LabStorage, config: {{base_dir: {{env: DAGSTER_HOME}}}}}}}}
run_launcher: {{module: marin_assets.launch.workers, class: MachineRunLauncher}}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {{dequeue_interval_seconds: 1}}
concurrency:
  runs: {{max_concurrent_runs: {AT_ONCE}}}
run_monitoring: {{enabled: true, poll_interval_seconds: 5, start_timeout_seconds: 120, max_resume_run_attempts: 0}}
run_retries: {{enabled: true, max_retries: 5, retry_on_asset_or_op_failure: false}}
"""

type Records = dict[ArtifactId, str]
"""When each committed partition was built, by its record."""


class Services(Deployment):
    """Code server, webserver and daemon as on a shared machine, each a service of its own, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, free_port(), "tests.integration.kill_experiments")
        (folder / "home").mkdir()
        (folder / "home" / "dagster.yaml").write_text(INSTANCE)
        self._code_port = free_port()
        location = f"{{host: 127.0.0.1, port: {self._code_port}, location_name: marin}}"
        (folder / "workspace.yaml").write_text(f"load_from: [{{grpc_server: {location}}}]")
        self._running: dict[str, psutil.Popen] = {}
        self._ever: set[psutil.Process] = set()

    def start(self) -> None:
        """Whatever doesn't run; the code server first, which listens once it has loaded."""
        workspace, port = str(self.folder / "workspace.yaml"), self.url.rsplit(":", 1)[1]
        self._start("code", "dagster", "api", "grpc", "-h", "127.0.0.1", "-p", str(self._code_port), "-m", "marin_assets.definitions")
        wait_for("the code server", self._listens, 300)
        self._start("webserver", "dagster-webserver", "-h", "127.0.0.1", "-p", port, "-w", workspace)
        self._start("daemon", "dagster-daemon", "run", "-w", workspace)
        wait_for("the webserver's answer", self._answers, 300)

    def _start(self, service: str, program: str, *arguments: str) -> None:
        if service in self._running:
            return
        with (self.folder / f"{service}.log").open("ab") as log:
            command = [str(BIN / program), *arguments]
            self._running[service] = psutil.Popen(
                command, cwd=PROJECT, env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _listens(self) -> bool:
        assert self._running["code"].poll() is None, "the code server ended by itself; see its log"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._code_port)) == 0

    def _answers(self) -> bool:
        assert all(process.poll() is None for process in self._running.values()), "a service ended by itself; see its log"
        try:
            with urllib.request.urlopen(f"{self.url}/server_info", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """SIGKILL for daemon and webserver. The code server and its run workers live on."""
        self._kill("daemon", "webserver")

    def kill_all(self) -> None:
        """SIGKILL for everything: first for those that start others, and then for run workers in the middle of a build."""
        self._kill(*self._running)
        for process in self._ever:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(list(self._ever), timeout=30)

    def _kill(self, *services: str) -> None:
        for process in [self._running.pop(service) for service in services if service in self._running]:
            os.kill(process.pid, signal.SIGSTOP)  # so that it starts nobody while its children are counted
            self._ever |= set(process.children(recursive=True))
            os.kill(process.pid, signal.SIGKILL)
            process.wait(timeout=30)

    # What is there ---------------------------------------------------------------------------------------------------

    def committed(self) -> Records:
        records = self.store.records(family.ids())
        return {artifact: record.ended_at for artifact, record in records.items() if record is not None}

    def wait_for_committed(self, count: int) -> Records:
        wait_for(f"{count} commits", lambda: len(self.committed()) >= count, PATIENCE_SECONDS)
        return self.committed()

    def attempts(self) -> dict[ArtifactId, list[str]]:
        """States of all attempts at each partition, oldest first."""
        return {artifact: [attempt.state for attempt in self.store.attempts(artifact)] for artifact in family.ids()}

    def follow(self) -> "subprocess.Popen[str]":
        """`marin backfill`, which is not killed, and whose messages go to a file."""
        command = [str(BIN / "marin"), "backfill", str(family.id), "--json"]
        with (self.folder / "marin.log").open("w") as log:
            return subprocess.Popen(command, cwd=PROJECT, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    made = Services(tmp_path)
    try:
        yield made
    finally:
        made.kill_all()


def test_each_of_200_partitions_is_built_once_though_daemon_and_webserver_are_killed(services: Services) -> None:
    services.start()
    backfill = services.materialize_all([asset_key(family.id).path])
    command = services.follow()
    try:
        seen: Records = {}
        for count in (PARTITIONS // 20, PARTITIONS // 3):
            seen |= services.wait_for_committed(count)
            services.kill()
            services.start()
        seen |= services.wait_for_committed(2 * PARTITIONS // 3)
        services.kill_all()
        seen |= services.committed()
        assert len(seen) < PARTITIONS, "everything was built before the last kill, which proves nothing"
        services.start()
        said, _ = command.communicate(timeout=PATIENCE_SECONDS)
    finally:
        command.kill()
        command.wait(timeout=30)

    log = (services.folder / "marin.log").read_text()
    summary: dict[str, Any] = json.loads(said)
    assert (command.returncode, summary["backfills"]) == (0, [backfill]), log
    assert {each["state"] for each in summary["artifacts"]} <= {"built", "served"}

    final = services.committed()
    assert len(final) == PARTITIONS
    assert {artifact: final[artifact] for artifact in seen} == seen, "what was committed before a kill was built again"
    states = services.attempts()
    assert {artifact: each.count("succeeded") for artifact, each in states.items()} == dict.fromkeys(family.ids(), 1)
    others = Counter(state for each in states.values() for state in each if state != "succeeded")
    assert others.keys() <= {"lost"}
    assert others["lost"] <= AT_ONCE, "more than what each worker was building when everything was killed was begun twice"
    assert not [artifact for artifact, record in services.store.records(family.ids()).items() if record and services.store.damage(record)]
    assert services.finish_backfill(backfill, 300) == "COMPLETED_SUCCESS"
