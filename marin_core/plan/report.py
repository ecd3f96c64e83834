"""The report of a plan: memory, traffic, time, and whether the step keeps what the mesh promises."""

from collections.abc import Sequence

from marin_core.config import Config
from marin_core.hardware import DEVICES, DeviceProfile, MeshShape
from marin_core.model.config import RaggedConfig
from marin_core.model.counts import parameter_count, training_flops_per_token
from marin_core.plan.compiled import CompiledStep, MemoryUse
from marin_core.plan.config import CHECKS, EXPERTS_STAY, FITS_MEMORY, ONLY_SUMS, PlanConfig
from marin_core.plan.roofline import Roofline, roofline
from marin_core.plan.traffic import EXPERT_KINDS, SUMS, ExpertRows, Traffic, across_racks, expert_rows, summarise


class ModelSize(Config):
    """What is trained, in exact numbers."""

    parameters: int
    active_parameters: int
    training_flops_per_token: int
    """Forward and backward, with head."""


class Fit(Config):
    """Whether a step fits one device of a profile; `share` is peak memory over its memory."""

    device: str
    hbm_bytes: int
    share: float
    fits: bool


class PlanCheck(Config):
    """A claim about the compiled step."""

    name: str
    passed: bool
    description: str


class PlanReport(Config):
    """A plan. Bytes and seconds are those of one device and one step unless a name says otherwise."""

    mesh: MeshShape
    device: DeviceProfile
    model: ModelSize
    global_batch_size: int
    sequence_length: int
    micro_batches: int
    tokens_per_step: int
    memory: MemoryUse
    fits: tuple[Fit, ...]
    traffic: tuple[Traffic, ...]
    expert_rows: ExpertRows | None
    roofline: Roofline
    checks: tuple[PlanCheck, ...]
    caveats: tuple[str, ...]
    program_bytes: int


def make_report(config: PlanConfig, step: CompiledStep) -> PlanReport:
    """Report on a compiled step."""
    train, model = config.train, config.train.model
    parameters = parameter_count(model)
    traffic = summarise(step.collectives, config.fleet.mesh.axes)
    profile = config.fleet.profile
    return PlanReport(
        mesh=config.fleet.mesh,
        device=profile,
        model=ModelSize(
            parameters=parameters.total,
            active_parameters=parameters.active,
            training_flops_per_token=training_flops_per_token(model, sequence_length=train.sequence_length),
        ),
        global_batch_size=train.global_batch_size,
        sequence_length=train.sequence_length,
        micro_batches=train.micro_batches,
        tokens_per_step=train.tokens_per_step,
        memory=step.memory,
        fits=tuple(_fit(step.memory, each) for each in DEVICES.values()),
        traffic=traffic,
        expert_rows=expert_rows(config),
        roofline=roofline(config, step.memory, traffic),
        checks=_checks(step.memory, profile, traffic),
        caveats=_caveats(config, traffic),
        program_bytes=step.program_bytes,
    )


def _fit(memory: MemoryUse, profile: DeviceProfile) -> Fit:
    share = memory.peak_bytes / profile.hbm_bytes
    return Fit(device=profile.name, hbm_bytes=profile.hbm_bytes, share=share, fits=share <= 1)


def _checks(memory: MemoryUse, profile: DeviceProfile, traffic: Sequence[Traffic]) -> tuple[PlanCheck, ...]:
    leaving = across_racks(traffic)
    experts = [row for row in leaving if row.kind in EXPERT_KINDS]
    others = [row for row in leaving if row.kind not in SUMS or row.purpose not in ("gradient", "statistics")]
    fit = _fit(memory, profile)
    said = {
        FITS_MEMORY: (fit.fits, f"{gigabytes(memory.peak_bytes)} of {gigabytes(profile.hbm_bytes)} of a {profile.name}"),
        EXPERTS_STAY: (not experts, "; ".join(map(_named, experts)) or "none does"),
        ONLY_SUMS: (not others, "; ".join(map(_named, others)) or "nothing else does"),
    }
    return tuple(PlanCheck(name=name, passed=said[name][0], description=said[name][1]) for name in CHECKS)


def _named(row: Traffic) -> str:
    return (
        f"{row.instructions} {row.kind} over {row.axes}, {gigabytes(row.operand_bytes)} a step, from {row.source or 'an unnamed operation'}"
    )


def _caveats(config: PlanConfig, traffic: Sequence[Traffic]) -> tuple[str, ...]:
    profile, mesh = config.fleet.profile, config.fleet.mesh
    found = [
        "Temporaries are what XLA lays out for a CPU, which fuses otherwise than a compiler for accelerators: they are an estimate.",
        "XLA:CPU leaves an all-reduce and a slice where compilers for accelerators make a reduce-scatter: "
        "what sums send within the rack may be twice what it need be.",
        "Speeds are published peaks, and links are free of latency and contention: times are lower bounds.",
        "The traffic of HBM counts what no fusion can avoid; activations inside blocks come on top.",
    ]
    if isinstance(getattr(config.train.model.moe, "transport", None), RaggedConfig):
        found.append(
            "`ragged` can't be compiled for a CPU (trap T3): the program is that of static pools; expert_rows has what `ragged` sends."
        )
    looped = [row for row in across_racks(traffic) if row.in_loop]
    if looped:
        found.append(f"In a loop, and across racks each time that it turns: {'; '.join(map(_named, looped))}.")
    if any(row.lower_bound for row in traffic):
        found.append("Some loops have no known trip count; what is in them is counted once.")
    if any(row.upper_bound for row in traffic):
        found.append("Some collectives are in branches; each branch is counted as if it were always taken.")
    if mesh.devices_per_rack > profile.rack_devices:
        found.append(
            f"A rack of {mesh.devices_per_rack} is more than the {profile.rack_devices} devices that the fast fabric of {profile.name} "
            "joins: its links are taken as fast as those across racks."
        )
    return tuple(found)


def gigabytes(count: float) -> str:
    """Bytes for people, in the unit that leaves few digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"
