"""Housekeeping: nothing that a committed record refers to is ever deleted, and whatever interrupts it, the next run completes it."""

import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Claim, End, Input, Record, Store
from marin_core.artifact.housekeeping import CleanupPlan, Item, Outcome, Rules, execute, plan_cleanup
from marin_core.artifact.inventory import committed, survey
from marin_core.artifact.objects import LocalObjects
from marin_core.artifact.record import File
from marin_core.errors import ConfigError, DataError, InfrastructureError, SupersededError
from tests.artifact.test_graph import toy
from tests.artifact.test_store import record

NOW = datetime(2027, 1, 1, tzinfo=UTC)
NOTHING = ArtifactGraph([])
EVERYTHING = Rules(unreferenced=True)
BUILT_THERE = "b@v1 is being built there; if its builder is gone for good, delete the folder by hand"


def ago(days: float) -> str:
    return (NOW - timedelta(days=days)).isoformat()


def named(text: str) -> ArtifactId:
    return ArtifactId.parse(text if "@" in text else f"{text}@v1")


def begin(store: Store, artifact: str, *reads: str, days: float = 0, fingerprint: str = "f" * 16) -> int:
    """Claim an attempt that builds something, as a builder does; returns its number."""
    found = named(artifact)
    number = len(store.attempts(found)) + 1
    claim = Claim(
        number=number,
        job=f"m-{found.name.split('/')[-1]}-a{number}",
        fingerprint=fingerprint,
        submitted_at=ago(days),
        host="here",
        reads=tuple(str(named(read)) if "://" not in read else read for read in reads),
    )
    assert store.claim(found, claim)
    store.objects.replace(f"{found.path}/attempt-{number}/data", content(found, number))
    return number


def content(artifact: ArtifactId, number: int) -> bytes:
    return f"{artifact} as attempt {number} built it".encode()


def built(store: Store, artifact: str, number: int, *inputs: str, days: float = 0, **changes: Any) -> Record:
    """The record that an attempt would commit, with what its inputs are now."""
    found = named(artifact)
    data = content(found, number)
    file = File(path="data", size=len(data), sha256=hashlib.sha256(data).hexdigest())
    read = []
    for each in inputs:
        input_record = store.record(named(each))
        assert input_record is not None
        read.append(input_record.as_input())
    values = {"payload": f"attempt-{number}", "files": (file,), "inputs": tuple(read), "ended_at": ago(days)} | changes
    return record(found, content=file.sha256, attempt=number, **values)


def put(store: Store, artifact: str, *inputs: str, days: float = 0, **changes: Any) -> Record:
    """Build and commit an artifact, so many days ago."""
    number = begin(store, artifact, *inputs, days=days)
    made = built(store, artifact, number, *inputs, days=days, **changes)
    return store.commit(made.id, End(state="succeeded", ended_at=made.ended_at, exit_code=0, record=made))


def give_up(store: Store, artifact: str, number: int, days: float = 0) -> None:
    store.close(named(artifact), number, End(state="failed", ended_at=ago(days), failure="bug", error="IndexError: 7\nat line 3"))


def plan(store: Store, graph: ArtifactGraph = NOTHING, rules: Rules = EVERYTHING) -> CleanupPlan:
    return plan_cleanup(store, graph, rules, now=NOW)


def clean(store: Store, graph: ArtifactGraph = NOTHING, rules: Rules = EVERYTHING) -> Outcome:
    return execute(plan(store, graph, rules), store)


def everything(store: Store) -> dict[str, bytes]:
    """Every file at the store; claims without what makes any two differ."""
    return {path: re.sub(rb'"token":"\w+"', b"", store.objects.read(path) or b"") for path in store.objects.files("")}


def holds(store: Store) -> set[str]:
    return {str(each.id) for each in committed(store)}


def paths(items: Sequence[Item]) -> list[str]:
    return [item.path for item in items]


def require_sound(store: Store) -> None:
    """Every committed record has all its inputs, committed and intact."""
    for each in committed(store):
        store.require_intact(each, every_byte=True)
        for read in each.inputs:
            found = store.record(read.id)
            assert found is not None, f"{each.id} lost its input {read.id}"
            assert found.content_digest == read.content_digest


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "file":
        yield Store(f"file://{tmp_path}/lab")
        return
    yield Store(f"memory://lab-{uuid.uuid4().hex}")
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/lab")


def root(store: Store) -> Path:
    assert isinstance(store.objects, LocalObjects)
    return store.objects.root


# What refers to what -------------------------------------------------------------------------------------------------


class Lab:
    """A random lab: artifacts built from others, some declared, some temporary, some being built."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.store = Store(f"memory://lab-{uuid.uuid4().hex}")
        count = draw(st.integers(1, 8))
        steps: list[ArtifactStep] = []
        self.keep: dict[str, int | None] = {}
        self.days: dict[str, int] = {}
        self.inputs: dict[str, list[str]] = {}
        self.read_now: set[str] = set()
        present: set[str] = set()
        for number in range(count):
            name = f"n{number}"
            inputs = sorted(draw(st.sets(st.sampled_from([step.name for step in steps]), max_size=3)) if steps else set())
            self.keep[name] = draw(st.sampled_from([None, None, 2, 30]))
            self.days[name] = draw(st.sampled_from([0, 10, 50]))
            step = toy(name, *(step for step in steps if step.name in inputs))
            steps.append(replace(step, keep_days=self.keep[name]))
            steps[-1] = replace(steps[-1], deps=tuple(each for each in steps if each.name in inputs))
            self.inputs[name] = inputs
            state = draw(st.sampled_from(["committed", "committed", "committed", "open", "failed", "nothing"]))
            if not present.issuperset(inputs) or state == "nothing":
                continue
            if state == "committed":
                put(self.store, name, *inputs, days=self.days[name], keep_days=self.keep[name])
                present.add(name)
            else:
                attempt = begin(self.store, name, *inputs)
                if state == "failed":
                    give_up(self.store, name, attempt)
                else:
                    self.read_now.update(inputs)
        self.present = present
        self.graph = ArtifactGraph([step for step in steps if draw(st.booleans())])
        self.rules = Rules(unreferenced=draw(st.booleans()), older_than_days=draw(st.sampled_from([None, 5, 20])))

    def expected(self) -> set[str]:
        """What stays, found in the dullest way."""

        def may_go(name: str) -> bool:
            keep, days, bound = self.keep[name], self.days[name], self.rules.older_than_days
            expired = keep is not None and days > keep
            return expired or (self.rules.unreferenced and named(name) not in self.graph and (bound is None or days > bound))

        stays = {name for name in self.present if not may_go(name)} | self.read_now
        for _ in self.inputs:
            stays |= {read for name in stays for read in self.inputs[name]}
        return {str(named(name)) for name in stays}


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_nothing_that_a_committed_record_or_an_open_build_refers_to_is_ever_deleted(data: st.DataObject) -> None:
    lab = Lab(data.draw)
    outcome = execute(plan_cleanup(lab.store, lab.graph, lab.rules, now=NOW), lab.store)
    assert outcome.skipped == ()
    assert holds(lab.store) == lab.expected()
    require_sound(lab.store)
    again = plan_cleanup(lab.store, lab.graph, lab.rules, now=NOW)
    assert again.items == ()
    assert again.survey.foreign == {}
    fsspec.filesystem("memory").store.clear()


def test_the_consumer_goes_first_and_frees_what_it_was_built_from(store: Store) -> None:
    put(store, "a")
    put(store, "b", "a")
    put(store, "c", "b")
    found = plan(store)
    assert [(str(item.artifact), item.generation) for item in found.items] == [("c@v1", 0), ("b@v1", 1), ("a@v1", 2)]
    assert found.items[0].reason == "no experiment declares it, and no record refers to it"
    assert found.items[2].reason == "no experiment declares it, and only what goes before it refers to it"
    outcome = execute(found, store)
    assert holds(store) == set()
    assert outcome.bytes == found.bytes > 0
    assert not any("/attempt-" in path for path in everything(store))


def test_what_is_declared_stays_and_so_does_what_it_was_built_from(store: Store) -> None:
    put(store, "a")
    put(store, "b", "a")
    put(store, "old")
    graph = ArtifactGraph([toy("b")])  # declared without its input, which an older experiment had given it
    assert paths(plan(store, graph).items) == ["old/v1/attempt-1"]
    assert plan(store, graph, Rules()).items == ()
    clean(store, graph)
    assert holds(store) == {"a@v1", "b@v1"}


def test_an_undeclared_member_of_a_declared_family_is_undeclared(store: Store) -> None:
    for key in ("00000", "00001"):
        put(store, f"a@v1/{key}")
    graph = ArtifactGraph([replace(toy("a"), partitions=("00000",))])
    assert paths(plan(store, graph).items) == ["a/v1/00001/attempt-1"]


def test_an_artifact_that_another_is_pinned_to_stays(store: Store) -> None:
    made = put(store, "a")
    put(store, "other")
    pinned = record(named("b"), payload=store.payload_url(made), files=made.files, inputs=())
    number = begin(store, "b")
    store.objects.delete_tree("b/v1/attempt-1")
    store.commit(pinned.id, End(state="succeeded", ended_at="now", record=pinned.model_copy(update={"attempt": number})))
    clean(store, ArtifactGraph([toy("b")]))
    assert holds(store) == {"a@v1", "b@v1"}
    require_sound(store)
    assert paths(plan(store, ArtifactGraph([replace(toy("b"), pin=f"{store.prefix}/a/v1")])).items) == []
    clean(store)  # with nothing declared both go, the one that is pinned first
    assert holds(store) == set()


def test_what_a_declared_step_is_pinned_to_is_declared(store: Store) -> None:
    put(store, "a")
    put(store, "c@v1/00000")
    pins = ArtifactGraph(
        [replace(toy("b"), pin=f"{store.prefix}/a/v1"), replace(toy("d"), pin=f"{store.prefix}/c/v1", partitions=("00000",))]
    )
    assert plan(store, pins).items == ()


def test_a_payload_that_was_withdrawn_stays_while_something_is_pinned_to_it(store: Store) -> None:
    made = put(store, "a@dev")
    number = begin(store, "b@dev")
    pinned = record(named("b@dev"), attempt=number, payload=store.payload_url(made), files=made.files)
    store.commit(pinned.id, End(state="succeeded", ended_at="now", record=pinned))
    store.withdraw(named("a@dev"))
    graph = ArtifactGraph([toy("b", version="dev"), toy("a", version="dev")])
    found = plan(store, graph)
    assert found.items == ()
    assert [(each.path, each.reason) for each in found.spared] == [("a/dev/attempt-1", "b@dev is pinned to it")]


def test_a_declared_dev_artifact_stays_and_an_undeclared_one_is_like_any_other(store: Store) -> None:
    put(store, "a@dev", days=9, keep_days=1)
    assert plan(store, ArtifactGraph([toy("a", version="dev")])).items == ()
    put(store, "b@dev")
    assert paths(plan(store).items) == ["a/dev/attempt-1", "b/dev/attempt-1"]


def test_a_bound_on_age_spares_what_is_younger_or_of_no_known_age(store: Store) -> None:
    put(store, "old", days=31)
    put(store, "young", days=29)
    put(store, "ageless", ended_at="long ago")
    assert paths(plan(store, rules=Rules(unreferenced=True, older_than_days=30)).items) == ["old/v1/attempt-1"]


# Temporary data ------------------------------------------------------------------------------------------------------


def test_temporary_data_is_collected_after_its_days_unless_something_refers_to_it(store: Store) -> None:
    put(store, "fresh", days=2.9, keep_days=3)
    put(store, "stale", days=3.1, keep_days=3)
    put(store, "read", days=9, keep_days=3)
    put(store, "reader", "read")
    put(store, "kept", days=99)
    found = plan(store, rules=Rules())
    assert [(item.kind, item.path) for item in found.items] == [("expired", "stale/v1/attempt-1")]
    assert [each.reason for each in found.spared] == ["was to be kept for 3 days, and is 9 days old, but reader@v1 refers to it"]
    execute(found, store)
    assert holds(store) == {"fresh@v1", "read@v1", "reader@v1", "kept@v1"}


@pytest.mark.parametrize(("declared", "goes"), [(1, True), (3, True), (30, False), (None, False)])
def test_an_experiment_can_prolong_the_days_and_not_shorten_them(store: Store, declared: int | None, goes: bool) -> None:
    put(store, "a", days=9, keep_days=3)
    put(store, "b", days=2, keep_days=3)
    graph = ArtifactGraph([replace(toy(name), keep_days=declared) for name in ("a", "b")])
    assert paths(plan(store, graph, Rules()).items) == (["a/v1/attempt-1"] if goes else [])


def test_days_to_keep_are_no_identity_and_at_least_one() -> None:
    plain, short = ArtifactGraph([toy("a")]), ArtifactGraph([replace(toy("a"), keep_days=1)])
    assert [plain.fingerprint(step) for step in plain] == [short.fingerprint(step) for step in short]
    with pytest.raises(ConfigError, match=r"a@v1: keep_days is 0"):
        replace(toy("a"), keep_days=0)


# Attempts ------------------------------------------------------------------------------------------------------------


def test_an_open_attempt_and_what_it_reads_are_left_alone(store: Store) -> None:
    put(store, "a")
    number = begin(store, "b", "a")
    store.objects.replace("b/v1/attempt-1.new/half", b"x")
    before = everything(store)
    found = plan(store)
    assert found.items == ()
    assert [each.reason for each in found.spared] == ["no experiment declares it, but b@v1 is being built from it"]
    assert found.survey.holdings["b/v1"].state == "building"
    assert execute(found, store) == Outcome((), (), ())
    assert everything(store) == before
    made = built(store, "b", number, "a")
    store.commit(made.id, End(state="succeeded", ended_at="now", record=made))
    require_sound(store)


def test_a_success_that_nobody_published_yet_is_left_alone_and_so_is_what_it_read(store: Store) -> None:
    put(store, "a")
    made = built(store, "b", begin(store, "b", "a"), "a")
    store.close(made.id, 1, End(state="succeeded", ended_at="now", record=made))
    assert plan(store).items == ()
    assert store.settle(made.id) is not None
    require_sound(store)


def test_debris_of_closed_attempts_goes_and_the_committed_payload_stays(store: Store) -> None:
    for number in (1, 2):
        give_up(store, "a", begin(store, "a"), days=1)
        store.objects.replace(f"a/v1/attempt-{number}.new/half", b"x")
    put(store, "a")
    graph = ArtifactGraph([toy("a")])
    found = plan(store, graph)
    assert [(item.kind, item.path, item.owner) for item in found.items] == [
        ("debris", f"a/v1/attempt-{number}{new}", "team:lab") for number in (1, 2) for new in ("", ".new")
    ]
    assert found.items[0].reason == "attempt 1 failed: IndexError: 7"
    execute(found, store)
    require_sound(store)
    assert [name for name in everything(store) if "/attempt-" in name] == ["a/v1/attempt-3/data"]
    assert len(store.attempts(named("a"))) == 3


def test_a_folder_from_which_the_next_attempt_may_go_on_is_kept_for_a_week(store: Store) -> None:
    step = toy("a")
    graph = ArtifactGraph([step])
    fingerprint = graph.fingerprint(step)
    for days in (9, 8, 6):
        give_up(store, "a", begin(store, "a", fingerprint=fingerprint), days=days)
    found = plan(store, graph)
    assert paths(found.items) == ["a/v1/attempt-1", "a/v1/attempt-2"]
    assert [each.reason for each in found.spared] == ["attempt 3 failed: IndexError: 7; the next attempt may go on from it"]
    assert len(plan(store, graph, Rules(resume_days=5)).items) == 3
    assert paths(plan(store, graph, Rules(older_than_days=8.5)).items) == ["a/v1/attempt-1"]
    assert len(plan(store, graph, Rules(older_than_days=0)).items) == 3
    changed = ArtifactGraph([toy("a", literal=0.25)])  # which would build something else
    assert len(plan(store, changed).items) == 3


def test_what_an_earlier_attempt_left_is_for_the_open_one_to_clear(store: Store) -> None:
    for days in (30, 20):
        give_up(store, "a", begin(store, "a"), days=days)
    begin(store, "a")
    found = plan(store)
    assert found.items == ()
    assert {each.reason for each in found.spared} == {"the attempt that is open may go on from it, and clears it itself"}


def test_payload_folders_that_no_attempt_built_are_reported_and_stay(store: Store) -> None:
    put(store, "a")
    for path in ("a/v1/attempt-7/x", "stray/v1/attempt-1/x", "deep/er/v2/attempt-2.new/x"):
        store.objects.replace(path, b"12345")
    graph = ArtifactGraph([toy("a")])
    found = plan(store, graph)
    assert found.items == ()
    assert {each.path: each.bytes for each in found.spared} == {
        "a/v1/attempt-7": 5,
        "stray/v1/attempt-1": 5,
        "deep/er/v2/attempt-2.new": 5,
    }
    before = everything(store)
    execute(found, store)
    assert everything(store) == before


def test_a_zombie_builder_of_a_deleted_artifact_cannot_bring_it_back(store: Store) -> None:
    made = put(store, "a")
    slow = built(store, "b", begin(store, "b"))
    store.close(slow.id, 1, End(state="succeeded", ended_at=ago(1), record=slow))
    store.settle(slow.id)  # somebody else publishes what its builder was about to
    clean(store)
    for zombie in (made, slow):
        with pytest.raises(SupersededError, match="deleted or withdrawn"):
            store.commit(zombie.id, End(state="succeeded", ended_at="now", record=zombie))
        store.objects.create(f"{zombie.id.path}/.artifact/record.json", zombie.model_dump_json().encode())  # if it was past the check
        assert store.record(zombie.id) is None
        assert store.settle(zombie.id) is None
    assert holds(store) == set()
    assert survey(store).holdings["a/v1"].state == "history"
    again = put(store, "a")
    assert again.attempt == 2
    assert store.record(again.id) == again


# Between the plan and the deletion -----------------------------------------------------------------------------------


def test_a_referrer_that_appears_after_the_plan_saves_the_artifact(store: Store) -> None:
    put(store, "a")
    put(store, "b", "a")
    found = plan(store)
    put(store, "c", "b")
    outcome = execute(found, store)
    assert {str(each.item.artifact): each.reason for each in outcome.skipped} == {
        "b@v1": "c@v1 refers to it",
        "a@v1": "b@v1 refers to it",
    }
    assert holds(store) == {"a@v1", "b@v1", "c@v1"}
    require_sound(store)


def test_a_claim_that_appears_after_the_plan_saves_what_it_reads_and_what_it_builds(store: Store) -> None:
    put(store, "a")
    give_up(store, "b", begin(store, "b"), days=30)
    found = plan(store)
    assert len(found.items) == 2
    begin(store, "b", "a")
    outcome = execute(found, store)
    assert [each.reason for each in outcome.skipped] == ["b@v1 is being built from it", "an attempt is open there"]
    require_sound(store)
    assert "b/v1/attempt-1/data" in everything(store)


def test_what_was_built_anew_after_the_plan_is_another_artifact(store: Store) -> None:
    put(store, "a@dev")
    found = plan(store)
    store.withdraw(named("a@dev"))
    put(store, "a@dev")
    outcome = execute(found, store)
    assert [each.reason for each in outcome.skipped] == ["it was deleted or built anew meanwhile"]
    require_sound(store)


def racing(store: Store, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """A builder that has read `a`, and is past its last look at it, commits `c` just when `a` is taken back."""
    forget = store.forget

    def forget_while_built(artifact: ArtifactId, number: int | None = None) -> None:
        if artifact.name != "a":
            forget(artifact, number)
            return
        made = built(store, "c", begin(store, "c", "a"), "a")
        forget(artifact, number)
        store.commit(made.id, End(state="succeeded", ended_at="now", record=made))
        then()

    monkeypatch.setattr(store, "forget", forget_while_built)


def test_a_build_that_commits_while_its_input_is_taken_back_brings_it_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "base")
    put(store, "root", "base")
    put(store, "a", "root")
    put(store, "other", "root")
    racing(store, monkeypatch, then=lambda: None)
    outcome = clean(store)
    assert {str(each.item.artifact): each.reason for each in outcome.skipped} == {
        "a@v1": "c@v1 refers to it since a moment ago",
        "root@v1": "a@v1 refers to it, and came back",
        "base@v1": "root@v1 refers to it, and came back",
    }
    assert {str(each) for each in outcome.restored} == {"base@v1", "root@v1", "a@v1"}
    assert holds(store) == {"base@v1", "root@v1", "a@v1", "c@v1"}
    require_sound(store)


def test_an_interrupted_cleanup_that_took_back_too_much_is_undone_by_the_next(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "root")
    put(store, "a", "root")
    put(store, "other")

    def crash() -> None:
        raise KeyboardInterrupt

    racing(store, monkeypatch, then=crash)
    with pytest.raises(KeyboardInterrupt):
        clean(store)
    monkeypatch.undo()
    assert holds(store) == {"root@v1", "c@v1", "other@v1"}
    declared = ArtifactGraph([toy("c", toy("a", toy("root")))])
    found = plan(store, declared)
    assert [str(each) for each in found.returning] == ["a@v1"]
    assert paths(found.items) == ["other/v1/attempt-1"]
    outcome = execute(found, store)
    assert [str(each) for each in outcome.restored] == ["a@v1"]
    assert holds(store) == {"root@v1", "a@v1", "c@v1"}
    require_sound(store)


# Crashes -------------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is gone."""


def small_lab(prefix: str) -> tuple[Store, ArtifactGraph]:
    """Something of every kind that can be deleted, and something that has to stay."""
    store = Store(prefix)
    put(store, "base", days=99)
    put(store, "kept", "base", days=9)
    put(store, "temporary", "base", days=9, keep_days=2)
    put(store, "draft@dev", "temporary", days=9)
    put(store, "draft2@dev", "draft@dev", days=9)
    give_up(store, "kept", begin(store, "kept"), days=9)
    put(Store(f"{store.prefix}/.reproductions/18f"), "kept", days=9)
    job(store, "base", 1)
    return store, ArtifactGraph([toy("kept", toy("base"))])


@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("operation", ["delete_tree", "create", "delete"])
@pytest.mark.parametrize("backend", ["file", "memory"])
def test_wherever_a_cleanup_is_killed_the_next_one_ends_in_the_same_state(
    backend: str, operation: str, parity: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = f"file://{tmp_path}" if backend == "file" else f"memory://{uuid.uuid4().hex}"
    whole, graph = small_lab(f"{base}/whole")
    assert {item.kind for item in clean(whole, graph).deleted} == {"expired", "unreferenced", "debris", "reproductions", "jobs"}
    expected = everything(whole)
    assert holds(whole) == {"base@v1", "kept@v1"}
    index = 0
    while True:
        store, graph = small_lab(f"{base}/{index}")
        with monkeypatch.context() as patch:
            fail_at(patch, type(store.objects), operation, index, parity)
            try:
                clean(store, graph)
                break
            except Crash:
                index += 1
        require_sound(store)
        clean(store, graph)
        assert everything(store) == expected, f"{operation} {index - 1}"
        assert plan(store, graph).items == ()
    assert index >= 4
    fsspec.filesystem("memory").store.clear()


def fail_at(patch: pytest.MonkeyPatch, backend: type[Any], operation: str, index: int, parity: int) -> None:
    """The process dies in one operation on objects, done (parity 1) or not; of a tree that it deletes half of the files are gone."""
    real = getattr(backend, operation)
    calls = 0

    def maybe(self: Any, path: str, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls - 1 != index:
            return real(self, path, *arguments)
        if operation == "delete_tree":
            for name in sorted(self.files(path))[parity::2]:
                self._fs.rm_file(f"{self._root}/{path}/{name}") if hasattr(self, "_fs") else (self.root / path / name).unlink()
        elif parity:
            real(self, path, *arguments)
        raise Crash

    patch.setattr(backend, operation, maybe)


def test_what_the_user_may_not_delete_is_said_and_the_rest_goes(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(local, "a")
    put(local, "b")
    put(local, "c")
    real = LocalObjects.delete_tree

    def refuse(self: LocalObjects, path: str) -> None:
        if path.startswith("a/"):
            return  # as rmtree, which ignores errors
        if path.startswith("b/"):
            raise InfrastructureError("b can't be deleted: the network is down", advice="Try again.")
        real(self, path)

    monkeypatch.setattr(LocalObjects, "delete_tree", refuse)
    outcome = clean(local)
    assert paths(outcome.deleted) == ["c/v1/attempt-1"]
    assert [each.reason for each in outcome.skipped] == [
        "1 of its files could not be deleted; this user may not, or somebody still writes there",
        "b can't be deleted: the network is down",
    ]
    monkeypatch.undo()
    assert sorted(paths(clean(local).deleted)) == ["a/v1/attempt-1", "b/v1/attempt-1"]


# What can't be known -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", ["kept/v1/.artifact/record.json", "open/v1/.artifact/attempts/00001/claim.json"])
def test_while_a_record_or_claim_is_damaged_no_artifact_is_deleted(store: Store, damaged: str) -> None:
    put(store, "a", days=9, keep_days=1)
    put(store, "kept", "a")
    begin(store, "open", "a")
    store.objects.replace(damaged, b"{")
    found = plan(store)
    assert found.items == ()
    assert damaged in found.survey.damaged[0]
    assert all("damaged" in each.reason or "kept@v1" in each.reason or "open@v1" in each.reason for each in found.spared)
    assert not any(item.kind in ("expired", "unreferenced") for item in clean(store).deleted)
    with pytest.raises(DataError, match="damaged") if "record" in damaged else no_error():
        list(committed(store))


class no_error:  # noqa: N801
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def test_an_artifact_whose_own_history_is_damaged_stays_and_the_others_go(store: Store) -> None:
    put(store, "a")
    put(store, "b", "a")
    put(store, "c", "b")
    store.objects.replace("b/v1/.artifact/attempts/00001/end.json", b"{")
    outcome = clean(store)
    assert paths(outcome.deleted) == ["c/v1/attempt-1"]
    damaged, referred = outcome.skipped
    assert "is damaged" in damaged.reason
    assert referred.reason == "b@v1 refers to it"
    require_sound(store)


def test_damage_that_appears_after_the_plan_stops_it(store: Store) -> None:
    put(store, "a")
    put(store, "kept")
    found = plan(store)
    store.objects.replace("kept/v1/.artifact/record.json", b"\x00")
    outcome = execute(found, store)
    assert "a damaged record or attempt may refer to it" in [each.reason for each in outcome.skipped]
    assert "a@v1" in {str(each.id) for each in committed(store, on_damage=lambda error: None)}


def test_artifacts_of_before_attempts_had_folders_are_spared(store: Store) -> None:
    put(store, "a", payload="", days=9, keep_days=1)
    found = plan(store)
    assert found.items == ()
    assert "before attempts had folders" in found.spared[0].reason


def test_a_folder_that_cannot_be_listed_stops_everything(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(local, "a")
    put(local, "hidden/b", "a")
    real = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "hidden":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InfrastructureError, match=r"hidden can't be listed: Permission denied"):
        plan(local)
    with pytest.raises(InfrastructureError, match=r"hidden can't be listed"):
        list(committed(local))


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("debris", "a/v1"),
        ("debris", "a/v1/attempt-2"),
        ("unreferenced", "a/v1/attempt-1.new"),
        ("expired", "../a/v1/attempt-1"),
        ("expired", ""),
        ("jobs", ".jobs/xla"),
        ("jobs", ".jobs/../m-a"),
        ("jobs", "/etc/m-a"),
        ("reproductions", ".reproductions"),
        ("reproductions", ".reproductions/../a"),
        ("reproductions", ".reproductions/.."),
    ],
)
def test_a_plan_that_names_any_other_path_is_refused(local: Store, kind: Any, path: str) -> None:
    put(local, "a")
    found = plan(local)
    forged = Item(kind, path, "", 1, artifact=named("a"), attempt=1)
    with pytest.raises(ConfigError, match="no folder that housekeeping deletes"):
        execute(replace(found, items=(*found.items, forged)), local)
    require_sound(local)
    assert holds(local) == {"a@v1"}


# Links ---------------------------------------------------------------------------------------------------------------


def test_links_out_of_the_store_are_not_followed(local: Store, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("precious")
    put(local, "inside")
    (root(local) / "inside/v1/attempt-1/link").symlink_to(precious)  # goes as a link
    put(local, "payload")
    move_out(root(local) / "payload/v1/attempt-1", precious / "payload")
    give_up(local, "debris", begin(local, "debris"), days=30)
    move_out(root(local) / "debris/v1/attempt-1", precious / "debris")
    put(local, "base")
    put(local, "address", "base")
    move_out(root(local) / "address", precious / "address")
    (root(local) / ".jobs").symlink_to(precious)
    (precious / "m-job").mkdir()
    (root(local) / ".reproductions").mkdir()
    (root(local) / ".reproductions/x").symlink_to(precious)
    (root(local) / "loop").symlink_to(root(local))
    (precious / "address/loop").symlink_to(precious)
    before = {path for path in precious.rglob("*") if "loop" not in path.parts}
    found = plan(local)
    assert paths(found.items) == ["inside/v1/attempt-1"]
    assert {each.path for each in found.spared} >= {"payload/v1", "debris/v1/attempt-1", "address/v1", ".jobs"}
    execute(found, local)
    assert {path for path in precious.rglob("*") if "loop" not in path.parts} == before
    assert holds(local) == {"payload@v1", "base@v1", "address@v1"}  # `address` counts as what refers to `base`
    require_sound(local)


def move_out(folder: Path, target: Path) -> None:
    folder.rename(target)
    folder.symlink_to(target)


def test_a_folder_that_becomes_a_link_after_the_plan_is_not_followed(local: Store, tmp_path: Path) -> None:
    put(local, "a", days=99)
    give_up(local, "b", begin(local, "b"), days=30)
    put(Store(f"{local.prefix}/.reproductions/18f"), "c", days=9)
    job(local, "a", 1)
    found = plan(local)
    assert len(found.items) == 4
    moved = ["a/v1", "b/v1/attempt-1", ".reproductions/18f", ".jobs"]
    for number, path in enumerate(moved):
        move_out(root(local) / path, tmp_path / f"moved-{number}")
    before = {path for number in range(4) for path in (tmp_path / f"moved-{number}").rglob("*")}
    outcome = execute(found, local)
    assert outcome.deleted == ()
    assert all("symbolic link" in each.reason for each in outcome.skipped)
    assert {path for number in range(4) for path in (tmp_path / f"moved-{number}").rglob("*")} == before


# Jobs and reproductions ----------------------------------------------------------------------------------------------


def job(store: Store, artifact: str, number: int, *, name: str | None = None, **spec: Any) -> str:
    """The folder that a launcher left of an attempt's job."""
    found = named(artifact)
    folder = f".jobs/{name or f'm-{found.name}-a{number}'}"
    values = {"name": found.name, "version": found.version, "partition": found.partition, "prefix": store.prefix, "attempt": number}
    store.objects.create(f"{folder}/spec.json", json.dumps(values | spec).encode())
    store.objects.create(f"{folder}/log-0/00000/000", b"what it said")
    return folder


def jobs(store: Store, days: float = 14) -> list[str]:
    return [path.removeprefix(".jobs/m-") for path in paths(plan(store, rules=Rules(jobs_days=days)).items) if path.startswith(".jobs/")]


def test_folders_of_failed_jobs_are_kept_longer_and_those_of_open_ones_for_good(store: Store) -> None:
    """On this machine and, with a store elsewhere, what a cluster's jobs have left in it."""
    for days in (13, 15, 89, 91):
        put(store, f"good{days}", days=days)
        job(store, f"good{days}", 1)
        give_up(store, f"bad{days}", begin(store, f"bad{days}"), days=days)
        job(store, f"bad{days}", 1)
    begin(store, "open", days=400)
    job(store, "open", 1)
    store.objects.create(".jobs/xla/compiled", b"")
    assert jobs(store) == ["bad91-a1", "good15-a1", "good89-a1", "good91-a1"]
    assert jobs(store, days=0) == ["bad91-a1", "good13-a1", "good15-a1", "good89-a1", "good91-a1"]
    assert jobs(store, days=1000) == []
    clean(store)
    assert sorted(store.objects.names(".jobs")) == ["m-bad13-a1", "m-bad15-a1", "m-bad89-a1", "m-good13-a1", "m-open-a1", "xla"]


def test_a_job_whose_attempt_is_not_known_is_kept_until_its_folder_is_old(local: Store) -> None:
    put(local, "a", days=99)
    folders = [
        job(local, "gone", 1),
        job(local, "a", 1, name="m-a-of-before-a1"),  # an earlier life of the address, which was cleared by hand
        job(local, "x", 1, name="m-hostile-a1", version="../../etc", output_prefix="/etc"),
        job(local, "y", 1, name="m-unread-a1"),
    ]
    local.objects.replace(f"{folders[3]}/spec.json", b"[1")
    for folder in folders:
        os.utime(root(local) / folder, times=(0, (NOW - timedelta(days=89)).timestamp()))
    assert jobs(local) == []
    for folder in folders:
        os.utime(root(local) / folder, times=(0, (NOW - timedelta(days=91)).timestamp()))
    found = plan(local, rules=Rules())
    assert sorted(paths(found.items)) == sorted(folders)


def test_this_machines_jobs_of_a_remote_store_are_cleared_too(tmp_path: Path) -> None:
    store = Store(f"memory://lab-{uuid.uuid4().hex}")
    put(store, "a", days=15)
    (tmp_path / "m-a-a1").mkdir()
    (tmp_path / "m-a-a1" / "spec.json").write_text(json.dumps({"name": "a", "version": "v1", "partition": None, "attempt": 1}))
    found = plan_cleanup(store, ArtifactGraph([toy("a")]), Rules(), now=NOW, jobs=tmp_path)
    assert paths(found.items) == [str(tmp_path / "m-a-a1")]
    assert paths(execute(found, store).deleted) == paths(found.items)
    assert list(tmp_path.iterdir()) == []
    assert holds(store) == {"a@v1"}


def shadow(store: Store, name: str) -> Store:
    return Store(f"{store.prefix}/.reproductions/{name}")


def test_reproductions_go_after_a_day_unless_something_is_being_built_there(store: Store) -> None:
    put(store, "a")
    put(shadow(store, "old"), "a", days=1.5)
    put(shadow(store, "young"), "a", days=0.5)
    begin(shadow(store, "open"), "b", days=3)
    graph = ArtifactGraph([toy("a")])
    found = plan(store, graph)
    assert [(item.kind, item.path) for item in found.items] == [("reproductions", ".reproductions/old")]
    assert [(each.path, each.reason) for each in found.spared] == [(".reproductions/open", BUILT_THERE)]
    assert found.items[0].bytes > 0
    execute(found, store)
    assert store.objects.names(".reproductions") == ["open", "young"]
    assert holds(store) == {"a@v1"}


def test_what_a_reproduction_under_way_reads_stays(store: Store) -> None:
    put(store, "a")
    begin(shadow(store, "x"), "b", "a")
    assert plan(store).items == ()


def test_a_reproduction_in_which_something_happens_after_the_plan_stays(store: Store) -> None:
    for name in ("x", "y"):
        put(shadow(store, name), "a", days=3)
    found = plan(store)
    begin(shadow(store, "x"), "b")
    put(shadow(store, "y"), "b")
    outcome = execute(found, store)
    assert [each.reason for each in outcome.skipped] == [
        BUILT_THERE,
        "something happened there meanwhile",
    ]
    assert store.objects.names(".reproductions") == ["x", "y"]


# The survey ----------------------------------------------------------------------------------------------------------


def test_the_survey_says_who_holds_what_and_what_refers_to_it(store: Store) -> None:
    made = put(store, "raw/a", days=3)
    give_up(store, "raw/a", begin(store, "raw/a"), days=1)
    put(store, "tokenized/b", "raw/a", days=2)
    begin(store, "tokenized/b@v2/00003", "raw/a", days=1)
    give_up(store, "gone@2026.1.1", begin(store, "gone@2026.1.1"), days=30)
    step = replace(toy("raw/a"), owner="team:data")
    found = survey(store, ArtifactGraph([step]), {step.id: ("tutorial",)}).holdings
    assert list(found) == ["gone/2026.1.1", "raw/a/v1", "tokenized/b/v1", "tokenized/b/v2/00003"]
    assert {path: holding.state for path, holding in found.items()} == {
        "gone/2026.1.1": "debris",
        "raw/a/v1": "committed",
        "tokenized/b/v1": "committed",
        "tokenized/b/v2/00003": "building",
    }
    raw = found["raw/a/v1"]
    assert (raw.owner, raw.experiments, raw.declared) == ("team:data", ("tutorial",), True)
    assert (raw.payload_bytes, raw.debris_bytes) == (made.size, len(content(made.id, 2)))
    kept = [path for path in store.objects.files("") if path.startswith("raw/a/v1/.artifact")]
    assert raw.bookkeeping_bytes == sum(len(store.objects.read(path) or b"") for path in kept) > 0
    assert (list(map(str, raw.referrers)), list(map(str, raw.readers))) == (["tokenized/b@v1"], ["tokenized/b@v2/00003"])
    assert found["tokenized/b/v1"].newest_activity == NOW - timedelta(days=2)
    assert (found["tokenized/b/v1"].owner, found["tokenized/b/v1"].declared) == (None, False)
    assert str(found["tokenized/b/v2/00003"].artifact) == "tokenized/b@v2/00003"


def test_committed_yields_records_and_nothing_else(store: Store) -> None:
    put(store, "a")
    put(store, "b/c@v1/00001", "a")
    put(store, "d@dev")
    store.withdraw(named("d@dev"))
    begin(store, "e")
    put(shadow(store, "x"), "a")
    found = store.record(named("a"))
    assert found is not None
    document = found.model_dump_json().encode()
    for path in ("copy/v1", "a/v1/attempt-1/payload", ".jobs/m-x", "a/v1/attempt-1/a/v1"):
        store.objects.replace(f"{path}/.artifact/record.json", document)
    assert [str(each.id) for each in committed(store)] == ["a@v1", "b/c@v1/00001"]
    assert list(committed(Store(f"{store.prefix}/nothing/here"))) == []


def test_inputs_of_a_record_may_be_gone_without_stopping_a_survey(store: Store) -> None:
    lost = Input(name="lost", version="v1", fingerprint="f" * 16, content_digest="c" * 64)
    put(store, "a", inputs=(lost,))
    assert "lost/v1" not in survey(store).holdings
