"""A job of several processes: one verdict for all, and no process left behind. Most of it with processes that load nothing."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import pytest

from marin_assets.builder import Builder, QuietEvents, Retries
from marin_assets.launch import LocalLauncher, State
from marin_core import distributed
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Claim, Record, Resources, Store
from marin_core.artifact.ending import Ending, verdict
from marin_core.artifact.job import JobSpec
from marin_core.config import Config
from marin_core.errors import ConfigError, ExitCode, SupersededError
from marin_core.report import SilentReporter
from marin_jobs import gang, process, runtime, summary
from marin_jobs.gang import Place
from marin_jobs.provenance import Clock
from marin_jobs.reporting import FollowerReporter
from marin_jobs.runtime import JobContext
from tests.artifact.test_store import commit, lost, record

PROJECT = Path(__file__).resolve().parents[2]

RANK = """
import json, os, signal, sys
spec, _, process, _, coordinator, _ = sys.argv[1:]
happens = json.load(open(spec))["config"][process]
def end(code, message=None, peer_lost=False):
    with open(os.path.join(os.path.dirname(spec), f"outcome-{process}.json"), "w") as file:
        json.dump({"exit_code": code, "message": message, "peer_lost": peer_lost}, file)
    os._exit(code)
if happens == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif happens.startswith("when told "):
    signal.signal(signal.SIGTERM, lambda *_: end(int(happens[10:]), happens))
with open(os.path.join(os.path.dirname(spec), "ready"), "w") as ready:
    ready.write(f"{process} {coordinator}\\n")
if happens == "bad data":
    end(65, "DataError: shard 7")
if happens == "killed":
    os.kill(os.getpid(), 9)
while happens != "done":
    signal.pause()
"""
"""A process of a gang that says on a pipe when it is ready for what may come."""

COMMAND = (sys.executable, "-S", "-c", RANK)


def spec_of(folder: Path, config: Mapping[str, Any], **values: Any) -> JobSpec:
    given: dict[str, Any] = {"processes": 2, "lease_seconds": 60.0, **values}
    return JobSpec(
        name="toys/gang",
        version="v1",
        partition=None,
        job="summary",
        prefix=f"file://{folder}/store",
        config=dict(config),
        fingerprint="f" * 16,
        identity={},
        inputs=(),
        attempt=1,
        scratch=str(folder / "job"),
        **given,
    )


def written(spec: JobSpec) -> str:
    folder = Path(spec.scratch)
    folder.mkdir()
    path = folder / "spec.json"
    path.write_text(spec.model_dump_json())
    return str(path)


class Ranks:
    """A gang of processes that do what is said of each, its keeper in a thread of the test."""

    def __init__(self, folder: Path, *happens: str, grace_seconds: float = 60.0) -> None:
        self.spec = spec_of(folder, {str(number): what for number, what in enumerate(happens)}, processes=len(happens))
        self.uri = written(self.spec)
        os.mkfifo(folder / "job" / "ready")
        self._ready = os.fdopen(os.open(folder / "job" / "ready", os.O_RDWR), "r")
        self.stop = threading.Event()
        self.verdict: tuple[ExitCode, str | None] | None = None
        self._grace_seconds = grace_seconds

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self._thread.join(timeout=300)
        self._ready.close()

    def _keep(self) -> None:
        self.verdict = gang.keep(self.spec, self.uri, self.stop, grace_seconds=self._grace_seconds, command=COMMAND)

    def ready(self) -> set[str]:
        """Wait until all are ready; where they think that the coordinator is."""
        return {self._ready.readline().split()[1] for _ in range(self.spec.processes)}

    def end(self) -> tuple[ExitCode, str | None] | None:
        """Wait for the verdict."""
        self._thread.join(timeout=300)
        return self.verdict


# The keeper -------------------------------------------------------------------------------------------------------------


def test_a_gang_is_done_when_all_are(tmp_path: Path) -> None:
    with Ranks(tmp_path, "done", "done", "done") as ranks:
        assert ranks.end() == (ExitCode.DONE, None)


def test_bad_data_in_one_process_ends_all_and_is_the_verdict(tmp_path: Path) -> None:
    with Ranks(tmp_path, "when told 143", "bad data", "when told 70") as ranks:
        assert ranks.end() == (ExitCode.BAD_DATA, "process 1 of 3: DataError: shard 7")


def test_a_killed_process_is_infrastructure_whatever_the_others_make_of_it(tmp_path: Path) -> None:
    with Ranks(tmp_path, "when told 70", "killed") as ranks:
        assert ranks.end() == (ExitCode.TRY_AGAIN, "process 1 of 2: it was killed by SIGKILL")


def test_a_request_to_stop_reaches_every_process(tmp_path: Path) -> None:
    with Ranks(tmp_path, "when told 143", "when told 143") as ranks:
        ranks.ready()
        ranks.stop.set()
        assert ranks.end() == (ExitCode.PREEMPTED, "process 0 of 2: when told 143")


def test_a_process_that_does_not_end_is_killed_after_the_grace_and_is_not_the_cause(tmp_path: Path) -> None:
    with Ranks(tmp_path, "ignore", "bad data", grace_seconds=0.2) as ranks:
        assert ranks.end() == (ExitCode.BAD_DATA, "process 1 of 2: DataError: shard 7")


def test_all_meet_at_one_loopback_port_that_nobody_else_can_take_meanwhile(tmp_path: Path) -> None:
    with Ranks(tmp_path, "when told 143", "when told 143") as ranks:
        (address,) = ranks.ready()
        host, port = address.split(":")
        assert host == "127.0.0.1"
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))


def test_no_process_outlives_a_killed_keeper(tmp_path: Path) -> None:
    """Each process holds a pipe open for as long as it lives."""
    spec = spec_of(tmp_path, {})
    uri = written(spec)
    os.mkfifo(tmp_path / "alive")
    rank = (
        "import os, signal; from marin_jobs import gang; gang.end_with_keeper(); "
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN); alive = os.open({str(tmp_path / 'alive')!r}, os.O_WRONLY); "
        "os.write(alive, b'x'); signal.pause()"
    )
    script = (
        "import sys, threading; from marin_jobs import gang; from marin_core.artifact.job import JobSpec; "
        f"spec = JobSpec.model_validate_json(open({uri!r}).read()); "
        f"gang.keep(spec, {uri!r}, threading.Event(), command=(sys.executable, '-c', {rank!r}))"
    )
    keeper = subprocess.Popen([sys.executable, "-c", script], cwd=PROJECT)
    with (tmp_path / "alive").open("rb", buffering=0) as alive:
        assert [alive.read(1), alive.read(1)] == [b"x", b"x"]
        keeper.kill()
        keeper.wait()
        assert alive.read() == b""  # the pipe's end: nobody holds it any more


# The verdict ------------------------------------------------------------------------------------------------------------


def ending(process: int, code: int, look: int = 1, *, peer_lost: bool = False, put_down: bool = False) -> Ending:
    return Ending(process, code, f"says {code}" if code > 0 else None, peer_lost, look, put_down)


VERDICTS: dict[str, tuple[list[Ending], ExitCode, int]] = {
    "a bug before bad luck": ([ending(0, 75), ending(1, 70)], ExitCode.BUG, 1),
    "bad data before a bug": ([ending(0, 70), ending(1, 65)], ExitCode.BAD_DATA, 1),
    "bad configuration before bad data": ([ending(0, 65), ending(1, 64)], ExitCode.BAD_CONFIG, 1),
    "bad data though found last": ([ending(0, 75), ending(1, 65, look=9)], ExitCode.BAD_DATA, 1),
    "infrastructure before preemption": ([ending(0, 143), ending(1, 75)], ExitCode.TRY_AGAIN, 1),
    "all saved": ([ending(0, 143), ending(1, 143, look=2)], ExitCode.PREEMPTED, 0),
    "one finished, one saved": ([ending(0, 143), ending(1, 0)], ExitCode.PREEMPTED, 0),
    "a bug, the other missed it": ([ending(0, 75, peer_lost=True), ending(1, 70)], ExitCode.BUG, 1),
    "a bug, the other was aborted by JAX": ([ending(0, 70), ending(1, -signal.SIGABRT, look=2)], ExitCode.BUG, 0),
    "killed, the other fails at once": ([ending(0, 70), ending(1, -signal.SIGKILL)], ExitCode.TRY_AGAIN, 1),
    "killed, the other fails later": ([ending(0, 70, look=2), ending(1, -signal.SIGKILL)], ExitCode.TRY_AGAIN, 1),
    "killed, the other missed it before it was seen": (
        [ending(0, 75, peer_lost=True), ending(1, -signal.SIGKILL, look=2)],
        ExitCode.TRY_AGAIN,
        0,
    ),
    "killed, the other saved when it was told to end": ([ending(0, 143, look=2), ending(1, -signal.SIGKILL)], ExitCode.TRY_AGAIN, 1),
    "hung, and had to be killed": ([ending(0, 75, peer_lost=True), ending(1, -signal.SIGKILL, 9, put_down=True)], ExitCode.TRY_AGAIN, 0),
    "asked to stop before one had begun": ([ending(0, -signal.SIGTERM), ending(1, -signal.SIGTERM)], ExitCode.PREEMPTED, 0),
    "a broken installation": ([ending(0, 1), ending(1, 1)], ExitCode.BUG, 0),
    "they lost touch": ([ending(0, 75, peer_lost=True), ending(1, 75, peer_lost=True)], ExitCode.TRY_AGAIN, 0),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_the_gravest_cause_decides_and_what_follows_from_it_does_not(case: str) -> None:
    endings, code, culprit = VERDICTS[case]
    found, message = verdict(endings)
    assert found == code
    assert message is not None
    assert message.startswith(f"process {culprit} of 2: ")


def test_what_the_lead_has_committed_is_done() -> None:
    assert verdict([ending(0, 0), ending(1, -signal.SIGKILL)]) == (ExitCode.DONE, None)


# Resources and arguments ------------------------------------------------------------------------------------------------


class Toy(Config):
    happens: str = "nothing"


def test_how_many_processes_build_an_artifact_is_not_its_identity() -> None:
    def fingerprint(resources: Resources) -> str:
        step = ArtifactStep("toys/gang", "v1", job="train", build_config=lambda ctx: Toy(), resources=resources)
        return ArtifactGraph([step]).fingerprint(step)

    assert fingerprint(Resources(processes=4, devices_per_process=2)) == fingerprint(Resources())


@pytest.mark.parametrize("values", [{"processes": 0}, {"devices_per_process": 0}, {"processes": 2, "inline": True}])
def test_impossible_resources_are_refused_where_they_are_made(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"processes|devices_per_process"):
        Resources(**values)


@pytest.mark.parametrize(
    "arguments", [["--process", "2", "--coordinator", "127.0.0.1:1"], ["--process", "0"], ["--coordinator", "127.0.0.1:1"], ["--nonsense"]]
)
def test_arguments_that_name_no_process_of_the_gang_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    assert process.main([written(spec_of(tmp_path, {})), *arguments]) == ExitCode.BAD_CONFIG


def test_a_follower_is_heard_in_the_log_alone_and_says_who_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = FollowerReporter(3, threading.Event(), sys.stdout)
    reporter.progress(1, 2, "steps")
    reporter.metrics({"loss": 1.0}, 1)
    reporter.plots({"loss": Path("loss.png")}, 1)
    reporter.alert({"name": "loss_spike", "message": "it rose"}, raised=True)
    reporter.log("restored step 4")
    assert capsys.readouterr().out == "[process 3] restored step 4\n"


# A whole job ------------------------------------------------------------------------------------------------------------


def run_toy(folder: Path, monkeypatch: pytest.MonkeyPatch, happens: str) -> tuple[int, dict[str, Any], Store, JobSpec]:
    """The toy job in two processes of two devices: exit code, outcome, store, spec."""
    spec = spec_of(folder, {"happens": happens}, devices_per_process=2)
    uri = written(spec)
    store = Store(spec.prefix)
    assert store.claim(spec.id, Claim(number=1, job="m-1", fingerprint="f" * 16, submitted_at="now", host="here"))
    monkeypatch.setattr(gang, "keep", partial(gang.keep, command=(sys.executable, "-m", "tests.jobs.toy_gang")))
    code = process.run_gang(spec, uri, threading.Event())
    return code, json.loads((folder / "job" / "outcome.json").read_text()), store, spec


def test_two_processes_build_one_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    code, outcome, store, spec = run_toy(tmp_path, monkeypatch, "nothing")
    said, complaints = capfd.readouterr()
    assert (code, outcome) == (ExitCode.DONE, {"exit_code": 0, "message": None}), complaints
    built = store.record(spec.id)
    assert built is not None
    assert [file.path for file in built.files] == ["saved-0", "saved-1"]
    assert built.metrics == {"total": 9, "first_step": 0}  # steps 0, 1, 2 of both, and process 1 adds its number each time
    assert "[process 1] sees 4 devices" in said.splitlines()
    assert "sees 4 devices" in said.splitlines()
    assert built.usage.peak_memory_bytes > 200e6  # of both together; one alone has about 170 MB


@pytest.mark.parametrize(
    ("happens", "code", "failure", "message"),
    [
        pytest.param("bad data", ExitCode.BAD_DATA, "data", "process 1 of 2: DataError: shard 7 is broken", marks=pytest.mark.slow),
        ("stop", ExitCode.PREEMPTED, "preempted", "PreemptedError: saved after step 1"),
    ],
)
def test_the_end_of_one_process_is_the_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: str, code: ExitCode, failure: str, message: str
) -> None:
    found, outcome, store, spec = run_toy(tmp_path, monkeypatch, happens)
    end = store.end(spec.id, 1)
    assert end is not None
    assert (found, outcome["exit_code"], end.exit_code, end.failure) == (code, code, code, failure)
    assert message in outcome["message"]
    if happens == "stop":  # one was asked, both agreed on the step
        output = store.output_path(spec.id, 1)
        assert output is not None
        assert [(output / f"saved-{process}").read_text() for process in range(2)] == ["1", "1"]


class Toys(QuietEvents):
    """Starts job processes in which the toy stands for the job `summary`."""

    def __init__(self, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text("from tests.jobs import toy_gang; toy_gang.install()")
        self.environment = {"PYTHONPATH": f"{folder}:{PROJECT}"}
        self.warnings: list[str] = []

    def warning(self, message: str) -> None:
        self.warnings.append(message)


def test_a_killed_process_costs_an_attempt_and_the_next_goes_on_from_what_was_saved(tmp_path: Path) -> None:
    """Through builder and launcher, as Dagster builds it."""
    resources = Resources(processes=2, devices_per_process=2)
    step = ArtifactStep("toys/gang", "v1", job="summary", build_config=lambda ctx: Toy(happens="kill"), resources=resources)
    store, events = Store(f"file://{tmp_path}/store"), Toys(tmp_path)
    launcher = LocalLauncher(tmp_path / "jobs")
    builder = Builder(ArtifactGraph([step]), store, store, launcher, events, Retries(first_delay_seconds=0.0))
    built, _ = builder.build(step, step.id)
    end = store.attempts(step.id)[0].end
    assert end is not None
    assert (end.state, end.failure, end.exit_code) == ("failed", "infrastructure", ExitCode.TRY_AGAIN)
    assert end.error == "process 1 of 2: it was killed by SIGKILL"
    assert built.attempt == 2
    assert built.metrics == {"total": 8, "first_step": 1}
    assert len(events.warnings) == 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What the lead tells the others, of a gang that exists in name only."""
    said: list[str | None] = []
    monkeypatch.setattr(summary, "GANG", True, raising=False)
    monkeypatch.setattr(summary, "run", lambda job: pytest.fail("nothing is to be built"))
    for name in ("start", "stop"):
        monkeypatch.setattr(distributed, name, lambda *arguments, **options: None)
    monkeypatch.setattr(distributed, "from_lead", said.append)  # returns None, as to a follower that has nothing to do
    return said


@pytest.mark.parametrize("process", [0, 1])
def test_nobody_builds_what_is_committed_already(tmp_path: Path, told: list[str | None], process: int) -> None:
    spec = spec_of(tmp_path, {})
    commit(Store(spec.prefix), record(spec.id))
    runtime.build_in_gang(spec, Place(process, 2, "127.0.0.1:1"), SilentReporter(), Clock.start())
    assert told == [None]


def test_a_lead_that_was_given_up_sends_the_others_home_and_says_why(tmp_path: Path, told: list[str | None]) -> None:
    spec = spec_of(tmp_path, {})
    Store(spec.prefix).close(spec.id, 1, lost("its lease ran out"))
    with pytest.raises(SupersededError, match="its lease ran out"):
        runtime.build_in_gang(spec, Place(0, 2, "127.0.0.1:1"), SilentReporter(), Clock.start())
    assert told == [""]


def test_processes_download_side_by_side_and_not_over_each_other(tmp_path: Path) -> None:
    class Remote:
        def payload_path(self, record: Record) -> None: ...

        def payload_url(self, record: Record) -> str:
            return "gs://lab/a/payload/00001"

        def download(self, record: Record, target: Path, below: str) -> None:
            target.mkdir(parents=True)

    inputs, remote = {"gs://lab/a": record(ArtifactId("raw/a", "v1"))}, cast(Store, Remote())
    contexts = [JobContext(spec_of(tmp_path, {}), remote, tmp_path, tmp_path, inputs, SilentReporter(), process) for process in range(3)]
    folders = [context.local("gs://lab/a") for context in contexts]
    assert len(set(folders)) == 3
    assert all(folder.is_relative_to(tmp_path / "inputs") for folder in folders)  # which is cleared when the job ends


def test_a_job_that_does_not_know_gangs_refuses_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Through the launcher, as Dagster starts it: the keeper starts real job processes, which refuse before they load JAX."""
    launcher = LocalLauncher(tmp_path / "jobs")
    handle = launcher.handle("m-toy")
    spec = spec_of(tmp_path, {}).model_copy(update={"scratch": str(handle.folder)})
    launcher.submit("m-toy", spec, {})
    launcher._children["m-toy"].wait(timeout=300)
    seen = launcher.observe(handle)
    assert (seen.state, seen.exit_code) == (State.FAILED, ExitCode.BAD_CONFIG)
    assert "job 'summary', which can't run in 2 processes" in seen.reason
