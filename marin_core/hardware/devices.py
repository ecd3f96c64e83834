"""Accelerators as their makers describe them. All figures are peaks; what a program reaches of them is for benchmarks to say."""

from pydantic import Field

from marin_core.config import Config
from marin_core.errors import ConfigError


class DeviceProfile(Config):
    """One accelerator with its share of a host. A rack is the set of devices that one fast fabric joins: an NVLink domain, a TPU pod."""

    name: str
    source: str = Field(description="Where the figures come from, and which of them are nominal.")
    peak_flops_per_second: float = Field(gt=0, description="Dense bfloat16 products, without sparsity.")
    hbm_bytes: int = Field(gt=0)
    hbm_bytes_per_second: float = Field(gt=0)
    rack_devices: int = Field(ge=1, description="Most devices that one fast fabric joins.")
    rack_link_bytes_per_second: float = Field(gt=0, description="Of one device over the fast fabric, in each direction.")
    cross_rack_bytes_per_second: float = Field(gt=0, description="Of one device to other racks, in each direction.")
    power_watts: float | None = Field(default=None, gt=0, description="Of one device under load, with its share of the host.")
    price_per_hour: float | None = Field(default=None, gt=0, description="Of one device, in the currency of whoever gives it.")


GB200 = DeviceProfile(
    name="gb200",
    source="NVIDIA GB200 NVL72 data sheet, a 72nd of the rack: 360 PFLOP/s bf16 with sparsity, halved; 13.4 TB and 576 TB/s of HBM3e; "
    "130 TB/s of NVLink in both directions. Nominal: one 400 Gbit/s port a GPU to other racks, and 120 kW a rack.",
    peak_flops_per_second=2.5e15,
    hbm_bytes=186_000_000_000,
    hbm_bytes_per_second=8e12,
    rack_devices=72,
    rack_link_bytes_per_second=900e9,
    cross_rack_bytes_per_second=50e9,
    power_watts=1_667,
)
"""A Blackwell GPU of a GB200 NVL72 rack."""

H100 = DeviceProfile(
    name="h100",
    source="NVIDIA H100 SXM5 data sheet: 1,979 TFLOP/s bf16 with sparsity, halved; 80 GB HBM3, 3.35 TB/s; NVLink 900 GB/s "
    "in both directions. DGX H100: 8 GPUs, one 400 Gbit/s port each, at most 10.2 kW, an eighth of which is taken as a GPU's power.",
    peak_flops_per_second=989.4e12,
    hbm_bytes=80_000_000_000,
    hbm_bytes_per_second=3.35e12,
    rack_devices=8,
    rack_link_bytes_per_second=450e9,
    cross_rack_bytes_per_second=50e9,
    power_watts=1_275,
)
"""An H100 SXM5 in a node of eight, which is its rack."""

H200 = H100.changed(
    name="h200",
    source="NVIDIA H200 SXM data sheet: as H100, with 141 GB HBM3e at 4.8 TB/s. DGX H200: as DGX H100.",
    hbm_bytes=141_000_000_000,
    hbm_bytes_per_second=4.8e12,
)
"""An H200 SXM in a node of eight, which is its rack."""

TPU_V5P = DeviceProfile(
    name="tpu_v5p",
    source="Google Cloud documentation, TPU v5p: 459 TFLOP/s bf16, 95 GB at 2,765 GB/s, interconnect 1,200 GB/s in both directions over "
    "three axes of a torus (a collective along one axis gets a third), data centre network 50 Gbit/s a chip. Power isn't published.",
    peak_flops_per_second=459e12,
    hbm_bytes=95_000_000_000,
    hbm_bytes_per_second=2.765e12,
    rack_devices=8_960,
    rack_link_bytes_per_second=600e9,
    cross_rack_bytes_per_second=6.25e9,
)
"""A TPU v5p chip; its rack is a pod."""

TPU_V5E = DeviceProfile(
    name="tpu_v5e",
    source="Google Cloud documentation, TPU v5e: 197 TFLOP/s bf16, 16 GB at 819 GB/s, interconnect 400 GB/s in both directions over two "
    "axes of a torus (a collective along one axis gets half), data centre network 6.4 Tbit/s a pod of 256 chips. Power isn't published.",
    peak_flops_per_second=197e12,
    hbm_bytes=16_000_000_000,
    hbm_bytes_per_second=819e9,
    rack_devices=256,
    rack_link_bytes_per_second=200e9,
    cross_rack_bytes_per_second=3.125e9,
)
"""A TPU v5e chip; its rack is a pod."""

TPU_V6E = DeviceProfile(
    name="tpu_v6e",
    source="Google Cloud documentation, TPU v6e: 918 TFLOP/s bf16, 32 GB at 1,638 GB/s, interconnect 800 GB/s in both directions over two "
    "axes of a torus (a collective along one axis gets half), data centre network 25.6 Tbit/s a pod of 256 chips. Power isn't published.",
    peak_flops_per_second=918e12,
    hbm_bytes=32_000_000_000,
    hbm_bytes_per_second=1.638e12,
    rack_devices=256,
    rack_link_bytes_per_second=400e9,
    cross_rack_bytes_per_second=12.5e9,
)
"""A TPU v6e chip; its rack is a pod."""

DEVICES = {profile.name: profile for profile in (GB200, H100, H200, TPU_V5E, TPU_V5P, TPU_V6E)}


def device_profile(name: str) -> DeviceProfile:
    """A profile by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in DEVICES:
        raise ConfigError(f"There is no device profile {name!r}", advice=f"Choose one of {', '.join(DEVICES)}.")
    return DEVICES[name]
