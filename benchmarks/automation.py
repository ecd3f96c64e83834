"""What a tick of each sensor costs in a lab of 10,000 artifacts with families of 1,000 partitions: seconds and memory, against the goals.

    python -m benchmarks.automation --json automation.json

The store is on disk, its records are fabricated. A tenth of two families is missing: some were never begun, some failed, some are open.
Each sensor is evaluated in a process of its own, as a code server does it: the first tick also resolves the jobs that it names, and the
next one is what every tick costs from then on. There is no peer, since Dagster leaves it to each lab to say what is due.
"""

import argparse
import gc
import multiprocessing
import resource
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import dagster as dg
from dagster._core.events import AssetMaterializationPlannedData

from benchmarks.executor_graphs import expect, store_at
from benchmarks.report import Machine, Row, installed_versions, parser, publish
from benchmarks.timing import Timing, timed
from marin_assets.factory import build_definitions
from marin_assets.keys import asset_key
from marin_assets.lab import Lab
from marin_core import experiment as lab
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Claim, End, Record, Store
from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.record import Code, Environment, File, Usage, file_sha256, manifest_digest
from marin_core.artifact.store import META, attempt_folder
from marin_core.experiment import Experiment
from marin_core.experiment.existing import summary
from marin_core.experiment.jobs import SummaryJob
from marin_core.mix.content import PART_FILE

GOAL_SECONDS = 5.0
GOAL_MEGABYTES = 300.0
DOMAINS = 4
MISSING_SHARE = 10
"""Of two families, each member whose number is divided by this is missing; of those, by turns: never begun, failed, open."""

MIX = "publish_web_on_change"
FAILED_RUNS = "record_failed_runs"
STALLED = "record_stalled_attempts"
SENSORS = ("build_missing_shards", "evaluate_new_checkpoints", FAILED_RUNS, STALLED)
HOUR = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Size:
    """Artifacts of the lab, members of families included, and members of each family."""

    artifacts: int
    partitions: int


@dataclass(frozen=True)
class Cost:
    """Of one sensor.

    Attributes:
        peak_bytes: of the whole process.
        grown_bytes: by which the ticks raised that peak.
    """

    first: Timing
    following: Timing
    peak_bytes: int
    grown_bytes: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Fabricate the store, measure each sensor, print the table, and write the rows."""
    options = _options(arguments)
    machine, size = Machine.now(), Size(options.artifacts, options.partitions)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        graph = ArtifactGraph([*small_lab(size).targets, *(mix.mixture for mix in small_lab(size).published)])
        expect(sum(len(step.ids()) for step in graph) == size.artifacts, "the lab has as many artifacts as were asked for")
        store = Store(str(folder / "store"))
        with patch("os.fsync"):
            fabricate(graph, store)
            costs = {MIX: measure_alone(folder, size, MIX)}
            take_away(graph, store)
        costs |= {sensor: measure_alone(folder, size, sensor) for sensor in SENSORS}
    versions = installed_versions("marin-assets", "dagster")
    publish(f"Sensor ticks: {size.artifacts:,} artifacts", rows(costs), machine=machine, versions=versions, json_file=options.json)


def rows(costs: dict[str, Cost]) -> list[Row]:
    """Each sensor beside the goals."""
    made = []
    for name, cost in costs.items():
        made += [
            Row(f"{name}: first tick", cost.first.seconds, GOAL_SECONDS, "goal", "s"),
            Row(f"{name}: next tick", cost.following.seconds, GOAL_SECONDS, "goal", "s"),
            Row(f"{name}: next tick, CPU", cost.following.cpu_seconds, GOAL_SECONDS, "goal", "s"),
            Row(f"{name}: peak memory of the process", cost.peak_bytes / 2**20, GOAL_MEGABYTES, "goal", "MB"),
            Row(f"{name}: of which the ticks'", cost.grown_bytes / 2**20, GOAL_MEGABYTES, "goal", "MB"),
        ]
    return made


# The lab ---------------------------------------------------------------------------------------------------------------


def small_lab(size: Size) -> Experiment:
    """A source in four domains, filtered and tokenized; a mix of them; a training with its evaluations; and singles for the rest."""
    raw = lab.raw_source("raw/web", "v1", lab.PythonStdlib(), license="MIT")
    domains = [lab.filtered(f"filtered/d{number}", "v1", raw, shards=size.partitions) for number in range(DOMAINS)]
    bpe = lab.tokenizer("tokenizer/web", "v1", domains[:1], vocab_size=512)
    caches = [lab.tokenized(f"tokenized/d{number}", "v1", documents, bpe) for number, documents in enumerate(domains)]
    mixture = lab.mixture("mixtures/web", "v1", dict.fromkeys(caches, 1.0 / DOMAINS), sequence_length=128)
    run = standing_for("train", "checkpoints/run", mixture)
    scores = standing_for("evaluate", "evals/run", run, partitions=tuple(f"step-{step:06d}" for step in range(1, size.partitions + 1)))
    rest = size.artifacts - (2 * DOMAINS + 1) * size.partitions - 4
    if rest < 0:
        raise ValueError(f"{size.artifacts} artifacts can't have {2 * DOMAINS + 1} families of {size.partitions}")
    singles = [summary(f"single/a{number}", "v1", of=[]) for number in range(rest)]
    mix = lab.published_mix("published/web", mixture, start=HOUR, message="a benchmark")
    return lab.experiment("benchmark", *caches, scores, *singles, mix, question="What does a tick cost?", hypothesis="Little.")


def standing_for(job: str, name: str, *deps: ArtifactStep, partitions: tuple[str, ...] = ()) -> ArtifactStep:
    """An artifact of a job whose configuration makes no difference here."""
    of = SummaryJob(of=(), metrics=("*",))
    return ArtifactStep(name, "v1", job=job, build_config=lambda ctx: of, deps=deps, partitions=partitions)


def fabricate(graph: ArtifactGraph, store: Store) -> None:
    """A record of everything, as large as that of a real job."""
    for step in graph:
        identity = graph.identity(step)
        for artifact in step.ids():
            store.objects.create(f"{artifact.path}/{META}/record.json", canonical_json(_record(store, artifact, step, identity)))


def _record(store: Store, artifact: ArtifactId, step: ArtifactStep, identity: dict[str, object]) -> dict[str, object]:
    files: tuple[File, ...] = ()
    if step.job == "tokenize":
        store.objects.create(f"{artifact.path}/{attempt_folder(1)}/{PART_FILE}", canonical_json(_part()))
        path = store.output_path(artifact, 1)
        expect(path is not None, "the store is on this machine's disk")
        found = Path(str(path)) / PART_FILE
        files = (File(path=PART_FILE, size=found.stat().st_size, sha256=file_sha256(found)),)
    record = Record(
        name=artifact.name,
        version=artifact.version,
        partition=artifact.partition,
        fingerprint="f" * 16,
        identity=identity,
        payload=attempt_folder(1),
        files=files,
        manifest_digest=manifest_digest(files),
        content_digest=manifest_digest(files),
        attempt=1,
        code=Code(packages={f"package-{number}": "1.2.3" for number in range(100)}),
        environment=Environment(python="3", platform="fabricated", cpus=1),
        started_at=HOUR.isoformat(),
        ended_at=HOUR.isoformat(),
        usage=Usage(wall_seconds=1, cpu_seconds=1, peak_memory_bytes=1),
        metrics={f"metric_{number}": number for number in range(30)},
    )
    return record.model_dump(mode="json")


def _part() -> dict[str, object]:
    return {
        "digest": "0" * 32,
        "tokenizer": {"digest": "ab" * 32, "vocab_size": 512},
        "policy": {"bos": "prepend", "eos": "append"},
        "split": "train",
        "tokens": 1_000,
        "documents": 10,
        "bytes": 4_000,
        "licenses": ["MIT"],
        "policies": ["TRAINING_ALLOWED"],
    }


def missing_of(graph: ArtifactGraph) -> list[ArtifactId]:
    """A tenth of the tokens of a domain and of the evaluations."""
    families = [graph[ArtifactId("tokenized/d0", "v1")], graph[ArtifactId("evals/run", "v1")]]
    return [artifact for step in families for artifact in step.ids()[::MISSING_SHARE]]


def take_away(graph: ArtifactGraph, store: Store) -> None:
    """Never begun, failed, and open, by turns."""
    for number, artifact in enumerate(missing_of(graph)):
        store.objects.delete(f"{artifact.path}/{META}/record.json")
        if number % 3:
            store.claim(artifact, Claim(number=1, job="j", fingerprint="f" * 16, submitted_at=HOUR.isoformat(), host="here"))
        if number % 3 == 1:
            store.close(artifact, 1, End(state="failed", ended_at=HOUR.isoformat(), failure="data", exit_code=65, error="cut"))


# Measuring -------------------------------------------------------------------------------------------------------------


def measure_alone(folder: Path, size: Size, sensor: str) -> Cost:
    """In a fresh process, so that its memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, folder, size, sensor).result()


def measure(folder: Path, size: Size, sensor: str) -> Cost:
    """Two ticks of one sensor."""
    with store_at(folder / "store"), dg.DagsterInstance.local_temp() as instance:
        definitions = build_definitions([small_lab(size)])
        definitions.get_repository_def()
        resources = {"lab": Lab(prefix=f"file://{folder / 'store'}")}

        def tick(cursor: str | None) -> tuple[int, str | None]:
            context = dg.build_sensor_context(instance=instance, cursor=cursor, resources=resources, definitions=definitions)
            data = definitions.resolve_sensor_def(sensor).evaluate_tick(context)
            return len(data.run_requests or ()), data.cursor

        cursor: str | None = None
        if sensor == FAILED_RUNS:
            _, cursor = tick(None)  # the very first one only notes where Dagster's events stand
            lose_run(instance, [artifact for artifact in ids_of(size) if artifact.name == "tokenized/d0"])
        gc.collect()
        before = _peak_bytes()
        (requests, cursor), first = timed(lambda: tick(cursor))
        _, following = timed(lambda: tick(cursor))
        peak = _peak_bytes()
        failures = Store(str(folder / "store")).objects.files(".failures")
    expect(bool(failures if sensor in (FAILED_RUNS, STALLED) else requests), f"{sensor} had something to do")
    return Cost(first, following, peak, peak - before)


def ids_of(size: Size) -> list[ArtifactId]:
    """Every artifact of the lab."""
    return [artifact for step in ArtifactGraph(small_lab(size).targets) for artifact in step.ids()]


def lose_run(instance: dg.DagsterInstance, planned: Sequence[ArtifactId]) -> None:
    """A run whose worker was lost: it had planned all members of a family, and says nothing about any."""
    run = instance.add_run(dg.DagsterRun(job_name="lost", status=dg.DagsterRunStatus.STARTED))
    for artifact in planned:
        data = AssetMaterializationPlannedData(asset_key(artifact.family), partition=artifact.partition)
        instance.report_dagster_event(dg.DagsterEvent.build_asset_materialization_planned_event("lost", "step", data), run.run_id)
    instance.report_run_failed(run)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--artifacts", type=int, default=10_000, metavar="N", help="artifacts of the lab (default: %(default)s)")
    made.add_argument("--partitions", type=int, default=1_000, metavar="N", help="members of each family (default: %(default)s)")
    return made.parse_args(arguments)


if __name__ == "__main__":
    main()
