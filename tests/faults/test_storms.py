"""Many builders at once, builders that sleep, clocks that differ, leases that are lost, interrupts, and failures of every class."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta, tzinfo
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import psutil
import pytest

from marin_assets import builder as building
from marin_assets.builder import Builder, BuildError, QuietEvents, Retries
from marin_assets.launch import Handle, InlineLauncher, LocalLauncher, Observation, State, local
from marin_assets.launch.local import process_start
from marin_core.artifact import ArtifactId, Attempt, Claim, End, Store, lease
from marin_core.artifact.job import JobSpec
from marin_core.artifact.lease import BEATS_PER_LEASE, Heartbeat, LeaseWatch
from marin_core.artifact.store import META
from marin_core.errors import ConfigError, DataError, ExitCode, InfrastructureError, PreemptedError
from tests.artifact.test_store import record, success
from tests.faults.drill import (
    BuilderOrder,
    FilePeek,
    ForkLauncher,
    HttpPeek,
    Invariants,
    Peek,
    SmallLab,
    Zygote,
    attempts_of,
    is_running,
    kill,
    make_builder,
    process_state,
    run_builder,
    undisturbed,
    write_documents,
)
from tests.storage.gcs import FakeGcs

RAW = ArtifactId("raw/local", "v1")
FILES = 8
"""Of the raw source: its job polls for a stop and reports progress once a file."""


# What runs in forked processes ------------------------------------------------------------------------------------------


def run_job(
    spec: str,
    *,
    stop_at: Literal["building", "closing", "publishing"] | None = None,
    step_seconds: float = 0.0,
    deaf: bool = False,
    slow_store_seconds: float = 0.0,
    clock_shift_seconds: float = 0.0,
    fails: str | None = None,
) -> int:
    """A job process whose machine, store or code has a problem.

    Args:
        stop_at: stop the whole process there, once, as SIGSTOP or a frozen machine does.
        step_seconds: how long each file takes.
        deaf: never ask whether to stop.
        slow_store_seconds: how long each sign of life takes to arrive.
        fails: class of the error that the job raises, or `kill`.
    """
    from marin_jobs import ingest, process
    from marin_jobs.reporting import JobReporter

    shift_clocks(clock_shift_seconds)
    progress = JobReporter.progress
    steps = count(1)

    def step(self: JobReporter, done: int, total: int, unit: str) -> None:
        progress(self, done, total, unit)
        number = next(steps)
        print(f"step {number}", flush=True)
        if stop_at == "building" and number == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(step_seconds)

    JobReporter.progress = step  # type: ignore[method-assign]
    if deaf:
        JobReporter.stop_requested = lambda self: False  # type: ignore[method-assign]
    if stop_at == "closing":
        _stop_before(Store, "close")
    if stop_at == "publishing":
        _stop_before(Store, "_publish")
    if slow_store_seconds:
        _sleep_before(Store, "beat", slow_store_seconds)
    if fails is not None:
        ingest.run = _failing(fails)
    return process.main([spec])


def _stop_before(cls: type, name: str) -> None:
    method = getattr(cls, name)

    def stopping(*arguments: Any) -> Any:
        setattr(cls, name, method)
        print(f"stopping before {name}", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        return method(*arguments)

    setattr(cls, name, stopping)


def _sleep_before(cls: type, name: str, seconds: float) -> None:
    method = getattr(cls, name)

    def sleeping(*arguments: Any) -> Any:
        time.sleep(seconds)
        return method(*arguments)

    setattr(cls, name, sleeping)


def _failing(how: str) -> Callable[..., Any]:
    errors: dict[str, Exception] = {
        "config": ConfigError("the threshold 9 is above 1", advice="Lower it."),
        "data": DataError("line 3 of part-2 is cut", advice="Repair it."),
        "bug": KeyError("a defect"),
        "infrastructure": OSError(28, "No space left on device"),
        "preempted": PreemptedError("saved at step 7", advice="Start it again."),
    }

    def run(job: Any) -> Any:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise errors[how]

    return run


def run_shifted_builder(clock_shift_seconds: float, **order: Any) -> int:
    """A builder process whose clock is wrong."""
    shift_clocks(clock_shift_seconds)
    return run_builder(**order)


def run_cut_off_builder(cut_off_seconds: float, **order: Any) -> int:
    """A builder process that can't reach the store for a while, once it waits for another's build."""
    first: list[float] = []

    def cut(name: str) -> None:
        method = getattr(Store, name)

        def unreachable(*arguments: Any) -> Any:
            first.append(time.monotonic())
            if time.monotonic() - first[0] < cut_off_seconds:
                raise InfrastructureError("the store doesn't answer", advice="Wait.")
            return method(*arguments)

        setattr(Store, name, unreachable)

    cut("last_beat")
    cut("end")
    return run_builder(**order)


def run_builders_in_threads(orders: list[dict[str, Any]]) -> int:
    """One process with a builder in each of many threads."""
    building.POLL_SECONDS = building.POLL_ELSEWHERE_SECONDS = 0.2
    threads = [threading.Thread(target=run_builder_quietly, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


def run_builder_quietly(order: dict[str, Any]) -> None:
    """`run_builder` where signals can't be set."""
    made = BuilderOrder(**{**order, "artifact": tuple(order["artifact"])})
    step = SmallLab(Path(made.documents)).step(made.id)
    time.sleep(max(0.0, (made.start_at or 0.0) - time.monotonic()))
    record, served = make_builder(made, step).build(step, made.id)
    Path(made.result).write_text(json.dumps({"record": record.model_dump(mode="json"), "served": served}))


def shift_clocks(seconds: float) -> None:
    """Set this process's wall clocks wrong; the monotonic one stays."""
    if not seconds:
        return
    wall, wall_ns, real = time.time, time.time_ns, datetime

    class Shifted(real):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return real.now(tz) + timedelta(seconds=seconds)

    time.time = lambda: wall() + seconds
    time.time_ns = lambda: wall_ns() + int(seconds * 1e9)
    for module in list(sys.modules.values()):
        if getattr(module, "datetime", None) is real:
            module.datetime = Shifted  # type: ignore[attr-defined]


# The tests' side --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    write_documents(folder / "documents", FILES)
    return folder


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


@pytest.fixture(scope="module")
def digests(documents: Path, zygote: Zygote) -> dict[str, tuple[str, str]]:
    return undisturbed(documents, zygote)


@pytest.fixture(scope="module")
def gcs() -> Iterator[tuple[FakeGcs, Zygote]]:
    with FakeGcs() as server, Zygote(server.environment()) as zygote:
        yield server, zygote


class Place:
    """An empty store, and builders that work in it.

    Attributes:
        logs: of all processes of this test.
    """

    def __init__(self, folder: Path, documents: Path, zygote: Zygote, peek: Peek) -> None:
        self.folder = folder
        self.zygote = zygote
        self.peek = peek
        self.lab = SmallLab(documents / "documents")
        self._orders = 0

    def order(self, host: str, artifact: ArtifactId = RAW, **changes: Any) -> BuilderOrder:
        self._orders += 1
        values: dict[str, Any] = {
            "prefix": self.peek.prefix,
            "documents": str(self.lab.documents),
            "artifact": (artifact.name, artifact.version, artifact.partition),
            "launcher": "fork",
            "zygote": self.zygote.address,
            "host": host,
            "root": str(self.folder / f"jobs-{host}"),
            "result": str(self.folder / f"result-{self._orders}"),
            "poll_seconds": 0.05,
            "job_call": "tests.faults.test_storms:run_job",
        }
        return BuilderOrder(**(values | changes))

    def start(self, order: BuilderOrder, call: str = "tests.faults.drill:run_builder", **arguments: Any) -> int:
        return self.zygote.spawn(call, {**arguments, **asdict(order)}, Path(f"{order.result}.log"))

    def finish(self, pid: int, order: BuilderOrder, timeout_seconds: float = 300) -> dict[str, Any]:
        """What a builder built."""
        (code,) = self.zygote.wait([pid], timeout_seconds)
        assert code == 0, Path(f"{order.result}.log").read_text()
        return self.result(order)

    def result(self, order: BuilderOrder) -> dict[str, Any]:
        return dict(json.loads(Path(order.result).read_text()))

    def attempts(self, artifact: ArtifactId = RAW) -> list[Attempt]:
        return attempts_of(self.peek, artifact)

    def jobs(self) -> list[Path]:
        return sorted(self.folder.glob("jobs-*/m-*"))

    def job(self, number: int = 0) -> int:
        """Process of a job, once it runs."""
        return int(json.loads(wait_for(lambda: _text(self.jobs()[number] / "process.json")))["pid"])

    def invariants(self, digests: Mapping[str, tuple[str, str]]) -> Invariants:
        return Invariants(self.peek, digests, list(self.folder.glob("jobs-*")))

    def snapshot(self, artifact: ArtifactId = RAW) -> dict[str, bytes | None]:
        """Every byte at an address."""
        return {name: self.peek.read(f"{artifact.path}/{name}") for name in self.peek.names(artifact.path)}

    def stopped(self, number: int = 0) -> int:
        """Process of a job, once it has stopped itself."""
        pid = self.job(number)
        wait_for(lambda: process_state(pid) == "T")
        return pid


@pytest.fixture
def place(tmp_path: Path, documents: Path, zygote: Zygote) -> Place:
    return Place(tmp_path, documents, zygote, FilePeek(tmp_path / "store"))


@pytest.fixture
def gcs_place(tmp_path: Path, documents: Path, gcs: tuple[FakeGcs, Zygote]) -> Place:
    server, zygote = gcs
    return Place(tmp_path, documents, zygote, HttpPeek(server.url, server.bucket, tmp_path.name))


@pytest.fixture(params=["file", pytest.param("gcs", marks=pytest.mark.slow)])
def any_place(request: pytest.FixtureRequest) -> Place:
    found = request.getfixturevalue("place" if request.param == "file" else "gcs_place")
    assert isinstance(found, Place)
    return found


def wait_for[T](look: Callable[[], T | None], timeout_seconds: float = 300) -> T:
    """What is seen once there is something to see."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            seen = look()
        except (FileNotFoundError, IndexError):
            seen = None
        if seen:
            return seen
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def _text(path: Path) -> str:
    return path.read_text()


# Storms -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["fork", "inline"])
def test_of_64_builders_at_once_one_builds_and_all_return_its_record(
    any_place: Place, digests: dict[str, tuple[str, str]], launcher: str
) -> None:
    at = time.monotonic() + 4
    orders = [any_place.order("one", launcher=launcher, start_at=at, poll_seconds=0.2) for _ in range(64)]
    pids = [any_place.start(order) for order in orders]
    codes = any_place.zygote.wait(pids, 240)
    assert codes == [0] * 64, [Path(f"{order.result}.log").read_text() for order, code in zip(orders, codes, strict=True) if code][:2]
    assert [attempt.state for attempt in any_place.attempts()] == ["succeeded"]
    assert len(any_place.jobs()) == 1
    record = any_place.invariants(digests).look(RAW)
    assert record is not None
    assert all(any_place.result(order)["record"] == record.model_dump(mode="json") for order in orders)


def test_64_builders_in_threads_of_eight_processes_build_once(place: Place, digests: dict[str, tuple[str, str]]) -> None:
    at = time.monotonic() + 2
    orders = [asdict(place.order(f"host-{number % 2}", start_at=at, poll_seconds=0.2)) for number in range(64)]
    call = "tests.faults.test_storms:run_builders_in_threads"
    pids = [place.zygote.spawn(call, {"orders": orders[start::8]}, place.folder / f"log-{start}") for start in range(8)]
    assert place.zygote.wait(pids, 240) == [0] * 8
    assert [attempt.state for attempt in place.attempts()] == ["succeeded"]
    assert len(place.jobs()) == 1
    records = [json.loads(Path(order["result"]).read_text())["record"] for order in orders]
    assert all(record == records[0] for record in records)
    assert place.invariants(digests).look(RAW) is not None


# Builders that sleep ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_at", ["building", "closing"])
def test_a_job_that_slept_through_its_lease_changes_nothing_and_says_why(
    any_place: Place, digests: dict[str, tuple[str, str]], stop_at: str
) -> None:
    place = any_place
    sleeper = place.order("a", lease_seconds=4.0, job_arguments={"stop_at": stop_at})
    builder = place.start(sleeper)
    job = place.stopped()
    os.kill(builder, signal.SIGSTOP)  # a whole machine is frozen
    successor = place.order("b", lease_seconds=4.0)
    built = place.finish(place.start(successor), successor)
    assert built["attempt"] == 2
    invariants = place.invariants(digests)
    before = place.snapshot()
    assert invariants.look(RAW) is not None

    os.kill(job, signal.SIGCONT)
    wait_for(lambda: invariants.look(RAW) and job in place.zygote.ended())
    assert place.zygote.ended()[job] == ExitCode.BAD_CONFIG
    said = (place.jobs()[0] / "log").read_text()
    assert "SupersededError" in said
    assert "lost its lease and was given up by another builder" in said
    assert place.snapshot() == before
    assert json.loads((place.jobs()[0] / "outcome.json").read_text())["exit_code"] == ExitCode.BAD_CONFIG

    os.kill(builder, signal.SIGCONT)
    assert place.finish(builder, sleeper)["record"] == built["record"]
    assert place.snapshot() == before
    assert [attempt.state for attempt in place.attempts()] == ["lost", "succeeded"]
    assert "no sign of life from a for 4 s" in (place.attempts()[0].error or "")
    invariants.all([RAW], final=True)


def test_what_a_builder_closed_before_it_slept_is_published_by_the_next(any_place: Place, digests: dict[str, tuple[str, str]]) -> None:
    place = any_place
    sleeper = place.order("a", lease_seconds=4.0, job_arguments={"stop_at": "publishing"})
    builder = place.start(sleeper)
    job = place.stopped()
    os.kill(builder, signal.SIGSTOP)
    assert place.peek.read(f"{RAW.path}/{META}/record.json") is None
    successor = place.order("b", lease_seconds=4.0)
    built = place.finish(place.start(successor), successor)
    assert built["attempt"] == 1
    before = place.snapshot()
    for pid in (job, builder):
        os.kill(pid, signal.SIGCONT)
    assert place.zygote.wait([job, builder]) == [0, 0]
    assert place.result(sleeper)["record"] == built["record"]
    assert place.snapshot() == before
    assert len(place.jobs()) == 1
    place.invariants(digests).all([RAW], final=True)


def test_a_watcher_that_slept_looks_again_before_it_gives_anybody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both may have been frozen, and the watcher may be the first to wake."""
    store = Store(str(tmp_path))
    now = [1000.0]
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watch = LeaseWatch(store, RAW, 1, lease_seconds=60)
    assert not watch.expired()
    now[0] += 3600
    looks = 0
    while not watch.expired():
        looks += 1
        now[0] += 5
    assert looks >= BEATS_PER_LEASE - 1
    now[0] += 3600
    store.beat(RAW, 1, 7)
    assert not watch.expired()


# Clocks and slow stores -------------------------------------------------------------------------------------------------


def test_neither_wrong_clocks_nor_slow_stores_give_up_a_living_builder_and_the_dead_are_given_up(
    place: Place, digests: dict[str, tuple[str, str]]
) -> None:
    """Six pairs of builders on two hosts at once: a holder that needs twice as long as its lease, and one that waits for it."""
    lease_seconds, slow = 8.0, {"step_seconds": 2.2}
    cases: dict[str, tuple[float, dict[str, Any], bool]] = {
        "ahead, living": (600, slow, True),
        "behind, living": (-600, slow, True),
        "ahead, dead": (600, {"stop_at": "building"}, False),
        "behind, dead": (-600, {"stop_at": "building"}, False),
        "slow store": (0, {**slow, "slow_store_seconds": 2.0}, True),
        "cut off": (0, slow, True),
    }
    holders, waiters = {}, {}
    stores = {
        name: Place(place.folder / f"{number}", place.lab.documents.parent, place.zygote, FilePeek(place.folder / f"{number}/store"))
        for number, name in enumerate(cases)
    }
    for name, (shift, arguments, _) in cases.items():
        here = stores[name]
        here.folder.mkdir()
        arguments = {**arguments, "clock_shift_seconds": shift}
        order = here.order("a", lease_seconds=lease_seconds, job_arguments=arguments)
        holders[name] = (here.start(order, "tests.faults.test_storms:run_shifted_builder", clock_shift_seconds=shift), order)
    for name, (_, _, lives) in cases.items():
        here = stores[name]
        if not lives:
            job = here.stopped()
            kill(holders[name][0])
            kill(job)
        here.job()
        order = here.order("b", lease_seconds=lease_seconds)
        call, more = "tests.faults.drill:run_builder", {}
        if name == "cut off":
            call, more = "tests.faults.test_storms:run_cut_off_builder", {"cut_off_seconds": 1.5 * lease_seconds}
        waiters[name] = (here.start(order, call, **more), order)
    for name, (shift, _, lives) in cases.items():
        here = stores[name]
        built = here.finish(*waiters[name])
        expected = ["succeeded"] if lives else ["lost", "succeeded"]
        assert [attempt.state for attempt in here.attempts()] == expected, name
        if lives:
            assert here.finish(*holders[name])["record"] == built["record"], name
        claimed = datetime.fromisoformat(here.attempts()[0].claim.submitted_at).timestamp()
        assert abs(claimed - shift - time.time()) < 300, name
        here.invariants(digests).all([RAW], final=True)


def test_setting_the_clock_does_not_make_a_job_look_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start times since the epoch move with the clock; psutil adds the machine's boot time, which is now minus its age."""
    launcher = LocalLauncher(tmp_path)
    handle = launcher.handle("m-long")
    handle.folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as job:
        launcher._remember(handle, job.pid)
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: psutil.boot_time() + 600)
        assert launcher.observe(handle).state == State.RUNNING
        job.kill()
    assert launcher.observe(handle).state == State.VANISHED


# Leases that are lost ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deaf", [False, True])
def test_a_job_that_lost_its_lease_ends_at_its_next_step_or_is_ended(place: Place, deaf: bool) -> None:
    order = place.order("a", lease_seconds=6.0, retries=0, job_arguments={"step_seconds": 4.0 if deaf else 0.7, "deaf": deaf})
    builder = place.start(order)
    job = place.job()
    wait_for(lambda: "step 1" in (place.jobs()[0] / "log").read_text())
    Store(place.peek.prefix).close(RAW, 1, End(state="lost", ended_at="now", failure="infrastructure", error="given up by hand"))
    (code,) = place.zygote.wait([job])
    assert code == ExitCode.BAD_CONFIG
    said = (place.jobs()[0] / "log").read_text()
    assert "given up by hand" in said
    assert f"step {FILES}" not in said
    outcome = json.loads((place.jobs()[0] / "outcome.json").read_text())
    assert outcome["exit_code"] == ExitCode.BAD_CONFIG
    assert "lost its lease" in outcome["message"]
    assert place.zygote.wait([builder]) == [ExitCode.TRY_AGAIN]


def test_a_builders_own_success_is_no_loss_of_its_lease(tmp_path: Path) -> None:
    """A commit lasts longer than a beat where the store is slow or there is much debris."""
    store = Store(str(tmp_path))
    heard: list[End] = []
    store.claim(RAW, Claim(number=1, job="m", fingerprint="f", submitted_at="now"))
    with Heartbeat(store, RAW, 1, lease_seconds=0.06, on_lost=heard.append) as heartbeat:
        wait_for(lambda: store.last_beat(RAW, 1))
        store.close(RAW, 1, success(record(RAW)))
        time.sleep(0.2)
    assert heard == []
    assert heartbeat.lost is None


def test_a_heartbeat_outlives_whatever_the_store_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    failures = iter([InfrastructureError("no answer", advice="-"), ConfigError("403", advice="-"), RuntimeError("a defect")])

    def failing(artifact: ArtifactId, number: int) -> End | None:
        for error in failures:
            raise error
        return None

    monkeypatch.setattr(store, "end", failing)
    with Heartbeat(store, RAW, 1, lease_seconds=0.06, on_lost=lambda end: None):
        assert wait_for(lambda: store.last_beat(RAW, 1))


def test_the_lease_of_a_job_that_waits_for_its_machine_is_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of a cluster may hold it for longer than any lease; whoever submitted it gives the signs of life."""
    lease_seconds = 6.0
    started = time.monotonic()

    class Queue(ForkLauncher):
        def observe(self, handle: Handle) -> Observation:
            seen = super().observe(handle)
            return seen if time.monotonic() - started > 3 * lease_seconds else Observation(State.PENDING)

    order = place.order("a", lease_seconds=lease_seconds, job_arguments={"stop_at": "building"})
    builder = replace(
        make_builder(order, place.lab.raw), launcher=Queue(Path(order.root), place.zygote.address, "a", order.job_call, order.job_arguments)
    )
    thread = threading.Thread(target=builder.build, args=(place.lab.raw, RAW))
    thread.start()
    job = place.stopped()  # a job that gives no sign itself
    watch = LeaseWatch(builder.target, RAW, 1, lease_seconds)
    while time.monotonic() - started < 2.5 * lease_seconds:
        assert not watch.expired()
        time.sleep(0.05)
    os.kill(job, signal.SIGCONT)
    thread.join()
    assert [attempt.state for attempt in place.attempts()] == ["succeeded"]


# Interrupts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stop_means_job", [False, True])
def test_an_interrupted_builder_leaves_its_job_or_stops_it(
    place: Place, digests: dict[str, tuple[str, str]], number: signal.Signals, stop_means_job: bool
) -> None:
    order = place.order("a", stop_means_job=stop_means_job, job_arguments={"step_seconds": 0.5})
    builder = place.start(order)
    job = place.job()
    wait_for(lambda: "step 1" in (place.jobs()[0] / "log").read_text())
    os.kill(builder, number)
    assert place.zygote.wait([builder]) == [1]
    assert "KeyboardInterrupt" in Path(f"{order.result}.log").read_text()
    if stop_means_job:
        assert place.zygote.wait([job]) == [ExitCode.PREEMPTED]
        (attempt,) = place.attempts()
        assert (attempt.state, attempt.end and attempt.end.failure) == ("failed", "preempted")
    else:
        assert is_running(job)
        assert [attempt.state for attempt in place.attempts()] == ["open"]
    following = place.order("a")
    built = place.finish(place.start(following), following)
    assert built["attempt"] == (2 if stop_means_job else 1)
    place.invariants(digests).all([RAW], final=True)


class Interrupted(InlineLauncher):
    """Sees a job that another process runs inline, until whoever watches it is interrupted."""

    def observe(self, handle: Handle) -> Observation:
        raise KeyboardInterrupt


def test_an_interrupt_of_who_watches_an_inline_job_does_not_end_it(place: Place) -> None:
    order = place.order("a", launcher="inline")
    builder = make_builder(order, place.lab.raw)
    assert builder.target.claim(RAW, claim_of(builder, place.lab.raw.id))
    with pytest.raises(KeyboardInterrupt):
        replace(builder, launcher=Interrupted(Path(order.root), "a")).build(place.lab.raw, RAW)
    assert [attempt.state for attempt in place.attempts()] == ["open"]


def claim_of(builder: Builder, artifact: ArtifactId, **changes: Any) -> Claim:
    """A claim that a builder has just written."""
    values: dict[str, Any] = {
        "number": 1,
        "job": "m-a1",
        "fingerprint": builder.graph.fingerprint(builder.graph[artifact]),
        "host": builder.launcher.host,
    }
    return Claim(submitted_at="now", **(values | changes))


# Failures ---------------------------------------------------------------------------------------------------------------


def build_and_fail(place: Place, pauses: list[float], monkeypatch: pytest.MonkeyPatch, fails: str, retries: Retries) -> BuildError:
    """Build the raw source with a job that fails in one way; the pauses between tries are noted instead of slept."""
    order = place.order("a", job_arguments={"fails": fails})
    builder = make_builder(order, place.lab.raw, retries=retries, events=QuietEvents())
    poll = building.POLL_SECONDS

    def sleep(seconds: float) -> None:
        if seconds == poll:
            time.sleep(seconds)
        else:
            pauses.append(seconds)

    monkeypatch.setattr(building, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    with pytest.raises(BuildError) as failed:
        builder.build(place.lab.raw, RAW)
    return failed.value


@pytest.mark.parametrize(
    ("fails", "code", "message"),
    [
        ("config", ExitCode.BAD_CONFIG, "ConfigError: the threshold 9 is above 1"),
        ("data", ExitCode.BAD_DATA, "DataError: line 3 of part-2 is cut"),
        ("bug", ExitCode.BUG, "KeyError: 'a defect'"),
    ],
)
def test_what_people_must_repair_is_tried_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, fails: str, code: ExitCode, message: str
) -> None:
    pauses: list[float] = []
    error = build_and_fail(place, pauses, monkeypatch, fails, Retries(infrastructure=9, preempted=9))
    assert pauses == []
    assert error.exit_code == code
    assert message in str(error)
    (attempt,) = place.attempts()
    assert attempt.end is not None
    assert (attempt.end.failure, attempt.end.exit_code) == (fails, code)
    assert message in (attempt.end.error or "")
    assert_explained(place, attempt)


@pytest.mark.parametrize(
    ("fails", "code", "failure", "message"),
    [
        ("infrastructure", ExitCode.TRY_AGAIN, "infrastructure", "No space left on device"),
        ("kill", None, "infrastructure", "the job's process was gone without a word"),
        ("preempted", ExitCode.PREEMPTED, "preempted", "saved at step 7"),
    ],
)
def test_what_may_pass_is_tried_again_from_its_own_budget_and_every_attempt_is_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch, fails: str, code: ExitCode | None, failure: str, message: str
) -> None:
    pauses: list[float] = []
    retries = Retries(infrastructure=4, preempted=7, first_delay_seconds=10.0, longest_delay_seconds=35.0)
    error = build_and_fail(place, pauses, monkeypatch, fails, retries)
    budget = retries.budget("preempted" if failure == "preempted" else "infrastructure")
    assert message in str(error)
    attempts = place.attempts()
    assert [attempt.number for attempt in attempts] == list(range(1, budget + 2))
    for attempt in attempts:
        assert attempt.end is not None
        assert (attempt.end.failure, attempt.end.exit_code) == (failure, code)
        assert message in (attempt.end.error or "")
        assert_explained(place, attempt, spoke=fails != "kill")
    bounds = [min(10.0 * 2**number, 35.0) for number in range(budget)]
    assert all(bound / 2 <= pause <= bound for pause, bound in zip(pauses, bounds, strict=True))
    assert len({pause / bound for pause, bound in zip(pauses, bounds, strict=True)}) > 1  # not all at once


def assert_explained(place: Place, attempt: Attempt, *, spoke: bool = True) -> None:
    """An attempt says where its log is, and what it cost if its process could."""
    assert attempt.end is not None
    assert attempt.end.log is not None
    assert Path(attempt.end.log).is_file()
    assert (attempt.end.usage is not None) == spoke
    if attempt.end.usage is not None:
        assert 0 < attempt.end.usage.wall_seconds < 300
        assert attempt.end.usage.peak_memory_bytes > 1 << 20
    started, ended = (datetime.fromisoformat(each) for each in (attempt.claim.submitted_at, attempt.end.ended_at))
    assert timedelta(0) <= ended - started < timedelta(minutes=5)


def test_budgets_of_different_classes_are_separate(place: Place) -> None:
    """Two tries for each: a preemption after an infrastructure failure doesn't use up the other's."""
    order = place.order("a")
    scripted = Scripted(Path(order.root), place.zygote.address, ["infrastructure", "preempted", "kill", "preempted", None])
    builder = make_builder(order, place.lab.raw, retries=Retries(infrastructure=2, preempted=2, first_delay_seconds=0), launcher=scripted)
    record, _ = builder.build(place.lab.raw, RAW)
    assert record.attempt == 5
    failures = [attempt.end and attempt.end.failure for attempt in place.attempts()]
    assert failures == ["infrastructure", "preempted", "infrastructure", "preempted", None]


def test_a_budget_is_a_days(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of months outlives more lost nodes than a day may bring."""
    began, waited = time.monotonic(), 0.0

    def sleep(seconds: float) -> None:
        nonlocal waited
        if seconds == building.POLL_SECONDS:
            time.sleep(seconds)
        else:
            waited += building.DAY_SECONDS / 2

    monkeypatch.setattr(building, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: began + waited))
    order = place.order("a")
    scripted = Scripted(Path(order.root), place.zygote.address, ["kill"] * 5 + [None])
    builder = make_builder(order, place.lab.raw, retries=Retries(infrastructure=2), launcher=scripted)
    record, _ = builder.build(place.lab.raw, RAW)
    assert record.attempt == 6


class Scripted(ForkLauncher):
    """Each job fails in the next of many ways."""

    def __init__(self, root: Path, zygote: str, fails: list[str | None]) -> None:
        super().__init__(root, zygote, "a", "tests.faults.test_storms:run_job")
        self._fails = iter(fails)

    def _start(self, handle: Handle, spec: JobSpec, environment: Mapping[str, str]) -> None:
        self._job_arguments = {"fails": next(self._fails)}
        super()._start(handle, spec, environment)


def test_a_store_that_fails_for_a_while_is_tried_again_and_one_that_stays_away_is_said(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Store.attempts
    failures = [3]

    def failing(self: Store, artifact: ArtifactId) -> list[Attempt]:
        failures[0] -= 1
        if failures[0] >= 0:
            raise InfrastructureError("503 of the store", advice="Wait.")
        return attempts(self, artifact)

    monkeypatch.setattr(Store, "attempts", failing)
    order = place.order("a")
    builder = make_builder(order, place.lab.raw, retries=Retries(infrastructure=3, first_delay_seconds=0))
    record, _ = builder.build(place.lab.raw, RAW)
    assert record.attempt == 1
    failures[0] = 10**6
    other = place.lab.step(ArtifactId("adopted/x", "v1"))
    with pytest.raises(InfrastructureError, match="503 of the store"):
        make_builder(order, other, retries=Retries(infrastructure=3, first_delay_seconds=0)).build(other, other.id)


# Jobs and their launchers -----------------------------------------------------------------------------------------------


def mark(path: Path, pid: int) -> None:
    path.write_text(json.dumps({"pid": pid, "started": process_start(pid)}))


@pytest.fixture
def dead() -> dict[str, Any]:
    """What names a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return {"pid": process.pid, "started": process_start(process.pid)}


def test_a_job_whose_launcher_died_over_starting_it_is_found_by_its_command(
    place: Place, monkeypatch: pytest.MonkeyPatch, dead: dict[str, Any]
) -> None:
    monkeypatch.setattr(local, "ORPHAN_SECONDS", 0.5)
    launcher = LocalLauncher(place.folder / "jobs")
    for name in ("m-started", "m-not-started"):
        handle = launcher.handle(name)
        handle.folder.mkdir(parents=True)
        (handle.folder / "launcher.json").write_text(json.dumps(dead))
    started, not_started = launcher.handle("m-started"), launcher.handle("m-not-started")
    script = "import time; time.sleep(600)"
    command = [sys.executable, "-c", script, "-m", "marin_jobs", str(started.folder / "spec.json")]
    with subprocess.Popen(command, start_new_session=True) as job:
        wait_for(lambda: launcher.observe(started).state == State.RUNNING)
        assert json.loads((started.folder / "process.json").read_text())["pid"] == job.pid
        assert launcher.observe(not_started).state == State.PENDING
        wait_for(lambda: launcher.observe(not_started).state == State.VANISHED)
        launcher.cancel(started)
    assert launcher.observe(started).state == State.VANISHED
    assert "died while starting it" in launcher.observe(not_started).reason


def test_a_job_that_a_living_launcher_is_about_to_start_is_pending(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = LocalLauncher(place.folder / "jobs")
    handle = launcher.handle("m-soon")
    handle.folder.mkdir(parents=True)
    mark(handle.folder / "launcher.json", os.getpid())
    os.utime(handle.folder, (0, 0))  # by somebody's clock it is old
    assert launcher.observe(handle).state == State.PENDING
    monkeypatch.setattr(local, "START_TIMEOUT_SECONDS", 0.0)
    assert launcher.observe(handle) == Observation(State.VANISHED, reason="its launcher hangs")


def test_a_job_never_looks_gone_while_its_process_is_written_down(place: Place) -> None:
    """A look that found no process and then the file of one took a living job for dead, and it was built twice."""
    launcher, observer = (LocalLauncher(place.folder / "jobs") for _ in range(2))
    handles = [launcher.handle(f"m-{number}") for number in range(200)]
    seen: set[State] = set()

    def observe() -> None:
        for handle in handles:
            state = None
            while state != State.RUNNING:
                exists = handle.folder.exists()  # before, there is no job
                state = observer.observe(handle).state
                if exists:
                    seen.add(state)

    thread = threading.Thread(target=observe)
    thread.start()
    for handle in handles:
        fresh = handle.folder.with_name("fresh")
        fresh.mkdir(parents=True)
        mark(fresh / "launcher.json", os.getpid())
        fresh.rename(handle.folder)
        time.sleep(0.001)
        launcher._remember(handle, os.getpid())
    thread.join()
    assert seen == {State.PENDING, State.RUNNING}


def test_of_many_launchers_one_starts_a_job(place: Place) -> None:
    builder = make_builder(place.order("a"), place.lab.raw)
    assert builder.target.claim(RAW, claim_of(builder, RAW))
    (attempt,) = place.attempts()
    launchers = [ForkLauncher(place.folder / "jobs", place.zygote.address, "a") for _ in range(16)]
    spec = builder._spec(place.lab.raw, RAW, attempt, {}, launchers[0].handle("m-a1"))
    barrier = threading.Barrier(16)

    def submit(launcher: ForkLauncher) -> None:
        barrier.wait()
        launcher.submit("m-a1", spec, {})

    threads = [threading.Thread(target=submit, args=(launcher,)) for launcher in launchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: launchers[0].observe(launchers[0].handle("m-a1")).state == State.SUCCEEDED)
    assert [path.name for path in (place.folder / "jobs").iterdir()] == ["m-a1"]
    assert (place.folder / "jobs" / "m-a1" / "log").read_text().count("building") == 1


def test_a_job_that_cannot_be_started_is_infrastructure_and_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    order = place.order("a", launcher="real")
    builder = make_builder(order, place.lab.raw, retries=Retries(infrastructure=2, first_delay_seconds=0))

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(InfrastructureError, match=r"can't be started.*temporarily unavailable"):
        builder.build(place.lab.raw, RAW)
    assert place.jobs() == []
    monkeypatch.undo()
    record, _ = builder.build(place.lab.raw, RAW)
    assert record.attempt == 1  # the claim was good


def test_launchers_with_other_folders_do_not_see_each_others_jobs(tmp_path: Path) -> None:
    """Two checkouts on one machine that share a bucket: each would start a job for the other's attempt."""
    assert LocalLauncher(tmp_path / "one").host != LocalLauncher(tmp_path / "two").host
    assert LocalLauncher(tmp_path / "one").host == InlineLauncher(tmp_path / "two" / ".." / "one").host


def test_an_inline_job_that_is_about_to_be_run_is_waited_for(place: Place) -> None:
    launcher = InlineLauncher(place.folder / "jobs")
    assert launcher.observe(launcher.handle("m-soon")).state == State.PENDING


def test_a_claim_is_only_built_as_what_it_says(place: Place, digests: dict[str, tuple[str, str]]) -> None:
    """Whoever claimed was killed before starting its job, and the experiment was edited meanwhile."""
    order = place.order("a")
    builder = make_builder(order, place.lab.raw)
    assert builder.target.claim(RAW, claim_of(builder, RAW, fingerprint="of another config"))
    record, _ = builder.build(place.lab.raw, RAW)
    assert [(attempt.state, attempt.claim.fingerprint) for attempt in place.attempts()] == [
        ("lost", "of another config"),
        ("succeeded", record.fingerprint),
    ]
    assert record.fingerprint == builder.graph.fingerprint(place.lab.raw)
    place.invariants(digests).all([RAW], final=True)


def test_a_configuration_with_a_secret_claims_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", str(place.lab.documents))
    with pytest.raises(ConfigError, match="MY_SECRET"):
        make_builder(place.order("a"), place.lab.raw).build(place.lab.raw, RAW)
    assert place.attempts() == []


def test_folders_that_were_never_finished_are_debris_too(place: Place, digests: dict[str, tuple[str, str]]) -> None:
    store = Store(place.peek.prefix)
    store.claim(RAW, Claim(number=1, job="m-a1", fingerprint="f", submitted_at="now", host="a"))
    store.objects.replace(f"{RAW.path}/attempt-1.new/half", b"x")
    store.close(RAW, 1, End(state="lost", ended_at="now", failure="infrastructure", error="killed while it carried over"))
    order = place.order("a")
    assert place.finish(place.start(order), order)["attempt"] == 2
    place.invariants(digests).all([RAW], final=True)


def test_a_job_whose_attempt_was_closed_while_it_waited_does_not_begin(place: Place) -> None:
    builder = make_builder(place.order("a"), place.lab.raw)
    assert builder.target.claim(RAW, claim_of(builder, RAW))
    (attempt,) = place.attempts()
    builder.target.close(RAW, 1, End(state="lost", ended_at="now", failure="infrastructure", error="gave up waiting"))
    launcher = builder.launcher
    before = place.snapshot()
    handle = launcher.submit("m-a1", builder._spec(place.lab.raw, RAW, attempt, {}, launcher.handle("m-a1")), {})
    seen = wait_for(lambda: found if (found := launcher.observe(handle)).state.final else None)
    assert seen.exit_code == ExitCode.BAD_CONFIG
    assert "lost its lease" in seen.reason
    assert "building" not in launcher.logs(handle, 100)
    assert place.snapshot() == before
