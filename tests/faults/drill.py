"""The kill drill: a small real lab is built while job and builder processes are killed at random instants, and nothing may be lost.

`python -m tests.faults.drill --kills 500 --store both --seed 1 --json FILE` prints what was killed in which phase and what was checked.

No process of the drill imports dagster. Builders, and jobs but for those of the round with real job processes, are forked from a *zygote*
that has everything imported: an attempt then costs 20 ms to start instead of a second. What is checked is read by `Peek`, which is plain
file reads or plain HTTP, so that a defect of the store can't hide itself.
"""

import argparse
import functools
import gc
import gzip
import hashlib
import http.client
import importlib
import json
import os
import platform
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self
from urllib.parse import quote, urlencode, urlsplit

import psutil

from marin_assets import builder as building
from marin_assets.builder import Builder, QuietEvents, Retries
from marin_assets.launch import Handle, InlineLauncher, LocalLauncher, local
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Attempt, Claim, End, Record, Store
from marin_core.artifact.job import JobSpec
from marin_core.artifact.store import META
from marin_core.errors import MarinError
from marin_core.experiment import LocalFiles, MinCharacters, filtered, raw_source
from marin_core.experiment.existing import adopted, summary
from marin_core.experiment.tokens import tokenized, tokenizer
from tests.storage.gcs import FakeGcs

PROJECT = Path(__file__).resolve().parents[2]

# The lab ----------------------------------------------------------------------------------------------------------------

SHARDS = 4


class SmallLab:
    """Local documents → raw source → filtered shards → tokenizer → token caches, and any number of tiny artifacts beside them.

    Args:
        documents: folder of the documents, written by `write_documents`.
    """

    def __init__(self, documents: Path) -> None:
        self.documents = documents
        self.raw = raw_source("raw/local", "v1", LocalFiles(root=str(documents), pattern="*.jsonl.gz"), license="CC0-1.0")
        self.shards = filtered("filtered/local", "v1", self.raw, shards=SHARDS, filters=[MinCharacters(characters=10)])
        self.tokenizer = tokenizer("tokenizer/local", "v1", [self.shards], vocab_size=300)
        self.cache = tokenized("tokenized/local", "v1", self.shards, self.tokenizer, split="all")

    def step(self, artifact: ArtifactId) -> ArtifactStep:
        """The handle of any artifact of this lab; those called `summary/…`, `inline/…` and `adopted/…` exist by being asked for."""
        match artifact.name.split("/")[0]:
            case "summary" | "inline":
                return summary(artifact.name, artifact.version, [self.raw, self.shards])
            case "adopted":
                return adopted(artifact.name, artifact.version, f"file://{self.documents}")
        return {step.name: step for step in (self.raw, self.shards, self.tokenizer, self.cache)}[artifact.name]

    def pipeline(self) -> list[ArtifactId]:
        """The artifacts of the data path, upstream first."""
        return [artifact for step in (self.raw, self.shards, self.tokenizer, self.cache) for artifact in step.ids()]


def write_documents(folder: Path, files: int = 8, documents: int = 40) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        with gzip.open(folder / f"part-{number}.jsonl.gz", "wt", encoding="utf-8") as file:
            for line in range(documents):
                text = f"Document {number}-{line} says that the sum of {number} and {line} is {number + line}. " * 8
                file.write(json.dumps({"id": str(line), "text": text}) + "\n")


# Processes --------------------------------------------------------------------------------------------------------------

PRELOADED = ("runtime", "adopt", "filter", "ingest", "summary", "tokenize", "tokenizer")


class Zygote:
    """A process with everything imported that forks others on request; a context manager, at whose end they are all gone.

    Args:
        environment: variables beyond this process's; those of the Google clients must be there before anything is imported.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="zygote-"))
        self.address = str(self._folder / "socket")
        self._environment = {**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # Python warns of forking with threads; the one that is there is the memory allocator's, which knows about forks.
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.faults.drill", "--zygote", self.address]
        self._process = subprocess.Popen(command, cwd=PROJECT, env=self._environment, stdin=subprocess.PIPE)
        deadline = time.monotonic() + 300
        while not Path(self.address).exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError("the zygote didn't start")
            time.sleep(0.02)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.communicate()  # the end of its input tells it to end, with all that it has forked
        shutil.rmtree(self._folder, ignore_errors=True)

    def spawn(self, call: str, arguments: Mapping[str, Any], log: Path, environment: Mapping[str, str] | None = None) -> int:
        """Run `module:function(**arguments)` in a process of its own; returns the pid."""
        return spawn(self.address, call, arguments, log, environment)

    def ended(self) -> dict[int, int]:
        """Exit code (negative: the signal) of every process that has ended so far."""
        return {int(pid): code for pid, code in _ask_zygote(self.address, {"ask": "ended"}).items()}

    def wait(self, pids: Iterable[int], timeout_seconds: float = 300) -> list[int]:
        """Exit codes of processes once they have all ended."""
        wanted = list(pids)
        deadline = time.monotonic() + timeout_seconds
        while True:
            ended = self.ended()
            if all(pid in ended for pid in wanted):
                return [ended[pid] for pid in wanted]
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {[pid for pid in wanted if pid not in ended]} didn't end within {timeout_seconds} s")
            time.sleep(0.01)


def spawn(zygote: str, call: str, arguments: Mapping[str, Any], log: Path, environment: Mapping[str, str] | None = None) -> int:
    request = {"call": call, "arguments": dict(arguments), "log": str(log), "environment": dict(environment or {})}
    return int(_ask_zygote(zygote, request)["pid"])


def _ask_zygote(address: str, request: Mapping[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(address)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as answer:
            return dict(json.loads(answer.readline()))


def serve_as_zygote(address: str) -> int:
    """Fork on request until the end of standard input; single-threaded, so that forking is safe."""
    _preload()
    ended: dict[int, int] = {}
    living: dict[int, str] = {}
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{address}.new")
    server.listen(256)
    Path(f"{address}.new").rename(address)
    while True:
        readable, _, _ = select.select([server, sys.stdin], [], [], 0.005)
        for pid in list(living):
            if (found := os.waitpid(pid, os.WNOHANG))[0]:
                ended[pid] = os.waitstatus_to_exitcode(found[1])
                del living[pid]
        if sys.stdin in readable:
            break
        if server in readable:
            connection, _ = server.accept()
            with connection, suppress(OSError), connection.makefile("rb") as lines:  # who asked may have been killed meanwhile
                line = lines.readline()
                if not line.endswith(b"\n"):
                    continue
                request = json.loads(line)
                if request.get("ask") == "ended":
                    answer: dict[str, Any] = {str(pid): code for pid, code in ended.items()}
                elif request.get("ask") == "log":
                    answer = {"pid": next((pid for pid, log in living.items() if log == request["log"]), None)}
                else:
                    pid = os.fork()
                    if pid == 0:
                        server.close()
                        connection.close()
                        _run_forked(request)
                    living[pid] = request["log"]
                    answer = {"pid": pid}
                connection.sendall(json.dumps(answer).encode() + b"\n")
    for pid in living:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return 0


def _preload() -> None:
    """Import what builders and jobs need, and spare them what takes a job longest: asking git and reading the project's code."""
    importlib.import_module("marin_jobs.process")
    runtime: Any = importlib.import_module("marin_jobs.runtime")
    for name in PRELOADED:
        importlib.import_module(f"marin_jobs.{name}")
    if "STORAGE_EMULATOR_HOST" in os.environ:
        importlib.import_module("gcsfs")
    with suppress(ImportError):
        importlib.import_module("pandas")  # pyarrow looks for it when it first makes a table
    provenance: Any = importlib.import_module("marin_jobs.provenance")
    runtime.code_table = functools.cache(runtime.code_table)
    for name in PRELOADED[1:]:
        runtime.code_table(f"marin_jobs.{name}")
    runtime.code_state = functools.cache(provenance.code_state)
    runtime.code_state("")
    local.ORPHAN_SECONDS = 0.2
    assert "dagster" not in sys.modules, "a builder imports dagster"
    gc.collect()
    gc.freeze()


def _run_forked(request: Mapping[str, Any]) -> None:
    """The life of a forked process."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(request["environment"])
        module, _, name = request["call"].partition(":")
        code = int(getattr(importlib.import_module(module), name)(**request["arguments"]) or 0)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def run_job(spec: str) -> int:
    """What a job process runs, `python -m marin_jobs`, in a forked one."""
    return int(importlib.import_module("marin_jobs.process").main([spec]))


class ForkLauncher(LocalLauncher):
    """A `LocalLauncher` whose jobs are forked from a zygote.

    Args:
        job_call: `module:function` that is the job; its arguments are `spec`, the path, and those of `job_arguments`.
    """

    def __init__(
        self,
        root: Path,
        zygote: str,
        host: str | None = None,
        job_call: str = "tests.faults.drill:run_job",
        job_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(root, host)
        self._zygote = zygote
        self._job_call = job_call
        self._job_arguments = dict(job_arguments or {})

    def _start(self, handle: Handle, spec: JobSpec, environment: Mapping[str, str]) -> None:
        arguments = {"spec": str(handle.folder / "spec.json"), **self._job_arguments}
        pid = spawn(self._zygote, self._job_call, arguments, handle.folder / "log", environment)
        self._remember(handle, pid)

    def _orphan(self, handle: Handle) -> psutil.Process | None:
        """A forked process has the zygote's command line, so the zygote is asked."""
        pid = _ask_zygote(self._zygote, {"ask": "log", "log": str(handle.folder / "log")})["pid"]
        return None if pid is None else psutil.Process(pid)


LauncherKind = Literal["real", "fork", "inline"]


@dataclass(frozen=True)
class BuilderOrder:
    """What a builder process is asked to do.

    Attributes:
        host: whom it is on; builders on different hosts don't see each other's jobs.
        root: folder of the jobs of that host.
        start_at: instant of the monotonic clock to wait for.
        stop_means_job: what the builder does with its job if it is interrupted.
        job_call: what the job is, for the launcher `fork`.
    """

    prefix: str
    documents: str
    artifact: tuple[str, str, str | None]
    launcher: LauncherKind
    zygote: str
    host: str
    root: str
    result: str
    lease_seconds: float = 60.0
    poll_seconds: float = 0.02
    retries: int = 10_000
    start_at: float | None = None
    stop_means_job: bool = False
    job_call: str = "tests.faults.drill:run_job"
    job_arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> ArtifactId:
        return ArtifactId(*self.artifact)


def make_builder(order: BuilderOrder, step: ArtifactStep, **changes: Any) -> Builder:
    """The builder that an order describes, with some of its attributes changed."""
    root = Path(order.root)
    launcher: LocalLauncher
    if order.launcher == "fork":
        launcher = ForkLauncher(root, order.zygote, order.host, order.job_call, order.job_arguments)
    elif order.launcher == "inline":
        launcher = InlineLauncher(root, order.host)
    else:
        launcher = LocalLauncher(root, order.host)
    store = Store(order.prefix)
    retries = Retries(infrastructure=order.retries, preempted=order.retries, first_delay_seconds=0.001, longest_delay_seconds=0.01)
    values: dict[str, Any] = {
        "launcher": launcher,
        "events": TalkingEvents(order.stop_means_job),
        "retries": retries,
        "lease_seconds": order.lease_seconds,
        **changes,
    }
    return Builder(ArtifactGraph([step]), store, store, **values)


class TalkingEvents(QuietEvents):
    """Says on standard output what a build says, with the time."""

    def __init__(self, stop_means_job: bool) -> None:
        self._stop_means_job = stop_means_job

    def info(self, message: str) -> None:
        print(f"{time.monotonic():.3f} {message}", flush=True)

    warning = info

    def stop_means_job(self) -> bool:
        return self._stop_means_job


def run_builder(**arguments: Any) -> int:
    """Build one artifact and leave what was built in the result file; exits as a `marin` command would."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an interrupt like Ctrl-C, as in Dagster's run workers
    order = BuilderOrder(**{**arguments, "artifact": tuple(arguments["artifact"])})
    building.POLL_SECONDS = building.POLL_ELSEWHERE_SECONDS = order.poll_seconds
    step = SmallLab(Path(order.documents)).step(order.id)
    if order.start_at is not None:
        time.sleep(max(0.0, order.start_at - time.monotonic()))
    try:
        record, served = make_builder(order, step).build(step, order.id)
    except MarinError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        Path(order.result).write_text(json.dumps({"error": str(error), "class": type(error).__name__}))
        return int(error.exit_code)
    document = {"content": record.content_digest, "attempt": record.attempt, "served": served, "record": record.model_dump(mode="json")}
    Path(order.result).write_text(json.dumps(document))
    return 0


# Looking without the store ----------------------------------------------------------------------------------------------


class Peek(Protocol):
    """Reads a store without the code under test. Paths are relative to the store's prefix."""

    prefix: str

    def read(self, path: str) -> bytes | None: ...

    def names(self, folder: str) -> set[str]:
        """Every file below a folder, relative to it."""

    def glimpse(self, artifact: ArtifactId) -> set[str]:
        """The same for an artifact's address, quickly: bookkeeping of the newest attempt, and at least one file of each payload folder."""


class FilePeek:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.prefix = f"file://{root}"

    def read(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> set[str]:
        top = str(self.root / folder)
        return {f"{parent}/{name}"[len(top) + 1 :] for parent, _, files in os.walk(top) for name in files}

    def glimpse(self, artifact: ArtifactId) -> set[str]:
        top = f"{self.root}/{artifact.path}"
        found = {f"{folder}/{name}" for folder in _entries(top) if folder != META for name in _entries(f"{top}/{folder}")}
        found |= {f"{META}/{name}" for name in _entries(f"{top}/{META}")}
        newest = max(_entries(f"{top}/{META}/attempts"), default="00001")
        return found | {f"{META}/attempts/{newest}/{name}" for name in _entries(f"{top}/{META}/attempts/{newest}")}


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []


class HttpPeek:
    """The JSON API of a Google Cloud Storage server, on one connection."""

    def __init__(self, url: str, bucket: str, root: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._bucket = bucket
        self._root = root
        self.prefix = f"gs://{bucket}/{root}"

    def _get(self, target: str) -> bytes | None:
        for last in (False, True):
            try:
                self._connection.request("GET", target)
                response = self._connection.getresponse()
                data = response.read()
                break
            except (OSError, http.client.HTTPException):
                self._connection.close()
                if last:
                    raise
        if response.status == 404:
            return None
        if response.status != 200:
            raise RuntimeError(f"GET {target}: {response.status} {data[:200]!r}")
        return data

    def read(self, path: str) -> bytes | None:
        return self._get(f"/storage/v1/b/{self._bucket}/o/{quote(f'{self._root}/{path}', safe='')}?alt=media")

    def names(self, folder: str) -> set[str]:
        start = f"{self._root}/{folder}/"
        query = {"prefix": start, "maxResults": "5000"}
        found: set[str] = set()
        while True:
            page = json.loads(self._get(f"/storage/v1/b/{self._bucket}/o?{urlencode(query)}") or b"{}")
            found |= {item["name"].removeprefix(start) for item in page.get("items", [])}
            if "nextPageToken" not in page:
                return found
            query["pageToken"] = page["nextPageToken"]

    def glimpse(self, artifact: ArtifactId) -> set[str]:
        return self.names(artifact.path)


def attempts_of(peek: Peek, artifact: ArtifactId) -> list[Attempt]:
    """All attempts with a claim, in order."""
    found: list[Attempt] = []
    for number in count(1):
        folder = f"{artifact.path}/{META}/attempts/{number:05d}"
        claim = peek.read(f"{folder}/claim.json")
        if claim is None:
            return found
        end = peek.read(f"{folder}/end.json")
        found.append(Attempt(claim=Claim.model_validate_json(claim), end=End.model_validate_json(end) if end is not None else None))
    return found


class BrokenPromise(AssertionError):  # noqa: N818
    """An invariant doesn't hold."""


class Invariants:
    """What must hold in a store at any time, and what must hold at the end.

    Args:
        digests: content and manifest digest by artifact name and partition, from a build that nobody disturbed.
        roots: job folders of all hosts.
    """

    def __init__(self, peek: Peek, digests: Mapping[str, tuple[str, str]], roots: Sequence[Path]) -> None:
        self.peek = peek
        self.checks = 0
        self._digests = digests
        self._roots = roots
        self._seen: dict[ArtifactId, bytes] = {}

    def _require(self, holds: bool, what: str) -> None:
        self.checks += 1
        if not holds:
            raise BrokenPromise(f"{self.peek.prefix}: {what}")

    def look(self, artifact: ArtifactId) -> Record | None:
        """(a) and (b) for one artifact: what is committed is complete, intact to the last byte, and what was seen before."""
        data = self.peek.read(f"{artifact.path}/{META}/record.json")
        before = self._seen.get(artifact)
        if data is None:
            self._require(before is None, f"the record of {artifact} is gone")
            return None
        self._require(before in (None, data), f"the record of {artifact} has changed")
        self._seen[artifact] = data
        record = Record.model_validate_json(data)  # a half-written one raises
        self._require(record.id == artifact, f"the record of {artifact} is of {record.id}")
        content, manifest = self._digests[digest_key(artifact)]
        self._require(record.content_digest == content, f"{artifact} holds other content than an undisturbed build")
        self._require(record.manifest_digest == manifest, f"{artifact} has other files than an undisturbed build")
        for file in record.files:
            if "://" in record.payload:
                payload: bytes | None = Path(f"{record.payload.removeprefix('file://')}/{file.path}").read_bytes()
            else:
                payload = self.peek.read(f"{artifact.path}/{record.payload}/{file.path}")
            self._require(payload is not None, f"{artifact} is committed without its file {file.path}")
            self._require(hashlib.sha256(payload or b"").hexdigest() == file.sha256, f"{file.path} of {artifact} isn't what was committed")
        return record

    def all(self, artifacts: Iterable[ArtifactId], *, final: bool = False) -> int:
        """Every invariant over every artifact; the number of attempts so far."""
        total = 0
        for artifact in artifacts:
            record = self.look(artifact)
            attempts = attempts_of(self.peek, artifact)
            total += len(attempts)
            names = self.peek.names(artifact.path)
            numbers = sorted({name.split("/")[2] for name in names if name.startswith(f"{META}/attempts/") and name.endswith("claim.json")})
            expected = [f"{number:05d}" for number in range(1, len(attempts) + 1)]
            self._require(numbers == expected, f"attempts of {artifact} have gaps: {numbers}")
            for attempt in attempts[:-1]:
                self._require(attempt.end is not None, f"attempt {attempt.number} of {artifact} is open and not the last")
            succeeded = [attempt for attempt in attempts if attempt.end is not None and attempt.end.record is not None]
            self._require(len(succeeded) <= 1, f"{artifact} was built {len(succeeded)} times")
            if record is not None:
                self._require(bool(succeeded) and succeeded[0].end is not None, f"{artifact} is committed without a success")
                self._require(succeeded[0].end.record == record, f"{artifact} is committed otherwise than its attempt ended")  # type: ignore[union-attr]
                self._require(succeeded[0] is attempts[-1], f"attempts of {artifact} go on after its success")
            if final:
                self._final(artifact, record, attempts, names)
        return total

    def _final(self, artifact: ArtifactId, record: Record | None, attempts: list[Attempt], names: set[str]) -> None:
        if record is None:
            raise BrokenPromise(f"{self.peek.prefix}: {artifact} was never committed")
        allowed = {f"{record.payload}/{file.path}" for file in record.files} if "://" not in record.payload else set()
        debris = sorted(name for name in names if not name.startswith(f"{META}/") and name not in allowed)
        self._require(not debris, f"{artifact} has debris: {debris[:5]}")
        if isinstance(self.peek, FilePeek):
            folders = {path.name for path in (self.peek.root / artifact.path).iterdir() if path.is_dir()}
            self._require(folders <= {META, record.payload}, f"{artifact} has folders of debris: {sorted(folders)}")
        for attempt in attempts:
            self._require(attempt.end is not None, f"attempt {attempt.number} of {artifact} is still open")
            if attempt.end is not None and attempt.end.record is None:
                explained = attempt.end.failure is not None and bool(attempt.end.error)
                self._require(explained, f"attempt {attempt.number} of {artifact} ended without a word")

    def jobs(self) -> int:
        """No attempt was given to two job processes; the number of jobs."""
        jobs: Counter[tuple[str, int]] = Counter()
        for root in self._roots:
            for path in root.glob("m-*/spec.json"):
                spec = JobSpec.from_json(json.loads(path.read_text()))
                jobs[str(spec.id), spec.attempt] += 1
        twice = {job: times for job, times in jobs.items() if times > 1}
        self._require(not twice, f"attempts were started twice: {twice}")
        return sum(jobs.values())

    def temporaries(self, artifacts: Iterable[ArtifactId]) -> int:
        """Files that a writer was killed over; nobody reads them."""
        return sum(name.rsplit("/", 1)[-1].startswith(".") for artifact in artifacts for name in self.peek.names(f"{artifact.path}/{META}"))


def digest_key(artifact: ArtifactId) -> str:
    """What an artifact is built like: tiny ones of one kind are all alike."""
    stage = artifact.name.split("/")[0]
    return stage if stage in ("summary", "inline", "adopted") else str(artifact)


# Killing ----------------------------------------------------------------------------------------------------------------

JOB_PHASES = ("start-up", "reading", "building", "manifest", "uploading", "closing", "publishing", "after commit")
BUILDER_PHASES = ("before claim", "claiming", "submitting", "following", "closing", "publishing", "after commit")
STUCK_SECONDS = 180


@dataclass
class Scene:
    """What one look at an artifact under construction shows.

    Attributes:
        names: its files, relative to its address.
        number: the newest attempt that has left a trace, 0 if there is none.
        job: folder of that attempt's job.
        log: what the job has printed.
        ended: whether the attempt's end has a record; None while it is open.
    """

    names: set[str]
    number: int
    job: Path | None
    job_pid: int | None
    log: str
    ended: bool | None

    @classmethod
    def of(cls, peek: Peek, artifact: ArtifactId, roots: Mapping[str, Path]) -> "Scene":
        names = peek.glimpse(artifact)
        numbers = [int(parts[2]) for name in names if (parts := name.split("/"))[:2] == [META, "attempts"] and len(parts) > 3]
        scene = cls(names, max(numbers, default=0), None, None, "", None)
        if not scene.has("claim.json"):
            return scene
        claim = json.loads(peek.read(scene._path(artifact, "claim.json")) or b"")
        scene.job = roots[claim["host"]] / claim["job"]
        with suppress(FileNotFoundError):
            scene.log = (scene.job / "log").read_text()
            scene.job_pid = int(json.loads((scene.job / "process.json").read_text())["pid"])
        if scene.has("end.json"):
            scene.ended = json.loads(peek.read(scene._path(artifact, "end.json")) or b"")["record"] is not None
        return scene

    def _path(self, artifact: ArtifactId, name: str) -> str:
        return f"{artifact.path}/{META}/attempts/{self.number:05d}/{name}"

    def has(self, name: str) -> bool:
        return f"{META}/attempts/{self.number:05d}/{name}" in self.names

    @property
    def is_committed(self) -> bool:
        return f"{META}/record.json" in self.names

    def phase(self, target: Literal["job", "builder"]) -> str:
        return self.job_phase() if target == "job" else self.builder_phase()

    def job_phase(self) -> str:
        if self.is_committed:
            return "after commit"
        if self.ended:
            return "publishing"
        if self.has("code.json"):
            return "closing"
        uploaded = any(name.startswith(f"attempt-{self.number}/") for name in self.names)
        local_output = self.job / "output" if self.job is not None else None
        is_remote = local_output is not None and local_output.exists()
        if "writing the manifest" in self.log:
            return "uploading" if is_remote and uploaded else "manifest"
        if "building" not in self.log:
            return "start-up"
        return "building" if uploaded or (local_output is not None and any_file(local_output)) else "reading"

    def builder_phase(self) -> str:
        if self.is_committed:
            return "after commit"
        if not self.has("claim.json"):
            return "claiming" if any(name.startswith(f"{META}/attempts/{self.number:05d}/") for name in self.names) else "before claim"
        if self.ended is not None:
            return "publishing" if self.ended else "before claim"
        if self.job_pid is None:
            return "submitting"
        return "following" if is_running(self.job_pid) else "closing"


def any_file(folder: Path) -> bool:
    return any(path.is_file() for path in folder.rglob("*"))


def process_state(pid: int) -> str:
    """The kernel's letter for a process: R, S, D, T (stopped), Z or X (dead); empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_running(pid: int) -> bool:
    return process_state(pid) not in ("", "Z", "X")


def stop(pid: int, timeout_seconds: float = 10) -> bool:
    """Stop a process where it is, and wait until it is; False if it has ended before."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + timeout_seconds
    while process_state(pid) not in ("T", "t"):
        if not is_running(pid):
            return False
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} doesn't stop")
        time.sleep(0.0002)
    return True


def kill(pid: int) -> None:
    """Kill a process and wait until it is dead."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while is_running(pid):
        time.sleep(0.0005)


@dataclass
class Plan:
    """The next kill at a site.

    Attributes:
        phase: to wait for; None = the process's age alone decides.
        delay_seconds: from the beginning of the phase, or of the process, to the kill.
        since: when that was; None before.
    """

    target: Literal["job", "builder"]
    phase: str | None
    delay_seconds: float
    pid: int | None = None
    since: float | None = None

    @classmethod
    def draw(cls, draw: random.Random, so_far: Mapping[tuple[str, str], int], *, remote: bool, slow: bool) -> "Plan":
        """At any age, or in a phase; half of the time in one that was hit least so far, since some last a few milliseconds.

        Args:
            so_far: kills by target and phase.
        """
        target: Literal["job", "builder"] = "job" if draw.random() < 0.65 else "builder"
        if draw.random() < 0.3:
            return cls(target, None, draw.uniform(0, 2.0 if slow else 0.15))
        possible = JOB_PHASES if target == "job" else BUILDER_PHASES
        unseen = "claiming" if remote else "uploading"  # a claim is one request there; here nothing is uploaded
        phases = [phase for phase in possible if phase != unseen]
        if draw.random() < 0.5:
            return cls(target, min(phases, key=lambda phase: so_far.get((target, phase), 0)), draw.choice((0.0, draw.uniform(0, 0.004))))
        return cls(target, draw.choice(phases), draw.choice((0.0, draw.uniform(0, 0.004), draw.uniform(0, 0.03))))


@dataclass
class Site:
    """One artifact under construction, with the builders that work on it."""

    artifact: ArtifactId
    quota: int
    orders: list[BuilderOrder]
    started: float
    builders: dict[int, BuilderOrder] = field(default_factory=dict)
    plan: Plan | None = None
    kills: int = 0
    committed: bool = False


@dataclass
class Tally:
    """What a drill did and checked."""

    kills: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """By store, launcher, target and phase."""
    artifacts: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    temporaries: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    def killed(self, store: str) -> int:
        return sum(times for (where, *_), times in self.kills.items() if where == store)


class Round:
    """Builds some artifacts in a store, two at a time, and kills what builds them, until all are built or enough is killed."""

    def __init__(
        self,
        lab: SmallLab,
        zygote: Zygote,
        peek: Peek,
        folder: Path,
        *,
        store: str,
        launcher: LauncherKind,
        invariants: Invariants,
        tally: Tally,
        draw: random.Random,
    ) -> None:
        self._lab = lab
        self._zygote = zygote
        self._peek = peek
        self._store = store
        self._launcher = launcher
        self._folder = folder
        self._roots = {"one": folder / "jobs-one", "two": folder / "jobs-two"}
        self._invariants = invariants
        self._tally = tally
        self._draw = draw
        self._results = count()
        self._pause = 0.0

    def run(self, artifacts: Iterable[ArtifactId], done: set[ArtifactId], *, kills: int, quota: tuple[int, int]) -> int:
        """Build artifacts until all are built or `kills` were done and none is half built; the number of kills.

        Args:
            done: what is built already; grows.
            quota: least and most kills at one artifact.
        """
        waiting = list(artifacts)
        sites: list[Site] = []
        killed = 0
        next_reap = 0.0
        while sites or (waiting and killed < kills):
            while waiting and len(sites) < 2 and killed < kills and (ready := self._ready(waiting, done)) is not None:
                waiting.remove(ready)
                left = kills - killed - sum(site.quota - site.kills for site in sites)
                sites.append(self._open(ready, max(0, min(self._draw.randint(*quota), left))))
            now = time.monotonic()
            if now >= next_reap:
                next_reap = now + 0.02
                self._reap(sites)
            self._pause = 0.01 if self._launcher == "real" else 0.002
            for site in list(sites):
                killed += self._kill_when_due(site)
                if not site.builders:
                    sites.remove(site)
                    done.add(site.artifact)
                    self._invariants.all([site.artifact])
                elif time.monotonic() - site.started > STUCK_SECONDS:
                    raise TimeoutError(f"{site.artifact} isn't built after {STUCK_SECONDS} s; see {self._folder}")
            time.sleep(self._pause)
        return killed

    def _ready(self, waiting: list[ArtifactId], done: set[ArtifactId]) -> ArtifactId | None:
        for artifact in waiting:
            step = self._lab.step(artifact)
            if all(read in done for dep in step.deps for read in step.reads(dep, artifact.partition)):
                return artifact
        return None

    def _open(self, artifact: ArtifactId, quota: int) -> Site:
        """Some artifacts have two builders, and some of those are on hosts that don't see each other's jobs."""
        launcher: LauncherKind = "inline" if artifact.name.startswith("inline/") else self._launcher
        hosts = self._draw.choices((["one"], ["one", "one"], ["one", "two"]), weights=(60, 20, 20))[0]
        orders = [
            BuilderOrder(
                prefix=self._peek.prefix,
                documents=str(self._lab.documents),
                artifact=(artifact.name, artifact.version, artifact.partition),
                launcher=launcher,
                zygote=self._zygote.address,
                host=host,
                root=str(self._roots[host]),
                result=str(self._folder / f"result-{next(self._results)}"),
                lease_seconds=3.0 if "two" in hosts and launcher != "real" else 30.0,
            )
            for host in hosts
        ]
        site = Site(artifact, quota, orders, time.monotonic())
        for order in orders:
            self._start(site, order)
        return site

    def _start(self, site: Site, order: BuilderOrder) -> None:
        pid = self._zygote.spawn("tests.faults.drill:run_builder", asdict(order), Path(f"{order.result}.log"))
        site.builders[pid] = order

    def _reap(self, sites: list[Site]) -> None:
        """Builders that have ended: killed ones are started again, others must have succeeded."""
        ended = self._zygote.ended()
        for site in sites:
            for pid in [pid for pid in site.builders if pid in ended]:
                order = site.builders.pop(pid)
                if ended[pid] == -signal.SIGKILL:
                    self._start(site, order)
                elif ended[pid] != 0:
                    log = Path(f"{order.result}.log").read_text()
                    raise BrokenPromise(f"the builder of {site.artifact} ended with {ended[pid]}; see {self._folder}:\n{log[-4000:]}")
                else:
                    content = json.loads(Path(order.result).read_text())["content"]
                    record = self._invariants.look(site.artifact)
                    if record is None or record.content_digest != content:
                        raise BrokenPromise(f"a builder of {site.artifact} returned what isn't committed; see {self._folder}")

    def _kill_when_due(self, site: Site) -> int:
        scene = Scene.of(self._peek, site.artifact, self._roots)
        if scene.is_committed and not site.committed:
            site.committed = True
            self._invariants.look(site.artifact)
        if site.kills >= site.quota or not site.builders:
            return 0
        plan = site.plan
        if plan is None:
            so_far: Counter[tuple[str, str]] = Counter()
            for (store, _, target, phase), times in self._tally.kills.items():
                so_far[target, phase] += times if store == self._store else 0
            plan = Plan.draw(self._draw, so_far, remote=not isinstance(self._peek, FilePeek), slow=self._launcher == "real")
            site.plan = plan
        now = time.monotonic()
        phases: Sequence[str] = BUILDER_PHASES if plan.target == "builder" else JOB_PHASES
        phase = scene.phase(plan.target)
        pid = scene.job_pid
        if plan.target == "builder":
            pid = plan.pid if plan.pid in site.builders else self._draw.choice(list(site.builders))
        if pid is None or not is_running(pid):
            return 0
        if pid != plan.pid:
            plan.pid, plan.since = pid, (now if plan.phase is None else None)
        if plan.since is None and plan.phase is not None and phases.index(phase) >= phases.index(plan.phase):
            plan.since = now
        if plan.since is None or now < plan.since + plan.delay_seconds:
            soon = plan.phase is not None and plan.since is None and phases.index(plan.phase) - phases.index(phase) <= 2
            self._pause = 0.0 if soon or plan.since is not None else self._pause
            return 0
        site.plan = None
        if not stop(pid):
            return 0
        scene = Scene.of(self._peek, site.artifact, self._roots)  # where exactly it was stopped
        phase = scene.phase(plan.target)
        kill(pid)
        site.kills += 1
        self._tally.kills[self._store, site.orders[0].launcher, plan.target, phase] += 1
        self._invariants.look(site.artifact)
        return 1


# The drill --------------------------------------------------------------------------------------------------------------


class Drill:
    """Kills so many processes on one store, on real job processes and on forked ones, over the lab and over tiny artifacts."""

    def __init__(self, folder: Path, zygote: Zygote, store: str, digests: Mapping[str, tuple[str, str]], tally: Tally, seed: int) -> None:
        self._folder = folder
        self._lab = SmallLab(folder / "documents")
        self._zygote = zygote
        self._store = store
        self._digests = digests
        self._tally = tally
        self._draw = random.Random(f"{seed} {store}")
        self._rounds = count(1)

    def run(self, kills: int, peeks: Iterator[Peek]) -> None:
        """Kill until there were `kills` kills.

        Args:
            peeks: an empty store at each call.
        """
        started = time.monotonic()
        real, tiny = kills // 10, kills // 2
        self._pipeline(next(peeks), "real", real)
        while (left := kills - tiny - self._tally.killed(self._store)) > 0:
            self._pipeline(next(peeks), "fork", left)
        while (left := kills - self._tally.killed(self._store)) > 0:
            self._tiny(next(peeks), left)
        self._tally.seconds[self._store] += round(time.monotonic() - started)

    def _pipeline(self, peek: Peek, launcher: LauncherKind, kills: int) -> None:
        """Of real processes, which take seconds to start, only as many artifacts as there are kills to spread."""
        if kills > 0:
            wanted = self._lab.pipeline()[: None if launcher == "fork" else 1 + kills // 4]
            with self._round(peek, launcher) as (each, built):
                each.run(wanted, built, kills=kills, quota=(2, 8))
                each.run([artifact for artifact in wanted if artifact not in built], built, kills=1, quota=(0, 0))

    def _tiny(self, peek: Peek, kills: int) -> None:
        with self._round(peek, "fork") as (each, built):
            inputs = [artifact for artifact in self._lab.pipeline() if artifact.name.startswith(("raw/", "filtered/"))]
            each.run(inputs, built, kills=1, quota=(0, 0))
            stages = ("summary", "adopted", "summary", "inline")
            wanted = [ArtifactId(f"{stages[number % 4]}/a{number:03d}", "v1") for number in range(40)]
            each.run(wanted, built, kills=kills, quota=(2, 8))

    @contextmanager
    def _round(self, peek: Peek, launcher: LauncherKind) -> Iterator[tuple[Round, set[ArtifactId]]]:
        """A round, and at its end every invariant over its whole store."""
        number = next(self._rounds)
        folder = self._folder / f"{self._store}-{number}"
        folder.mkdir()
        invariants = Invariants(peek, self._digests, [folder / "jobs-one", folder / "jobs-two"])
        built: set[ArtifactId] = set()
        before, started = self._tally.killed(self._store), time.monotonic()
        yield (
            Round(
                self._lab,
                self._zygote,
                peek,
                folder,
                store=self._store,
                launcher=launcher,
                invariants=invariants,
                tally=self._tally,
                draw=self._draw,
            ),
            built,
        )
        attempts = invariants.all(sorted(built), final=True)
        self._tally.jobs[self._store] += invariants.jobs()
        self._tally.attempts[self._store] += attempts
        self._tally.artifacts[self._store] += len(built)
        self._tally.checks[self._store] += invariants.checks
        self._tally.temporaries[self._store] += invariants.temporaries(sorted(built))
        kills = self._tally.killed(self._store) - before
        seconds = time.monotonic() - started
        print(
            f"{self._store} round {number} ({launcher}): {kills} kills, {len(built)} artifacts, {seconds:.0f} s",
            flush=True,
        )


def undisturbed(folder: Path, zygote: Zygote) -> dict[str, tuple[str, str]]:
    """Content and manifest digest of everything that the drill builds, from a build that nobody disturbs."""
    lab = SmallLab(folder / "documents")
    tiny = [ArtifactId(f"{stage}/reference", "v1") for stage in ("summary", "inline", "adopted")]
    found = {}
    for number, artifact in enumerate([*lab.pipeline(), *tiny]):
        result = folder / f"reference-{number}"
        order = BuilderOrder(
            prefix=f"file://{folder}/reference",
            documents=str(lab.documents),
            artifact=(artifact.name, artifact.version, artifact.partition),
            launcher="inline" if artifact.name.startswith("inline/") else "fork",
            zygote=zygote.address,
            host="reference",
            root=str(folder / "jobs-reference"),
            result=str(result),
        )
        log = Path(f"{result}.log")
        (code,) = zygote.wait([zygote.spawn("tests.faults.drill:run_builder", asdict(order), log)])
        if code != 0:
            raise RuntimeError(f"the undisturbed build of {artifact} failed:\n{log.read_text()}")
        record = json.loads(result.read_text())["record"]
        found[digest_key(artifact)] = (record["content_digest"], record["manifest_digest"])
    return found


def drill(folder: Path, stores: Sequence[str], kills: int, seed: int) -> Tally:
    """Run the drill on `file` or `gcs` stores, sharing the kills between them."""
    tally = Tally()
    write_documents(folder / "documents")
    for number, store in enumerate(stores):
        share = kills // len(stores) + (number < kills % len(stores))
        if store == "file":
            with Zygote() as zygote:
                digests = undisturbed(folder, zygote)
                peeks: Iterator[Peek] = (FilePeek(folder / f"store-{number}") for number in count())
                Drill(folder, zygote, store, digests, tally, seed).run(share, peeks)
        else:
            with FakeGcs() as server, Zygote(server.environment()) as zygote:
                digests = undisturbed(folder, zygote)
                peeks = (HttpPeek(server.url, server.bucket, f"store-{number}") for number in count())
                Drill(folder, zygote, store, digests, tally, seed).run(share, peeks)
        shutil.rmtree(folder / "reference")
        shutil.rmtree(folder / "jobs-reference")
    return tally


def show(tally: Tally) -> str:
    """The counts as a table for people."""
    lines = []
    stores = sorted(tally.seconds)
    for target, phases in (("job", JOB_PHASES), ("builder", BUILDER_PHASES)):
        lines.append(f"{'kills of ' + target + ' processes':34}" + "".join(f"{store:>8}" for store in stores))
        for phase in phases:
            counts = [sum(n for (s, _, t, p), n in tally.kills.items() if (s, t, p) == (store, target, phase)) for store in stores]
            lines.append(f"  {phase:32}" + "".join(f"{number:8}" for number in counts))
    totals: list[tuple[str, Mapping[str, int]]] = [
        ("kills", {store: tally.killed(store) for store in stores}),
        ("  of real job processes' builds", {s: sum(n for (w, k, *_), n in tally.kills.items() if (w, k) == (s, "real")) for s in stores}),
        ("  of builders with inline jobs", {s: sum(n for (w, k, *_), n in tally.kills.items() if (w, k) == (s, "inline")) for s in stores}),
        ("artifacts built", tally.artifacts),
        ("attempts", tally.attempts),
        ("job processes", tally.jobs),
        ("checks of invariants, all held", tally.checks),
        ("temporary files left in .artifact", tally.temporaries),
        ("seconds", tally.seconds),
    ]
    lines += [f"{name:34}" + "".join(f"{values[store]:8}" for store in stores) for name, values in totals]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.drill", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--store", choices=("file", "gcs", "both"), default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the counts")
    parser.add_argument("--keep", action="store_true", help="leave the stores and all logs for a look")
    parser.add_argument("--zygote", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.zygote:
        return serve_as_zygote(options.zygote)
    folder = Path(tempfile.mkdtemp(prefix="drill-"))
    stores = ("file", "gcs") if options.store == "both" else (options.store,)
    try:
        tally = drill(folder, stores, options.kills, options.seed)
    except BaseException:
        print(f"everything is left in {folder}", file=sys.stderr)
        raise
    print(show(tally))
    if options.json is not None:
        rows = [
            {"store": store, "launcher": launcher, "target": target, "phase": phase, "kills": times}
            for (store, launcher, target, phase), times in sorted(tally.kills.items())
        ]
        names = ("artifacts", "attempts", "jobs", "checks", "temporaries", "seconds")
        document = {"seed": options.seed, "machine": platform.platform(), "kills": rows} | {n: dict(getattr(tally, n)) for n in names}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.keep:
        print(f"everything is left in {folder}")
    else:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
