"""A mixture that takes its weights from a commit: whatever is published after it, from the same bytes, with nothing read too early."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from marin_assets.builder import Builder, QuietEvents
from marin_assets.launch import InlineLauncher
from marin_core import experiment as lab
from marin_core.artifact import ArtifactGraph, ArtifactStep, Record, Store
from marin_core.data.mixture import Mixture, read_mixture
from marin_core.errors import ConfigError
from marin_core.experiment.jobs import MixtureJob, PublishedMixtureJob
from marin_core.experiment.tokens import Phase
from marin_core.mix.commit import Commit
from marin_core.mix.content import mix_content
from tests.data.conftest import sentences, write_jsonl
from tests.mix.chains import content, hour, put

LENGTH = 16


@dataclass
class World:
    """Two token caches that are really built, and a folder in which their mix is published."""

    folder: Path
    store: Store
    caches: dict[str, ArtifactStep]

    @property
    def mix(self) -> str:
        return f"file://{self.folder}/mix"

    def build(self, *steps: ArtifactStep) -> dict[str, Record]:
        """Each artifact of the graph, in this process."""
        graph = ArtifactGraph(steps)
        launcher = InlineLauncher(self.folder / "jobs")
        builder = Builder(graph=graph, store=self.store, target=self.store, launcher=launcher, events=QuietEvents())
        return {str(artifact): builder.build(step, artifact)[0] for step in graph for artifact in step.ids()}

    def publish(self, number: int, weights: dict[str, float], phases: Sequence[Phase] = ()) -> Commit:
        mixture = lab.mixture(
            "mixtures/declared",
            "v1",
            {self.caches[name]: weight for name, weight in weights.items()},
            sequence_length=LENGTH,
            phases=phases,
        )
        made = mix_content(self.store, mixture, "0" * 16, self.caches, {})
        commit = put(self.mix, number, made).commit
        assert commit is not None
        return commit

    def at(self, version: str, at: object, **options: object) -> ArtifactStep:
        caches = list(self.caches.values())
        return lab.mixture_at("mixtures/pinned", version, caches, mix=self.mix, at=at, sequence_length=LENGTH, **options)  # type: ignore[arg-type]

    def made(self, record: Record) -> Mixture:
        path = self.store.payload_path(record)
        assert path is not None
        return read_mixture(path)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("pinned")
    store = Store(f"file://{folder}/store")
    documents = {}
    for seed, name in enumerate(("code", "web")):
        write_jsonl(folder / name / "0.jsonl.gz", sentences(60, seed))
        raw = lab.raw_source(f"raw/{name}", "v1", lab.LocalFiles(root=str(folder / name)), license="CC0-1.0")
        documents[name] = lab.filtered(f"filtered/{name}", "v1", raw, shards=1)
    bpe = lab.tokenizer("tokenizers/small", "v1", list(documents.values()), vocab_size=300)
    caches = {name: lab.tokenized(f"tokenized/{name}", "v1", each, bpe, held_out_per_10000=0) for name, each in documents.items()}
    world = World(folder, store, caches)
    world.build(*caches.values())
    return world


def shares(mixture: Mixture) -> list[dict[str, float]]:
    return [{name: weight / 2**40 for name, weight in phase.integer_weights.items()} for phase in mixture.phases]


def test_weights_and_phases_are_the_commits_whatever_comes_after_it(world: World) -> None:
    phases = [Phase("0.5", {world.caches["web"]: 0.5, world.caches["code"]: 0.5})]
    pinned = world.publish(0, {"web": 0.75, "code": 0.25}, phases)
    world.publish(1, {"web": 0.125, "code": 0.875})

    step = world.at("v1", pinned.id)
    record = world.build(step)["mixtures/pinned@v1"]
    mixture = world.made(record)
    assert [phase.start for phase in mixture.phases] == ["0", "0.5"]
    for made, expected in zip(shares(mixture), ({"code": 0.25, "web": 0.75}, {"code": 0.5, "web": 0.5}), strict=True):
        assert made == pytest.approx(expected, abs=1e-9)
    assert record.metrics["commit"] == pinned.id
    assert {check.name: check.passed for check in record.checks}["as_published"]

    declared = lab.mixture(
        "mixtures/alike", "v1", {world.caches["web"]: 0.75, world.caches["code"]: 0.25}, sequence_length=LENGTH, phases=phases
    )
    assert world.made(world.build(declared)["mixtures/alike@v1"]) == mixture


def test_a_time_is_the_commit_that_was_valid_then_and_stands_there_as_its_id(world: World) -> None:
    old = world.publish(2, {"web": 0.5, "code": 0.5})
    world.publish(3, {"web": 0.25, "code": 0.75})
    by_time, by_id = world.at("v2", hour(2)), world.at("v2", old.id)
    assert by_time.own_identity == by_id.own_identity
    assert isinstance(by_time.symbolic_config, PublishedMixtureJob)
    assert by_time.symbolic_config.mixture.commit == old.id
    assert by_time.own_identity != world.at("v2", "0" * 64).own_identity


def test_with_an_id_the_handle_reads_nothing_and_the_place_is_no_identity(tmp_path: Path) -> None:
    raw = lab.raw_source("raw/x", "v1", lab.PythonStdlib(), license="MIT")
    shards = lab.filtered("filtered/x", "v1", raw, shards=1)
    cache = lab.tokenized("tokenized/web", "v1", shards, lab.tokenizer("tokenizers/x", "v1", [shards], vocab_size=300))
    steps = [
        lab.mixture_at("mixtures/x", "v1", [cache], mix=mix, at="a" * 64, sequence_length=LENGTH)
        for mix in (f"file://{tmp_path}/nothing", "https://nowhere.invalid/mix")
    ]
    assert steps[0].own_identity == steps[1].own_identity
    assert isinstance(steps[0].symbolic_config, MixtureJob)  # so that trainings and evaluations take it as any mixture
    run = lab.train_lm(
        "checkpoints/x",
        "v1",
        steps[0],
        model=lab.moe_tiny(vocab_size=300),
        optimizer=lab.AdamW(learning_rate=3e-3, schedule=lab.Wsd(warmup_steps=5)),
        num_steps=10,
        global_batch_size=2,
        checkpoints=lab.CheckpointPolicy(permanent_every_steps=5, temporary_every_steps=5),
    )
    assert run.deps == (steps[0], cache)


def test_other_tokens_than_the_published_are_told_and_no_error(world: World) -> None:
    foreign = put(f"{world.mix}-foreign", 0, content()).commit
    assert foreign is not None
    step = lab.mixture_at(
        "mixtures/foreign", "v1", list(world.caches.values()), mix=f"{world.mix}-foreign", at=foreign.id, sequence_length=LENGTH
    )
    record = world.build(step)["mixtures/foreign@v1"]
    (check,) = [check for check in record.checks if check.name == "as_published"]
    assert not check.passed
    assert set(check.values) == {"code", "web"}
    assert f"{500:064x} published" in str(check.values["code"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"at": "abc"}, "no commit id"),
        ({"at": hour(-1)}, "nothing was published"),
        ({"mix": "https://user:word@host/mix"}, "user or password"),
        ({"caches": []}, "mixes none"),
        ({"sequence_length": 1}, "sequence_length"),
    ],
)
def test_what_cannot_be_is_refused_when_the_handle_is_made(world: World, change: dict[str, object], says: str) -> None:
    world.publish(5, {"web": 0.5, "code": 0.5})
    given: dict[str, object] = {"caches": list(world.caches.values()), "mix": world.mix, "at": hour(9), "sequence_length": LENGTH}
    with pytest.raises(ConfigError, match=says):
        lab.mixture_at("mixtures/refused", "v1", **(given | change))  # type: ignore[arg-type]


def test_a_mixture_of_a_commit_is_not_published_again(world: World) -> None:
    commit = world.publish(6, {"web": 0.5, "code": 0.5})
    with pytest.raises(ConfigError, match="published mix"):
        lab.published_mix("published/again", world.at("v3", commit.id))


def test_caches_must_have_the_names_of_the_domains(world: World) -> None:
    commit = world.publish(7, {"web": 0.5, "code": 0.5})
    step = lab.mixture_at("mixtures/one", "v1", [world.caches["web"]], mix=world.mix, at=commit.id, sequence_length=LENGTH)
    with pytest.raises(Exception, match="'code' has no tokenized component"):
        world.build(step)
