"""A store that fails: Google Cloud Storage behind a bad network, and a disk that is full."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marin_assets.builder import QuietEvents, Retries
from marin_core.artifact import ArtifactId, Store
from marin_core.artifact.job import JobSpec
from marin_core.artifact.store import META, attempt_folder
from marin_core.errors import ExitCode, MarinError
from tests.faults.drill import (
    PROJECT,
    BuilderOrder,
    FilePeek,
    HttpPeek,
    Invariants,
    SmallLab,
    Zygote,
    attempts_of,
    make_builder,
    run_builder,
    run_job,
    undisturbed,
    write_documents,
)
from tests.storage.faults import Fault, FaultyProxy, Request
from tests.storage.gcs import FakeGcs

RAW = ArtifactId("raw/local", "v1")
BOUND_SECONDS = 6
"""Of one call to the store, in these tests."""
ALWAYS = 10**9


# What runs in forked processes ------------------------------------------------------------------------------------------


def run_hasty_builder(**order: Any) -> int:
    """A builder process in which gcsfs tries as often as ever, but pauses for a twentieth of the time."""
    _hurry()
    return run_builder(**order)


def run_hasty_job(spec: str) -> int:
    """The same for a job process."""
    _hurry()
    return run_job(spec)


def _hurry() -> None:
    import gcsfs.retry

    sleep = asyncio.sleep
    gcsfs.retry.asyncio = SimpleNamespace(sleep=lambda seconds: sleep(seconds / 20))


# The tests' side --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    write_documents(folder / "documents")
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


@pytest.fixture(scope="module")
def module_proxy(server: FakeGcs) -> Iterator[FaultyProxy]:
    with FaultyProxy(server.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def zygote(module_proxy: FaultyProxy) -> Iterator[Zygote]:
    with Zygote({**module_proxy.environment(), "MARIN_STORE_TIMEOUT_SECONDS": str(BOUND_SECONDS)}) as zygote:
        yield zygote


@pytest.fixture(scope="module")
def digests(documents: Path, zygote: Zygote) -> dict[str, tuple[str, str]]:
    return undisturbed(documents, zygote)


@pytest.fixture
def proxy(module_proxy: FaultyProxy) -> Iterator[FaultyProxy]:
    yield module_proxy
    module_proxy.rates.clear()
    module_proxy.forget()


class Network:
    """Builders whose only way to their store is the proxy; what is checked is read behind it."""

    def __init__(self, folder: Path, documents: Path, server: FakeGcs, zygote: Zygote, digests: dict[str, tuple[str, str]]) -> None:
        self.folder = folder
        self.zygote = zygote
        self.peek = HttpPeek(server.url, server.bucket, hashlib.sha256(str(folder).encode()).hexdigest()[:12])
        self.lab = SmallLab(documents / "documents")
        self.invariants = Invariants(self.peek, digests, [folder / "jobs"])
        self._orders = 0

    def order(self, artifact: ArtifactId = RAW, **changes: Any) -> BuilderOrder:
        self._orders += 1
        values: dict[str, Any] = {
            "prefix": self.peek.prefix,
            "documents": str(self.lab.documents),
            "artifact": (artifact.name, artifact.version, artifact.partition),
            "launcher": "inline" if artifact.name.startswith("inline/") else "fork",
            "zygote": self.zygote.address,
            "host": "one",
            "root": str(self.folder / "jobs"),
            "result": str(self.folder / f"result-{self._orders}"),
            "poll_seconds": 0.1,
            "job_call": "tests.faults.test_storage_faults:run_hasty_job",
        }
        return BuilderOrder(**(values | changes))

    def start(self, order: BuilderOrder) -> int:
        return self.zygote.spawn("tests.faults.test_storage_faults:run_hasty_builder", asdict(order), Path(f"{order.result}.log"))

    def build(self, order: BuilderOrder, timeout_seconds: float = 400) -> int:
        (code,) = self.zygote.wait([self.start(order)], timeout_seconds)
        return code

    def built(self, order: BuilderOrder) -> None:
        assert self.build(order) == 0, Path(f"{order.result}.log").read_text()


@pytest.fixture
def network(tmp_path: Path, documents: Path, server: FakeGcs, zygote: Zygote, digests: dict[str, tuple[str, str]]) -> Network:
    return Network(tmp_path, documents, server, zygote, digests)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_lab_is_built_whole_through_a_bad_network(proxy: FaultyProxy, network: Network, seed: int) -> None:
    """About a third of all requests fail in one way or another, so now and then all tries of one; who looks first is told then."""
    rates: dict[Fault, float] = {"429": 0.08, "500": 0.06, "503": 0.08, "cut_upload": 0.05, "lost_response": 0.08, "timeout": 0.01}
    proxy.seed = seed
    proxy.rates.update(rates)
    built: set[ArtifactId] = set()
    waiting = [*network.lab.pipeline(), *(ArtifactId(f"{stage}/x", "v1") for stage in ("summary", "inline", "adopted"))]
    running: dict[int, BuilderOrder] = {}
    deadline = time.monotonic() + 500
    while waiting or running:
        assert time.monotonic() < deadline
        for artifact in list(waiting):
            step = network.lab.step(artifact)
            if len(running) < 4 and all(read in built for dep in step.deps for read in step.reads(dep, artifact.partition)):
                waiting.remove(artifact)
                for _ in range(2):
                    order = network.order(artifact)
                    running[network.start(order)] = order
        ended = network.zygote.ended()
        for pid in [pid for pid in running if pid in ended]:
            order = running.pop(pid)
            if ended[pid] == ExitCode.TRY_AGAIN:
                running[network.start(order)] = order
                continue
            assert ended[pid] == 0, Path(f"{order.result}.log").read_text()
            network.invariants.look(order.id)
            if all(order.id != other.id for other in running.values()):
                built.add(order.id)
        time.sleep(0.02)
    network.invariants.all(sorted(built), final=True)
    network.invariants.jobs()
    assert set(proxy.counts) >= {"429", "500", "503", "cut_upload", "lost_response"}
    assert sum(proxy.counts.values()) > 100


def of(name: str) -> Callable[[Request], bool]:
    """Uploads of objects with such a name."""
    return lambda request: request.is_upload and name in request.name


@pytest.mark.parametrize("times", [1, 12])
@pytest.mark.parametrize("name", ["claim.json", "code.json", "end.json", "record.json"])
def test_a_builder_knows_its_own_write_although_every_answer_to_it_was_lost(
    proxy: FaultyProxy, network: Network, name: str, times: int
) -> None:
    """Once, so that a retry is refused; and of all tries, so that the call fails although it did what it should."""
    proxy.next("lost_response", of(f"/{name}"), times)
    network.built(network.order())
    assert proxy.counts["lost_response"] >= 1
    attempts = attempts_of(network.peek, RAW)
    assert attempts[-1].state == "succeeded"
    if name != "code.json":  # it decides nothing, so a job that can't write it is tried again
        assert len(attempts) == 1
    assert network.invariants.jobs() == len(attempts)
    network.invariants.all([RAW], final=True)


def test_an_inline_job_is_run_by_whoever_claimed_it_although_no_answer_came(proxy: FaultyProxy, network: Network) -> None:
    """Nobody else can run it, so a claim that its writer takes for failed would block the address for a lease.

    The claim is written, its answer is lost, and all further tries are refused: the call fails although it did what it should.
    """
    proxy.next("lost_response", of("/claim.json"), 1)
    proxy.next("503", of("/claim.json"), 5)
    order = network.order(launcher="inline", lease_seconds=10_000.0)
    network.built(order)
    assert [attempt.state for attempt in attempts_of(network.peek, RAW)] == ["succeeded"]
    assert dict(proxy.counts) == {"lost_response": 1, "503": 5}
    assert "trying again" in Path(f"{order.result}.log").read_text()
    network.invariants.all([RAW], final=True)


@pytest.mark.parametrize(("times", "attempts"), [(1, ["succeeded"]), (8, ["failed", "succeeded"])])
def test_a_cut_upload_of_a_payload_file_is_sent_again_or_fails_its_attempt(
    proxy: FaultyProxy, network: Network, times: int, attempts: list[str]
) -> None:
    proxy.next("cut_upload", of("/attempt-1/units"), times)
    network.built(network.order())
    found = attempts_of(network.peek, RAW)
    assert [attempt.state for attempt in found] == attempts
    assert all(attempt.end is not None and attempt.end.failure == "infrastructure" for attempt in found[:-1])
    network.invariants.all([RAW], final=True)


def test_half_an_upload_is_never_committed(proxy: FaultyProxy, network: Network) -> None:
    """The store says yes to a file and doesn't have it: gone between the upload and the manifest."""
    order = network.order(job_call="tests.faults.test_storage_faults:run_job_whose_upload_vanishes")
    network.built(order)
    found = attempts_of(network.peek, RAW)
    assert [attempt.state for attempt in found] == ["failed", "succeeded"]
    assert "not in the store as they were sent" in (found[0].error or "")
    network.invariants.all([RAW], final=True)


def run_job_whose_upload_vanishes(spec: str) -> int:
    upload = Store.upload

    def vanishing(self: Store, folder: Path, artifact: ArtifactId, payload: str) -> Any:
        states = dict(upload(self, folder, artifact, payload))
        if payload == attempt_folder(1):
            states.popitem()
        return states

    Store.upload = vanishing  # type: ignore[method-assign]
    return run_hasty_job(spec)


@pytest.mark.parametrize("fault", ["500", pytest.param("timeout", marks=pytest.mark.slow)])
@pytest.mark.parametrize("begins", ["at once", "after the claim", "at the end"])
def test_a_store_that_stays_away_ends_a_build_within_bounds_and_the_next_goes_on(
    proxy: FaultyProxy, network: Network, fault: Fault, begins: str
) -> None:
    """Broken answers or none at all, from the first request, while the job starts, or when only the commit is missing."""
    marker = {"at once": "", "after the claim": "/claim.json", "at the end": "/code.json"}[begins]
    reached = [marker == ""]

    def broken(request: Request) -> bool:
        if reached[0]:
            return True
        reached[0] = of(marker)(request)
        return False

    proxy.next(fault, broken, ALWAYS)
    order = network.order(retries=1)
    # A call and its retry of each kind: look, claim, follow, close, settle; heartbeats and the job's own beside them. A machine that is
    # busy with other things may take three times as long.
    assert network.build(order, timeout_seconds=60 * BOUND_SECONDS) == ExitCode.TRY_AGAIN
    error = json.loads(Path(order.result).read_text())
    assert error["class"] in ("InfrastructureError", "BuildError")
    assert network.peek.prefix.removeprefix("gs://") in error["error"]
    assert network.peek.read(f"{RAW.path}/{META}/record.json") is None

    proxy.forget()
    network.built(network.order())
    network.invariants.all([RAW], final=True)


# Full disks -------------------------------------------------------------------------------------------------------------


def in_a_small_disk(folder: Path, call: str, *arguments: str, options: str = "size=8m") -> str:
    """Run a function of this module where a folder is a disk of its own; what it prints."""
    folder.mkdir()
    mount = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'
    script = f"import sys; from tests.faults import test_storage_faults as t; t.{call}(*sys.argv[1:])"
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", options, str(folder), sys.executable, "-c", script, str(folder), *arguments]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=500)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no disk of its own can be mounted here: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sweep_full_disks(folder: str, documents: str, launcher: str, steps: str) -> None:
    """Build with room for more and more pages until it succeeds; prints what happened at each."""
    step = SmallLab(Path(documents)).raw
    store = Path(folder) / "store"
    for pages in range(0, 200, int(steps)):
        order = BuilderOrder(
            prefix=f"file://{store}",
            documents=documents,
            artifact=(step.name, step.version, None),
            launcher=launcher,  # type: ignore[arg-type]
            zygote="",
            host="one",
            root=str(store / ".jobs"),
            result="",
            lease_seconds=0.3 if launcher == "inline" else 60.0,
        )
        for old in (store, Path(folder) / "ballast"):
            subprocess.run(["rm", "-rf", str(old)], check=True)  # noqa: S607
        fill(Path(folder), pages)
        builder = make_builder(order, step, retries=Retries(infrastructure=0), events=QuietEvents())
        outcome: dict[str, Any] = {"pages": pages, "exit": 0, "error": ""}
        try:
            builder.build(step, step.id)
        except MarinError as error:
            outcome |= {"exit": int(error.exit_code), "error": f"{type(error).__name__}: {error.message}"}
        outcome["attempts"] = [attempt.state for attempt in attempts_of(FilePeek(store), step.id)]
        outcome["committed"] = (store / step.id.path / META / "record.json").exists()
        if outcome["committed"]:
            record = Store(order.prefix).record(step.id)
            assert record is not None
            Store(order.prefix).require_intact(record, every_byte=True)
        (Path(folder) / "ballast").unlink(missing_ok=True)
        record, _ = make_builder(order, step, retries=Retries(first_delay_seconds=0), events=QuietEvents()).build(
            step, step.id
        )  # there is room again
        builder.target.require_intact(record, every_byte=True)
        outcome["after"] = [attempt.state for attempt in attempts_of(FilePeek(store), step.id)]
        print(json.dumps(outcome), flush=True)
        if outcome["exit"] == 0:
            return


def fill(folder: Path, pages: int) -> None:
    """Leave room for so many pages of 4 KiB."""
    reserve = folder / "reserve"
    reserve.write_bytes(b"x" * 4096 * pages)
    with (folder / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"x" * 4096)
        except OSError:
            pass
    reserve.unlink()


@pytest.mark.parametrize(("launcher", "steps"), [("inline", 3), pytest.param("real", 12, marks=pytest.mark.slow)])
def test_a_full_disk_is_infrastructure_at_every_page_and_leaves_nothing_half_committed(
    tmp_path: Path, documents: Path, launcher: str, steps: int
) -> None:
    lines = in_a_small_disk(tmp_path / "disk", "sweep_full_disks", str(documents / "documents"), launcher, str(steps)).splitlines()
    outcomes = [json.loads(line) for line in lines]
    assert outcomes[-1]["exit"] == 0
    assert len(outcomes) > 2
    for outcome in outcomes[:-1]:
        assert outcome["exit"] == ExitCode.TRY_AGAIN, outcome
        assert "No space left on device" in outcome["error"], outcome
        assert outcome["after"][-1] == "succeeded", outcome
        assert set(outcome["after"][:-1]) <= {"failed", "lost"}, outcome
    assert {bool(outcome["attempts"]) for outcome in outcomes[:-1]} == {False, True}


def look_for_room(folder: str, documents: str) -> None:
    """Fill a disk with files until no more can be made, and build."""
    raw = SmallLab(Path(documents)).raw
    order = BuilderOrder(
        prefix=f"file://{folder}/store",
        documents=documents,
        artifact=("raw/local", "v1", None),
        launcher="inline",
        zygote="",
        host="one",
        root=f"{folder}/store/.jobs",
        result="",
    )
    builder = make_builder(order, raw, events=QuietEvents())
    (Path(folder) / "store").mkdir()
    try:
        for number in range(10_000):
            (Path(folder) / f"{number}").touch()
    except OSError:
        pass
    try:
        builder.build(raw, raw.id)
    except MarinError as error:
        print(json.dumps({"exit": int(error.exit_code), "error": f"{type(error).__name__}: {error.message}"}))


def test_a_disk_without_room_for_a_file_is_no_mistake_of_people(tmp_path: Path, documents: Path) -> None:
    """The store is tried before anything else, and what can't be written may be the prefix or may be the moment."""
    line = in_a_small_disk(tmp_path / "disk", "look_for_room", str(documents / "documents"), options="size=8m,nr_inodes=50")
    found = json.loads(line)
    assert found["exit"] == ExitCode.TRY_AGAIN, found
    assert found["error"].startswith("InfrastructureError"), found
    assert ".write-probe" in found["error"], found


def test_a_job_that_can_write_nothing_anywhere_says_by_its_exit_code_to_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the store nor its own folder; whoever started it has nothing else to go by."""
    from marin_jobs import process, runtime
    from marin_jobs.reporting import JobReporter

    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(runtime, "prepare_output", full)
    spec = JobSpec(
        name=RAW.name,
        version=RAW.version,
        partition=None,
        job="ingest",
        prefix=f"file://{tmp_path}/store",
        config={},
        fingerprint="f",
        identity={},
        inputs=(),
        attempt=1,
        scratch=str(tmp_path / "gone"),
    )
    with (tmp_path / "log").open("w") as log:
        assert process.run(spec, JobReporter(None, threading.Event(), log)) == ExitCode.TRY_AGAIN
