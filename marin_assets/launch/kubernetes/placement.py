"""Where a job's pods go: from what it needs to equal pods on the pools of one cluster, or an error that names what would fit. Pure."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from marin_assets.launch.kubernetes.profile import CPU, Pool, Profile
from marin_core.artifact.step import Accelerators, Resources
from marin_core.config import Config
from marin_core.errors import ConfigError

REPLICATED_JOB: dict[str, Literal["rack", "slice", "worker"]] = {"racks": "rack", "slices": "slice", "nodes": "worker"}


class Request(Config):
    """What a job asks of a cluster: equal pods, in equal jobs.

    Attributes:
        pools: any of which would do, in the order in which the queue tries them.
        replicated_job: what one job of the JobSet stands for.
        jobs: racks, slices, or 1.
        pods_per_job: a pod is a process of the gang.
        devices_per_pod: 0 without accelerators.
        millicores_per_pod, memory_mib_per_pod: thousandths of a core; MiB.
        priority: name of a WorkloadPriorityClass.
        left_out: why kinds that the job named as alternatives are none here.
    """

    pools: tuple[str, ...] = Field(min_length=1)
    replicated_job: Literal["rack", "slice", "worker"]
    jobs: int = Field(ge=1)
    pods_per_job: int = Field(ge=1)
    devices_per_pod: int = Field(ge=0)
    millicores_per_pod: int = Field(ge=1)
    memory_mib_per_pod: int = Field(ge=1)
    priority: str
    left_out: tuple[str, ...] = ()

    @property
    def pods(self) -> int:
        """Processes of the gang."""
        return self.jobs * self.pods_per_job

    @property
    def devices(self) -> int:
        """Of all pods together."""
        return self.pods * self.devices_per_pod


_EQUAL = (
    "resource",
    "image",
    "imex",
    "host_network",
    "coordinator_port",
    "ports",
    "environment",
    "annotations",
    "extra_resources",
    "host_paths",
    "shared_memory_gib",
)
"""What a pool says of its pods that alternatives for one job must have in common."""


class _Lay(NamedTuple):
    """How a job would lie on a pool."""

    pool: Pool
    jobs: int
    pods_per_job: int


def place(profile: Profile, resources: Resources) -> Request:
    """Find pools for a job.

    Raises:
        ConfigError: no pool can ever hold it; says why not, and which sizes would fit.
    """
    if profile.kueue and resources.priority not in profile.priorities:
        raise ConfigError(
            f"{profile.name} has no priority {resources.priority!r}",
            advice=f"Choose one of {', '.join(profile.priorities)}.",
        )
    if resources.accelerators is None:
        return _place_on_cpus(profile, resources)
    lays, refusals = _lays(profile, resources, resources.accelerators)
    if not lays:
        raise _unplaceable(profile, refusals)
    _refuse_unequal(profile, lays, resources.accelerators)
    devices = resources.accelerators.devices_per_node or lays[0].pool.devices_per_node
    shape = next((lay for lay in lays if lay.pool.layout != "nodes"), lays[0])
    return Request(
        pools=tuple(lay.pool.name for lay in lays),
        replicated_job=REPLICATED_JOB[shape.pool.layout],
        jobs=shape.jobs,
        pods_per_job=shape.pods_per_job,
        devices_per_pod=devices,
        millicores_per_pod=min(1000 * lay.pool.cpus * devices // lay.pool.devices_per_node for lay in lays),
        memory_mib_per_pod=min(1024 * lay.pool.memory_gib * devices // lay.pool.devices_per_node for lay in lays),
        priority=resources.priority,
        left_out=tuple(refusals),
    )


def legal_shape(pool: Pool, nodes: int) -> tuple[int, int] | None:
    """Jobs and pods of each in which whole nodes of a pool can be had; None = they can't (spec §1.10).

    A job of more nodes than a rack has to give takes as few racks as possible, as many nodes of each: Kueue 0.19 admits a last slice
    that is not full, and starts without it. A number of nodes between those to use in a rack and those installed is refused, since
    whoever writes it wants a rack to itself.
    """
    if not 1 <= nodes <= pool.usable_nodes:
        return None
    if pool.layout == "nodes":
        return 1, nodes
    usable = pool.nodes_per_domain or pool.nodes
    if pool.layout == "slices":
        return (nodes // usable, usable) if nodes % usable == 0 else None
    if usable < nodes <= (pool.installed or usable):
        return None
    racks = -(-nodes // usable)
    return (racks, nodes // racks) if nodes % racks == 0 else None


def nearest_legal(pool: Pool, nodes: int) -> list[int]:
    """The next smaller and the next larger number of nodes that can be had, where there is one."""
    smaller = (n for n in range(min(nodes - 1, pool.usable_nodes), 0, -1) if legal_shape(pool, n))
    larger = (n for n in range(nodes + 1, pool.usable_nodes + 1) if legal_shape(pool, n))
    return [n for n in (next(smaller, None), next(larger, None)) if n is not None]


def _place_on_cpus(profile: Profile, resources: Resources) -> Request:
    """The first pool without accelerators that has room for the pods."""
    refusals = []
    for pool in profile.pools:
        if pool.kind != CPU:
            continue
        millicores = -(-1000 * resources.cpus // resources.processes)
        share = 1024 * pool.memory_gib * millicores // (1000 * pool.cpus)
        memory_mib = max(1, share) if resources.memory_gib is None else -(-1024 * resources.memory_gib // resources.processes)
        if refusal := _cpu_refusal(pool, resources, millicores, memory_mib):
            refusals.append(refusal)
            continue
        return Request(
            pools=(pool.name,),
            replicated_job=REPLICATED_JOB[pool.layout],
            jobs=1,
            pods_per_job=resources.processes,
            devices_per_pod=0,
            millicores_per_pod=millicores,
            memory_mib_per_pod=memory_mib,
            priority=resources.priority,
        )
    raise _unplaceable(profile, refusals or ["it has no pool without accelerators"])


def _cpu_refusal(pool: Pool, resources: Resources, millicores: int, memory_mib: int) -> str | None:
    asked = f"{pool.name}: a process with {millicores / 1000:g} cores and {memory_mib / 1024:g} GiB"
    in_a_node = min(1000 * pool.cpus // millicores, 1024 * pool.memory_gib // memory_mib)
    if not in_a_node:
        return f"{asked}; a node has {pool.cpus} cores and {pool.memory_gib} GiB"
    if resources.processes > (most := in_a_node * pool.usable_nodes):
        return f"{asked} fits {most} times on {pool.usable_nodes} nodes, not {resources.processes} times"
    return _grace_refusal(pool, resources)


def _lays(profile: Profile, resources: Resources, asked: Accelerators) -> tuple[list[_Lay], list[str]]:
    """For each kind that a job would take the pool that holds it in the fewest racks or slices; and why others don't."""
    lays, refusals = [], []
    for kind in asked.kinds:
        pools = [pool for pool in profile.pools if pool.kind == kind]
        if not pools:
            refusals.append(f"there are no {kind} nodes")
        found = []
        for pool in pools:
            lay = _lay(pool, asked)
            refusal = lay if isinstance(lay, str) else _grace_refusal(pool, resources)
            if isinstance(lay, _Lay) and refusal is None:
                found.append(lay)
            elif refusal is not None:
                refusals.append(refusal)
        if found:
            lays.append(min(found, key=lambda lay: lay.jobs))
    return lays, refusals


def _lay(pool: Pool, asked: Accelerators) -> _Lay | str:
    """How a job lies on a pool, or why it doesn't."""
    devices = asked.devices_per_node or pool.devices_per_node
    if devices != pool.devices_per_node:
        return _shared_lay(pool, asked.nodes, devices)
    shape = legal_shape(pool, asked.nodes)
    if shape is not None:
        return _Lay(pool, *shape)
    unit = {"racks": "rack", "slices": "slice"}.get(pool.layout)
    each = f", {pool.nodes_per_domain} nodes a {unit} in {pool.domains} of them" if unit else f" of {pool.usable_nodes}"
    legal = " or ".join(map(str, nearest_legal(pool, asked.nodes)))
    return f"{pool.name}: {asked.nodes} nodes can't be had{each}; {legal} can"


def _shared_lay(pool: Pool, pods: int, devices: int) -> _Lay | str:
    """Pods that have a part of a node each, and fill their nodes."""
    if pool.layout != "nodes" or pool.devices_per_node % devices:
        return f"{pool.name}: a process can't have {devices} devices of a node with {pool.devices_per_node}"
    a_node = pool.devices_per_node // devices
    if pods % a_node:
        return f"{pool.name}: {pods} processes leave a part of a node idle, {a_node} fill one; take {pods - pods % a_node or a_node}"
    if pods // a_node > pool.usable_nodes:
        return f"{pool.name}: {pods} processes need {pods // a_node} nodes of {pool.usable_nodes}; {pool.usable_nodes * a_node} fit"
    return _Lay(pool, 1, pods)


def _grace_refusal(pool: Pool, resources: Resources) -> str | None:
    if resources.save_seconds <= pool.grace_seconds:
        return None
    return f"{pool.name}: it grants {pool.grace_seconds} s to save, and the job says save_seconds={resources.save_seconds}"


def _refuse_unequal(profile: Profile, lays: Sequence[_Lay], asked: Accelerators) -> None:
    """Refuse alternatives that one JobSet can't be: it has one kind of pod, and the queue chooses the pool."""
    if len(lays) == 1:
        return
    first = lays[0].pool
    if not profile.kueue:
        raise ConfigError(
            f"{profile.name} has no Kueue, so nothing there can choose between {' and '.join(lay.pool.name for lay in lays)}",
            advice=f"Name one kind of device, for example {first.kind!r}.",
        )
    for lay in lays[1:]:
        if unequal := list(_unequal(lays[0], lay, asked)):
            raise ConfigError(
                f"{first.name} and {lay.pool.name} can't be alternatives for one job on {profile.name}: "
                f"its pods would differ in {', '.join(unequal)}",
                advice="Give devices_per_node a number that the nodes of both can be cut into, or name one kind of device."
                if unequal == ["devices_per_node"]
                else "Name one kind of device, or make the two pools of the profile equal in this.",
            )
    order = [profile.pools.index(lay.pool) for lay in lays]
    if order != sorted(order):
        tried = " before ".join(profile.pools[index].kind for index in sorted(order))
        raise ConfigError(
            f"the queue of {profile.name} tries {tried}, and a job can't turn that round",
            advice="Name the kinds in the queue's order, or one kind alone.",
        )


def _unequal(one: _Lay, other: _Lay, asked: Accelerators) -> Iterator[str]:
    """Names of what must be equal in a JobSet's pods, and isn't on two pools."""
    yield from (field for field in _EQUAL if getattr(one.pool, field) != getattr(other.pool, field))
    if asked.devices_per_node is None and one.pool.devices_per_node != other.pool.devices_per_node:
        yield "devices_per_node"
    if "slices" in (one.pool.layout, other.pool.layout):
        yield "layout"
    elif max(one.jobs, other.jobs) > 1 and (
        one.pool.domain_label != other.pool.domain_label or (one.jobs, one.pods_per_job) != (other.jobs, other.pods_per_job)
    ):
        yield "the racks that they would be spread over"


def _unplaceable(profile: Profile, refusals: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"no pool of {profile.name} can ever hold this job: {'; '.join(refusals)}",
        advice="Change the step's resources to a size that can be had, or use another cluster.",
    )
