"""A profile that is wrong says what is wrong when it is read, and those in deploy/kubernetes/profiles are right."""

from typing import Any

import pytest
import yaml

from marin_assets.launch.kubernetes.profile import Profile, require_digest
from marin_core.errors import ConfigError
from tests.launch.kubernetes.cases import PROFILES, profile

NAMES = sorted(path.stem for path in PROFILES.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_every_profile_reads_and_is_called_like_its_file(name: str) -> None:
    assert profile(name).name == name


def test_the_profiles_cover_every_kind_of_cluster() -> None:
    kinds = {pool.kind for name in NAMES for pool in profile(name).pools}
    assert kinds == {"gb200", "h100", "tpu_v5e", "cpu"}
    assert {profile(name).kueue for name in NAMES} == {True, False}
    assert {pool.imex for name in NAMES for pool in profile(name).pools} == {"none", "per_jobset"}


@pytest.mark.parametrize("name", NAMES)
def test_no_two_pools_of_a_profile_pick_the_same_nodes(name: str) -> None:
    """Where Kueue pins a flavor by its labels, and where the scheduler alone decides."""
    selectors = [tuple(sorted(pool.node_selector.items())) for pool in profile(name).pools]
    assert len(set(selectors)) == len(selectors)


def values(**changes: Any) -> str:
    """A profile of one GB200 pool, with changes to the pool (`pool_…`) or to the profile; None leaves a field out."""
    pool: dict[str, Any] = {
        "name": "gb200",
        "kind": "gb200",
        "layout": "racks",
        "nodes": 36,
        "nodes_per_domain": 16,
        "nodes_installed_per_domain": 18,
        "resource": "nvidia.com/gpu",
        "devices_per_node": 4,
        "domain_label": "ds.coreweave.com/nvlink.domain",
        "preferred_label": "backend.coreweave.cloud/leafgroup",
        "image": "cuda",
        "cpus": 128,
        "memory_gib": 800,
        "grace_seconds": 180,
    }
    whole: dict[str, Any] = {"name": "here", "namespace": "team-a", "queue": "train", "priorities": ["batch"]}
    for name, value in changes.items():
        target, field = (pool, name.removeprefix("pool_")) if name.startswith("pool_") else (whole, name)
        target[field] = value
        if value is None:
            del target[field]
    return yaml.safe_dump(whole | {"pools": [pool]})


def test_the_profile_that_the_next_test_breaks_is_right() -> None:
    assert Profile.parse(values(), "test").pools[0].usable_nodes == 32


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nonsense": 1}, "unknown field 'nonsense'"),
        ({"queue": None}, "names its queue"),
        ({"priorities": None}, "names its queue and its priorities"),
        ({"namespace": "Team_A"}, "'namespace' has value 'Team_A'"),
        ({"scratch": "here"}, "absolute path"),
        ({"scratch": "/"}, "absolute path"),
        ({"pool_kind": "gb300"}, "gb300"),
        ({"pool_kind": "cpu"}, "without resource and devices_per_node"),
        ({"pool_resource": None}, "with resource and devices_per_node"),
        ({"pool_devices_per_node": 0}, "with resource and devices_per_node"),
        ({"pool_domain_label": None}, "needs nodes_per_domain and domain_label"),
        ({"pool_preferred_label": None}, "need a preferred_label"),
        ({"pool_nodes": 20}, "no whole number of domains of 18"),
        ({"pool_nodes_installed_per_domain": 12}, "less than the nodes_per_domain"),
        ({"pool_imex": "sometimes"}, "'imex' has value 'sometimes'"),
        ({"pool_coordinator_port": 70_000}, "70000"),
        ({"pool_grace_seconds": 0}, "grace_seconds"),
        ({"pool_shared_memory_gib": 800}, "must be less"),
        ({"pool_environment": {"MARIN_NODE": "x"}}, "set by the launcher"),
        ({"pool_domain_label": "no spaces"}, "domain_label"),
        ({"pool_tolerations": [{"key": "a", "operator": "Equal"}]}, "goes with a value"),
        ({"pool_tolerations": [{"key": "a", "value": "b"}]}, "goes without a value"),
    ],
)
def test_a_wrong_profile_names_its_file_the_field_and_what_is_wrong(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Profile.parse(values(**changes), "here.yaml")
    assert "here.yaml" in caught.value.message
    assert said in caught.value.message


@pytest.mark.parametrize(("text", "said"), [("a: [", "is no YAML"), ("[1]", "is no profile"), ("", "is no profile")])
def test_what_is_no_profile_at_all_is_told_apart(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Profile.parse(text, "here.yaml")


def test_two_pools_of_one_name_are_refused() -> None:
    whole = yaml.safe_load(values())
    whole["pools"] *= 2
    with pytest.raises(ConfigError, match="two pools have one name"):
        Profile.parse(yaml.safe_dump(whole), "here.yaml")


def test_a_pool_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError) as caught:
        profile("testbed").pool("gb300")
    assert "gb200, h100, tpu-v5e, cpu" in caught.value.advice


@pytest.mark.parametrize("image", ["marin", "marin:latest", "marin@sha256:abc", f"marin@sha256:{'A' * 64}", f"@sha256:{'a' * 64}"])
def test_an_image_without_its_digest_is_refused(image: str) -> None:
    with pytest.raises(ConfigError, match="by digest"):
        require_digest(image)
