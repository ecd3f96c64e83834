"""What the launcher calls a job is what JobSet's webhook takes, and a pod's place says which process it runs."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_assets.launch.contract import job_name
from marin_assets.launch.kubernetes.names import JobName, coordinator, longest_pod_name, process_of, require_legal
from marin_core.artifact.identity import ArtifactId
from marin_core.errors import ConfigError

PARTS = st.from_regex(r"[a-z0-9]{1,20}(_[a-z0-9]{1,20}){0,2}", fullmatch=True)
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@given(PARTS, st.integers(1, 99_999), st.sampled_from(["rack", "slice", "worker"]), st.integers(1, 9_999), st.integers(1, 999))
def test_every_artifact_has_a_legal_name_that_says_its_key_and_attempt(part: str, attempt: int, kind: str, jobs: int, pods: int) -> None:
    address = f"gs://lab/checkpoints/{part}/v1"
    name = job_name(ArtifactId(f"checkpoints/{part}", "v1"), address, attempt, "2026-11-30")
    assert DNS_LABEL.fullmatch(name)
    parsed = JobName.parse(name)
    assert (parsed.text, parsed.attempt) == (name, attempt)
    assert parsed.key == JobName.parse(job_name(ArtifactId("other/name", "v1"), address, attempt + 1, "2026-11-30")).key
    require_legal(name, kind, jobs, pods)


@pytest.mark.parametrize(("length", "legal"), [(46, True), (47, False), (50, False)])
def test_the_longest_name_is_the_one_that_the_real_webhook_took(length: int, legal: bool) -> None:
    """With `rack`, 11 × 16: 46 characters were accepted, 50 refused (spec §1.2)."""
    name = "m" * length
    if legal:
        require_legal(name, "rack", 11, 16)
        return
    with pytest.raises(ConfigError, match="at most 46 characters"):
        require_legal(name, "rack", 11, 16)


@given(st.integers(1, 40), st.integers(1, 20_000), st.integers(1, 20_000))
def test_a_pods_longest_name_follows_the_formula_of_the_spec(length: int, jobs: int, pods: int) -> None:
    formula = length + len("rack") + len(str(jobs - 1)) + len(str(pods - 1)) + 9
    assert longest_pod_name("m" * length, "rack", jobs, pods) == formula


@pytest.mark.parametrize("name", ["1-job", "Job", "job-", "jo_b", "jo.b", ""])
def test_what_is_no_dns_label_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="DNS-1035"):
        require_legal(name, "rack", 1, 1)


@pytest.mark.parametrize(
    "name", ["", "train", "m-train-a1", "m-train-abc-a1", "m-train-k3v7q2xw7a-a0", "m-train-k3v7q2xw7a", "x-t-k3v7q2xw7a-a1"]
)
def test_what_is_no_job_of_ours_is_not_taken_for_one(name: str) -> None:
    with pytest.raises(ConfigError, match="is no job's name"):
        JobName.parse(name)


def test_the_coordinator_is_found_in_the_jobsets_own_service() -> None:
    assert coordinator("m-t-k3v7q2xw7a-a1", "rack", 8476) == "m-t-k3v7q2xw7a-a1-rack-0-0.m-t-k3v7q2xw7a-a1:8476"


@given(st.integers(1, 60), st.integers(1, 60))
def test_processes_are_numbered_once_each_and_contiguously_within_a_rack(racks: int, nodes: int) -> None:
    numbers = [[process_of(rack, node, nodes) for node in range(nodes)] for rack in range(racks)]
    assert [number for rack in numbers for number in rack] == list(range(racks * nodes))
    assert all(rack == list(range(rack[0], rack[0] + nodes)) for rack in numbers)


def test_expert_never_leaves_a_rack_in_the_hero_job() -> None:
    """11x64 on 176 nodes of 4 GPUs: the mesh's inner axis takes devices in the order of processes (spec §2.5)."""
    racks, nodes, devices = 11, 16, 4
    rack_of_device = [0] * (racks * nodes * devices)
    for rack in range(racks):
        for node in range(nodes):
            for device in range(devices):
                rack_of_device[process_of(rack, node, nodes) * devices + device] = rack
    for row in range(racks):  # of the mesh (rack, expert) = (11, 64)
        assert {rack_of_device[row * 64 + expert] for expert in range(64)} == {row}
