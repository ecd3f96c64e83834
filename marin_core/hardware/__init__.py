"""What a run is planned for: devices with their published speeds, and how many of them stand in how many racks. Imports nothing heavy."""

from marin_core.hardware.devices import DEVICES, DeviceProfile, device_profile
from marin_core.hardware.fleet import FleetConfig, MeshShape

__all__ = ["DEVICES", "DeviceProfile", "FleetConfig", "MeshShape", "device_profile"]
