"""How many devices of which kind, in how many racks."""

import re
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from marin_core.config import Config
from marin_core.hardware.devices import DeviceProfile, device_profile

_SHAPE = re.compile(r"([1-9]\d{0,6})[x×]([1-9]\d{0,6})")


class MeshShape(Config):
    """Racks, and devices that are used in each; written `11x64`, in configurations too."""

    racks: int = Field(ge=1)
    devices_per_rack: int = Field(ge=1)

    @property
    def devices(self) -> int:
        return self.racks * self.devices_per_rack

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of the mesh axes by name, the outer first, as in `marin_core.model.mesh`."""
        return {"rack": self.racks, "expert": self.devices_per_rack}

    @classmethod
    def parse(cls, text: str) -> Self:
        """`11x64` → 11 racks of 64.

        Raises:
            ConfigError: it has another form.
        """
        return cls.from_json(text)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = _SHAPE.fullmatch(value.strip())
        if found is None:
            raise ValueError(f"{value!r} is no mesh: write racks × devices per rack, like 11x64")
        return {"racks": int(found[1]), "devices_per_rack": int(found[2])}

    def __str__(self) -> str:
        return f"{self.racks}x{self.devices_per_rack}"


class FleetConfig(Config):
    """Devices of one kind in a mesh."""

    mesh: MeshShape
    device: str = Field(description="Name of a device profile.")
    price_per_device_hour: float | None = Field(default=None, gt=0, description="In any currency; None = the profile's, if it has one.")

    @property
    def profile(self) -> DeviceProfile:
        profile = device_profile(self.device)
        return profile if self.price_per_device_hour is None else profile.changed(price_per_hour=self.price_per_device_hour)

    @field_validator("device")
    @classmethod
    def _known(cls, name: str) -> str:
        device_profile(name)
        return name
