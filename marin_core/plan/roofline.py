"""How long a step must take at least: arithmetic, memory traffic and links, each at its published speed."""

from marin_core.config import Config
from marin_core.model.config import TransformerConfig
from marin_core.model.counts import parameter_count, training_flops_per_token
from marin_core.plan.compiled import MemoryUse
from marin_core.plan.config import PlanConfig
from marin_core.plan.traffic import Traffic

RECOMPUTED = 1 / 3
"""Of a step's FLOPs, what is computed once more: the backward pass recomputes every block and every block of logits."""

SECONDS_PER_DAY = 86_400


class Roofline(Config):
    """Bounds of one step and of the whole budget on a fleet. "overlapped": all at once, the longest counts; "serial": one after the other.

    Attributes:
        model_flops_per_step: forward and backward with head, of all devices, without recomputation: the numerator of `mfu`.
        compute_seconds: of these at the dense bfloat16 peak.
        recompute_seconds: of what the backward pass computes again.
        hbm_bytes: of one device, the least that must move (`hbm_least_bytes`).
        rack_link_bytes, cross_rack_bytes: that one device sends.
        slowest: the resource that bounds an overlapped step.
        mfu: share of the peak that model FLOPs would reach.
        energy_megawatt_hours, cost: of an overlapped run; None where the device profile has no power, or no price was given.
    """

    model_flops_per_step: int
    compute_seconds: float
    recompute_seconds: float
    hbm_bytes: int
    hbm_seconds: float
    rack_link_bytes: int
    rack_link_seconds: float
    cross_rack_bytes: int
    cross_rack_seconds: float
    slowest: str
    overlapped_step_seconds: float
    serial_step_seconds: float
    overlapped_tokens_per_second: float
    serial_tokens_per_second: float
    overlapped_mfu: float
    serial_mfu: float
    budget_tokens: int
    budget_steps: float
    overlapped_days: float
    serial_days: float
    energy_megawatt_hours: float | None
    cost: float | None


def roofline(config: PlanConfig, memory: MemoryUse, traffic: tuple[Traffic, ...]) -> Roofline:
    """The roofline of a plan whose step needs this memory and sends this traffic."""
    profile, mesh, train = config.fleet.profile, config.fleet.mesh, config.train
    flops = train.tokens_per_step * training_flops_per_token(train.model, sequence_length=train.sequence_length)
    peak = profile.peak_flops_per_second * mesh.devices
    hbm = hbm_least_bytes(config, memory)
    near, far = sum(row.rack_link_bytes for row in traffic), sum(row.cross_rack_bytes for row in traffic)
    # A rack of the mesh that is larger than what the fast fabric joins is held together by the slow one.
    link = profile.rack_link_bytes_per_second if mesh.devices_per_rack <= profile.rack_devices else profile.cross_rack_bytes_per_second
    seconds = {
        "compute": flops * (1 + RECOMPUTED) / peak,
        "hbm": hbm / profile.hbm_bytes_per_second,
        "rack link": near / link,
        "cross-rack link": far / profile.cross_rack_bytes_per_second,
    }
    slowest = max(seconds, key=lambda name: seconds[name])
    overlapped, serial = seconds[slowest], sum(seconds.values())
    steps = config.budget_tokens / train.tokens_per_step
    hours = steps * overlapped / 3600 * mesh.devices
    return Roofline(
        model_flops_per_step=flops,
        compute_seconds=flops / peak,
        recompute_seconds=flops * RECOMPUTED / peak,
        hbm_bytes=hbm,
        hbm_seconds=seconds["hbm"],
        rack_link_bytes=near,
        rack_link_seconds=seconds["rack link"],
        cross_rack_bytes=far,
        cross_rack_seconds=seconds["cross-rack link"],
        slowest=slowest,
        overlapped_step_seconds=overlapped,
        serial_step_seconds=serial,
        overlapped_tokens_per_second=train.tokens_per_step / overlapped,
        serial_tokens_per_second=train.tokens_per_step / serial,
        overlapped_mfu=flops / peak / overlapped,
        serial_mfu=flops / peak / serial,
        budget_tokens=config.budget_tokens,
        budget_steps=steps,
        overlapped_days=steps * overlapped / SECONDS_PER_DAY,
        serial_days=steps * serial / SECONDS_PER_DAY,
        energy_megawatt_hours=None if profile.power_watts is None else hours * profile.power_watts / 1e6,
        cost=None if profile.price_per_hour is None else hours * profile.price_per_hour,
    )


def hbm_least_bytes(config: PlanConfig, memory: MemoryUse) -> int:
    """Bytes that one device must read and write in a step, whatever is fused: its state in and out; its experts and all other weights,
    gathered, in the compute type, three times for each micro-batch (forward, recomputed, backward); and the residual stream between blocks,
    written once and read twice. What happens inside a block comes on top.
    """
    model, train = config.train.model, config.train
    width = 2 if model.compute_dtype == "bfloat16" else 4
    experts = routed_expert_parameters(model)
    weights = parameter_count(model).total - experts + experts // config.fleet.mesh.devices_per_rack
    tokens = train.tokens_per_step // config.fleet.mesh.devices
    state = memory.argument_bytes + memory.output_bytes
    return state + 3 * train.micro_batches * weights * width + 3 * model.layers * tokens * model.d_model * width


def routed_expert_parameters(model: TransformerConfig) -> int:
    """Parameters of all routed experts of all layers."""
    if model.moe is None:
        return 0
    return model.layers * model.moe.experts * 3 * model.expert_dim * model.moe.expert_width
