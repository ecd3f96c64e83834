"""`marin backfill` with a real daemon and no webserver: ranges, a bad shard, its mending, and a daemon that is killed in the middle."""

import importlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from marin_assets.builder import Builder, QuietEvents
from marin_assets.launch import InlineLauncher
from marin_core.artifact import ArtifactGraph, ArtifactId
from tests.data.conftest import sentences, write_jsonl
from tests.integration.backfill_experiments.words import DOCUMENTS_VARIABLE, SHARDS
from tests.integration.deployment import BIN, INSTANCE, PROJECT, Deployment, end_tree, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
FAMILY = "filtered/words@dev"


class DaemonAlone(Deployment):
    """A home with a daemon, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, port=1, experiments="tests.integration.backfill_experiments")
        (folder / "home").mkdir()
        (folder / "home" / "dagster.yaml").write_text(INSTANCE)
        for number in range(SHARDS):
            write_jsonl(folder / "documents" / f"{number}.jsonl.gz", sentences(40, number))
        self.environment[DOCUMENTS_VARIABLE] = str(folder / "documents")
        self._trees: list[psutil.Process] = []

    def start_daemon(self) -> None:
        with (self.folder / "daemon.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                [str(BIN / "dagster-daemon"), "run", "-w", "workspace.yaml"],
                cwd=PROJECT,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._trees.append(psutil.Process(self._daemon.pid))

    def kill_daemon(self) -> None:
        """The daemon alone, and not what it has started."""
        daemon = self._trees[-1]
        for child in daemon.children(recursive=True):
            self._trees.insert(0, child)
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.wait(timeout=30)

    def stop(self) -> None:
        for process in self._trees:
            if process.is_running():
                end_tree(process.pid)

    def backfill(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [str(BIN / "marin"), "backfill", FAMILY, *arguments, "--json"]
        errors = (self.folder / "marin.log").open("a")
        return subprocess.Popen(command, cwd=PROJECT, env=self.environment, stdout=subprocess.PIPE, stderr=errors, text=True)

    def attempted(self, command: "subprocess.Popen[str]") -> bool:
        """Whether a shard was tried at all; fails once nothing is left that could."""
        for process, log in ((self._daemon, "daemon.log"), (command, "marin.log")):
            assert process.poll() is None, (self.folder / log).read_text()
        return any(self.states(f"{index:05d}") for index in range(SHARDS))

    def finished(self, command: "subprocess.Popen[str]") -> tuple[int, list[str], dict[str, str]]:
        """Exit code, backfills, and state of each shard of a command."""
        said, _ = command.communicate(timeout=900)
        log = (self.folder / "marin.log").read_text()
        assert said, f"marin said nothing but:\n{log}"
        document: dict[str, Any] = json.loads(said)
        return command.returncode, document["backfills"], {each["artifact"][-5:]: each["state"] for each in document["artifacts"]}

    def states(self, key: str) -> list[str]:
        """States of all attempts at a shard."""
        return [attempt.state for attempt in self.store.attempts(ArtifactId("filtered/words", "dev", key))]

    def build_raw(self, experiment: ModuleType) -> None:
        """As whoever mends a source does: withdraw it and build it anew."""
        raw = experiment.raw
        if self.store.record(raw.id) is not None:
            self.store.withdraw(raw.id)
        launcher = InlineLauncher(self.folder / "store" / ".jobs")
        Builder(graph=ArtifactGraph([raw]), store=self.store, target=self.store, launcher=launcher, events=QuietEvents()).build(raw, raw.id)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[DaemonAlone]:
    deployment = DaemonAlone(tmp_path)
    try:
        yield deployment
    finally:
        deployment.stop()


@pytest.fixture
def experiment(lab: DaemonAlone, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What the deployment declares, for this process."""
    from tests.integration.backfill_experiments import words

    monkeypatch.setenv(DOCUMENTS_VARIABLE, lab.environment[DOCUMENTS_VARIABLE])
    return importlib.reload(words)


def test_each_shard_is_built_once_though_the_daemon_is_killed_and_a_bad_one_fails_alone(lab: DaemonAlone, experiment: ModuleType) -> None:
    broken = lab.folder / "documents" / "4.jsonl.gz"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    lab.build_raw(experiment)

    lab.start_daemon()
    command = lab.backfill("--from", "00001", "--to", "00004")
    wait_for("a first attempt", lambda: lab.attempted(command), 600)
    lab.kill_daemon()
    lab.start_daemon()
    code, (backfill,), states = lab.finished(command)
    assert states == {"00001": "built", "00002": "built", "00003": "built", "00004": "failed"}
    assert code == 65
    assert [lab.states(f"{index:05d}") for index in range(6)] == [[], ["succeeded"], ["succeeded"], ["succeeded"], ["failed"], []]

    broken.write_bytes(whole)
    lab.build_raw(experiment)
    code, (mended,), states = lab.finished(lab.backfill("--failed"))
    assert (code, states) == (0, {"00004": "built"})
    assert lab.states("00004") == ["failed", "succeeded"]
    assert mended != backfill

    _, (asked,), states = lab.finished(lab.backfill("--no-wait"))
    assert {key for key, state in states.items() if state == "requested"} == {"00000", "00005"}
    code, (followed,), states = lab.finished(lab.backfill())
    assert (code, followed) == (0, asked)
    assert states == {f"{index:05d}": "built" if index in (0, 5) else "served" for index in range(6)}
    assert [lab.states(f"{index:05d}") for index in (0, 1, 2, 3, 5)] == [["succeeded"]] * 5
