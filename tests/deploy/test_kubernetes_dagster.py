"""Dagster in a cluster: it reads its instance, finds its code location, and its run workers are locked in like all else."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import DagsterRun
from dagster._core.instance.config import dagster_instance_config
from dagster._core.instance.ref import InstanceRef
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster._core.workspace.load import location_origins_from_yaml_paths
from dagster_k8s import K8sRunLauncher
from dagster_k8s.container_context import K8sContainerContext
from dagster_k8s.job import construct_dagster_k8s_job
from dagster_postgres.utils import pg_url_from_config
from kubernetes.client import ApiClient
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from tests.deploy.cluster import PROJECT, TREE, Manifest, needs_kubectl, of_kind, overlay, pod_specs

pytestmark = needs_kubectl

CLUSTER = "gb200-coreweave"
MAPS = ("dagster", "lab", "profiles")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """DAGSTER_HOME as the pods have it, with their environment."""
    maps = of_kind(overlay(CLUSTER), "ConfigMap")
    for name, text in maps["marin/dagster"]["data"].items():
        (tmp_path / name).write_text(text)
    for name, value in maps["marin/lab"]["data"].items():
        monkeypatch.setenv(name, value)
    return tmp_path


def arguments(deployment: str) -> list[str]:
    (container,) = dict(pod_specs(overlay(CLUSTER)))[deployment]["containers"]
    given: list[str] = container["args"]
    return given


def test_dagster_reads_its_instance(home: Path) -> None:
    config, _ = dagster_instance_config(str(home))
    machine = yaml.safe_load((PROJECT / "deploy" / "machine" / "dagster.yaml").read_text())
    assert config["run_retries"]["retry_on_asset_or_op_failure"] is False
    assert config["run_monitoring"]["max_resume_run_attempts"] == machine["run_monitoring"]["max_resume_run_attempts"] == 0
    assert config["concurrency"]["runs"]["tag_concurrency_limits"] == machine["concurrency"]["runs"]["tag_concurrency_limits"]
    reference = InstanceRef.from_dir(str(home))
    storages = [reference.run_storage_data, reference.event_storage_data, reference.schedule_storage_data]
    assert {data.class_name for data in storages if data} == {"PostgresRunStorage", "PostgresEventLogStorage", "PostgresScheduleStorage"}
    assert reference.compute_logs_data.class_name == "GCSComputeLogManager"


def test_the_database_is_found_by_libpq_and_no_password_passes_through_dagster(home: Path) -> None:
    given = yaml.safe_load((home / "dagster.yaml").read_text())["storage"]["postgres"]["postgres_db"]
    resolved = {key: os.environ[value["env"]] if isinstance(value, dict) else value for key, value in given.items()}
    url = make_url(pg_url_from_config({"postgres_db": resolved}))
    assert create_engine(url).dialect.create_connect_args(url)[1] == {"user": "marin", "dbname": "dagster", "port": 5432}


def test_dagster_finds_the_code_location_where_it_listens(home: Path) -> None:
    (origin,) = location_origins_from_yaml_paths([str(home / "workspace.yaml")])
    assert isinstance(origin, GrpcServerCodeLocationOrigin)
    code = arguments("code")
    assert origin.port == int(code[code.index("--port") + 1])
    assert origin.location_name == code[code.index("--location-name") + 1] == "marin"
    service = of_kind(overlay(CLUSTER), "Service")[f"marin/{origin.host}"]
    assert service["spec"]["ports"] == [{"name": "grpc", "port": origin.port, "targetPort": "grpc"}]
    for deployment in ("webserver", "daemon"):
        command = arguments(deployment)
        assert command[command.index("--workspace") + 1] == "/opt/marin/dagster/workspace.yaml"


@pytest.fixture
def launcher(home: Path, monkeypatch: pytest.MonkeyPatch) -> K8sRunLauncher:
    monkeypatch.setattr("dagster_k8s.launcher.load_kubernetes_config", lambda **_: None)  # there is no cluster around this test
    found = InstanceRef.from_dir(str(home)).run_launcher
    assert isinstance(found, K8sRunLauncher)
    return found


def run_worker(launcher: K8sRunLauncher, tags: dict[str, Any] | None = None) -> Manifest:
    """The Job of a run worker, as the launcher would create it."""
    context = K8sContainerContext.create_for_run(DagsterRun(job_name="demo", tags=tags or {}), launcher, include_run_tags=True)
    config = context.get_k8s_job_config(None, launcher)
    job = construct_dagster_k8s_job(config, args=["dagster"], job_name="demo", user_defined_k8s_config=context.run_k8s_config)
    made: Manifest = ApiClient().sanitize_for_serialization(job)
    assert context.namespace == "marin"
    return made


def test_run_workers_are_like_the_other_pods(launcher: K8sRunLauncher) -> None:
    objects = overlay(CLUSTER)
    pod = run_worker(launcher)["spec"]["template"]["spec"]
    code = dict(pod_specs(objects))["code"]
    assert pod["securityContext"] == code["securityContext"]
    (container,), (ours,) = pod["containers"], code["containers"]
    assert container["image"] == ours["image"]
    assert container["securityContext"] == ours["securityContext"]
    assert set(container["resources"]["limits"]) == {"cpu", "memory"}
    assert pod["serviceAccountName"] == code["serviceAccountName"] == "launcher"
    mounts = {each["mountPath"]: each.get("subPath") for each in container["volumeMounts"]}
    assert mounts == {each["mountPath"]: each.get("subPath") for each in ours["volumeMounts"]}
    assert {"configMapRef": {"name": "lab"}} in container["envFrom"]
    assert {"secretRef": {"name": "dagster-database"}} in container["envFrom"]
    assert {each["configMap"]["name"] for each in pod["volumes"] if "configMap" in each} <= set(MAPS)


def test_no_tag_of_a_run_changes_its_pod(launcher: K8sRunLauncher) -> None:
    tags = {"dagster-k8s/config": {"pod_spec_config": {"host_network": True}, "container_config": {"image": "other"}}}
    with pytest.raises(Exception, match=r"pod_spec_config|container_config"):
        run_worker(launcher, {name: json.dumps(value) for name, value in tags.items()})


def test_secrets_come_from_secrets() -> None:
    """One, by its name: whoever runs the cluster makes it, and it is the only thing that the tree doesn't bring."""
    text = "".join(path.read_text() for path in (TREE / "base").rglob("*.yaml"))
    for _, pod in pod_specs(overlay(CLUSTER)):
        (container,) = pod["containers"]
        assert [each["secretRef"]["name"] for each in container["envFrom"] if "secretRef" in each] == ["dagster-database"]
    assert "kind: Secret" not in text
