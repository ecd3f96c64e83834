"""One job of each shape on each kind of cluster: what the golden files hold, and other tests begin with."""

from functools import cache
from pathlib import Path

from marin_assets.launch.contract import job_name
from marin_assets.launch.kubernetes.manifest import Identity, Manifest, render
from marin_assets.launch.kubernetes.placement import place
from marin_assets.launch.kubernetes.profile import Profile
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.step import Accelerators, Resources

PROFILES = Path(__file__).parents[3] / "deploy" / "kubernetes" / "profiles"


@cache
def profile(name: str) -> Profile:
    path = PROFILES / f"{name}.yaml"
    return Profile.parse(path.read_text(), path.name)


def accelerated(*kinds: str, nodes: int, devices_per_node: int | None = None, **values: int | str) -> Resources:
    return Resources.from_json(
        {"accelerators": Accelerators(kinds=kinds, nodes=nodes, devices_per_node=devices_per_node), "save_seconds": 5, **values}
    )


def identity(job: str = "train") -> Identity:
    artifact = ArtifactId("checkpoints/train_535b", "v1")
    address = f"gs://lab/{artifact.path}"
    name = job_name(artifact, address, attempt=2, submitted_at="2026-11-30T12:00:00+00:00")
    return Identity(
        name=name,
        job=job,
        address=address,
        folder=f"gs://lab/.jobs/{name}",
        spec_sha256="5" * 64,
        image=f"registry.example/marin@sha256:{'a' * 64}",
        dagster_run_id="0b1c2d3e",
        environment={"DAGSTER_PIPES_CONTEXT": "e30="},
    )


CASES: dict[str, tuple[str, Resources, str]] = {
    "gb200-one-rack": ("gb200-coreweave", accelerated("gb200", nodes=16), "train"),
    "gb200-hero": ("gb200-coreweave", accelerated("gb200", nodes=176, priority="production"), "train"),
    "gb200-with-imex": ("gb200-gke", accelerated("gb200", nodes=24), "train"),
    "gb200-or-h100": ("gb200-coreweave", accelerated("gb200", "h100", nodes=8, devices_per_node=4), "train"),
    "h100": ("h100", accelerated("h100", nodes=4), "evaluate"),
    "tpu-multislice": ("gke-tpu", accelerated("tpu_v5e", nodes=8), "train"),
    "cpu-gang-without-kueue": ("cpu", Resources(cpus=4, processes=2), "train"),
    "cpu-single": ("gb200-coreweave", Resources(cpus=8, memory_gib=24), "tokenize"),
}
"""Name → profile, what the job needs, and the job."""


def rendered(case: str) -> list[Manifest]:
    name, resources, job = CASES[case]
    where = profile(name)
    return render(where, place(where, resources), identity(job))
