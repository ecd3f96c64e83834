"""Every spelling of who takes part in a collective says the same."""

import pytest

from marin_core.plan.groups import Crossing, UnknownFormError, group_crossing, pair_crossing, replica_groups

MESH = {"rack": 2, "expert": 4}
WITHIN, ACROSS, EVERYWHERE = ("expert",), ("rack",), ("rack", "expert")


def members(text: str, devices: int = 8) -> list[list[int]]:
    return [group.tolist() for group in replica_groups(text, devices)]


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", WITHIN),
        ("[2,4]<=[8]", WITHIN),
        ("[2,4]<=[2,4]", WITHIN),
        ("mesh['rack'=2,'expert'=4] {'expert'}", WITHIN),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", WITHIN),
        ("mesh['a'=8] {'a':(2)4}", WITHIN),
        ("mesh['a'=8] {'a':(4)2}", WITHIN),
        ("{{0,4},{1,5},{2,6},{3,7}}", ACROSS),
        ("[4,2]<=[2,4]T(1,0)", ACROSS),
        ("mesh['rack'=2,'expert'=4] {'rack'}", ACROSS),
        ("mesh['a'=8] {'a':(1)2}", ACROSS),
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", ACROSS),
        ("mesh['a'=4,'b'=2], device_ids=(0,4,1,5,2,6,3,7) {'b'}", ACROSS),
        ("{{0,1,2,3,4,5,6,7}}", EVERYWHERE),
        ("{0,1,2,3,4,5,6,7}", EVERYWHERE),
        ("{}", EVERYWHERE),
        ("[1,8]<=[8]", EVERYWHERE),
        ("mesh['rack'=2,'expert'=4] {'rack','expert'}", EVERYWHERE),
        ("mesh['axis_0'=8] {'axis_0'}", EVERYWHERE),
        ("{{0,5},{1,4},{2,7},{3,6}}", EVERYWHERE),
        ("[8,1]<=[8]", ()),
        ("mesh['rack'=2,'expert'=4] {}", ()),
        ("mesh['a'=8,'b'=1] {'b'}", ()),
    ],
)
def test_groups_cross_the_axes_along_which_their_devices_differ(text: str, axes: tuple[str, ...]) -> None:
    assert group_crossing(text, MESH).axes == axes


def test_spellings_of_one_grouping_have_the_same_members() -> None:
    assert members("{{0,4},{1,5},{2,6},{3,7}}") == members("[4,2]<=[2,4]T(1,0)") == members("mesh['x'=2,'y'=4] {'x'}")
    assert members("mesh['a'=2,'b'=4] {'b':(2)2}") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert members("mesh['a'=2,'b'=4] {'b':(1)2}") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert members("[4,2]<=[2,2,2]T(2,0,1)") == [[0, 2], [4, 6], [1, 3], [5, 7]]


def test_the_large_fleet_has_racks_of_64() -> None:
    fleet = {"rack": 11, "expert": 64}
    assert group_crossing("[11,64]<=[704]", fleet) == Crossing(WITHIN, 64, (1, 64))
    assert group_crossing("[64,11]<=[11,64]T(1,0)", fleet) == Crossing(ACROSS, 11, (11, 1))
    assert group_crossing("mesh['rack'=11,'expert'=64] {'rack','expert'}", fleet) == Crossing(EVERYWHERE, 704, (11, 64))


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("{{0,1},{1,0}}", WITHIN),
        ("{{0,4},{4,0}}", ACROSS),
        ("{{0,5}}", EVERYWHERE),
        ("{{0,1},{2,6}}", EVERYWHERE),
        ("{{3,3}}", ()),
        ("{}", ()),
    ],
)
def test_pairs_cross_the_axes_along_which_source_and_target_differ(text: str, axes: tuple[str, ...]) -> None:
    assert pair_crossing(text, MESH).axes == axes


@pytest.mark.parametrize(
    "text",
    [
        "{{0,1},{2,3}",
        "{{0,1},{}}",
        "[2,4]<=[9]",
        "[2,2,2]<=[8]",
        "[4,2]<=[2,4]T(0,2)",
        "mesh['rack'=2,'expert'=4] {'other'}",
        "mesh['rack'=2,'expert'=4] {expert}",
        "mesh['rack'=2,expert=4] {'rack'}",
        "mesh['a'=8] {'a':(3)2}",
        "mesh['a'=4,'b'=2], device_ids=(0,1) {'b'}",
        "@mesh {'rack'}",
        "",
    ],
)
def test_an_unknown_spelling_is_an_error_and_no_guess(text: str) -> None:
    with pytest.raises(UnknownFormError, match="unknown form"):
        group_crossing(text, MESH)


def test_an_unknown_spelling_of_pairs_is_an_error() -> None:
    for text in ("{{0,1,2}}", "{0,1}", "{{0,1},}"):
        with pytest.raises(UnknownFormError, match="unknown form"):
            pair_crossing(text, MESH)


def test_a_device_outside_the_mesh_is_an_error() -> None:
    with pytest.raises(UnknownFormError, match="device 8, but the mesh has 8"):
        group_crossing("{{0,8}}", MESH)
