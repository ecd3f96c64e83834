"""Fleets are written and read as people write them; device profiles are whole."""

import subprocess
import sys

import pytest

from marin_core.errors import ConfigError
from marin_core.hardware import DEVICES, FleetConfig, MeshShape, device_profile


@pytest.mark.parametrize("text", ["11x64", "11×64", " 11x64 "])
def test_a_mesh_is_written_as_racks_times_devices(text: str) -> None:
    mesh = MeshShape.parse(text)
    assert (mesh.racks, mesh.devices_per_rack, mesh.devices) == (11, 64, 704)
    assert list(mesh.axes.items()) == [("rack", 11), ("expert", 64)]
    assert str(mesh) == "11x64"


@pytest.mark.parametrize("text", ["", "64", "0x8", "8x0", "-1x8", "2x4x8", "axb", "11 x 64", "1e3x2"])
def test_what_is_no_mesh_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="like 11x64"):
        MeshShape.parse(text)


def test_a_fleet_survives_json() -> None:
    fleet = FleetConfig(mesh=MeshShape.parse("2x4"), device="h200", price_per_device_hour=3.5)
    assert FleetConfig.from_json(fleet.model_dump(mode="json")) == fleet
    assert FleetConfig.from_json({"mesh": "2x4", "device": "h200", "price_per_device_hour": 3.5}) == fleet
    assert fleet.profile.price_per_hour == 3.5
    assert FleetConfig(mesh=fleet.mesh, device="h200").profile.price_per_hour is None


def test_an_unknown_device_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="'abacus'") as caught:
        FleetConfig(mesh=MeshShape.parse("2x4"), device="abacus")
    assert all(name in caught.value.advice for name in DEVICES)


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_is_fastest_inside_and_slowest_outside(name: str) -> None:
    profile = device_profile(name)
    assert profile.name == name
    assert profile.source
    assert profile.hbm_bytes_per_second > profile.rack_link_bytes_per_second > profile.cross_rack_bytes_per_second
    assert profile.peak_flops_per_second > profile.hbm_bytes_per_second


def test_the_large_run_is_accounted_on_2_5_petaflops() -> None:
    """The denominator of the published utilisation: 6.9084e18 FLOPs in 14.67 s on 704 devices are 26.75 %."""
    peak = device_profile("gb200").peak_flops_per_second
    assert 6.9084e18 / (704 * peak) / 14.67 == pytest.approx(0.2675, abs=2e-4)


def test_profiles_import_nothing_heavy() -> None:
    script = "import sys, marin_core.hardware; assert not {'jax', 'numpy', 'dagster'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
