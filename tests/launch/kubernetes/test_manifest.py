"""What is given to the API server: golden files of every shape, the CRD's own schema, and what holds of any manifest."""

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from marin_assets.launch.kubernetes.manifest import Manifest, owned, render
from marin_assets.launch.kubernetes.placement import place
from marin_assets.launch.kubernetes.profile import Profile
from marin_core.artifact.step import Resources
from marin_core.errors import ConfigError
from tests.launch.kubernetes.cases import CASES, accelerated, identity, profile, rendered

GOLDEN = Path(__file__).parent / "golden"
CRD = Path("sigs.k8s.io/jobset@v0.12.0/config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml")


def text(case: str) -> str:
    return yaml.safe_dump_all(rendered(case), sort_keys=False, width=140)


@pytest.mark.parametrize("case", CASES)
def test_manifests_are_those_of_the_golden_file(case: str) -> None:
    """After a wanted change: `python -m tests.launch.kubernetes.test_manifest` writes the golden files anew; read the difference."""
    assert text(case) == (GOLDEN / f"{case}.yaml").read_text()


def test_there_is_a_golden_file_for_each_case_and_no_other() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.yaml")) == sorted(CASES)


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    """Of JobSet's own schema, from the module that the test bed is built from, made to refuse fields that the API server would drop."""
    cache = os.environ.get("GOMODCACHE") or str(Path(os.environ.get("GOPATH", Path.home() / "go")) / "pkg" / "mod")
    path = Path(cache) / CRD
    if not path.exists():
        pytest.skip(f"JobSet's CRD is not in the Go module cache ({path}); `make test-kubernetes` downloads it")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 700 KB
    versions = yaml.load(path.read_text(), loader)["spec"]["versions"]  # noqa: S506 - either is safe
    schema: dict[str, Any] = next(each for each in versions if each["name"] == "v1alpha2")["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft202012Validator(strict(schema))


def strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    open_on_purpose = any(schema.get(f"x-kubernetes-{word}") for word in ("preserve-unknown-fields", "embedded-resource"))
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not open_on_purpose:
        closed.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    return closed


@pytest.mark.parametrize("case", CASES)
def test_jobsets_follow_the_schema_of_the_real_controller(case: str, validator: jsonschema.Draft202012Validator) -> None:
    validator.validate(rendered(case)[0])


def test_the_schema_would_notice_a_field_that_is_not_there_and_a_value_that_is_not_allowed(
    validator: jsonschema.Draft202012Validator,
) -> None:
    wrong = rendered("gb200-hero")[0]
    wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["hostNetwrk"] = True
    assert not validator.is_valid(wrong)
    wrong = rendered("gb200-hero")[0]
    wrong["spec"]["failurePolicy"]["rules"][0]["action"] = "Give up"
    assert not validator.is_valid(wrong)


def job(jobset: Manifest) -> Manifest:
    found: Manifest = jobset["spec"]["replicatedJobs"][0]
    return found


def pod(jobset: Manifest) -> Manifest:
    found: Manifest = job(jobset)["template"]["spec"]["template"]
    return found


def container(jobset: Manifest) -> Manifest:
    (found,) = pod(jobset)["spec"]["containers"]
    return dict(found)


def environment(jobset: Manifest) -> dict[str, str | None]:
    variables = container(jobset)["env"]
    assert len({each["name"] for each in variables}) == len(variables)
    return {each["name"]: each.get("value") for each in variables}


WHERE = st.sampled_from(["gb200-coreweave", "gb200-gke", "gke-tpu", "h100", "testbed", "cpu"])
WHAT = st.one_of(
    st.builds(
        lambda kind, nodes: accelerated(kind, nodes=nodes),
        st.sampled_from(["gb200", "h100", "tpu_v5e"]),
        st.integers(1, 48),
    ),
    st.builds(lambda cpus, processes: Resources(cpus=cpus, processes=processes, save_seconds=5), st.integers(1, 60), st.integers(1, 8)),
)


@given(WHERE, WHAT, st.sampled_from(["train", "tokenize"]))
def test_what_holds_of_every_manifest(where: str, resources: Resources, kind: str) -> None:
    """Processes × their devices = devices asked for; whole nodes; legal names; every toleration (spec §1.10)."""
    cluster = profile(where)
    try:
        request = place(cluster, resources)
    except ConfigError:
        return
    who = identity(kind)
    jobset, *others = render(cluster, request, who)
    assert render(cluster, request, who) == [jobset, *others]
    assert json.loads(json.dumps(jobset)) == jobset  # nothing but what JSON has
    pool = cluster.pool(request.pools[0])
    spec = job(jobset)["template"]["spec"]

    assert job(jobset)["replicas"] * spec["parallelism"] == resources.processes == int(str(environment(jobset)["MARIN_NUM_PROCESSES"]))
    assert spec["completions"] == spec["parallelism"] == int(str(environment(jobset)["MARIN_PODS_PER_JOB"]))
    assert (spec["backoffLimit"], spec["completionMode"]) == (0, "Indexed")
    if pool.resource is not None:
        devices = int(container(jobset)["resources"]["limits"][pool.resource])
        assert devices == int(container(jobset)["resources"]["requests"][pool.resource]) == pool.devices_per_node
        assert devices * resources.processes == request.devices

    assert pod(jobset)["spec"]["terminationGracePeriodSeconds"] == int(str(environment(jobset)["MARIN_GRACE_SECONDS"]))
    assert pod(jobset)["spec"]["terminationGracePeriodSeconds"] >= resources.save_seconds

    tolerated = [(each["key"], each.get("effect")) for each in pod(jobset)["spec"]["tolerations"]]
    assert {(each.key, each.effect) for each in pool.tolerations} <= set(tolerated)
    assert {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"} <= {key for key, _ in tolerated}
    assert pod(jobset)["spec"]["nodeSelector"] == {"kubernetes.io/arch": pool.architecture} | pool.node_selector

    longest = f"{who.name}-{job(jobset)['name']}-{job(jobset)['replicas'] - 1}-{spec['completions'] - 1}-abcde"
    assert len(longest) <= 63
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", longest)
    assert all(len(value) <= 63 for value in jobset["metadata"]["labels"].values())
    assert all(re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"]) for rule in jobset["spec"]["failurePolicy"]["rules"])
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == (3 if kind == "train" else 0)
    assert jobset["spec"]["suspend"] is cluster.kueue


@given(WHERE, WHAT)
def test_pods_are_kept_small_in_rights(where: str, resources: Resources) -> None:
    cluster = profile(where)
    try:
        jobset = render(cluster, place(cluster, resources), identity())[0]
    except ConfigError:
        return
    spec = pod(jobset)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container(jobset)["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container(jobset)["resources"]["limits"]["memory"] == container(jobset)["resources"]["requests"]["memory"]
    assert all(mount.get("readOnly") for mount in container(jobset)["volumeMounts"] if mount["name"].startswith("host-"))


def annotations(case: str) -> dict[str, str]:
    found: dict[str, str] = pod(rendered(case)[0])["metadata"]["annotations"]
    return {key.partition("/")[2]: value for key, value in found.items() if key.startswith("kueue")}


def test_a_gang_of_one_rack_must_be_in_one_and_of_several_each_rack_in_its_own() -> None:
    assert annotations("gb200-one-rack") == {"podset-required-topology": "ds.coreweave.com/nvlink.domain"}
    assert annotations("gb200-hero") == {
        "podset-preferred-topology": "backend.coreweave.cloud/leafgroup",
        "podset-slice-required-topology": "ds.coreweave.com/nvlink.domain",
        "podset-slice-size": "16",
    }
    assert annotations("h100") == {"podset-required-topology": "marin-assets/leafgroup"}
    assert annotations("gb200-or-h100") == {"podset-preferred-topology": "backend.coreweave.cloud/leafgroup"}


def test_a_job_that_fits_no_leafgroup_should_be_near_and_need_not_be() -> None:
    cluster = profile("h100")
    jobset = render(cluster, place(cluster, accelerated("h100", nodes=20)), identity())[0]
    assert pod(jobset)["metadata"]["annotations"] == {"kueue.x-k8s.io/podset-preferred-topology": "marin-assets/leafgroup"}


def test_slices_of_a_job_get_a_node_pool_each_and_nothing_of_kueues_topology() -> None:
    jobset = rendered("tpu-multislice")[0]
    assert jobset["metadata"]["annotations"]["alpha.jobset.sigs.k8s.io/exclusive-topology"] == "cloud.google.com/gke-nodepool"
    assert annotations("tpu-multislice") == {}
    assert {port["containerPort"] for port in container(jobset)["ports"]} == {8471, 8080, 8431, 8476}


def test_alternatives_name_no_flavor_but_only_flavors_that_would_do() -> None:
    spec = pod(rendered("gb200-or-h100")[0])["spec"]
    assert spec["nodeSelector"] == {}
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {each["key"]: each["values"] for each in term["matchExpressions"]} == {
        "kubernetes.io/arch": ["arm64", "amd64"],
        "accel": ["gb200", "h100"],
    }


def test_alternatives_that_call_their_domain_alike_must_be_in_one() -> None:
    """A lab that labels its racks and its H100 leaf groups with one label of its own gets the guarantee for both."""
    bed = profile("testbed")
    fabric = [bed.pool(name).changed(domain_label="marin-assets/fabric") for name in ("gb200", "h100")]
    cluster = bed.changed(pools=tuple(fabric))
    jobset = render(cluster, place(cluster, accelerated("gb200", "h100", nodes=4, devices_per_node=4)), identity())[0]
    assert pod(jobset)["metadata"]["annotations"] == {"kueue.x-k8s.io/podset-required-topology": "marin-assets/fabric"}


def test_alternatives_with_nothing_in_common_may_be_anywhere() -> None:
    bed = profile("testbed")
    apart = (bed.pool("gb200").changed(preferred_label="rack-row"), bed.pool("h100"))
    cluster = bed.changed(pools=apart)
    jobset = render(cluster, place(cluster, accelerated("gb200", "h100", nodes=4, devices_per_node=4)), identity())[0]
    assert pod(jobset)["metadata"]["annotations"] == {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}


def test_pods_that_share_a_nodes_network_name_no_port() -> None:
    """A port that is named there would be taken by the first, and the second never scheduled."""
    cluster = profile("h100")
    half = render(cluster, place(cluster, accelerated("h100", nodes=2, devices_per_node=4)), identity())[0]
    whole = render(cluster, place(cluster, accelerated("h100", nodes=2)), identity())[0]
    assert (container(half)["ports"], len(container(whole)["ports"])) == ([], 1)


def test_shared_memory_over_nvlink_comes_with_the_jobset_and_goes_with_it() -> None:
    jobset, domain = rendered("gb200-with-imex")
    (claim,) = pod(jobset)["spec"]["resourceClaims"]
    assert domain["spec"]["channel"]["resourceClaimTemplate"]["name"] == claim["resourceClaimTemplateName"]
    stored = jobset | {"metadata": jobset["metadata"] | {"uid": "1-2-3"}}
    assert owned(domain, stored)["metadata"]["ownerReferences"] == [
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": identity().name, "uid": "1-2-3"}
    ]
    assert "ownerReferences" not in domain["metadata"]
    alone = render(profile("gb200-gke"), place(profile("gb200-gke"), accelerated("gb200", nodes=1)), identity())
    assert len(alone) == 1


def test_without_kueue_racks_are_kept_apart_by_jobset_itself_and_nothing_is_queued() -> None:
    cluster = profile("testbed").changed(kueue=False)
    jobset = render(cluster, place(cluster, accelerated("gb200", nodes=32)), identity())[0]
    assert jobset["metadata"]["annotations"]["alpha.jobset.sigs.k8s.io/exclusive-topology"] == "ds.coreweave.com/nvlink.domain"
    assert not any(key.startswith("kueue") for key in [*jobset["metadata"]["labels"], *pod(jobset)["metadata"]["annotations"]])


def test_no_jobset_has_a_coordinator_since_its_label_would_be_too_long_for_our_names() -> None:
    """JobSet 0.11 and 0.12 refuse a JobSet whose coordinator's address has more than 63 characters: it makes a label of it."""
    for case in CASES:
        jobset = rendered(case)[0]
        assert "coordinator" not in jobset["spec"]
    assert len(str(environment(rendered("gb200-hero")[0])["MARIN_COORDINATOR"])) > 63


def test_a_variable_of_the_pool_or_the_run_never_hides_one_of_ours() -> None:
    cluster = profile("cpu")
    who = identity()
    lying = type(who)(**(vars(who) | {"environment": {"MARIN_NUM_PROCESSES": "99", "MARIN_NODE": "elsewhere", "OTHER": "kept"}}))
    found = environment(render(cluster, place(cluster, Resources()), lying)[0])
    assert (found["MARIN_NUM_PROCESSES"], found["MARIN_NODE"], found["OTHER"]) == ("1", None, "kept")


@pytest.mark.parametrize(("field", "value", "said"), [("name", "train", "no job's name"), ("image", "marin:latest", "by digest")])
def test_an_identity_that_would_not_do_is_refused(field: str, value: str, said: str) -> None:
    cluster: Profile = profile("cpu")
    wrong = type(identity())(**(vars(identity()) | {field: value}))
    with pytest.raises(ConfigError, match=said):
        render(cluster, place(cluster, Resources()), wrong)


if __name__ == "__main__":
    for case in CASES:
        (GOLDEN / f"{case}.yaml").write_text(text(case))
