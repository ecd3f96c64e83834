"""The machines of the bed, as a cloud would register them: labels, taints, devices. There is no hardware behind them."""

from dataclasses import dataclass, field
from typing import Any

LEAFGROUP = "backend.coreweave.cloud/leafgroup"
NVLINK_DOMAIN = "ds.coreweave.com/nvlink.domain"
NODE_POOL = "cloud.google.com/gke-nodepool"
NODES_PER_RACK = 18


@dataclass(frozen=True)
class Machine:
    """One node: its name, architecture, labels beyond the usual ones, devices, and the taint that keeps others off."""

    name: str
    architecture: str
    labels: dict[str, str]
    devices: dict[str, int] = field(default_factory=dict)
    taint: str | None = None
    cpus: int = 144
    memory_gib: int = 900

    def manifest(self) -> dict[str, Any]:
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/arch": self.architecture, "kubernetes.io/os": "linux", **self.labels}
        taints = [{"key": self.taint, "value": "present", "effect": "NoSchedule"}] if self.taint else []
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": labels}, "spec": {"taints": taints}}

    def capacity(self) -> dict[str, str]:
        devices = {name: str(count) for name, count in self.devices.items()}
        return {"cpu": str(self.cpus), "memory": f"{self.memory_gib}Gi", "ephemeral-storage": "1Ti", "pods": "110", **devices}


def racks(count: int, leafgroup: str = "leaf-1") -> list[Machine]:
    """GB200 NVL72 racks of 18 nodes with 4 GPUs each; a rack is one NVLink domain."""
    return [
        Machine(
            name=f"rack{rack}-node{node:02d}",
            architecture="arm64",
            labels={"accel": "gb200", LEAFGROUP: leafgroup, NVLINK_DOMAIN: f"nvl-{rack}"},
            devices={"nvidia.com/gpu": 4},
            taint="nvidia.com/gpu",
        )
        for rack in range(count)
        for node in range(NODES_PER_RACK)
    ]


def h100s(count: int) -> list[Machine]:
    """H100 nodes with 8 GPUs each, on one InfiniBand leaf."""
    return [
        Machine(
            f"h100-{node}",
            "amd64",
            {"accel": "h100", LEAFGROUP: "leaf-2"},
            {"nvidia.com/gpu": 8},
            "nvidia.com/gpu",
            cpus=192,
            memory_gib=2000,
        )
        for node in range(count)
    ]


def tpu_slices(count: int) -> list[Machine]:
    """TPU v5e 4x4 slices: a node pool of 4 hosts with 4 chips each."""
    return [
        Machine(
            name=f"tpu{pool}-host{host}",
            architecture="amd64",
            labels={
                "accel": "tpu-v5e",
                NODE_POOL: f"tpu-{pool}",
                "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
                "cloud.google.com/gke-tpu-topology": "4x4",
            },
            devices={"google.com/tpu": 4},
            taint="google.com/tpu",
            cpus=112,
            memory_gib=190,
        )
        for pool in range(count)
        for host in range(4)
    ]


def cpu_nodes(count: int) -> list[Machine]:
    return [Machine(f"cpu-{node}", "amd64", {"accel": "cpu"}, cpus=64, memory_gib=256) for node in range(count)]


def fifty_nodes() -> list[Machine]:
    """The bed's usual machines: 2 racks, 4 H100 nodes, 2 TPU slices, 2 nodes without devices (spec/kubernetes.md, head)."""
    return [*racks(2), *h100s(4), *tpu_slices(2), *cpu_nodes(2)]
