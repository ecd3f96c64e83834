"""A job gets whole nodes in shapes that can be had, or an error that names sizes that can."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_assets.launch.kubernetes.placement import Request, legal_shape, nearest_legal, place
from marin_assets.launch.kubernetes.profile import Profile
from marin_core.artifact.step import Accelerators, Resources
from marin_core.errors import ConfigError
from tests.launch.kubernetes.cases import accelerated, profile

COREWEAVE = profile("gb200-coreweave")
GKE_TPU = profile("gke-tpu")
BED = profile("testbed")


def shape(request: Request) -> tuple[str, int, int]:
    return request.replicated_job, request.jobs, request.pods_per_job


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [(1, (1, 1)), (12, (1, 12)), (16, (1, 16)), (20, (2, 10)), (24, (2, 12)), (32, (2, 16)), (48, (3, 16)), (176, (11, 16))],
)
def test_nvl72_jobs_take_as_few_racks_as_possible_and_the_same_of_each(nodes: int, expected: tuple[int, int]) -> None:
    assert shape(place(COREWEAVE, accelerated("gb200", nodes=nodes))) == ("rack", *expected)


@pytest.mark.parametrize(("nodes", "nearest"), [(17, "16 or 20"), (18, "16 or 20"), (40, "39 or 42"), (177, "176"), (1000, "176")])
def test_sizes_that_cannot_be_had_are_refused_with_the_nearest_that_can(nodes: int, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        place(COREWEAVE, accelerated("gb200", nodes=nodes))
    assert f"gb200: {nodes} nodes can't be had, 16 nodes a rack in 11 of them; {nearest} can" in caught.value.message


@given(st.integers(1, 220))
def test_a_legal_shape_is_whole_fits_its_racks_and_has_neighbours_that_are_legal_too(nodes: int) -> None:
    pool = COREWEAVE.pool("gb200")
    found = legal_shape(pool, nodes)
    if found is not None:
        jobs, pods = found
        assert jobs * pods == nodes
        assert jobs <= pool.domains
        assert pods <= 16
        assert (jobs - 1) * 16 < nodes  # no rack too many
    near = nearest_legal(pool, nodes)
    assert all(legal_shape(pool, each) for each in near)
    assert nodes not in near
    assert not any(legal_shape(pool, each) for each in range(min(near) + 1, max(near)) if each != nodes)


@pytest.mark.parametrize(("nodes", "slices"), [(4, 1), (8, 2), (64, 16)])
def test_tpu_jobs_take_whole_slices(nodes: int, slices: int) -> None:
    assert shape(place(GKE_TPU, accelerated("tpu_v5e", nodes=nodes))) == ("slice", slices, 4)


@pytest.mark.parametrize(("nodes", "nearest"), [(1, "; 4 can"), (6, "; 4 or 8 can"), (65, "; 64 can")])
def test_a_part_of_a_slice_is_refused(nodes: int, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        place(GKE_TPU, accelerated("tpu_v5e", nodes=nodes))
    assert nearest in caught.value.message


def test_of_two_kinds_of_slices_the_job_gets_the_one_that_it_needs_fewest_of() -> None:
    small = GKE_TPU.pool("tpu-v5e")
    large = small.changed(name="tpu-v5e-8x8", nodes_per_domain=16)
    both = GKE_TPU.changed(pools=(small, large))
    assert place(both, accelerated("tpu_v5e", nodes=16)).pools == ("tpu-v5e-8x8",)
    assert place(both, accelerated("tpu_v5e", nodes=8)).pools == ("tpu-v5e",)


def test_cores_and_memory_are_divided_among_the_processes_and_memory_goes_with_cores() -> None:
    found = place(COREWEAVE, Resources(cpus=5, processes=2, memory_gib=9))
    assert (found.millicores_per_pod, found.memory_mib_per_pod) == (2500, 4608)
    share = place(COREWEAVE, Resources(cpus=15))
    assert share.memory_mib_per_pod == 1024 * 240 * 15 // 60


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        (Resources(cpus=61), "a node has 60 cores and 240 GiB"),
        (Resources(memory_gib=241), "a node has 60 cores and 240 GiB"),
        (Resources(cpus=60 * 17, processes=17), "fits 16 times on 16 nodes, not 17 times"),
        (Resources(save_seconds=61), "it grants 60 s to save"),
    ],
)
def test_what_no_cpu_node_can_hold_is_refused(resources: Resources, said: str) -> None:
    with pytest.raises(ConfigError, match="can ever hold") as caught:
        place(COREWEAVE, resources)
    assert said in caught.value.message


def test_a_job_that_needs_longer_to_save_than_a_pool_grants_is_refused() -> None:
    with pytest.raises(ConfigError, match="grants 180 s to save"):
        place(COREWEAVE, accelerated("gb200", nodes=16, save_seconds=181))


def test_a_priority_that_kueue_would_wait_for_without_a_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="no priority 'urgent'") as caught:
        place(COREWEAVE, Resources(priority="urgent"))
    assert "batch, production" in caught.value.advice


def test_a_kind_that_the_cluster_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="there are no tpu_v5e nodes"):
        place(COREWEAVE, accelerated("tpu_v5e", nodes=4))


def test_a_kind_is_left_out_with_the_reason_where_another_will_do() -> None:
    found = place(profile("h100"), accelerated("gb200", "h100", nodes=4))
    assert found.pools == ("h100",)
    assert found.left_out == ("there are no gb200 nodes",)


def test_alternatives_are_one_job_of_equal_pods() -> None:
    """4 GB200 nodes with NVLink, or 2 H100 nodes: 16 GPUs either way, four a process."""
    found = place(BED, accelerated("gb200", "h100", nodes=4, devices_per_node=4))
    assert found.pools == ("gb200", "h100")
    assert shape(found) == ("rack", 1, 4)
    assert found.devices == 16
    assert found.millicores_per_pod == 56_000  # half of an H100 node, less than a GB200 node


@pytest.mark.parametrize(
    ("profile", "resources", "said"),
    [
        (BED, accelerated("gb200", "h100", nodes=4), "differ in devices_per_node"),
        (BED, accelerated("h100", "gb200", nodes=4, devices_per_node=4), "tries gb200 before h100"),
        (COREWEAVE, accelerated("gb200", "h100", nodes=32, devices_per_node=4), "the racks that they would be spread over"),
        (BED, accelerated("gb200", "tpu_v5e", nodes=4), "differ in resource, image, layout"),
        (BED.changed(kueue=False), accelerated("gb200", "h100", nodes=4, devices_per_node=4), "has no Kueue"),
    ],
)
def test_alternatives_that_one_jobset_cannot_be_are_refused(profile: Profile, resources: Resources, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        place(profile, resources)


@pytest.mark.parametrize(
    ("nodes", "devices", "said"), [(3, 4, "leave a part of a node idle"), (2, 3, "can't have 3 devices"), (10, 4, "need 5 nodes of 4")]
)
def test_pods_that_share_nodes_fill_them(nodes: int, devices: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        place(BED, accelerated("h100", nodes=nodes, devices_per_node=devices))


@given(
    st.sampled_from([("gb200",), ("h100",), ("tpu_v5e",), ("gb200", "h100")]),
    st.integers(1, 40),
    st.sampled_from([None, 4, 8]),
    st.sampled_from([COREWEAVE, GKE_TPU, BED]),
)
def test_whatever_is_placed_gets_the_devices_that_were_asked_for_in_whole_nodes(
    kinds: tuple[str, ...], nodes: int, devices: int | None, where: Profile
) -> None:
    resources = accelerated(*kinds, nodes=nodes, devices_per_node=devices)
    try:
        found = place(where, resources)
    except ConfigError:
        return
    assert found.pods == nodes == resources.processes
    for name in found.pools:
        pool = where.pool(name)
        assert found.devices % pool.devices_per_node == 0
        assert found.devices // pool.devices_per_node <= pool.usable_nodes
        assert found.devices_per_pod == (devices or pool.devices_per_node)
        assert found.millicores_per_pod * (pool.devices_per_node // found.devices_per_pod) <= 1000 * pool.cpus


def test_nodes_with_accelerators_say_how_many_processes_there_are() -> None:
    asked = Resources(accelerators=Accelerators(kinds=("gb200",), nodes=16))
    assert asked.processes == 16
    assert asked.changed(priority="production").processes == 16
    assert Resources.from_json(asked.model_dump(mode="json")) == asked
    assert Resources.from_json({"accelerators": {"kinds": ["gb200"], "nodes": 16}}) == asked


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"processes": 8}, "runs on each of 16 nodes"),
        ({"devices_per_process": 2}, "counts CPU devices"),
        ({"inline": True}, "inline=True"),
    ],
)
def test_resources_that_contradict_their_accelerators_are_refused(values: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Resources.from_json({"accelerators": Accelerators(kinds=("gb200",), nodes=16), **values})


@pytest.mark.parametrize(
    ("kinds", "nodes", "said"), [(("gb300",), 1, "gb300"), ((), 1, "kinds"), (("h100", "h100"), 1, "named twice"), (("h100",), 0, "nodes")]
)
def test_accelerators_that_cannot_be_are_refused(kinds: tuple[str, ...], nodes: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Accelerators(kinds=kinds, nodes=nodes)
