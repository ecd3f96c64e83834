"""A declared mix: what is published of the store's caches, by the asset, the schedule, the sensor and the command line."""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from marin_assets.automation.checkout import message_of_last_change
from marin_assets.automation.desk import Desk
from marin_assets.automation.mix import mix_asset, mix_automation, mix_key, partition_key
from marin_assets.factory import build_definitions
from marin_assets.lab import Lab
from marin_core import experiment as lab
from marin_core.artifact import ArtifactGraph
from marin_core.errors import ConfigError
from marin_core.experiment import PublishedMix, experiment
from marin_core.mix.place import HEAD_FILE, open_place
from marin_core.mix.read import MixReader, read_mix, verify
from tests.assets.conftest import Said
from tests.assets.fabricated import Fabricated

START = datetime(2026, 3, 1, tzinfo=UTC)


def part(tokens: int = 1_000, **changes: Any) -> str:
    """What a part of a token cache says about itself."""
    described = {
        "schema": "cache-part/1",
        "digest": f"{tokens:032x}",
        "tokenizer": {"digest": "ab" * 32, "probe_digest": "cd", "vocab_size": 512, "library": "tokenizers"},
        "policy": {"bos": "prepend", "eos": "append"},
        "split": "train",
        "tokens": tokens,
        "documents": tokens // 100,
        "bytes": 4 * tokens,
        "licenses": ["CC-BY-4.0", "MIT"],
        "policies": ["TRAINING_ALLOWED"],
    }
    return json.dumps(described | changes)


@dataclass
class World:
    """Two caches, a clock that the test moves, and an instance of Dagster."""

    store: Fabricated
    instance: dg.DagsterInstance
    now: datetime = START
    weights: dict[str, float] = field(default_factory=lambda: {"web": 0.7, "code": 0.3})
    options: dict[str, Any] = field(default_factory=lambda: {"message": "as wanted"})
    mixture_options: dict[str, Any] = field(default_factory=dict)
    shards: int = 2

    def __post_init__(self) -> None:
        raw = lab.raw_source("raw/x", "v1", lab.PythonStdlib(), license="MIT")
        documents = lab.filtered("filtered/x", "v1", raw, shards=self.shards)
        bpe = lab.tokenizer("tokenizer/x", "v1", [documents], vocab_size=512)
        self.caches = {name: lab.tokenized(f"tokenized/{name}", "v1", documents, bpe) for name in self.weights}

    @property
    def mix(self) -> PublishedMix:
        weights = {self.caches[name]: weight for name, weight in self.weights.items()}
        mixture = lab.mixture("mixtures/small", "v1", weights, sequence_length=128, **self.mixture_options)
        return lab.published_mix("published/small", mixture, start=START, **self.options)

    def build(self, name: str, shard: int = 0, tokens: int = 1_000, **changes: Any) -> None:
        self.store.build(self.caches[name], f"{shard:05d}", {"part.json": part(tokens, **changes)})

    def build_all(self) -> None:
        for name in self.caches:
            for shard in range(self.shards):
                self.build(name, shard)

    def desk(self) -> Desk:
        return Desk.of(self.mix, self.store.store, clock=lambda: self.now)

    def definitions(self) -> dg.Definitions:
        """The mix alone, as the factory declares it."""
        mix, graph = self.mix, ArtifactGraph([self.mix.mixture])
        asset = mix_asset(mix, graph, clock=lambda: self.now)
        job, schedule, sensor = mix_automation(mix, graph, clock=lambda: self.now)
        return dg.Definitions([asset], jobs=[job], schedules=[schedule], sensors=[sensor], resources=self.resource)

    @property
    def resource(self) -> dict[str, Lab]:
        return {"lab": Lab(prefix=str(self.store.folder))}

    def materialize(self, hour: datetime, last: datetime | None = None) -> dg.ExecuteInProcessResult:
        """An hour, or a range of hours in one run."""
        defs = self.definitions()
        assets = [each for each in defs.assets or () if isinstance(each, dg.AssetsDefinition)]
        tags = {} if last is None else {"dagster/asset_partition_range_start": partition_key(hour)}
        tags |= {} if last is None else {"dagster/asset_partition_range_end": partition_key(last)}
        return dg.materialize(
            assets,
            selection=[mix_key(self.mix)],
            partition_key=partition_key(hour) if last is None else None,
            tags=tags,
            instance=self.instance,
            resources=self.resource,
            raise_on_error=False,
        )

    def tick(self) -> dg.RunRequest | str:
        """What the schedule asks for at the clock's time, or why it doesn't."""
        definitions = self.definitions()
        context = dg.build_schedule_context(
            instance=self.instance,
            scheduled_execution_time=self.now,
            resources=self.resource,
            repository_def=definitions.get_repository_def(),
        )
        data = definitions.resolve_schedule_def("publish_small_hourly").evaluate_tick(context)
        if not data.run_requests:
            return str(data.skip_message)
        (request,) = data.run_requests
        return request

    def sense(self, cursor: str | None = None) -> tuple[dg.RunRequest | str, str | None]:
        definitions = self.definitions()
        context = dg.build_sensor_context(instance=self.instance, cursor=cursor, resources=self.resource, definitions=definitions)
        data = definitions.resolve_sensor_def("publish_small_on_change").evaluate_tick(context)
        return (data.run_requests[0] if data.run_requests else str(data.skip_message)), data.cursor

    def reader(self) -> MixReader:
        return MixReader(open_place(self.desk().url))


@pytest.fixture
def world(fabricated: Fabricated) -> Iterator[World]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield World(fabricated, instance)


def hour(number: int) -> datetime:
    return START + timedelta(hours=number)


# What is published -----------------------------------------------------------------------------------------------------


def test_a_commit_says_what_the_records_of_the_caches_say(world: World) -> None:
    world.build_all()
    world.mixture_options = {"planned_tokens": (10_000, 1_000)}
    found = world.desk().publish(hour(0)).commit
    assert found is not None
    content = found.content
    assert content["mixture"]["name"] == "mixtures/small"
    assert content["tokenizer"] == {"digest": "ab" * 32, "vocab_size": 512}
    assert content["phases"] == [{"start": "0", "weights": {"code": "0.3", "web": "0.7"}}]
    web = content["domains"]["web"]
    assert {name: web[name] for name in ("artifact", "tokens", "documents", "bytes", "shards", "missing_shards", "license", "policy")} == {
        "artifact": "tokenized/web@v1",
        "tokens": 2_000,
        "documents": 20,
        "bytes": 8_000,
        "shards": 2,
        "missing_shards": [],
        "license": "CC-BY-4.0 AND MIT",
        "policy": "TRAINING_ALLOWED",
    }
    assert web["epochs_at_planned"] == "3.5"
    assert verify(world.reader()).problems == ()


def test_building_a_cache_again_alike_is_no_change_and_other_tokens_are(world: World) -> None:
    world.build_all()
    first = world.desk().content()
    again = World(Fabricated(world.store.folder.with_name("again")), world.instance)
    again.build_all()
    assert again.desk().content() == first
    other = World(Fabricated(world.store.folder.with_name("other")), world.instance)
    other.build("web", 0, digest="ff" * 16)
    other.build("web", 1)
    for shard in range(2):
        other.build("code", shard)
    assert other.desk().content()["domains"]["web"]["cache_digest"] != first["domains"]["web"]["cache_digest"]


def test_weights_by_tokens_move_with_them_and_need_no_message(world: World) -> None:
    world.shards = 1
    world.__post_init__()
    world.build("web", tokens=8_000)
    world.build("code", tokens=1_000)
    mixture = lab.mixture("mixtures/small", "v1", list(world.caches.values()), temperature=3.0, sequence_length=128)
    mix = lab.published_mix("published/small", mixture, start=START, message="first")
    content = Desk.of(mix, world.store.store, clock=lambda: START).content()
    weights = {name: Fraction(weight) for name, weight in content["phases"][0]["weights"].items()}
    assert sum(weights.values()) == 1
    assert abs(weights["web"] - Fraction(2, 3)) < Fraction(1, 10**9), "8,000^(1/3) = 20 against 10"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"policies": ["TRAINING_ALLOWED", "BLOCKED"]}, r"field 'weights.web': tokenized/web@v1/00000 has policy BLOCKED"),
        ({"policies": ["EVAL_ONLY"]}, "has policy EVAL_ONLY"),
        ({"split": "held_out"}, "is the split 'held_out'"),
        (
            {"tokenizer": {"digest": "ff" * 32, "probe_digest": "cd", "vocab_size": 512}},
            f"tokenizer digest is '{'ff' * 32}', and '{'ab' * 32}'",
        ),
        ({"policy": {"bos": "none", "eos": "append"}}, "policy is"),
        ({"tokens": 0}, "field 'weights.web': tokenized/web@v1 has no token"),
    ],
)
def test_what_may_not_be_mixed_is_refused_by_field(world: World, changes: dict[str, Any], said: str) -> None:
    world.build("code", 0)
    world.build("code", 1)
    world.build("web", 0, **changes)
    world.build("web", 1, **changes)
    with pytest.raises(ConfigError, match=said):
        world.desk().publish(hour(0))
    assert world.reader().place.read(HEAD_FILE) is None


def test_a_missing_shard_is_refused_unless_it_is_allowed_and_then_shown(world: World) -> None:
    world.build("code", 0)
    world.build("code", 1)
    world.build("web", 0)
    with pytest.raises(ConfigError, match=r"field 'weights.web': tokenized/web@v1/00001 is not committed"):
        world.desk().publish(hour(0))
    world.options["allow_missing_shards"] = {world.caches["web"]: ["00001"]}
    found = world.desk().publish(hour(0)).commit
    assert found is not None
    assert found.content["domains"]["web"]["missing_shards"] == ["00001"]
    world.build("web", 1)
    world.now = hour(1)
    later = world.desk().publish(hour(1)).commit
    assert later is not None
    assert later.message == "web +1.0 k tokens, 1 shard"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"to": "https://host/x"}, "field 'to'"),
        ({"to": "gs://user:hunter@bucket/x"}, "field 'to'"),
        ({"author": ""}, "field 'author'"),
        ({"message": "  "}, "field 'message'"),
        ({"start": START.replace(minute=1)}, "field 'start'"),
        ({"start": START.replace(tzinfo=None)}, "field 'start'"),
    ],
)
def test_a_bad_handle_fails_where_it_is_made(world: World, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        lab.published_mix("published/small", world.mix.mixture, **options)
    assert "hunter" not in str(error.value)


def test_what_is_no_mixture_or_no_cache_is_refused(world: World) -> None:
    cache = world.caches["web"]
    with pytest.raises(ConfigError, match="tokenized/web@v1 is no mixture"):
        lab.published_mix("published/small", cache)
    with pytest.raises(ConfigError, match="has no partition '9'"):
        lab.published_mix("published/small", world.mix.mixture, allow_missing_shards={cache: ["9"]})
    with pytest.raises(ConfigError, match="is no cache of mixtures/small@v1"):
        lab.published_mix("published/small", world.mix.mixture, allow_missing_shards={cache.deps[0]: ["00000"]})


def test_two_mixes_in_one_place_are_a_load_error(world: World) -> None:
    one, other = world.mix, world.mix
    with pytest.raises(ConfigError, match="would be published to one place"):
        build_definitions([experiment("e", one, other, question="?", hypothesis="!")])
    inside = lab.published_mix("tokenized/web", one.mixture)
    with pytest.raises(ConfigError, match="would lie inside the published mix tokenized/web"):
        build_definitions([experiment("e", inside, question="?", hypothesis="!")])


# Why -------------------------------------------------------------------------------------------------------------------


def test_a_message_comes_from_the_last_commit_of_the_file_unless_it_has_changes(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=A", "-c", "user.email=a@host", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)  # noqa: S607

    file = tmp_path / "mix.py"
    file.write_text("1")
    assert message_of_last_change(f"{file}:3") is None
    git("init", "-q")
    git("add", "mix.py")
    git("commit", "-q", "-m", "More code\n\nBecause of tests.\n\nSigned-off-by: A <a@host>")
    (tmp_path / "other.py").write_text("2")
    git("add", "other.py")
    git("commit", "-q", "-m", "Something else")
    assert message_of_last_change(f"{file}:3") == "More code\n\nBecause of tests."
    file.write_text("2")
    assert message_of_last_change(f"{file}:3") is None
    assert message_of_last_change("unknown") is None


# In Dagster ------------------------------------------------------------------------------------------------------------


def shown(result: dg.ExecuteInProcessResult) -> list[dict[str, Any]]:
    """Metadata of each materialization."""
    events = result.get_asset_materialization_events()
    return [{name: value.value for name, value in event.materialization.metadata.items()} for event in events]


def test_three_hours_and_a_change_of_weights_with_a_message(world: World) -> None:
    world.build_all()
    said = []
    for number in range(3):
        world.now = hour(number) + timedelta(minutes=30)
        if number == 2:
            world.weights, world.options["message"] = {"web": 0.5, "code": 0.5}, "more code: it helps reasoning"
        result = world.materialize(hour(number))
        assert result.success
        said += shown(result)
    assert [(each["outcome"], each["unchanged"], each["seq"]) for each in said] == [
        ("committed", False, 0),
        ("unchanged", True, 0),
        ("committed", False, 1),
    ]
    assert {record.data["domain"]: record.data["weight"] for record in said[2]["domains"].records} == {"code": "0.5", "web": "0.5"}
    diff = {record.data["path"]: (record.data["old"], record.data["new"]) for record in said[2]["diff"].records}
    assert diff["/phases/0/weights/web"] == ("0.7", "0.5")
    assert said[2]["id"] == read_mix(said[2]["url"]).id
    assert world.reader().blame("web").message == "more code: it helps reasoning"
    assert world.instance.get_materialized_partitions(mix_key(world.mix)) == {partition_key(hour(number)) for number in range(3)}


def test_an_hour_in_the_future_or_a_missing_message_fails_with_its_reason(world: World) -> None:
    world.build_all()
    world.now = hour(0)
    failed = world.materialize(hour(1))
    assert not failed.success
    (event,) = [each for each in failed.all_events if each.is_step_failure]
    data = event.step_failure_data.user_failure_data
    assert data is not None
    assert "field 'hour': 2026-03-01T01:00:00Z is after" in str(data.description)
    assert data.metadata["exit_code"].value == 64


def test_missed_hours_are_caught_up_in_one_run_and_history_is_not_rewritten(world: World) -> None:
    world.build_all()
    world.materialize(hour(0))
    world.build_all()
    world.weights, world.options["message"] = {"web": 0.6, "code": 0.4}, "more code"
    world.now = hour(24) + timedelta(minutes=5)
    request = world.tick()
    assert isinstance(request, dg.RunRequest)
    start, end = (request.tags[f"dagster/asset_partition_range_{edge}"] for edge in ("start", "end"))
    assert (start, end) == (partition_key(hour(1)), partition_key(hour(24)))
    result = world.materialize(hour(1), hour(24))
    assert result.success
    assert world.instance.get_materialized_partitions(mix_key(world.mix)) == {partition_key(hour(number)) for number in range(25)}
    assert [(commit.seq, commit.time) for commit in world.reader().history()] == [(1, hour(24)), (0, hour(0))]
    earlier = shown(result)[0]["earlier_hours"].records
    assert [record.data["seq"] for record in earlier] == [0] * 23
    assert "nothing has changed since commit 1" in str(world.tick())


def test_the_schedule_asks_once_an_hour_and_skips_with_a_reason(world: World) -> None:
    assert "can't be published: field 'weights.code'" in str(world.tick())
    world.build_all()
    first = world.tick()
    assert isinstance(first, dg.RunRequest)
    assert (first.run_key, first.partition_key) == (partition_key(hour(0)), partition_key(hour(0)))
    assert first.tags["marin/lane"] == "publish"
    world.materialize(hour(0))
    world.now = hour(5)
    assert world.tick() == "nothing has changed since commit 0 of 2026-03-01T00:00:00Z"
    world.weights = {"web": 0.6, "code": 0.4}
    again = world.tick()
    assert isinstance(again, dg.RunRequest)
    assert again.tags["dagster/asset_partition_range_start"] == partition_key(hour(1))
    world.now = hour(100)
    late = world.tick()
    assert isinstance(late, dg.RunRequest)
    assert late.tags["dagster/asset_partition_range_start"] == partition_key(hour(77)), "a day, and no more"
    world.now = hour(-1)
    assert world.tick() == "published/small begins at 2026-03-01T00:00:00Z"


def test_the_sensor_asks_once_for_each_change(world: World) -> None:
    assert "can't be published" in str(world.sense()[0])
    world.build_all()
    world.now = hour(3) + timedelta(minutes=20)
    request, cursor = world.sense()
    assert isinstance(request, dg.RunRequest)
    assert request.partition_key == partition_key(hour(3))
    assert "asked for already" in str(world.sense(cursor)[0])
    world.materialize(hour(3))
    assert "nothing has changed since commit 0" in str(world.sense(cursor)[0])
    world.weights = {"web": 0.6, "code": 0.4}
    again, moved = world.sense(cursor)
    assert isinstance(again, dg.RunRequest)
    assert again.run_key != request.run_key
    assert moved != cursor


def test_both_are_off_until_somebody_switches_them_on(world: World) -> None:
    definitions = build_definitions([experiment("under_test", world.mix, question="?", hypothesis="!")])
    dg.Definitions.validate_loadable(definitions)
    assert definitions.resolve_schedule_def("publish_small_hourly").default_status is dg.DefaultScheduleStatus.STOPPED
    assert definitions.resolve_sensor_def("publish_small_on_change").default_status is dg.DefaultSensorStatus.STOPPED
    spec = next(spec for spec in definitions.resolve_all_asset_specs() if spec.key == mix_key(world.mix))
    assert {dep.asset_key for dep in spec.deps} == {dg.AssetKey(["mixtures", "small-v1"])}
    assert spec.description
    assert spec.group_name == "published"


# By hand ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hand(world: World, marin: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """`marin mix …` in a lab that declares the world's mix, with the world's clock."""
    monkeypatch.setattr(
        "marin_assets.experiments.load_experiments", lambda: (experiment("under_test", world.mix, question="?", hypothesis="!"),)
    )
    monkeypatch.setattr("marin_assets.automation.desk.utc_now", lambda: world.now)
    return lambda *arguments: marin("mix", *arguments)


def test_the_command_line_publishes_and_answers(world: World, hand: Callable[..., Said]) -> None:
    world.build_all()
    first = hand("publish", "--hour", "2026-03-01T00:00Z", "--json")
    assert (first.code, first.json["outcome"], first.json["commit"]["message"]) == (0, "committed", "as wanted")
    world.weights = {"web": 0.6, "code": 0.4}
    second = hand("publish", "--hour", "2026-03-01T02", "--message", "more \x1b[31mcode", "--author", "Ada", "--json")
    assert second.json["commit"]["author"] == "Ada"
    assert hand("publish", "--hour", "2026-03-01T03", "--json").json["outcome"] == "unchanged"
    log = hand("log")
    assert [line.split()[0] for line in log.out.splitlines()[2:]] == ["1", "0"]
    assert "more \\x1b[31mcode" in log.out
    assert hand("log", "-n", "1", "--json").json["commits"][0]["seq"] == 1
    assert hand("show", "0", "--json").json["commit"]["message"] == "as wanted"
    assert hand("at", "2026-03-01T01:59", "--json").json["commit"]["seq"] == 0
    assert hand("blame", "web", "--json").json["commit"]["seq"] == 1
    diff = hand("diff", "0", "HEAD", "--json")
    assert (diff.code, diff.json["equal"]) == (1, False)
    assert {"path": "/phases/0/weights/web", "old": "0.7", "new": "0.6"} in diff.json["diff"]
    assert hand("diff", "1").code == 0
    assert hand("verify").out.startswith("2 commits read, no problems")
    for arguments in (["show"], ["diff", "0"], ["blame", "code"], ["at", "2026-03-02"]):
        assert "/phases/0/weights/web" in hand(*arguments).out or arguments[0] == "blame"


def test_a_mix_elsewhere_needs_no_experiment(world: World, hand: Callable[..., Said], marin: Callable[..., Said]) -> None:
    world.build_all()
    hand("publish", "--hour", "2026-03-01T00:00Z")
    url = world.desk().url
    assert marin("mix", "log", "--mix", url, "--json").json["commits"][0]["seq"] == 0
    commit = world.reader().newest()
    open_place(url).replace(commit.path, commit.bytes().replace(b"as wanted", b"as w@nted"))
    damaged = marin("mix", "verify", "--mix", url, "--json")
    assert (damaged.code, len(damaged.json["problems"])) == (65, 1)
    shown = marin("mix", "show", "--mix", url)
    assert shown.code == 65
    assert "is not what was published" in shown.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["log", "--mix", "published/other"], "no mix is called 'published/other'"),
        (["show", "soon"], "'soon' is no commit and no time"),
        (["at", "soon"], "'soon' is no commit and no time"),
        (["log"], "no mix was ever published"),
        (["publish", "--hour", "2999-01-01T00"], "is after this machine's clock"),
        (["publish", "--hour", "2026-03-01T00:30"], "is no whole hour"),
    ],
)
def test_wrong_questions_get_an_answer_that_helps(hand: Callable[..., Said], arguments: list[str], said: str) -> None:
    answer = hand(*arguments)
    assert answer.code == 64
    assert said in answer.err
