"""One backfill through a real daemon, and where its time goes. Part of `benchmarks.orchestration`."""

import getpass
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
import psutil
import yaml
from dagster import DagsterEventType as Event
from dagster._core.storage.tags import BACKFILL_ID_TAG, PARTITION_NAME_TAG

from benchmarks.executor_graphs import expect
from benchmarks.orchestration_lab import EXECUTOR_VARIABLE, PARTITIONS_VARIABLE, small_lab, trivial_family
from benchmarks.postgresql import PORT, server
from marin_assets.cli.backfills import Backfills
from marin_assets.factory import build_definitions
from marin_assets.lab import PREFIX_VARIABLE, PROJECT
from marin_core.artifact import ArtifactGraph, ArtifactId, Store

WARM_UP = 1
"""Partitions of a first backfill, in which daemon and code server load what they keep."""
PAUSE_SECONDS = 0.1
LONGEST_SECONDS = 1800.0
STARTED = "Started process for run"
"""How the first event begins that a run worker writes; Dagster is imported by then."""

PROCESSES = ("run worker", "code server", "daemon")
PHASES = (
    "start of a process and import of Dagster",
    "code location and plan",
    "start of the executor",
    "step: Dagster",
    "step: ours",
    "end of the run",
)


type Services = Mapping[str, psutil.Popen]


@dataclass(frozen=True)
class Figures:
    """What a backfill of trivial partitions took.

    Attributes:
        seconds: of a partition, from the request for the first run worker until the end of the last run, two at a time.
        first_seconds: from the backfill's launch until the first run worker is asked for.
        cpu_seconds: of a partition, by the names of `PROCESSES`.
        phases: phase → median of a run worker's seconds in it, from the request for the worker until the run's end.
    """

    seconds: float
    first_seconds: float
    cpu_seconds: Mapping[str, float]
    phases: Mapping[str, float]


def measure(folder: Path, storage: str, executor: str, partitions: int) -> Figures:
    """A backfill in an empty lab of its own.

    Raises:
        PeerError: the storage can't be had here.
    """
    with (
        _storage(folder, storage) as config,
        _home(folder, config, executor, partitions + WARM_UP) as instance,
        _services(folder) as services,
    ):
        family = trivial_family(partitions + WARM_UP)
        graph, store = ArtifactGraph([family]), Store(f"file://{folder}/store")
        assets = build_definitions([small_lab(partitions + WARM_UP)]).get_repository_def().asset_graph
        backfills = Backfills(instance, graph, assets, pause=lambda seconds: time.sleep(PAUSE_SECONDS))
        _run(backfills, services, family.ids()[:WARM_UP])
        before, began = _cpu_seconds(services), time.time()
        backfill = _run(backfills, services, family.ids()[WARM_UP:])
        after = _cpu_seconds(services)
        expect(all(store.records(family.ids()).values()), "every partition is committed")
        runs = instance.get_run_records(dg.RunsFilter(tags={BACKFILL_ID_TAG: backfill}, statuses=[dg.DagsterRunStatus.SUCCESS]))
        by_partition = {record.dagster_run.tags[PARTITION_NAME_TAG]: record for record in runs}
        expect(len(by_partition) == partitions, "each partition had a run")  # more than one, if the machine was too busy to answer Dagster
        moments = [_moments(instance, record, store) for record in by_partition.values()]
        first, last = min(each[0] for each in moments), max(each[-1] for each in moments)
        return Figures(
            seconds=(last - first) / partitions,
            first_seconds=first - began,
            cpu_seconds={who: (after[who] - before[who]) / partitions for who in after},
            phases=_phases(moments),
        )


def _run(backfills: Backfills, services: Services, artifacts: Sequence[ArtifactId]) -> str:
    """Launch a backfill and wait for its end; its id."""
    deadline = time.monotonic() + LONGEST_SECONDS

    def watch() -> None:
        expect(all(service.poll() is None for service in services.values()), "code server and daemon run")
        expect(time.monotonic() < deadline, f"a backfill of {len(artifacts)} partitions ends within {LONGEST_SECONDS:g} s")

    launched = backfills.launch(artifacts, "a benchmark")
    backfills.wait([launched], watch)
    return launched.id


# The lab ---------------------------------------------------------------------------------------------------------------


@contextmanager
def _storage(folder: Path, storage: str) -> Iterator[Mapping[str, Any]]:
    """The `storage` of a dagster.yaml: that of the embedded default, or a PostgreSQL that lives as long as the block."""
    if storage == "SQLite":
        yield {"custom": {"module": "marin_assets.sqlite", "class": "LabStorage", "config": {"base_dir": str(folder / "home" / "storage")}}}
        return
    with server() as sockets, patch.dict(os.environ, PGHOST=str(sockets)):
        place = {"hostname": "", "port": int(PORT), "username": getpass.getuser(), "db_name": "dagster"}
        yield {"postgres": {"postgres_db": {"scheme": "postgresql+psycopg2", **place}}}


@contextmanager
def _home(folder: Path, storage: Mapping[str, Any], executor: str, partitions: int) -> Iterator[dg.DagsterInstance]:
    """An instance with the limits of the embedded default, and the environment in which its daemon is to run."""
    home = folder / "home"
    home.mkdir(parents=True)
    settings = yaml.safe_load((PROJECT / "dagster.yaml").read_text())
    for place in ("local_artifact_storage", "compute_logs"):  # below the home, where they lie by themselves
        del settings[place]
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings | {"storage": dict(storage)}))
    environment = {
        "DAGSTER_HOME": str(home),
        PREFIX_VARIABLE: f"file://{folder}/store",
        EXECUTOR_VARIABLE: executor,
        PARTITIONS_VARIABLE: str(partitions),
    }
    with patch.dict(os.environ, environment), dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


@contextmanager
def _services(folder: Path) -> Iterator[Services]:
    """A code server and a daemon, as on a shared machine; both are gone when the block ends.

    A daemon that loads the code itself, as `make dev` has it, starts a new code server every minute besides.
    """
    port = _free_port()
    workspace = folder / "workspace.yaml"
    workspace.write_text(
        yaml.safe_dump({"load_from": [{"grpc_server": {"host": "127.0.0.1", "port": port, "location_name": "benchmark"}}]})
    )
    services: dict[str, psutil.Popen] = {}
    try:
        module = ["-m", "benchmarks.orchestration_lab"]
        services["code server"] = _started(folder, "dagster", "api", "grpc", "-h", "127.0.0.1", "-p", str(port), *module)
        while not _listens(port):  # once it has loaded the code
            expect(services["code server"].poll() is None, "the code server runs")
            time.sleep(PAUSE_SECONDS)
        services["daemon"] = _started(folder, "dagster-daemon", "run", "-w", str(workspace))
        yield services
    finally:
        tree = [process for service in services.values() for process in (service, *service.children(recursive=True))]
        for process in tree:
            process.kill()
        psutil.wait_procs(tree, timeout=30)


def _started(folder: Path, program: str, *arguments: str) -> psutil.Popen:
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    with (folder / "services.log").open("ab") as log:
        return psutil.Popen(command, cwd=PROJECT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# Measuring -------------------------------------------------------------------------------------------------------------


def _cpu_seconds(services: Services) -> dict[str, float]:
    """By each service, and by what the code server has started and seen the end of: the run workers and their steps."""
    spent = {name: sum(service.cpu_times()[:2]) for name, service in services.items()}
    times = services["code server"].cpu_times()
    return spent | {"run worker": times.children_user + times.children_system}


def _moments(instance: dg.DagsterInstance, record: dg.RunRecord, store: Store) -> list[float]:
    """When the phases of a run begin and end, and what of its step was ours, in seconds since 1970: one more than there are phases."""
    run = record.dagster_run
    events: dict[Event, list[float]] = defaultdict(list)
    for entry in instance.all_logs(run.run_id):
        event = entry.get_dagster_event() if entry.is_dagster_event else None
        if event is not None and (event.event_type != Event.ENGINE_EVENT or (event.message or "").startswith(STARTED)):
            events[event.event_type].append(entry.timestamp)
    built = store.record(ArtifactId("trivial/parts", "v1", run.tags[PARTITION_NAME_TAG]))
    ours = built.usage.wall_seconds if built is not None else 0.0
    step, done = events[Event.STEP_START][0], events[Event.STEP_SUCCESS][0]
    ours = min(ours, done - step)
    return [
        events[Event.PIPELINE_STARTING][0],
        events[Event.ENGINE_EVENT][0],
        events[Event.PIPELINE_START][0],
        step,
        done - ours,  # not where it lies in the step, but as long
        done,
        events[Event.PIPELINE_SUCCESS][0],
    ]


def _phases(moments: Sequence[Sequence[float]]) -> dict[str, float]:
    """The median of each phase over all runs."""
    lengths = [[end - begin for begin, end in pairwise(each)] for each in moments]
    return {phase: statistics.median(each) for phase, each in zip(PHASES, zip(*lengths, strict=True), strict=True)}
