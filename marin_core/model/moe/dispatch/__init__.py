"""Bring tokens to experts and back. One interface, and a module for each way: on one device, or over the devices of a rack.

All of them sort assignments, gather rows, run the experts on rows of a static shape, and gather-sum the results. Backward passes of all
gathers are gathers too (`rows`): a scatter would serialise (trap T2 of `spec/moe.md`).
"""

from marin_core.errors import ConfigError
from marin_core.model.config import DenseTransportConfig, MoEConfig, PooledWavesConfig
from marin_core.model.moe.dispatch.dense import DenseTransport
from marin_core.model.moe.dispatch.interface import Experts, Transport, TransportStatistics
from marin_core.model.moe.dispatch.local import LocalTransport, expert_capacity, local_transport
from marin_core.model.moe.dispatch.pooled_waves import PooledWaves
from marin_core.model.moe.dispatch.ragged import Ragged

__all__ = ["Experts", "Transport", "TransportStatistics", "expert_capacity", "local_transport", "make_transport"]


def make_transport(moe: MoEConfig, *, tokens: int, expert_devices: int, axis: str, dropless: bool) -> Transport:
    """The transport of a configuration.

    Args:
        tokens: on each device.
        expert_devices: N, devices that the experts are spread over; 1: nothing travels.
        axis: mesh axis of those devices; the transport runs inside a `shard_map` over it.
        dropless: drop nothing, whatever the routing.

    Raises:
        ConfigError: the experts can't be spread evenly, or a transport can't carry so many of them.
    """
    if moe.experts % expert_devices:
        raise ConfigError(
            f"{moe.experts} experts can't be spread evenly over {expert_devices} devices",
            advice="Choose a number of devices in a rack that divides the number of experts.",
        )
    if expert_devices == 1:
        return LocalTransport(moe, tokens, dropless)
    # Room for the worst routing is room for all tokens of all devices at every expert: what the dense transport has anyway.
    if dropless or isinstance(moe.transport, DenseTransportConfig):
        return DenseTransport(moe.experts, expert_devices, axis)
    if isinstance(moe.transport, PooledWavesConfig):
        return PooledWaves.of(moe, moe.transport, tokens=tokens, devices=expert_devices, axis=axis)
    return Ragged.of(moe, moe.transport, tokens=tokens, devices=expert_devices, axis=axis)
