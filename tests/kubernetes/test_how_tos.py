"""The how-tos for whoever runs a cluster, followed on the bed: commands run as they are written, with names for the words in capitals."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from marin_core.artifact import Store
from tests.integration.deployment import BIN, PROJECT
from tests.kubernetes.bed.api import KUEUE
from tests.kubernetes.bed.cluster import Bed, binary, release
from tests.kubernetes.bed.nodes import NVLINK_DOMAIN
from tests.kubernetes.bed.pods import Act, annotated_act
from tests.kubernetes.bed.programs import wait_until
from tests.kubernetes.jobs import IMAGE, PROFILES, Submitted, condition, domains, gpus, manifest
from tests.kubernetes.many_builds import family

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1200)]

HOW_TOS = PROJECT / "docs" / "how-to"
EXAMPLE_JOB = "m-train-535b-k3v9q2xw7a-a1"


def blocks(page: str) -> list[str]:
    """The commands of a how-to, block by block."""
    text = (HOW_TOS / f"{page}.md").read_text()
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


class Terminal:
    """A shell as the how-tos mean it, with `kubectl` and `marin`, in a folder.

    Args:
        names: what stands for the words in capital letters.
    """

    def __init__(self, bed: Bed, folder: Path, **names: str) -> None:
        self.folder = folder
        self.names = names
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(binary("kubectl").parent), str(BIN), "/usr/bin", "/bin"]),
            "KUBECONFIG": str(bed.kubeconfig),
            "DAGSTER_HOME": str(folder / "home"),
            "MARIN_PREFIX": f"file://{folder}/store",
            "MARIN_LAUNCHER": "kubernetes",
            "MARIN_PROFILE": str(PROFILES / "testbed.yaml"),
            "COLUMNS": "400",
        }

    def run(self, commands: str) -> str:
        """Run commands, which must all succeed; what they print."""
        for name, value in self.names.items():
            commands = re.sub(rf"\b{re.escape(name)}\b", value, commands)
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", commands],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path


def test_the_queue_is_read_and_a_job_put_aside(bed: Bed, folder: Path) -> None:
    read, put_aside = blocks("read-the-queue")
    running = Submitted(bed, manifest("holds-both", gpus(32), Act(saving_seconds=1)))
    first = running.wait_running()
    waiting = Submitted(bed, manifest("waits", gpus(16)))
    wait_until("a reason", lambda: waiting.condition("QuotaReserved").get("message"))
    terminal = Terminal(bed, folder, **{EXAMPLE_JOB: running.name})
    everything, of_the_pool = terminal.run(read).split("queue of ")[1:]
    for text in (everything, of_the_pool):
        rows = {name: line for line in text.splitlines() for name in (running.name, waiting.name) if name in line}
        assert rows[running.name].split()[0].strip("│|") in ("-", "")
        assert "it runs on gb200" in rows[running.name]
        assert "waits for" in rows[waiting.name]
    pause, unpause = put_aside.splitlines()
    terminal.run(pause)
    waiting.wait_running()
    assert (running.workload() or {})["spec"]["active"] is False
    waiting.delete()
    wait_until("the one that waited to be gone", waiting.gone)
    terminal.run(unpause)
    running.wait_generation_after(first)
    assert running.restarts()[0] == 0
    assert running.name in terminal.run("kubectl -n team-a get workloads")
    assert '"items":[]' in terminal.run("kubectl get --raw /apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/cq-a/pendingworkloads")


def test_a_rack_is_drained_and_its_gang_goes_on_in_another(bed: Bed, folder: Path) -> None:
    cordon, look, drain, uncordon = blocks("drain-a-rack")
    gang = Submitted(bed, manifest("drained", gpus(8), Act(saving_seconds=1), max_restarts=0))
    first = gang.wait_running()
    (rack,) = domains(bed, first)[0]
    prefix = first[0]["spec"]["nodeName"].rpartition("-")[0]
    terminal = Terminal(bed, folder, **{"RACK-NODES": prefix, "RACK": rack})
    try:
        terminal.run(cordon)
        seen = terminal.run(look)
        assert all(pod["metadata"]["name"] in seen for pod in first)
        terminal.run(drain)
        pods = gang.wait_generation_after(first, 420)
        assert domains(bed, pods)[0] != {rack}
        counted, uncounted = gang.restarts()
        assert counted == 0
        assert uncounted >= 1
    finally:
        terminal.run(uncordon)
    nodes = bed.api.list("v1", "Node", labelSelector=f"{NVLINK_DOMAIN}={rack}")
    assert not any(node["spec"].get("unschedulable") for node in nodes)


def test_a_lost_node_is_given_up_when_somebody_says_so_and_comes_back(bed: Bed, folder: Path) -> None:
    say_it_is_dead, it_comes_back = blocks("lose-a-node")
    gang = Submitted(bed, manifest("loses-one", gpus(8), max_restarts=0))
    first = gang.wait_running()
    dead = first[0]["spec"]["nodeName"]
    rack = domains(bed, first)[0]
    bed.kubelet.fail(dead)
    wait_until("the node's pod to be given up", lambda: any("deletionTimestamp" in pod["metadata"] for pod in gang.pods()), 240)
    terminal = Terminal(bed, folder, NODE=dead)
    terminal.run(say_it_is_dead)
    pods = gang.wait_generation_after(first, 240)
    assert dead not in {pod["spec"]["nodeName"] for pod in pods}
    assert domains(bed, pods)[0] == rack
    assert gang.restarts()[0] == 0
    assert gang.admitted()
    bed.kubelet.revive(dead)
    terminal.run(it_comes_back)
    wait_until("the node to be ready", lambda: " Ready " in bed.kubectl("get", "node", dead, "--no-headers"))
    assert not [taint for taint in bed.api.get("v1", "Node", dead)["spec"].get("taints", []) if "out-of-service" in taint["key"]]


@pytest.fixture
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """A cluster with nodes, of which nobody has made anything yet. Its Deployments' pods are acted."""
    with Bed(tmp_path_factory.mktemp("bare"), bare=True) as bed:
        bed.kubelet.act = lambda pod: Act() if pod["metadata"]["namespace"] in ("marin", "kueue-system") else annotated_act(pod)
        yield bed


def test_a_cluster_is_added_and_taken_away(bare: Bed, folder: Path) -> None:
    """All but two commands: one runs tests of the repository, which are run anyway, and one forwards a port to a real pod."""
    kueue, _, secret, apply, see, *_ = blocks("add-a-cluster")
    terminal = Terminal(bare, folder, **{"PATH/TO/KUEUE/manifests.yaml": "manifests.yaml", "MINE": "mine"})
    copy_deployment(folder)
    bare.start_jobset()
    (folder / "manifests.yaml").write_text(bare.kubectl("kustomize", str(release("kueue"))))
    terminal.run(kueue)
    # What the cluster's network would do, and the container that only seems to run: webhooks find a Kueue with the configuration applied.
    applied = bare.api.get("v1", "ConfigMap", "kueue-manager-config", "kueue-system")["data"]["controller_manager_config.yaml"]
    bare.start_kueue(folder / "kueue-here", yaml.safe_load(applied), manager="kubectl")

    (folder / "database.env").write_text("PGPASSWORD=secret\n")
    terminal.run(secret)
    terminal.run(apply)
    queues = terminal.run(see.splitlines()[0])
    assert "cq-a" in queues
    assert "team-b" in queues
    for name in ("cq-a", "cq-b"):
        wait_until(f"{name} to be active", lambda name=name: is_active(bare, name))  # type: ignore[misc]

    store = Store(f"file://{folder}/store")
    environment = {"KUBECONFIG": str(bare.launcher_kubeconfig()), "MARIN_IMAGE_CPU": IMAGE}
    profile = folder / "deploy" / "kubernetes" / "profiles" / "mine.yaml"
    command = [sys.executable, "-m", "tests.kubernetes.many_builds", str(profile), store.prefix, "1"]
    subprocess.run(command, cwd=PROJECT, env=terminal.environment | environment, check=True)
    assert store.record(family(1).ids()[0]) is not None

    running = Submitted(bare, manifest("left-over", gpus(2), Act(saving_seconds=1)))
    running.wait_running()
    terminal.run(take_away())
    wait_until("all of the team's to be gone", lambda: bare.api.find("v1", "Namespace", "team-a") is None)


def is_active(bed: Bed, queue: str) -> bool:
    return bool(condition(bed.api.get(KUEUE, "ClusterQueue", queue), "Active").get("status") == "True")


def take_away() -> str:
    """The command of the how-to's last section."""
    text = (HOW_TOS / "add-a-cluster.md").read_text()
    return re.search(r"## Take it away\n\n`([^`]+)`", text)[1]  # type: ignore[index]


def copy_deployment(folder: Path) -> None:
    """What step 3 asks for: a profile and an overlay, which here are those of the bed's nodes with Dagster besides."""
    shutil.copytree(PROJECT / "deploy", folder / "deploy")
    tree = folder / "deploy" / "kubernetes"
    values = yaml.safe_load((tree / "profiles" / "testbed.yaml").read_text())
    (tree / "profiles" / "mine.yaml").write_text(yaml.safe_dump(values | {"name": "mine", "scratch": str(folder / "scratch")}))
    listed = tree / "profiles" / "Kustomization"
    listed.write_text(listed.read_text().replace("testbed.yaml", "testbed.yaml, mine.yaml"))
    shutil.copytree(tree / "overlays" / "gb200-coreweave", tree / "overlays" / "mine")
    for name in ("flavors.yaml", "queues.yaml"):
        shutil.copy(tree / "overlays" / "testbed" / name, tree / "overlays" / "mine" / name)
    kustomization = tree / "overlays" / "mine" / "kustomization.yaml"
    kustomization.write_text(kustomization.read_text().replace("profiles/gb200-coreweave.yaml", "profiles/mine.yaml"))
