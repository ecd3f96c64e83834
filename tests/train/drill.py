"""The failure drill of trainings: each incident happens to a real run, and what it cost is counted.

    python -m tests.train.drill --json drill.json

prints a table: incident, what was expected, what happened, how many finished steps had to be made again, verdict. A run loses nothing
beyond its last committed checkpoint, and ends with the bits of one that was never disturbed. Exit code 1 if that doesn't hold somewhere.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from marin_assets.builder import Builder, QuietEvents, Retries
from marin_assets.launch import InlineLauncher, LocalLauncher
from marin_core.artifact import ArtifactGraph, ArtifactStep, Record, Resources, Store
from marin_core.data.batch import Batch
from marin_core.errors import ExitCode, MarinError
from marin_core.experiment.tokens import mixture
from marin_core.experiment.training import train_lm
from marin_core.model.config import MoEConfig
from marin_core.model.presets import moe_tiny
from marin_core.train import tracking
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.checkpoint.metadata import CheckpointMetadata, write_metadata
from marin_core.train.checkpoint.store import CheckpointStore
from marin_core.train.config import MeshConfig, RollBack, TrackerConfig
from marin_core.train.health.config import HealthConfig
from marin_core.train.loop import TrainResult, train
from marin_core.train.metrics import Row, read_metrics
from marin_core.train.optimizers.config import AdamW, SkipSpikes
from marin_core.train.order import Batches
from marin_core.train.schedules import Wsd
from tests.faults.drill import SmallLab, write_documents
from tests.storage.faults import FaultyProxy, Request
from tests.storage.gcs import FakeGcs
from tests.train.gang_run import quick_environment
from tests.train.test_loop import Recorder, exact_rows
from tests.train.tiny_run import FINGERPRINT, STEPS, batches, tiny_config

PROJECT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 600.0
"""For anything that the drill waits for; on two cores, together with others."""

DAY_SECONDS = 86_400.0

# Rows -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What an incident came to.

    Attributes:
        lost_steps: finished steps that had to be made again.
        failed: what should hold and doesn't; empty if all is well.
    """

    incident: str
    expected: str
    happened: str
    lost_steps: int
    failed: tuple[str, ...]


class Evidence:
    """Collects what should hold and doesn't."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            self.failed.append(what)


@dataclass(frozen=True)
class Incident:
    """Something that happens to a run.

    Attributes:
        play: lets it happen; returns what happened, and how many steps had to be made again.
    """

    name: str
    expected: str
    play: Callable[["Stage", Path, Evidence], tuple[str, int]]

    def verdict(self, stage: "Stage") -> Verdict:
        """Play it in a folder of its own; whatever it raises is a failure too."""
        folder, seen = stage.folder / self.play.__name__, Evidence()
        folder.mkdir()
        try:
            happened, lost = self.play(stage, folder, seen)
        except Exception as error:
            happened, lost = f"{type(error).__name__}: {error}", 0
            seen.failed.append("the drill itself broke off")
        return Verdict(self.name, self.expected, happened, lost, tuple(seen.failed))


INCIDENTS: list[Incident] = []

Play = Callable[["Stage", Path, Evidence], tuple[str, int]]


def incident(name: str, expected: str) -> Callable[[Play], Play]:
    def register(play: Play) -> Play:
        INCIDENTS.append(Incident(name, expected, play))
        return play

    return register


# The undisturbed runs ---------------------------------------------------------------------------------------------------


class Stage:
    """Where incidents happen, and the runs that nothing happened to.

    Args:
        undisturbed: a finished `tiny_run` that was made with this process's environment; None = make one when it is needed.
    """

    def __init__(self, folder: Path, undisturbed: Path | None = None) -> None:
        self.folder = folder
        self.compiled = folder / "xla"
        self._undisturbed = undisturbed

    @cached_property
    def undisturbed(self) -> Path:
        """The run of `tiny_run`, which most incidents happen to."""
        if self._undisturbed is None:
            self._undisturbed = self.folder / "undisturbed"
            attempt(self._undisturbed)
        return self._undisturbed

    @cached_property
    def lab(self) -> "Lab":
        """Artifacts, for incidents that happen to jobs and their builders."""
        lab = Lab(self.folder / "lab", self.compiled)
        lab.build_data()
        return lab

    def require_same(self, run_dir: Path, seen: Evidence) -> None:
        """A run has every loss and every kept checkpoint of the undisturbed one, to the bit."""
        seen.require(exact_rows(run_dir) == exact_rows(self.undisturbed), "rows differ from those of an undisturbed run")
        kept = [CheckpointStore(folder).permanent_digests() for folder in (run_dir, self.undisturbed)]
        seen.require(kept[0] == kept[1], "checkpoints differ from those of an undisturbed run")

    def resume(self, run_dir: Path, done: int, seen: Evidence) -> int:
        """Start a broken run again and let it finish; how many of its `done` steps are made again."""
        newest, reporter = max(committed(run_dir), default=0), Recorder()
        code, message = attempt(run_dir, reporter=reporter)
        seen.require(code == ExitCode.DONE, f"the run started again ended with {code}: {message}")
        begins = resumed_at("\n".join(reporter.lines))
        seen.require(begins == newest, f"it went on from step {begins} although step {newest} was committed")
        self.require_same(run_dir, seen)
        return done - begins


def attempt(run_dir: Path, given: Batches = batches, reporter: Recorder | None = None, **changes: Any) -> tuple[ExitCode, str]:
    """One attempt of the tiny run; its exit code, and what it says if it fails."""
    try:
        train(tiny_config(**changes), given, run_dir, reporter or Recorder(), fingerprint=FINGERPRINT, run_name="tiny")
    except MarinError as error:
        return error.exit_code, error.message
    except OSError as error:  # as the job's runtime does
        return ExitCode.TRY_AGAIN, str(error)
    return ExitCode.DONE, ""


def committed(run_dir: Path) -> list[int]:
    return CheckpointStore(run_dir).steps()


def rows_of(run_dir: Path) -> list[Row]:
    return read_metrics(run_dir / "metrics.jsonl")


def resumed_at(log: str) -> int:
    """Step that the newest attempt of a log began with; -1 if none did."""
    found = re.findall(r"from step (\d+) to", log)
    return int(found[-1]) if found else -1


def elsewhere(function: str, *arguments: object, environment: dict[str, str], before: Sequence[str] = ()) -> tuple[int, str, str]:
    """Run a function of this module in a process of its own; its exit code, what it printed, and its standard error."""
    script = f"import sys; from tests.train import drill; drill.{function}(*sys.argv[1:])"
    command = [*before, sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=PROJECT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    return done.returncode, done.stdout, done.stderr


def cached(stage: Stage) -> dict[str, str]:
    """Variables of a process that compiles what this one does, once for all."""
    return {"JAX_COMPILATION_CACHE_DIR": str(stage.compiled), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


# Data -------------------------------------------------------------------------------------------------------------------


@incident("NaN in a batch", "ends with 65, names the batch, saves nothing after it; goes on once the data is mended")
def nan_in_a_batch(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
    def poisoned(index: int, host: int, hosts: int) -> Batch:
        sound = batches(index, host, hosts)
        return sound._replace(loss_weight=sound.loss_weight * np.float32(np.nan)) if index == 5 else sound

    code, message = attempt(folder / "run", poisoned)
    seen.require(code == ExitCode.BAD_DATA, f"exit code {code}")
    seen.require("on batch 5" in message, "the batch isn't named")
    seen.require(max(committed(folder / "run")) == 5, "not all that was sound was saved, or more")
    lost = stage.resume(folder / "run", done=5, seen=seen)
    return f"{int(code)}: {message}", lost


@incident("spike: a batch of noise", "leaves its update out, goes back to the checkpoint before, leaves the batch out")
def spike(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
    def noisy(index: int, host: int, hosts: int) -> Batch:
        sound = batches(index, host, hosts)
        noise = np.random.default_rng(index).integers(0, 64, size=sound.tokens.shape).astype(np.int32)
        return sound._replace(tokens=noise) if index == 10 else sound

    def without(index: int, host: int, hosts: int) -> Batch:
        return batches(index + (index >= 10), host, hosts)

    judged = AdamW(schedule=Wsd(warmup_steps=2), skip_spikes=SkipSpikes(window=4, sigmas=4))
    changes: dict[str, Any] = {"optimizer": judged, "roll_back": RollBack(after_skipped_steps=1)}
    reporter = Recorder()
    code, message = attempt(folder / "run", noisy, reporter, **changes)
    seen.require(code == ExitCode.DONE, f"ended with {code}: {message}")
    attempt(folder / "never", without, **changes)
    digests = [CheckpointStore(folder / name).permanent_digests().get(STEPS) for name in ("run", "never")]
    seen.require(digests[0] == digests[1] is not None, "differs from a run that never met that batch")
    line = next((line for line in reporter.lines if line.startswith("Going back")), "never went back")
    back = re.search(r"from step (\d+) to (\d+)", line)
    seen.require(back is not None, "nothing was taken for a spike")
    return line, int(back[1]) + 1 - int(back[2]) if back else 0


# Processes --------------------------------------------------------------------------------------------------------------


def hang_at(run_dir: str, step: str) -> None:
    """A run whose batch of one step never comes."""

    def stuck(index: int, host: int, hosts: int) -> Batch:
        if index == int(step):
            threading.Event().wait()
        return batches(index, host, hosts)

    attempt(Path(run_dir), stuck, health=HealthConfig(watchdog_seconds=15))


@incident("hung step: a batch that never comes", "the watchdog ends the process with 75 and leaves all stacks")
def hung_step(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
    code, _, errors = elsewhere("hang_at", folder / "run", 6, environment=cached(stage))
    seen.require(code == ExitCode.TRY_AGAIN, f"exit code {code}")
    stacks = folder / "run" / "hang-1.txt"
    seen.require(stacks.exists() and "in stuck" in stacks.read_text(), "the stacks don't show where it hung")
    lost = stage.resume(folder / "run", done=len(rows_of(folder / "run")), seen=seen)
    said = [line for line in errors.splitlines() if "stacks" in line]
    return f"{code}: {said[-1].split(';')[0] if said else 'not a word'}", lost


class Lab:
    """Local documents up to a mixture, in a store on this disk; and trainings of it as artifacts, in job processes.

    Args:
        compiled: folder that jobs share compiled programs in.
    """

    STEPS, SAVED_EVERY = 30, 3

    def __init__(self, folder: Path, compiled: Path) -> None:
        self.folder = folder
        self.compiled = compiled
        self.small = SmallLab(folder / "documents")
        self.mixture = mixture("mixtures/local", "v1", {self.small.cache: 1.0}, sequence_length=64)
        self.store = Store(f"file://{folder}/store")

    def build_data(self) -> None:
        write_documents(self.folder / "documents", files=8, documents=80)
        for artifact in [*self.small.pipeline(), *self.mixture.ids()]:
            step = self.mixture if artifact.name == self.mixture.name else self.small.step(artifact)
            launcher = InlineLauncher(self.folder / "inline")
            Builder(ArtifactGraph([step]), self.store, self.store, launcher, QuietEvents()).build(step, artifact)

    def training(self, version: str, processes: int = 1, **changes: Any) -> ArtifactStep:
        """The handle of a small run; versions differ in nothing else."""
        moe = MoEConfig(experts=8, experts_per_token=2, latent_dim=16, expert_width=16, capacity_factor=4.0)
        features: dict[str, Any] = {"d_model": 32, "head_dim": 8, "layers": 1, "window": 16, "gated_norm_rank": 0, "short_conv_kernel": 2}
        gang = Resources(processes=processes, devices_per_process=4 // processes)
        return train_lm(
            "checkpoints/drill",
            version,
            self.mixture,
            model=moe_tiny(300, moe=moe, **features),
            optimizer=AdamW(schedule=Wsd(warmup_steps=2)),
            num_steps=self.STEPS,
            global_batch_size=8,
            checkpoints=CheckpointPolicy(permanent_every_steps=15, temporary_every_steps=self.SAVED_EVERY),
            mesh=MeshConfig(racks=2, devices_per_rack=2) if processes > 1 else None,
            tracker=TrackerConfig(mode="disabled"),
            resources=gang if processes > 1 else Resources(),
            **changes,
        )

    def builder(self, step: ArtifactStep, events: QuietEvents, host: str = "one", target: str = "", lease_seconds: float = 60.0) -> Builder:
        environment = quick_environment(1, self.compiled)
        events.environment = {name: value for name, value in environment.items() if name != "JAX_NUM_CPU_DEVICES"}
        launcher = LocalLauncher(self.folder / f"jobs-{host}", host)
        retries = Retries(infrastructure=3, preempted=3, first_delay_seconds=0.001)
        place = Store(target) if target else self.store
        return Builder(ArtifactGraph([step]), self.store, place, launcher, events, retries, lease_seconds)

    def undisturbed(self, processes: int = 1) -> str:
        """Digest of the final checkpoint of a run that nothing happened to."""
        step = self.training(f"undisturbed_{processes}", processes)
        return self.builder(step, QuietEvents()).build(step, step.id)[0].content_digest

    def jobs(self, step: ArtifactStep, host: str = "one") -> list[Path]:
        """Job folders of all attempts, oldest first."""
        found = [path.parent for path in (self.folder / f"jobs-{host}").glob("m-*/spec.json")]
        specs = {folder: json.loads((folder / "spec.json").read_text()) for folder in found}
        ours = [folder for folder in found if specs[folder]["version"] == step.version]
        return sorted(ours, key=lambda folder: int(specs[folder]["attempt"]))

    def output(self, step: ArtifactStep, number: int = 1) -> Path:
        """Where an attempt writes."""
        output = self.store.output_path(step.id, number)
        assert output is not None
        return output

    def wait_for_rows(self, step: ArtifactStep, count: int) -> None:
        """Return once the first attempt has written so many rows."""
        metrics = self.output(step) / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= count, f"{count} rows of {step.id}")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {WAIT_SECONDS:.0f} s for {what}")
        time.sleep(0.005)


class Ends(QuietEvents):
    """Notes, whenever an attempt has ended without success, what it said, its rows and its newest checkpoint."""

    def __init__(self, lab: Lab, step: ArtifactStep) -> None:
        self._lab, self._step = lab, step
        self.seen: list[tuple[str, int, int]] = []

    def warning(self, message: str) -> None:
        output = self._lab.output(self._step, len(self.seen) + 1)
        self.seen.append((message, len(rows_of(output)), max(committed(output), default=0)))


@contextmanager
def in_background(build: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Run it in a thread; what is yielded waits for its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(build()), daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(WAIT_SECONDS)
        if not results:
            raise RuntimeError("the build broke off or never ended")
        return results[0]

    yield result


def gang_meets(stage: Stage, seen: Evidence, version: str, number: signal.Signals, **changes: Any) -> tuple[str, int]:
    """A training of two processes, the second of which gets a signal in mid-training; it must end like an undisturbed one."""
    lab, step = stage.lab, stage.lab.training(version, 2, **changes)
    events = Ends(lab, step)
    with in_background(lambda: lab.builder(step, events).build(step, step.id)[0]) as built:
        lab.wait_for_rows(step, 8)
        keeper = json.loads((lab.jobs(step)[0] / "process.json").read_text())["pid"]
        (victim,) = [child for child in psutil.Process(keeper).children() if child.cmdline()[-5:][:2] == ["--process", "1"]]
        victim.send_signal(number)
        record: Record = built()
    message, done, newest = events.seen[0]
    begins = resumed_at((lab.jobs(step)[1] / "log").read_text())
    seen.require(record.attempt == 2, f"it took {record.attempt} attempts")
    seen.require(begins == newest, f"it went on from step {begins} although step {newest} was committed")
    seen.require(record.content_digest == lab.undisturbed(2), "the final checkpoint differs from that of an undisturbed run")
    return message.partition(": ")[2].partition("; trying")[0], done - begins


@incident("killed rank: kill -9 of one process of two", "all end, 75; the next attempt goes on from the newest checkpoint")
def killed_rank(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
    happened, lost = gang_meets(stage, seen, "killed", signal.SIGKILL)
    seen.require("killed by SIGKILL" in happened, "the cause isn't named")
    return happened, lost


@incident("hung collective: one process of two stops", "the other's watchdog ends it with 75, its keeper the stopped one")
def stopped_rank(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
    return gang_meets(stage, seen, "stopped", signal.SIGSTOP, health=HealthConfig(watchdog_seconds=30))


# Disks and stores -------------------------------------------------------------------------------------------------------


def fill_the_disk(run_dir: str, ballast: str) -> None:
    """A run on whose disk another takes all room while batch 6 is read, ahead of its step; then there is room again."""

    def filling(index: int, host: int, hosts: int) -> Batch:
        if index == 6:
            with Path(ballast).open("ab", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(2**16))
                except OSError:
                    pass
        return batches(index, host, hosts)

    code, message = attempt(Path(run_dir), filling, prefetch_steps=1)
    done, newest, reporter = len(rows_of(Path(run_dir))), max(committed(Path(run_dir)), default=0), Recorder()
    Path(ballast).unlink()
    again, why = attempt(Path(run_dir), reporter=reporter)
    begins = resumed_at("\n".join(reporter.lines))
    told = {"code": int(code), "message": message, "done": done, "newest": newest, "again": int(again), "why": why, "begins": begins}
    digests = {str(step): digest for step, digest in CheckpointStore(Path(run_dir)).permanent_digests().items()}
    print(json.dumps({**told, "digests": digests, "losses": [row["loss"] for row in rows_of(Path(run_dir))]}))


@incident("full disk", "ends with 75 and says so; goes on once there is room")
def full_disk(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
    disk = folder / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=64m tmpfs "$1" && shift && exec "$@"'
    before = ("unshare", "-rm", "sh", "-c", mount, "sh", str(disk))
    code, said, errors = elsewhere("fill_the_disk", disk / "run", disk / "ballast", environment=cached(stage), before=before)
    if code:
        raise RuntimeError(errors.strip()[-300:])
    told = json.loads(said.splitlines()[-1])
    seen.require(told["code"] == ExitCode.TRY_AGAIN, f"exit code {told['code']}")
    seen.require("No space left on device" in told["message"], "the full disk isn't named")
    seen.require(told["again"] == ExitCode.DONE, f"the run started again ended with {told['again']}: {told['why']}")
    seen.require(told["begins"] == told["newest"], f"it went on from step {told['begins']} although step {told['newest']} was committed")
    kept = {str(step): digest for step, digest in CheckpointStore(stage.undisturbed).permanent_digests().items()}
    seen.require(told["digests"] == kept, "checkpoints differ from those of an undisturbed run")
    seen.require(told["losses"] == [row["loss"] for row in rows_of(stage.undisturbed)], "losses differ from those of an undisturbed run")
    return f"{told['code']}: {told['message'].replace(str(disk), '…')}", told["done"] - told["begins"]


def save_to_a_store_that_hangs(run_dir: str) -> None:
    """A run whose checkpoints can't be committed from step 6 on: the disk takes the file, and never answers."""

    def hang(directory: Path, metadata: CheckpointMetadata) -> None:
        if metadata.step >= 6:
            threading.Event().wait()
        write_metadata(directory, metadata)

    policy = tiny_config().checkpoints.changed(deadline_seconds=20.0)
    with patch("marin_core.train.checkpoint.store.write_metadata", hang):
        code, message = attempt(Path(run_dir), checkpoints=policy)
    print(json.dumps({"code": int(code), "message": message}))


@incident("a checkpoint directory that doesn't answer", "ends with 75 by the save's deadline, here 20 s")
def blocked_directory(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
    code, said, errors = elsewhere("save_to_a_store_that_hangs", folder / "run", environment=cached(stage))
    if code:
        raise RuntimeError(errors.strip()[-300:])
    told = json.loads(said.splitlines()[-1])
    seen.require(told["code"] == ExitCode.TRY_AGAIN, f"exit code {told['code']}")
    seen.require("within 20 s" in told["message"], "the deadline isn't named")
    lost = stage.resume(folder / "run", done=len(rows_of(folder / "run")), seen=seen)
    return f"{told['code']}: {told['message'].replace(str(folder), '…')}", lost


def build_training(folder: str, compiled: str, version: str, host: str, target: str, lease_seconds: str) -> None:
    """A builder process."""
    lab = Lab(Path(folder), Path(compiled))
    step, events = lab.training(version), Talking()
    record, _ = lab.builder(step, events, host, target, float(lease_seconds)).build(step, step.id)
    print(json.dumps({"attempt": record.attempt, "digest": record.content_digest, "warnings": events.warnings}), flush=True)


class Talking(QuietEvents):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, message: str) -> None:
        self.warnings.append(message)


@incident("store answers 500 for a minute, while a checkpoint is sent", "it is tried again until it is through")
def store_fails_for_a_minute(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
    lab, began = stage.lab, list[float]()

    def broken(request: Request) -> bool:
        if not began and request.is_upload and "/checkpoints/" in request.name:
            began.append(time.monotonic())
        return bool(began) and time.monotonic() - began[0] < 60

    with FakeGcs() as server, FaultyProxy(server.url) as proxy:
        proxy.next("500", broken, times=10**9)
        arguments = (lab.folder, lab.compiled, "outage", "cloud", f"gs://{server.bucket}/lab", 60)
        code, said, errors = elsewhere("build_training", *arguments, environment=proxy.environment())
        refused = proxy.counts["500"]
    if code:
        raise RuntimeError(errors.strip()[-500:])
    told = json.loads(said.splitlines()[-1])
    seen.require(refused > 0, "the store never failed")
    seen.require(told["digest"] == lab.undisturbed(), "the final checkpoint differs from that of an undisturbed run")
    begins = resumed_at((lab.jobs(lab.training("outage"), "cloud")[-1] / "log").read_text())
    lost = 0 if told["attempt"] == 1 else Lab.STEPS - begins
    seen.require(lost == 0, f"attempt {told['attempt']} made {lost} steps again")
    return f"{refused} requests refused; committed by attempt {told['attempt']}", lost


@incident("newest checkpoint corrupted: one bit of an array", "moved to unreadable/, said in the log; the one before is used")
def corrupted_checkpoint(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
    run_dir = folder / "run"
    attempt(run_dir, reporter=Recorder(stop_after=6))
    *_, before, newest = committed(run_dir)
    victim = max((path for path in (run_dir / "checkpoints" / str(newest)).rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    reporter = Recorder()
    code, message = attempt(run_dir, reporter=reporter)
    seen.require(code == ExitCode.DONE, f"ended with {code}: {message}")
    said = next((line for line in reporter.lines if f"step {newest} can't be read" in line), "not a word")
    seen.require("unreadable" in said, "the log doesn't say where the corrupted checkpoint went")
    seen.require((run_dir / "unreadable" / str(newest)).is_dir(), "the corrupted checkpoint is gone")
    begins = resumed_at("\n".join(reporter.lines))
    seen.require(begins == before, f"it went on from step {begins} although step {before} is sound")
    stage.require_same(run_dir, seen)
    return said.replace(str(folder), "…"), newest - begins


# Surroundings -----------------------------------------------------------------------------------------------------------


@incident("clock jumps 30 days ahead, then 60 back", "nothing notices: same bits, no alert, no checkpoint given up as old")
def clock_jump(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
    run_dir, real, jumps = folder / "run", time.time, {3: 30 * DAY_SECONDS, 6: -30 * DAY_SECONDS}
    shift = [0.0]

    def jumping(index: int, host: int, hosts: int) -> Batch:
        shift[0] = jumps.get(index, shift[0])
        return batches(index, host, hosts)

    results: list[TrainResult | None] = []
    with patch.object(time, "time", lambda: real() + shift[0]):
        code, _ = attempt(run_dir, jumping, Recorder(stop_after=8))
        seen.require(code == ExitCode.PREEMPTED, f"ended with {code}")
        shift[0] = 30 * DAY_SECONDS  # 60 days after the newest checkpoint was saved, by this clock
        done, newest, reporter = len(rows_of(run_dir)), max(committed(run_dir)), Recorder()
        results.append(train(tiny_config(), batches, run_dir, reporter, fingerprint=FINGERPRINT, run_name="tiny"))
    begins = resumed_at("\n".join(reporter.lines))
    seen.require(begins == newest == done, f"of {done} steps {newest} were committed, and it went on from step {begins}")
    seen.require(results[0] is not None and results[0].alerts == (), "an alert was raised")
    stage.require_same(run_dir, seen)
    return f"stopped after step {done} and went on from step {begins}", done - begins


def train_without_wandb(run_dir: str) -> None:
    """A run whose W&B server is a port at which nobody listens."""
    reporter = Recorder()
    with patch.object(tracking, "INIT_SECONDS", 5):
        code, message = attempt(Path(run_dir), reporter=reporter, tracker=TrackerConfig(mode="auto"))
    print(json.dumps({"code": int(code), "message": message, "lines": reporter.lines}))


@incident("W&B unreachable", "said once, without the key; training goes on")
def unreachable_wandb(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
    key = "k" * 40
    environment = {"WANDB_API_KEY": key, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_MODE": "online", **cached(stage)}
    code, said, errors = elsewhere("train_without_wandb", folder / "run", environment=environment)
    if code:
        raise RuntimeError(errors.strip()[-300:])
    told = json.loads([line for line in said.splitlines() if line.startswith("{")][-1])
    seen.require(told["code"] == ExitCode.DONE, f"ended with {told['code']}: {told['message']}")
    lines = [line for line in told["lines"] if line.startswith("W&B")]
    seen.require(len(lines) == 1, f"it said so {len(lines)} times")
    seen.require(key not in said + errors, "the key was shown")
    stage.require_same(folder / "run", seen)
    return lines[0].splitlines()[0] if lines else "not a word", 0


@incident(
    "two trainers on one address: the first machine freezes, wakes up when the second is done",
    "the second waits, takes over when the lease has run out, from the newest checkpoint; the first changes nothing",
)
def two_trainers(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
    lab, step = stage.lab, stage.lab.training("twice")
    script = "import sys; from tests.train import drill; drill.build_training(*sys.argv[1:])"
    command = [sys.executable, "-c", script, str(lab.folder), str(lab.compiled), step.version, "first", "", "30"]
    first = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    try:
        lab.wait_for_rows(step, 8)
        job = json.loads((lab.jobs(step, "first")[0] / "process.json").read_text())["pid"]
        first.send_signal(signal.SIGSTOP)
        os.killpg(job, signal.SIGSTOP)
        done, newest = len(rows_of(lab.output(step))), max(committed(lab.output(step)), default=0)
        record = lab.builder(step, QuietEvents(), "second", lease_seconds=30).build(step, step.id)[0]
        begins = resumed_at((lab.jobs(step, "second")[0] / "log").read_text())
        os.killpg(job, signal.SIGCONT)
        first.send_signal(signal.SIGCONT)
        said, _ = first.communicate(timeout=WAIT_SECONDS)
    finally:
        first.kill()
    outcome = lab.jobs(step, "first")[0] / "outcome.json"
    wait_until(outcome.exists, "the end of the first job")
    woken = json.loads(outcome.read_text())
    seen.require(begins == newest, f"the second went on from step {begins} although step {newest} was committed")
    seen.require(record.content_digest == lab.undisturbed(), "the final checkpoint differs from that of an undisturbed run")
    seen.require(json.loads(said.splitlines()[-1])["digest"] == record.content_digest, "the two disagree about what was built")
    seen.require(lab.store.record(step.id) == record, "the first has changed what was committed")
    seen.require("SupersededError" in str(woken["message"]), "the first job doesn't know that it was given up")
    lab.store.require_intact(record)
    return f"attempt {record.attempt} committed; the woken job ended with {woken['exit_code']}: {woken['message']}", done - begins


# The command ------------------------------------------------------------------------------------------------------------


def show(verdicts: Sequence[Verdict]) -> None:
    table = Table(title="Failure drill of trainings", title_justify="left", show_lines=True)
    for column in ("incident", "expected", "happened"):
        table.add_column(column, overflow="fold")
    table.add_column("steps lost", justify="right")
    table.add_column("verdict", overflow="fold")
    for each in verdicts:
        verdict = "FAILED: " + "; ".join(each.failed) if each.failed else "as expected"
        table.add_row(each.incident, each.expected, each.happened, str(each.lost_steps), verdict, style="red" if each.failed else "")
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play all incidents, print the table, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    names = [each.play.__name__ for each in INCIDENTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="INCIDENT", help=f"some of: {', '.join(names)}")
    options = parser.parse_args(arguments)
    verdicts, progress = [], Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="training-drill-") as folder:
        stage = Stage(Path(folder))
        for each in INCIDENTS:
            if each.play.__name__ in options.only:
                progress.print(each.name)
                verdicts.append(each.verdict(stage))
    show(verdicts)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in verdicts], indent=2, ensure_ascii=False) + "\n")
    return int(any(each.failed for each in verdicts))


if __name__ == "__main__":
    sys.exit(main())
