"""Sensors: what is due is asked for once and until it is there; what failed or stalled is written down once."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.tags import SENSOR_NAME_TAG, WILL_RETRY_TAG

from benchmarks import automation
from marin_assets.automation import requests, scan, stalls
from marin_assets.automation.failures import FailureRecord, failure_path, record_failures
from marin_assets.automation.requests import Decision, Ended, Request, decide
from marin_assets.automation.sensors import ARTIFACT_TAG, AskedRuns, failed_artifacts, lab_sensors
from marin_assets.automation.stalls import Watch, watch
from marin_assets.builder import ADVICE
from marin_assets.factory import build_definitions, family_job_names
from marin_assets.keys import asset_key
from marin_assets.lab import Lab
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Claim, End
from marin_core.artifact.record import FailureClass
from marin_core.artifact.step import Resources
from marin_core.experiment import experiment
from tests.assets.conftest import LabUnderTest
from tests.assets.fabricated import Fabricated, step

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEYS = tuple(f"{number:05d}" for number in range(6))
STEPS = ("step-000100", "step-000200", "step-000300")


@dataclass
class Remembered:
    """What became of requests, as a test says."""

    asked: set[ArtifactId] = field(default_factory=set)
    over: dict[ArtifactId, Ended] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)

    def unfinished(self) -> Collection[ArtifactId]:
        return self.asked

    def ended(self, artifacts: Collection[ArtifactId]) -> Mapping[ArtifactId, Ended]:
        return {artifact: self.over[artifact] for artifact in artifacts if artifact in self.over}

    def running(self, runs: Collection[str]) -> Collection[str]:
        return self.runs & set(runs)


@dataclass
class World:
    """A source, its filtered shards, their tokens; a training and its evaluations."""

    lab: Fabricated
    past: Remembered = field(default_factory=Remembered)

    def __post_init__(self) -> None:
        self.raw = step("raw/web", job="ingest")
        self.filtered = step("filtered/web", self.raw, partitions=KEYS, job="filter")
        self.bpe = step("tokenizer/web", self.raw, job="tokenizer")
        self.tokens = step("tokenized/web", self.filtered, self.bpe, partitions=KEYS, job="tokenize")
        self.run = step("checkpoints/small", self.raw, job="train")
        self.tasks = step("tasks/web", self.raw, job="tasks")
        self.scores = step("evals/small", self.run, self.tasks, partitions=STEPS, job="evaluate")
        self.graph = ArtifactGraph([self.tokens, self.scores])

    def decide(self, *families: ArtifactStep, cursor: str | None = None, now: datetime = NOW) -> Decision:
        return decide(self.graph, families, self.lab.store, self.past, cursor, now)

    def build(self, step: ArtifactStep, *keys: str) -> None:
        for key in keys or (step.partitions or (None,)):
            self.lab.build(step, key)

    def attempt(self, artifact: ArtifactId, failure: FailureClass | None = None, run: str | None = None, error: str = "it broke") -> int:
        """An attempt that failed, or is open."""
        number = len(self.lab.store.attempts(artifact)) + 1
        begun = Claim(number=number, job=f"j-{number}", fingerprint="f" * 16, submitted_at="now", host="here", dagster_run_id=run)
        assert self.lab.store.claim(artifact, begun)
        if failure is not None:
            end = End(state="failed", ended_at="2026-03-01T11:00:00+00:00", failure=failure, exit_code=64, error=error, log="/jobs/log")
            self.lab.store.close(artifact, number, end)
        return number


@pytest.fixture
def world(fabricated: Fabricated) -> World:
    return World(fabricated)


def member(step: ArtifactStep, key: str) -> ArtifactId:
    return ArtifactId(step.name, step.version, key)


def keys(decision: Decision) -> list[str | None]:
    return [request.artifact.partition for request in decision.requests]


def test_a_commit_is_known_without_its_record(world: World) -> None:
    world.build(world.raw)
    world.build(world.filtered, *KEYS[:3])
    world.lab.store.forget(member(world.filtered, KEYS[0]))
    (world.lab.folder / "filtered/web/v1/00001/.artifact/record.json").write_text('{"attempt": "?"}')
    asked = [world.raw.id, *world.filtered.ids(), world.raw.id]
    damaged: list[ArtifactId] = []
    there = world.lab.store.committed(asked, lambda artifact, error: damaged.append(artifact))
    assert there == {world.raw.id, member(world.filtered, KEYS[2])}
    assert damaged == [member(world.filtered, KEYS[1])]


# What is due -----------------------------------------------------------------------------------------------------------


def test_members_whose_inputs_are_there_are_asked_for_in_partition_order(world: World) -> None:
    world.build(world.raw)
    world.build(world.filtered, "00004", "00001", "00002")
    world.build(world.bpe)
    world.build(world.tokens, "00002")
    decision = world.decide(world.tokens)
    assert keys(decision) == ["00001", "00004"]
    assert "3 without an input (tokenized/web@v1/00000 waits for filtered/web@v1/00000)" in str(decision.waiting)


def test_an_input_that_all_members_share_holds_all_of_them_up(world: World) -> None:
    world.build(world.raw)
    world.build(world.filtered)
    decision = world.decide(world.tokens)
    assert decision.requests == ()
    assert str(decision.waiting) == "6 without an input (tokenized/web@v1/00000 waits for tokenizer/web@v1)"


def test_evaluations_are_due_when_the_training_is_committed_and_none_is_skipped(world: World) -> None:
    """One was preempted, one was lost with its machine, one was never begun (marin #1909)."""
    world.build(world.raw)
    world.build(world.tasks)
    assert "waits for checkpoints/small@v1" in str(world.decide(world.scores).waiting)
    world.build(world.run)
    world.attempt(member(world.scores, STEPS[0]), "preempted")
    world.attempt(member(world.scores, STEPS[1]), run="a run that is no more")
    assert keys(world.decide(world.scores)) == list(STEPS)
    world.build(world.scores, STEPS[2])
    assert keys(world.decide(world.scores)) == [STEPS[0], STEPS[1]]


@pytest.mark.parametrize("failure", ["config", "data", "bug"])
def test_what_a_person_must_mend_is_not_asked_for_and_stops_no_other(world: World, failure: FailureClass) -> None:
    world.build(world.raw)
    world.attempt(member(world.filtered, "00000"), failure)
    decision = world.decide(world.filtered)
    assert keys(decision) == list(KEYS[1:])
    assert f"1 failed in a way that a person must mend (filtered/web@v1/00000, attempt 1: {failure})" in str(decision.waiting)
    world.attempt(member(world.filtered, "00000"), "infrastructure")  # somebody mended it, and then a disk was full
    assert keys(world.decide(world.filtered)) == list(KEYS)


def test_what_is_being_built_is_left_to_whoever_builds_it(world: World) -> None:
    world.build(world.raw)
    world.attempt(member(world.filtered, "00000"), run="r1")
    world.past.runs = {"r1"}
    world.past.asked = {member(world.filtered, "00001")}
    assert keys(world.decide(world.filtered)) == list(KEYS[2:])
    world.past.runs = set()
    assert keys(world.decide(world.filtered)) == [KEYS[0], *KEYS[2:]]


def test_what_was_built_and_taken_back_is_not_built_again(world: World) -> None:
    world.build(world.raw)
    world.build(world.filtered)
    world.lab.store.forget(member(world.filtered, "00003"))
    decision = world.decide(world.filtered)
    assert decision.requests == ()
    assert str(decision.waiting) == "1 built once and taken back (filtered/web@v1/00003)"


def test_a_success_that_its_builder_could_not_publish_is_asked_for(world: World) -> None:
    world.build(world.raw)
    world.build(world.filtered)
    (world.lab.folder / "filtered/web/v1/00003/.artifact/record.json").unlink()
    assert keys(world.decide(world.filtered)) == ["00003"]


def test_a_damaged_record_is_named_and_stops_no_other(world: World) -> None:
    world.build(world.raw)
    world.build(world.filtered, "00000")
    (world.lab.folder / "filtered/web/v1/00000/.artifact/record.json").write_text("{")
    world.attempt(member(world.filtered, "00001"))
    (world.lab.folder / "filtered/web/v1/00001/.artifact/attempts/00001/claim.json").write_text("{")
    decision = world.decide(world.filtered)
    assert keys(decision) == list(KEYS[2:])
    assert set(decision.waiting.counts) == {"whose record is damaged", "whose history is damaged"}


def test_a_request_that_ended_without_a_commit_is_made_again_after_a_pause_that_grows_to_a_day(world: World) -> None:
    world.build(world.raw)
    world.build(world.filtered, *KEYS[1:])
    artifact = member(world.filtered, KEYS[0])
    for runs, pause in [(1, timedelta(minutes=10)), (2, timedelta(minutes=20)), (8, timedelta(minutes=1280)), (9, timedelta(days=1))]:
        world.past.over = {artifact: Ended(runs, NOW)}
        early = world.decide(world.filtered, now=NOW + pause - timedelta(seconds=1))
        assert early.requests == ()
        assert "ended without a commit" in str(early.waiting)
        assert world.decide(world.filtered, now=NOW + pause).requests == (Request(artifact, runs + 1),)
    world.past.over = {artifact: Ended(10_000, NOW)}
    assert world.decide(world.filtered, now=NOW + timedelta(days=1)).requests[0].key == "filtered/web@v1/00000 10001"


def test_the_same_tick_asks_with_the_same_keys(world: World) -> None:
    world.build(world.raw)
    first, again = world.decide(world.filtered), world.decide(world.filtered)
    assert [request.key for request in first.requests] == [request.key for request in again.requests]
    assert len({request.key for request in first.requests}) == len(KEYS)


@pytest.mark.parametrize("scanned", [1, 2, 4, 6, 100])
@pytest.mark.parametrize("looked_at", [1, 3, 100])
def test_whatever_one_tick_can_do_the_next_ones_ask_for_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch, scanned: int, looked_at: int
) -> None:
    """Every member is asked for exactly once, however small a tick is, with failures that are looked at in vain in between."""
    monkeypatch.setattr(scan, "SCANNED", scanned)
    monkeypatch.setattr(requests, "LOOKED_AT", looked_at)
    monkeypatch.setattr(requests, "REQUESTS", 2)
    world.build(world.raw)
    for key in ("00000", "00003"):
        world.attempt(member(world.filtered, key), "data")
    cursor, asked = None, []
    for _ in range(2 * len(KEYS)):
        decision = world.decide(world.filtered, cursor=cursor)
        assert len(decision.requests) <= 2
        cursor = decision.cursor
        asked += keys(decision)
        world.past.asked |= {request.artifact for request in decision.requests}
    assert asked == ["00001", "00002", "00004", "00005"]


def test_a_cursor_of_a_declaration_that_is_gone_begins_anew(world: World) -> None:
    world.build(world.raw)
    assert keys(world.decide(world.filtered, cursor="filtered/old@v1/00002")) == list(KEYS)


def test_few_runs_are_under_way_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "UNFINISHED", 3)
    world.build(world.raw)
    world.past.asked = {member(world.filtered, key) for key in KEYS[:2]}
    assert keys(world.decide(world.filtered)) == ["00002"]
    world.past.asked.add(member(world.filtered, "00002"))
    full = world.decide(world.filtered)
    assert full.requests == ()
    assert full.cursor == "filtered/web@v1/00003"
    assert "due, until fewer than 3 of the runs asked for are under way" in str(full.waiting)


def test_a_member_does_not_wait_for_its_base(world: World) -> None:
    base = step("filtered/grown", world.raw, partitions=KEYS[:2], job="filter")
    grown = step("filtered/grown", world.raw, base, version="v2", partitions=KEYS, job="filter", base=base)
    world.graph = ArtifactGraph([grown])
    world.build(world.raw)
    assert keys(world.decide(grown)) == list(KEYS)


# In Dagster ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def definitions(world: World) -> dg.Definitions:
    return build_definitions([experiment("e", world.tokens, world.scores, question="?", hypothesis="!")], clock=lambda: NOW)


def tick(world: World, instance: dg.DagsterInstance, name: str, cursor: str | None = None) -> Any:
    defs = definitions(world)
    resources = {"lab": Lab(prefix=str(world.lab.folder), lease_seconds=60)}
    context = dg.build_sensor_context(instance=instance, cursor=cursor, resources=resources, definitions=defs)
    return defs.resolve_sensor_def(name).evaluate_tick(context)


def test_every_sensor_is_off_and_none_is_there_without_a_family(world: World) -> None:
    sensors = {each.name: each for each in lab_sensors(world.graph, _jobs(world.graph))}
    assert set(sensors) == {"evaluate_new_checkpoints", "build_missing_shards", "record_failed_runs", "record_stalled_attempts"}
    assert {each.default_status for each in sensors.values()} == {dg.DefaultSensorStatus.STOPPED}
    single = ArtifactGraph([world.raw])
    assert {each.name for each in lab_sensors(single, {})} == {"record_failed_runs", "record_stalled_attempts"}


def _jobs(graph: ArtifactGraph) -> dict[ArtifactId, Any]:
    defs = build_definitions([experiment("e", *graph, question="?", hypothesis="!")])
    named = {job.name: job for job in defs.jobs or ()}
    return {family: named[name] for family, name in family_job_names(graph).items()}


def test_trainings_are_not_asked_for_unless_they_are_listed(world: World) -> None:
    world.run = step("checkpoints/ladder", world.raw, partitions=("1e18", "1e19"), job="train")
    graph = ArtifactGraph([world.run, world.filtered])
    jobs = _jobs(graph)

    def targets(**options: Any) -> set[str]:
        sensors = {each.name: each for each in lab_sensors(graph, jobs, **options)}
        return {target.job_name for target in sensors["build_missing_shards"].targets}

    assert targets() == {"filter_web"}
    assert targets(listed=["checkpoints/ladder@v1"]) == {"filter_web", "train_ladder"}


def test_a_tick_asks_for_a_run_of_one_partition_and_says_why_others_wait(world: World, instance: dg.DagsterInstance) -> None:
    nothing = tick(world, instance, "build_missing_shards")
    assert nothing.run_requests == []
    assert "12 without an input (filtered/web@v1/00000 waits for raw/web@v1)" in nothing.skip_message
    world.build(world.raw)
    world.build(world.filtered, *KEYS[:4])
    world.build(world.bpe)
    found = tick(world, instance, "build_missing_shards").run_requests
    assert [(each.run_key, each.job_name, each.tags["dagster/partition"]) for each in found] == [
        (f"filtered/web@v1/{key} 1", "filter_web", key) for key in KEYS[4:]
    ] + [(f"tokenized/web@v1/{key} 1", "tokenize_web", key) for key in KEYS[:4]]
    assert {each.tags[ARTIFACT_TAG] for each in found} == {each.run_key[:-2] for each in found}


def test_an_evaluation_whose_run_was_lost_is_asked_for_again(world: World, instance: dg.DagsterInstance) -> None:
    for each in (world.raw, world.tasks, world.run):
        world.build(each)
    world.build(world.scores, *STEPS[1:])
    (first,) = tick(world, instance, "evaluate_new_checkpoints").run_requests
    assert (first.job_name, first.run_key) == ("evaluate_small", "evals/small@v1/step-000100 1")
    past = AskedRuns(instance, "evaluate_new_checkpoints")
    artifact = member(world.scores, STEPS[0])
    run = _run(instance, first.tags, dg.DagsterRunStatus.STARTED)
    assert past.unfinished() == {artifact}
    assert past.running([run, "other"]) == {run}
    assert "asked for and not yet built" in tick(world, instance, "evaluate_new_checkpoints").skip_message
    _run(instance, first.tags | {SENSOR_NAME_TAG: "another"}, dg.DagsterRunStatus.FAILURE)
    instance.delete_run(run)
    _run(instance, first.tags, dg.DagsterRunStatus.FAILURE)
    ended = past.ended([artifact])[artifact]
    assert ended.runs == 1
    again = decide(world.graph, [world.scores], world.lab.store, past, None, ended.pause_until)
    assert again.requests == (Request(artifact, 2),)


def _run(instance: dg.DagsterInstance, tags: Mapping[str, str], status: dg.DagsterRunStatus) -> str:
    run = dg.DagsterRun(job_name="evaluate_small", tags=dict(tags), status=status)
    return instance.add_run(run).run_id


# What failed -----------------------------------------------------------------------------------------------------------


def kept(world: World, artifact: ArtifactId, number: int, *, stalled: bool = False) -> FailureRecord:
    data = world.lab.store.objects.read(failure_path(artifact, number, stalled=stalled))
    assert data is not None
    return FailureRecord.model_validate_json(data)


def test_a_failure_is_written_once_with_its_message_and_advice(world: World) -> None:
    artifact = member(world.filtered, "00002")
    world.attempt(artifact, "data", run="r1", error="DataError: shard 2 is cut\n  What to do: Fetch it again.")
    (failure,) = record_failures(world.lab.store, [(artifact, None)])
    assert failure == kept(world, artifact, 1)
    assert failure == FailureRecord(
        artifact="filtered/web@v1/00002",
        attempt=1,
        failure="data",
        exit_code=64,
        message="DataError: shard 2 is cut",
        advice="Fetch it again.",
        host="here",
        log="/jobs/log",
        dagster_run_id="r1",
        at="2026-03-01T11:00:00+00:00",
    )
    path = world.lab.folder / ".failures/filtered/web/v1/00002/00001.json"
    before = path.read_bytes()
    assert record_failures(world.lab.store, [(artifact, None), (artifact, 1)]) == []
    assert path.read_bytes() == before
    world.attempt(artifact, "infrastructure", error="the disk is full")
    assert [(each.attempt, each.advice) for each in record_failures(world.lab.store, [(artifact, None)])] == [(2, ADVICE["infrastructure"])]


def test_what_is_open_or_was_built_since_is_no_failure(world: World) -> None:
    artifact = member(world.filtered, "00002")
    world.attempt(artifact, "data")
    world.attempt(artifact)
    assert record_failures(world.lab.store, [(artifact, None), (artifact, 2), (member(world.filtered, "00001"), None)]) == []
    assert [each.attempt for each in record_failures(world.lab.store, [(artifact, 1)])] == [1]


def test_a_secret_does_not_enter_a_failure_record(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter2hunter2")
    artifact = member(world.filtered, "00002")
    world.attempt(artifact, "config")
    path = world.lab.folder / "filtered/web/v1/00002/.artifact/attempts/00001/end.json"
    path.write_text(path.read_text().replace("it broke", "refused: hunter2hunter2"))  # as an older writer left it
    record_failures(world.lab.store, [(artifact, None)])
    assert kept(world, artifact, 1).message == "refused: [redacted SOME_TOKEN]"


def test_a_failed_run_leaves_a_failure_record_of_its_attempt_unless_it_is_tried_again(lab: LabUnderTest, tmp_path: Path) -> None:
    """Real jobs fail in real runs, and Dagster's own sensor machinery sees them."""
    broken = step("broken/x", job="summary", text="no configuration of a summary", resources=Resources(inline=True))
    defs = build_definitions([experiment("under_test", broken, question="?", hypothesis="!")])
    sensor = defs.resolve_sensor_def("record_failed_runs")
    resources = {"lab": Lab(prefix=lab.store.prefix)}

    def look(cursor: str | None) -> Any:
        context = dg.build_sensor_context(instance=lab.instance, cursor=cursor, resources=resources, definitions=defs)
        return sensor.evaluate_tick(context)

    begun = look(None)
    first = lab.materialize(broken)
    lab.instance.add_run_tags(first.run_id, {WILL_RETRY_TAG: "true"})
    second = lab.materialize(broken)
    assert not first.success
    assert not second.success
    assert look(begun.cursor).cursor != begun.cursor
    folder = tmp_path / "store/.failures/broken/x/v1"
    assert [path.name for path in folder.iterdir()] == ["00002.json"]
    written = json.loads((folder / "00002.json").read_text())
    assert (written["failure"], written["exit_code"], written["dagster_run_id"]) == ("config", 64, second.run_id)
    assert written["message"].startswith("ConfigError: ")
    assert "What to do" not in written["message"]
    assert written["advice"]
    families = {asset_key(broken.id): broken.id}
    failures = [event for event in second.all_events if event.is_step_failure]
    run = second.dagster_run
    assert failed_artifacts(lab.instance, run, failures, lab.store, families) == [(broken.id, 2)]
    assert failed_artifacts(lab.instance, run, [], lab.store, families) == [(broken.id, None)], "its worker was lost"


# What stalled ----------------------------------------------------------------------------------------------------------


def looks(world: World, before: Watch, *seconds: float) -> tuple[Watch, list[FailureRecord]]:
    """Looks at so many seconds after noon; what was found at all of them."""
    new: list[FailureRecord] = []
    for each in seconds:
        before, found = watch(world.lab.store, [*world.filtered.ids(), world.run.id], before, 60.0, NOW + timedelta(seconds=each))
        before = Watch.of_cursor(before.model_dump_json())
        new += found
    return before, new


def test_an_attempt_without_signs_of_life_is_written_down_once(world: World) -> None:
    artifact = member(world.filtered, "00002")
    world.attempt(artifact, run="r1")
    carried, found = looks(world, Watch(), 0, 30, 60)
    assert found == []
    _, found = looks(world, carried, 90, 120, 150, 180, 210, 240, 300)
    assert [(each.artifact, each.failure, each.attempt, each.dagster_run_id) for each in found] == [(str(artifact), "stalled", 1, "r1")]
    assert kept(world, artifact, 1, stalled=True) == found[0]
    assert "no sign of life from here for 90 s" in found[0].message


def test_signs_of_life_and_ends_are_no_stall(world: World) -> None:
    alive, ended = member(world.filtered, "00002"), world.run.id
    world.attempt(alive)
    world.attempt(ended)
    carried, found = looks(world, Watch(), 0)
    for number in range(1, 12):
        world.lab.store.beat(alive, 1, number)
        if number == 2:
            world.lab.store.close(ended, 1, End(state="lost", ended_at="now", failure="infrastructure"))
        carried, more = looks(world, carried, 50 * number)
        found += more
    assert found == []
    assert [each.artifact for each in carried.watched] == [str(alive)]


def test_a_watcher_that_slept_looks_again_before_it_calls_anything_stalled(world: World) -> None:
    world.attempt(world.run.id)
    carried, _ = looks(world, Watch(), 0, 3_600, 3_601)
    assert carried.watched[0].looks == 2
    world.lab.store.beat(world.run.id, 1, 7)
    assert looks(world, carried, 3_602, 3_603)[1] == []


def test_a_stalled_attempt_that_is_taken_over_and_fails_has_both_records(world: World) -> None:
    artifact = world.run.id
    world.attempt(artifact)
    _, found = looks(world, Watch(), 0, 40, 80, 120)
    assert len(found) == 1
    world.lab.store.close(artifact, 1, End(state="lost", ended_at="later", failure="infrastructure", error="no sign of life"))
    record_failures(world.lab.store, [(artifact, 1)])
    assert kept(world, artifact, 1).at == "later"
    assert kept(world, artifact, 1, stalled=True).at == (NOW + timedelta(seconds=120)).isoformat()


def test_the_watch_records_failures_that_were_missed_and_leaves_those_to_be_tried_again(world: World) -> None:
    for key, failure in (("00000", "data"), ("00001", "infrastructure"), ("00002", "preempted"), ("00003", "bug")):
        world.attempt(member(world.filtered, key), failure)  # type: ignore[arg-type]
    _, found = looks(world, Watch(), 0, 60)
    assert [(each.artifact[-5:], each.failure) for each in found] == [("00000", "data"), ("00003", "bug")]


@pytest.mark.parametrize("bound", [1, 2, 100])
def test_open_attempts_are_found_however_little_one_look_sees(world: World, monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    monkeypatch.setattr(scan, "SCANNED", bound)
    monkeypatch.setattr(stalls, "LOOKED_AT", bound)
    for artifact in (member(world.filtered, "00000"), member(world.filtered, "00005"), world.run.id):
        world.attempt(artifact)
    carried, _ = looks(world, Watch(), *[0] * 7)
    assert len(carried.watched) == 3


def test_a_damaged_cursor_is_a_new_beginning() -> None:
    assert Watch.of_cursor("{") == Watch.of_cursor(None) == Watch()


def test_the_watch_says_how_many_it_watches_and_what_is_new(world: World, instance: dg.DagsterInstance) -> None:
    world.attempt(world.run.id)
    first = tick(world, instance, "record_stalled_attempts")
    assert first.skip_message == "1 open attempts are watched"
    world.attempt(member(world.filtered, "00001"), "config")
    assert tick(world, instance, "record_stalled_attempts", first.cursor).skip_message == (
        "filtered/web@v1/00001, attempt 1, config: it broke"
    )


# What it costs ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_benchmark_measures_every_sensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small, and in this process; the benchmark itself refuses to measure ticks that have nothing to do."""
    monkeypatch.setattr(automation, "measure_alone", automation.measure)
    automation.main(["--artifacts", "200", "--partitions", "20", "--json", str(tmp_path / "rows.json")])
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert {row["measure"].partition(":")[0] for row in rows} == {automation.MIX, *automation.SENSORS}
    assert {row["peer"] for row in rows if row["unit"] == "s"} == {automation.GOAL_SECONDS}
    assert all(row["ours"] >= 0 for row in rows)
