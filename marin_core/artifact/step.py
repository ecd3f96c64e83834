"""`ArtifactStep`: the lazy handle of an artifact. Making one does no work and no I/O."""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from marin_core.artifact.canonical import FieldNotes, field_notes, identity_value
from marin_core.artifact.identity import DEV, ArtifactId
from marin_core.config import Config
from marin_core.errors import ConfigError
from marin_core.hardware.devices import device_profile

_LIBRARY = f"{Path(__file__).parents[1]}{os.sep}"


class Accelerators(Config):
    """Whole nodes with accelerators, all of one kind; one process of the job runs on each.

    Attributes:
        kinds: names of device profiles that would do (`marin_core.hardware`), the preferred one first.
        nodes: how many. A TPU host is a node.
        devices_per_node: devices of a process; None = all of its node's. Kinds whose nodes have different numbers of devices are
            alternatives only when this is given: two processes with 4 GPUs each then share a node that has 8.
    """

    kinds: tuple[str, ...] = Field(min_length=1)
    nodes: int = Field(ge=1)
    devices_per_node: int | None = Field(default=None, ge=1)

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            device_profile(kind)
        if len(set(kinds)) != len(kinds):
            raise ValueError("a kind of device is named twice; name each once, the preferred one first")
        return kinds


class Resources(Config):
    """What a job needs; never part of an artifact's identity.

    Attributes:
        cpus: processor cores that the job keeps busy, all its processes together. With accelerators a process gets its node's.
        memory_gib: memory of all its processes together, in GiB; None = the share of a node's that goes with its cores.
        pool: Dagster concurrency pool whose slots the job competes for; None = only the run queue limits it.
        inline: run the job in the run worker itself; for plain Python that takes less than starting a process.
        processes: how many processes build it together (a gang); only for jobs that know how to, such as trainings. With accelerators
            there is one on each node.
        devices_per_process: CPU devices that JAX has in each process; None = as the machine's environment says.
        accelerators: nodes with accelerators, on a cluster; None = any node will do.
        priority: how the job ranks where jobs queue, by the name that the cluster's profile gives it.
        save_seconds: the longest it may take from being asked to stop until it has saved; a cluster must grant that much.
    """

    cpus: int = Field(default=1, ge=1)
    memory_gib: int | None = Field(default=None, ge=1)
    pool: str | None = None
    inline: bool = False
    processes: int = Field(default=1, ge=1)
    devices_per_process: int | None = Field(default=None, ge=1)
    accelerators: Accelerators | None = None
    priority: str = "batch"
    save_seconds: int = Field(default=30, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _one_process_a_node(cls, values: Any) -> Any:
        asked = values.get("accelerators") if isinstance(values, dict) else None
        nodes = asked.get("nodes") if isinstance(asked, dict) else getattr(asked, "nodes", None)
        return values if nodes is None else {"processes": nodes} | values

    @model_validator(mode="after")
    def _inline_is_plain(self) -> Self:
        if self.inline and (self.processes > 1 or self.devices_per_process is not None or self.accelerators is not None):
            raise ValueError(
                f"inline=True runs the job in the run worker, where processes={self.processes}, "
                f"devices_per_process={self.devices_per_process} and accelerators={self.accelerators} can't be had; "
                "leave them at their defaults"
            )
        return self

    @model_validator(mode="after")
    def _accelerators_say_how_many(self) -> Self:
        if self.accelerators is None:
            return self
        if self.processes != self.accelerators.nodes:
            raise ValueError(f"processes={self.processes}, but a process runs on each of {self.accelerators.nodes} nodes; leave it out")
        if self.devices_per_process is not None:
            raise ValueError(
                f"devices_per_process={self.devices_per_process} counts CPU devices, and the job has accelerators; leave it out"
            )
        return self


OnDrift = Literal["serve", "fail", "rebuild"]


@dataclass(frozen=True)
class CheckDeclaration:
    """An asset check that every build of the artifact reports; `blocking` ones stop what is downstream."""

    name: str
    description: str
    blocking: bool = False


@dataclass(frozen=True)
class StepContext:
    """Where an artifact is built: everything that may differ between two machines and must not enter its identity.

    `build_config` takes addresses and the partition key from here and literals from the experiment. With `prefix=None`
    the context is symbolic: it answers with stable placeholders, and the configuration built from it is the identity.
    """

    step: "ArtifactStep"
    prefix: str | None
    key: str | None = None

    def address(self, dep: "ArtifactStep") -> str:
        """URL of a declared dependency; of a family, the folder that holds its partitions.

        Raises:
            ConfigError: if `dep` was not declared in the step's `deps`.
        """
        if dep not in self.step.declared_deps:
            raise ConfigError(
                f"{self.step.id} reads {dep.id}, which is not among its deps",
                advice=f"Add the handle of {dep.id} to deps where {self.step.id} is made ({self.step.declared_at}).",
            )
        return f"artifact:{dep.id}" if self.prefix is None else f"{self.prefix}/{dep.id.path}"

    def members(self, dep: "ArtifactStep") -> tuple[str, ...]:
        """URLs of everything that this build reads of a dependency (see `ArtifactStep.reads`), in partition order."""
        address = self.address(dep)
        if not dep.partitions:
            return (address,)
        if dep.partitions == self.step.partitions:
            return (f"{address}/{self.partition}",)
        if dep is self.step.base:
            return (f"{address}/{self.partition}",) if self.key is None or self.key in dep.partitions else ()
        left_out = self.step.left_out(dep)
        return tuple(f"{address}/{key}" for key in dep.partitions if key not in left_out)

    @property
    def partition(self) -> str:
        """Key of the partition being built."""
        if not self.step.partitions:
            raise ConfigError(f"{self.step.id} has no partitions", advice="Declare partitions, or don't read ctx.partition.")
        if self.prefix is None:
            return "partition:key"
        if self.key is None:
            raise ConfigError(f"{self.step.id} is a family", advice=f"Choose one of its partitions: {', '.join(self.step.partitions)}.")
        return self.key


@dataclass(frozen=True, eq=False)
class ArtifactStep:
    """A lazy handle: what an artifact is called, what it is made from, and the job that makes it.

    Attributes:
        name: path like `tokenized/python_code`.
        version: calendar version, label, or `dev`.
        job: module of `marin_jobs` that builds it.
        build_config: pure function from a `StepContext` to the job's configuration.
        deps: handles of everything it reads.
        partitions: keys of the family's members; empty for a single artifact.
        base: the older version of a family that this one continues, one of `deps`: its keys are the first of these. A member whose
            work would be the base's is linked to it instead of built (marin_core.artifact.link).
        leaves_out: members of families among its deps that it is made without, where it reads all the others.
        resources: what the job needs (not identity).
        on_drift: what to do with a committed artifact that would be built differently today: serve it and warn, fail, or
            rebuild it (`dev` only). Not identity.
        pin: URL of an artifact committed in another place or store, to be served instead of building. Not identity.
        keep_days: for temporary data: collected after so many days unless a committed record refers to it; None = kept for good.
            Not identity.
        checks: asset checks that every build reports.
        description: one sentence for the catalogue.
        owner: e-mail address or `team:name`.
        kinds: technology labels shown in the UI.
        declared_at: `file:line` of the experiment that made the handle.
    """

    name: str
    version: str
    job: str
    build_config: Callable[[StepContext], Config]
    deps: tuple["ArtifactStep", ...] = ()
    partitions: tuple[str, ...] = ()
    base: "ArtifactStep | None" = None
    leaves_out: tuple[ArtifactId, ...] = ()
    resources: Resources = field(default_factory=Resources)
    on_drift: OnDrift = "serve"
    pin: str | None = None
    keep_days: int | None = None
    checks: tuple[CheckDeclaration, ...] = ()
    description: str = ""
    owner: str = "team:lab"
    kinds: tuple[str, ...] = ()
    declared_at: str = field(default_factory=lambda: caller_outside_library())

    def __post_init__(self) -> None:
        _ = self.id
        for key in self.partitions:
            ArtifactId(self.name, self.version, key)
        if len({key.lower() for key in self.partitions}) != len(self.partitions):  # a file system may ignore case
            raise ConfigError(f"{self.id} lists a partition key twice", advice="Give every partition a key of its own.")
        if self.base is not None:
            self._refuse_other_base(self.base)
        if self.version != DEV:
            mutable = [str(dep.id) for dep in self.deps if dep.version == DEV]
            if mutable:
                raise ConfigError(
                    f"{self.id} has a fixed version but depends on {', '.join(mutable)}",
                    advice="Give the dependency a fixed version, or make this artifact 'dev' too.",
                )
        if self.on_drift == "rebuild" and self.version != DEV:
            raise ConfigError(
                f"{self.id} has a fixed version, which is never rebuilt, but says on_drift='rebuild'",
                advice="Use the version 'dev', or on_drift='fail'.",
            )
        if self.keep_days is not None and self.keep_days < 1:
            raise ConfigError(
                f"{self.id}: keep_days is {self.keep_days}, which is less than a day",
                advice="Give the number of days after which it may be collected, or None to keep it for good.",
            )
        _ = self.own_identity  # a bad literal fails here, where the experiment made the handle

    def _refuse_other_base(self, base: "ArtifactStep") -> None:
        if (base.name, base.job) != (self.name, self.job) or base.version == self.version:
            raise ConfigError(
                f"{self.id} can't continue {base.id}, made by the job {base.job!r}",
                advice="The base is an older version of the same family; a family that is cut anew gets a new name.",
            )
        if base not in self.deps:
            raise ConfigError(f"{self.id} continues {base.id}, which is not among its deps", advice="Add the base to deps.")
        if not base.partitions or base.partitions != self.partitions[: len(base.partitions)]:
            raise ConfigError(
                f"{self.id} has {len(self.partitions)} partitions, its base {base.id} has {len(base.partitions)}",
                advice="Give it at least as many, with the base's keys first.",
            )

    @cached_property
    def id(self) -> ArtifactId:
        return ArtifactId(self.name, self.version)

    @property
    def stage(self) -> str:
        """First part of the name: raw, filtered, tokenized, checkpoints, …"""
        return self.name.split("/")[0]

    @cached_property
    def declared_deps(self) -> frozenset["ArtifactStep"]:
        """The handles in `deps`, to be asked once for each of thousands of inputs."""
        return frozenset(self.deps)

    @cached_property
    def symbolic_config(self) -> Config:
        """The job's configuration with placeholders for everything that depends on the place."""
        return self.build_config(StepContext(self, prefix=None))

    @cached_property
    def own_identity(self) -> dict[str, Any]:
        """What this step alone says about its artifact: job and configuration, without the fingerprints upstream."""
        deps = sorted(str(dep.id) for dep in self.deps)
        return {"job": self.job, "config": identity_value(self.symbolic_config), "deps": deps}

    @cached_property
    def field_notes(self) -> FieldNotes:
        """Which fields of the configuration stand at their class's default, and which are operational."""
        return field_notes(self.symbolic_config)

    def config(self, prefix: str, partition: str | None = None) -> Config:
        """The job's real configuration at a place."""
        return self.build_config(StepContext(self, prefix=prefix.rstrip("/"), key=partition))

    def ids(self) -> tuple[ArtifactId, ...]:
        """The artifacts behind this handle: itself, or every member of the family."""
        if not self.partitions:
            return (self.id,)
        return tuple(ArtifactId(self.name, self.version, key) for key in self.partitions)

    def reads(self, dep: "ArtifactStep", partition: str | None) -> tuple[ArtifactId, ...]:
        """Which members of a dependency one build reads: its own shard of a family cut alike or of its base, else all of them."""
        if dep.partitions and dep.partitions == self.partitions and partition is not None:
            return (ArtifactId(dep.name, dep.version, partition),)
        if dep is self.base and partition is not None:
            return (ArtifactId(dep.name, dep.version, partition),) if partition in dep.partitions else ()
        left_out = self.left_out(dep)
        return tuple(each for each in dep.ids() if each.partition not in left_out) if left_out else dep.ids()

    def is_optional(self, read: ArtifactId) -> bool:
        """Whether a build reads this artifact if it is committed and can do without it: a member of the base."""
        return self.base is not None and read.family == self.base.id

    def left_out(self, dep: "ArtifactStep") -> frozenset[str]:
        """Keys of a family's members that builds are made without."""
        return frozenset(each.partition for each in self.leaves_out if each.partition is not None and each.family == dep.id)

    def __repr__(self) -> str:
        return f"<{self.id}>"


def caller_outside_library() -> str:
    """`file:line` of the nearest caller that is not part of marin_core: the line of the experiment."""
    frame = inspect.currentframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(("<", _LIBRARY)):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"
