"""`marin backfill`: what it asks Dagster for is decided by the records, and what it says in the end too. A real daemon carries backfills on
in tests/integration/test_backfill.py."""

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._daemon.types import DaemonHeartbeat

from marin_assets.cli.backfills import Backfill, Backfills
from marin_assets.factory import build_definitions, family_jobs
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Record
from marin_core.artifact.record import Claim, End
from marin_core.experiment import experiment
from tests.assets.conftest import Said
from tests.assets.fabricated import Fabricated, step

Marin = Callable[..., Said]
KEYS = tuple(f"{index:05d}" for index in range(6))


@pytest.fixture(scope="module")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An instance that has nothing; its databases take a second to make, and a moment to copy."""
    home = tmp_path_factory.mktemp("home")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(home))
        with dg.DagsterInstance.get() as instance:
            assert instance.get_backfills() == []
    return home


@pytest.fixture
def instance(tmp_path: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """The instance of a home of its own, as the command finds it."""
    home = shutil.copytree(empty_home, tmp_path / "home")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        yield instance


@pytest.fixture
def family(fabricated: Fabricated) -> ArtifactStep:
    """Shards made of a source that is there, and tokens made of them shard by shard."""
    raw = step("raw/words", job="summary")
    shards = step("filtered/words", raw, job="summary", partitions=KEYS)
    fabricated.declare(step("tokenized/words", shards, job="summary", partitions=KEYS))
    fabricated.build(raw)
    return shards


def ids(name: str, *keys: int) -> list[ArtifactId]:
    return [ArtifactId(name, "v1", KEYS[key]) for key in keys]


def definitions(fabricated: Fabricated) -> dg.RepositoryDefinition:
    return build_definitions([experiment("under_test", *fabricated.targets, question="?", hypothesis="!")]).get_repository_def()


def backfills_of(instance: dg.DagsterInstance, fabricated: Fabricated, **options: Any) -> Backfills:
    return Backfills(instance, ArtifactGraph(fabricated.targets), definitions(fabricated).asset_graph, **options)


def requested(instance: dg.DagsterInstance, fabricated: Fabricated) -> list[set[str]]:
    """Artifacts of each backfill, newest first, as the daemon would read them."""
    return [{str(each) for each in backfill.artifacts} for backfill in reversed(backfills_of(instance, fabricated).under_way())]


def fail(fabricated: Fabricated, artifact: ArtifactId, failure: Any = "data", at: datetime | None = None) -> None:
    """An attempt that failed."""
    number = len(fabricated.store.attempts(artifact)) + 1
    now = (at or datetime.now(UTC)).isoformat()
    assert fabricated.store.claim(artifact, Claim(number=number, job="m-x", fingerprint="f" * 16, submitted_at=now))
    fabricated.store.close(artifact, number, End(state="failed", ended_at=now, failure=failure, exit_code=65, error="unit 'x' is cut"))


def end(instance: dg.DagsterInstance, status: BulkActionStatus) -> None:
    """What the daemon does in the end."""
    for backfill in instance.get_backfills():
        instance.update_backfill(backfill._replace(status=status))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "nothing is called 'nonsense'"),
        (["filtered/words", "--from", "00009"], "has no partition '00009'"),
        (["filtered/words", "--from", "00003", "--to", "00001"], "'00001' comes before '00003'"),
        (["filtered/words", "--keys", "00001,7"], "has no partition '7'"),
        (["filtered/words", "--keys", ","], "--keys names no partition"),
        (["filtered/words", "--keys", "00001", "--to", "00003"], "can't be given together"),
        (["filtered/words", "--keys", "00001", "--from", "00003"], "not allowed with"),
        (["raw/words", "--from", "00000"], "'raw/words' is not one family"),
        (["filtered/words@v1/00001", "--from", "00000"], "is not one family"),
    ],
)
def test_wrong_usage_is_explained_and_asks_for_nothing(
    arguments: list[str], says: str, family: ArtifactStep, instance: dg.DagsterInstance, marin: Marin
) -> None:
    said = marin("backfill", *arguments)
    assert said.code == 64
    assert says in said.err
    assert instance.get_backfills() == []


def test_a_range_asks_for_what_is_not_committed(
    fabricated: Fabricated, family: ArtifactStep, instance: dg.DagsterInstance, marin: Marin
) -> None:
    fabricated.build(family, KEYS[2])
    said = marin("backfill", "filtered/words@v1", "--from", "00001", "--to", "00003", "--no-wait", "--json")
    assert said.code == 0
    assert requested(instance, fabricated) == [{"filtered/words@v1/00001", "filtered/words@v1/00003"}]
    assert "3 artifacts, 1 served, 2 to build" in said.err
    assert "no Dagster daemon has given a sign of life" in said.err
    (backfill,) = instance.get_backfills()
    assert said.json["backfills"] == [backfill.backfill_id]
    assert backfill.title == "marin backfill filtered/words@v1"
    states = {each["artifact"]: each["state"] for each in said.json["artifacts"]}
    assert states == {"filtered/words@v1/00001": "requested", "filtered/words@v1/00002": "served", "filtered/words@v1/00003": "requested"}


def test_the_same_command_again_follows_and_asks_for_the_rest_only(
    fabricated: Fabricated, family: ArtifactStep, instance: dg.DagsterInstance, marin: Marin
) -> None:
    instance.add_daemon_heartbeat(DaemonHeartbeat(datetime.now(UTC).timestamp(), "BACKFILL", "x", []))
    first = marin("backfill", "filtered/words", "--keys", "00000,00001", "--no-wait", "--json").json
    again = marin("backfill", "filtered/words", "--keys", "00000,00001", "--no-wait", "--json")
    assert again.json["backfills"] == first["backfills"]
    assert "is under way and has 2 of them" in again.err
    assert "sign of life" not in again.err
    wider = marin("backfill", "filtered/words", "--to", "00002", "--no-wait", "--json").json
    assert len(wider["backfills"]) == 2
    assert requested(instance, fabricated) == [{"filtered/words@v1/00002"}, {"filtered/words@v1/00000", "filtered/words@v1/00001"}]
    end(instance, BulkActionStatus.CANCELED)
    assert not set(marin("backfill", "filtered/words", "--no-wait", "--json").json["backfills"]) & set(wider["backfills"])


def test_failed_means_failed_by_the_records(
    fabricated: Fabricated, family: ArtifactStep, instance: dg.DagsterInstance, marin: Marin
) -> None:
    never, failed, mended, running = ids("filtered/words", 0, 1, 2, 3)
    fail(fabricated, failed)
    fail(fabricated, mended)
    fabricated.build(family, mended.partition)
    now = datetime.now(UTC).isoformat()
    fabricated.store.claim(running, Claim(number=1, job="m-x", fingerprint="f" * 16, submitted_at=now))
    assert marin("backfill", "filtered/words", "--failed", "--no-wait").code == 0
    assert requested(instance, fabricated) == [{str(failed)}]
    end(instance, BulkActionStatus.COMPLETED_SUCCESS)
    assert marin("backfill", "filtered/words", "--missing", "--no-wait").code == 0
    assert requested(instance, fabricated) == [{str(each) for each in (never, failed, running, *ids("filtered/words", 4, 5))}]


def test_what_lacks_its_input_is_named_and_the_others_go_on(
    fabricated: Fabricated, family: ArtifactStep, instance: dg.DagsterInstance, marin: Marin
) -> None:
    fabricated.build(family, KEYS[0])
    said = marin("backfill", "tokenized/words", "--to", "00001", "--no-wait")
    assert said.code == 64
    assert requested(instance, fabricated) == [{"tokenized/words@v1/00000"}]
    assert "tokenized/words@v1/00001: it reads filtered/words@v1/00001, which is not built" in said.out


def test_upstream_is_asked_for_where_it_is_missing(
    fabricated: Fabricated, family: ArtifactStep, instance: dg.DagsterInstance, marin: Marin
) -> None:
    fabricated.build(family, KEYS[0])
    said = marin("backfill", "tokenized/words", "--to", "00001", "--upstream", "--no-wait", "--json")
    assert said.code == 0
    assert requested(instance, fabricated) == [{"tokenized/words@v1/00000", "filtered/words@v1/00001", "tokenized/words@v1/00001"}]
    assert said.json["artifacts"][0]["artifact"] == "filtered/words@v1/00001"


def test_when_everything_is_committed_dagster_is_not_asked(
    fabricated: Fabricated, family: ArtifactStep, instance: dg.DagsterInstance, marin: Marin
) -> None:
    for key in KEYS:
        fabricated.build(family, key)
    said = marin("backfill", "filtered/words", "--json")
    assert (said.code, instance.get_backfills()) == (0, [])
    assert {each["state"] for each in said.json["artifacts"]} == {"served"}


@pytest.mark.parametrize(
    ("failures", "status", "code"),
    [
        ({}, BulkActionStatus.COMPLETED_SUCCESS, 0),
        ({4: "infrastructure"}, BulkActionStatus.COMPLETED_FAILED, 75),
        ({3: "bug", 4: "infrastructure"}, BulkActionStatus.COMPLETED_FAILED, 70),
        ({2: "data", 3: "bug"}, BulkActionStatus.COMPLETED_FAILED, 65),
        ({5: None}, BulkActionStatus.CANCELED, 75),
    ],
)
def test_the_summary_is_that_of_the_records_and_its_code_that_of_the_gravest_failure(
    failures: dict[int, str | None],
    status: BulkActionStatus,
    code: int,
    fabricated: Fabricated,
    family: ArtifactStep,
    instance: dg.DagsterInstance,
    marin: Marin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabricated.build(family, KEYS[0])
    fail(fabricated, ids("filtered/words", 5)[0], at=datetime.now(UTC) - timedelta(days=1))  # of another day, and no news

    def daemon(self: Backfills, backfills: list[Backfill], watch: Callable[[], None]) -> None:
        for index in range(1, 6):
            if index not in failures:
                fabricated.build(family, KEYS[index])
            elif failures[index]:
                fail(fabricated, ids("filtered/words", index)[0], failures[index])
        watch()
        end(instance, status)

    monkeypatch.setattr(Backfills, "wait", daemon)
    said = marin("backfill", "filtered/words", "--json")
    assert said.code == said.json["exit_code"] == code
    states = {int(each["artifact"][-5:]): each["state"] for each in said.json["artifacts"]}
    assert states == {0: "served"} | {
        index: "built" if index not in failures else "failed" if failures[index] else "not started" for index in range(1, 6)
    }
    errors = [each["error"] for each in said.json["artifacts"] if each["error"]]
    assert len(errors) == len(failures)
    assert all("unit 'x' is cut" in each or "the backfill was canceled" in each for each in errors)
    assert f"{5 - len(failures)}/5 committed" in said.err


def test_waiting_ends_with_the_backfill_and_says_when_the_daemon_is_gone(
    fabricated: Fabricated, family: ArtifactStep, instance: dg.DagsterInstance
) -> None:
    pauses = 0

    def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            end(instance, BulkActionStatus.COMPLETED_FAILED)

    backfills = backfills_of(instance, fabricated, pause=pause)
    launched = backfills.launch(ids("filtered/words", 0), "one shard")
    looks = []
    backfills.wait([launched], lambda: looks.append(backfills.daemon_lives()))
    assert (pauses, looks) == (3, [False] * 3)
    instance.add_daemon_heartbeat(DaemonHeartbeat(datetime.now(UTC).timestamp() - 600, "BACKFILL", "x", []))
    assert not backfills.daemon_lives()
    instance.add_daemon_heartbeat(DaemonHeartbeat(datetime.now(UTC).timestamp(), "BACKFILL", "x", []))
    assert backfills.daemon_lives()


def test_a_failure_without_an_attempt_is_found_in_the_run(
    fabricated: Fabricated, family: ArtifactStep, instance: dg.DagsterInstance
) -> None:
    """An input that was lost meanwhile stops a run before it claims anything."""
    backfills = backfills_of(instance, fabricated)
    (artifact,) = ids("tokenized/words", 0)
    launched = backfills.launch([artifact], "x")
    key = dg.AssetKey(["tokenized", "words-v1"])
    job = definitions(fabricated).get_implicit_job_def_for_assets([key])
    assert job is not None
    tags = {"dagster/backfill": launched.id}
    job.execute_in_process(instance=instance, partition_key=KEYS[0], asset_selection=[key], tags=tags, raise_on_error=False)
    (outcome,) = backfills.outcomes(fabricated.store, [artifact], [launched], ()).values()
    assert (outcome.state, outcome.exit_code) == ("failed", 64)
    assert "filtered/words@v1/00000" in outcome.error


def test_backfills_of_other_assets_are_left_alone(
    fabricated: Fabricated, family: ArtifactStep, instance: dg.DagsterInstance, marin: Marin
) -> None:
    marin("backfill", "filtered/words", "--no-wait")
    renamed = step("filtered/other", job="summary", partitions=KEYS)
    fabricated.declare(renamed)
    said = marin("backfill", "filtered/other", "--no-wait", "--json")
    assert said.code == 0
    assert len(said.json["backfills"]) == 1
    assert [type(each) for each in instance.get_backfills()] == [PartitionBackfill] * 2
    assert isinstance(fabricated.build(renamed, KEYS[0]), Record)


def test_families_that_one_job_makes_have_jobs_of_their_own_to_backfill() -> None:
    """`dagster job backfill` names a job; two families of one name would be none, as Dagster refuses to load them."""
    names = [("documents/web", "v1"), ("filtered/web", "v1"), ("filtered/web", "v2")]
    made = [step(name, version=version, job="filter", partitions=KEYS) for name, version in names]
    assert {job.name for job in family_jobs(ArtifactGraph(made))} == {"filter_web_v1", "filter_web_v2", "filter_documents_web"}
