"""A job's folder in the store: what a launcher and the pods of a job on a cluster have in common, since they share no disk.

    spec.json                                  from the launcher, once
    messages/{generation}-{block}/{number}     of process 0: whole lines of Dagster Pipes messages, from the pod
    log-{process}/{generation}-{block}/{number}
    generations/{generation}                   that a pod of process 0 has begun
    seals/{generation}                         which of the two came first: it commits, or a newer one has replaced it
    outcomes/{generation}-{process}.json       how a pod ended

Nothing is ever changed after it was written, and the names of one folder sort by time. A generation is one pod's life.
"""

import re
from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints, ValidationError

from marin_core.artifact.objects import open_objects
from marin_core.config import Config
from marin_core.errors import ConfigError, DataError, SupersededError

MESSAGES = "messages"
"""Stream of process 0's messages to Dagster."""

BLOCK = 1000
"""Pieces of a stream that lie in one folder of it, so that a look for new ones lists no more, however long the job has been running."""

SPEC = "spec.json"

_COMMITS, _REPLACED = b"it commits", b"a newer one has replaced it"
"""What a seal may say; whoever creates it decides."""

_STREAM = re.compile(r"messages|log-\d+")

GENERATION_DIGITS = 20
"""All generations have as many, so that their names sort by time; the name of a piece of a stream begins with them."""

GENERATION = re.compile(rf"\d{{{GENERATION_DIGITS}}}")
"""What a generation is called, and a pod's own folder in its attempt's."""

Generation = Annotated[str, StringConstraints(pattern=rf"^{GENERATION.pattern}$")]
"""20 decimal digits: nanoseconds of the wall clock when the pod began, or more if one before it says so (`next_generation`)."""


def log_stream(process: int) -> str:
    """Stream of what a process printed."""
    return f"log-{process}"


class Outcome(Config):
    """How a pod of a job ended, in its keeper's words.

    Attributes:
        process: which of the job's processes it ran.
        exit_code: the pod's own; that of a process killed by a signal is 128 + its number.
        message: why, for people; None where it has done its part.
        peer_lost: it says itself that it only missed another process.
        restart: restart attempt of the JobSet. Suspending and resuming a job doesn't raise it (spec/kubernetes.md §1.6).
        ended_at: ISO time of the pod's own clock.
    """

    model_config = ConfigDict(extra="ignore")  # the image that wrote it may be newer than who reads it

    generation: Generation
    process: int = Field(ge=0)
    exit_code: int = Field(ge=0)
    message: str | None = None
    peer_lost: bool = False
    restart: int = Field(default=0, ge=0)
    pod: str = ""
    node: str = ""
    ended_at: datetime


class JobFolder:
    """Writes and reads one job's folder at any URL that a store may have.

    Every failure of the backend is an `InfrastructureError`, or a `ConfigError` where the account lacks the right.
    """

    def __init__(self, url: str) -> None:
        self._objects = open_objects(url)
        self.url = self._objects.url

    # The spec -----------------------------------------------------------------------------------------------------------

    def write_spec(self, text: str) -> bool:
        """Write the spec, unless there is one: False then, whatever it says."""
        return self._objects.create(SPEC, text.encode())

    def spec(self) -> str | None:
        data = self._objects.read(SPEC)
        return None if data is None else data.decode()

    # Streams ------------------------------------------------------------------------------------------------------------

    def put(self, stream: str, generation: str, sequence: int, data: bytes) -> None:
        """Write a piece of a stream. One writer a generation numbers them from 0, each after the one before is written.

        Safe to repeat with the same data after a failure; with other data a reader might have seen the former.
        """
        self._objects.replace(f"{_checked(stream)}/{generation}-{sequence // BLOCK:05d}/{sequence % BLOCK:03d}", data)

    def chunks(self, stream: str, after: str | None = None) -> list[str]:
        """Names of a stream's pieces in order, or of those after a piece with this name. Each begins with its generation."""
        seen = "" if after is None else after.partition("/")[0]
        blocks = [block for block in self._objects.names(_checked(stream)) if block >= seen]
        found = (f"{block}/{name}" for block in blocks for name in self._objects.names(f"{stream}/{block}") if name.isdigit())
        return [name for name in found if after is None or name > after]

    def read(self, stream: str, chunk: str) -> bytes:
        """A piece of a stream, by its name.

        Raises:
            DataError: it is gone.
        """
        data = self._objects.read(f"{_checked(stream)}/{chunk}")
        if data is None:
            raise DataError(
                f"{chunk} of {stream} in {self.url} is gone", advice="Leave the folder alone while its job runs; the rest can be read."
            )
        return data

    # Generations --------------------------------------------------------------------------------------------------------

    def next_generation(self, process: int, now_ns: int) -> Generation:
        """The generation of a pod that begins now, above those before it even if its clock is behind theirs."""
        marked = self._objects.names("generations")
        blocks = self._objects.names(log_stream(process))
        return f"{max([now_ns, *(int(name[:GENERATION_DIGITS]) + 1 for name in marked[-1:] + blocks[-1:])]):0{GENERATION_DIGITS}d}"

    def supersede(self, generation: str) -> set[str]:
        """Make a new pod of process 0 the one that counts; returns older generations that may still commit, as they had begun to.

        All other older ones can't any more, however long their pods run on unseen (spec/kubernetes.md §1.6), so what they leave may go.

        Raises:
            SupersededError: a newer one has come meanwhile.
        """
        self._objects.create(f"generations/{generation}", b"")
        self.require_newest(generation)
        older = [name for name in self._objects.names("generations") if name < generation]
        sealed = self._objects.read_many([f"seals/{name}" for name in older])
        return {name for name in older if not (sealed.get(f"seals/{name}") == _REPLACED or self._seal(name, _REPLACED))}

    def require_newest(self, generation: str) -> None:
        """Refuse a generation that a newer one has replaced.

        Raises:
            SupersededError: there is a newer one.
        """
        newest = self._objects.names("generations")[-1:]
        if newest and newest[0] > generation:
            raise self._superseded(generation, f"replaced by {newest[0]}")

    def begin_commit(self, generation: str) -> None:
        """The last step before a commit: no newer generation may take this one's output away from here on. Safe to repeat.

        Raises:
            SupersededError: a newer one has replaced it.
        """
        if not self._seal(generation, _COMMITS):
            raise self._superseded(generation, "replaced by a newer one")

    def _seal(self, generation: str, decision: bytes) -> bool:
        path = f"seals/{generation}"
        return self._objects.create(path, decision) or self._objects.read(path) == decision

    def _superseded(self, generation: str, how: str) -> SupersededError:
        return SupersededError(
            f"superseded: generation {generation} of the job at {self.url} was {how}; its work is not used",
            advice="Nothing: the newer pods of the same job go on.",
        )

    # Outcomes -----------------------------------------------------------------------------------------------------------

    def leave(self, outcome: Outcome) -> None:
        """Write how a pod ended; its keeper does so once its streams are complete. Safe to repeat."""
        self._objects.replace(f"outcomes/{outcome.generation}-{outcome.process}.json", outcome.model_dump_json().encode())

    def outcomes(self) -> list[Outcome]:
        """How the pods that have ended did so, by generation.

        Raises:
            DataError: one of them can't be read.
        """
        paths = [f"outcomes/{name}" for name in self._objects.names("outcomes") if name.endswith(".json") and name[0].isdigit()]
        return [self._parsed(path, data) for path, data in sorted(self._objects.read_many(paths).items())]

    def _parsed(self, path: str, data: bytes) -> Outcome:
        try:
            return Outcome.model_validate_json(data)
        except (ConfigError, ValidationError) as error:
            raise DataError(f"{self.url}/{path} is damaged: {error}", advice="Remove it; the pod's exit code says the same.") from error


def _checked(stream: str) -> str:
    if not _STREAM.fullmatch(stream):
        raise ValueError(f"there is no stream {stream!r}; there are messages and log-0, log-1, …")
    return stream
