"""The process that test_faults.py kills: it builds artifacts that take a moment on a cluster, all at once.

python -m tests.kubernetes.many_builds PROFILE PREFIX COUNT
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from marin_assets.builder import Builder, BuildError, QuietEvents, Retries
from marin_assets.launch.kubernetes import open_kubernetes_launcher
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Resources, Store
from marin_core.experiment.jobs import SummaryJob

OFTEN = Retries(infrastructure=10_000, preempted=10_000, first_delay_seconds=0.1, longest_delay_seconds=5.0)


def family(count: int) -> ArtifactStep:
    """Artifacts of which a few fit into the queue of the bed at a time."""
    return ArtifactStep(
        "trivial/in_pods",
        "v1",
        job="summary",
        build_config=lambda ctx: SummaryJob(of=(), metrics=("*",)),
        partitions=tuple(f"{number:05d}" for number in range(count)),
        resources=Resources(cpus=8, save_seconds=30),
    )


def main(profile: str, prefix: str, count: str) -> None:
    step, store = family(int(count)), Store(prefix)
    builder = Builder(ArtifactGraph([step]), store, store, open_kubernetes_launcher(profile, prefix), QuietEvents(), OFTEN)

    def build(artifact: ArtifactId) -> None:
        """As a person would who materializes again what has failed."""
        while True:
            try:
                builder.build(step, artifact)
            except BuildError as error:
                print(f"asked for again: {error}", flush=True)
            else:
                return

    with ThreadPoolExecutor(int(count)) as pool:
        list(pool.map(build, step.ids()))


if __name__ == "__main__":
    main(*sys.argv[1:])
