"""Drift: which artifact, which kind, which field, and what is no drift."""

from typing import Any

import fsspec
import pytest

from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Store
from marin_core.artifact.code import CodeTable
from marin_core.artifact.drift import Difference, DriftFinder
from tests.artifact.test_graph import toy
from tests.artifact.test_store import commit as commit_record
from tests.artifact.test_store import record


def commit(store: Store, graph: ArtifactGraph, step: ArtifactStep, content: str) -> None:
    """A record as a job would write it: today's identity, and the inputs as they are in the store."""
    found = [store.record(dep.id) for dep in step.deps]
    inputs = tuple(each.as_input() for each in found if each is not None)
    identity: dict[str, Any] = {"fingerprint": graph.fingerprint(step), "identity": graph.identity(step), "inputs": inputs}
    commit_record(store, record(step.id, content=content * 64, **identity))


def chain(a: float = 0.5, b: float = 0.5, c: float = 0.5) -> ArtifactGraph:
    return ArtifactGraph([toy("c", toy("b", toy("a", literal=a), literal=b), literal=c)])


@pytest.fixture
def store() -> Store:
    store = Store("memory://drift")
    fsspec.filesystem("memory").store.clear()
    graph = chain()
    for step in graph:
        commit(store, graph, step, step.name)
    return store


def drift(store: Store, graph: ArtifactGraph, name: str) -> tuple[Difference, ...]:
    return DriftFinder(graph, store, code=lambda job: CodeTable(files={})).of(ArtifactId(name, "v1"))


def test_what_was_built_as_declared_has_no_drift(store: Store) -> None:
    assert [drift(store, chain(), name) for name in "abc"] == [(), (), ()]


def test_a_changed_literal_drifts_its_artifact_and_all_downstream_naming_the_field(store: Store) -> None:
    changed = chain(b=0.75)
    expected = (Difference("config", "b@v1", "literal", "0.5", "0.75"),)
    assert drift(store, changed, "a") == ()
    assert drift(store, changed, "b") == expected
    assert drift(store, changed, "c") == expected


def rebuild(store: Store, graph: ArtifactGraph, name: str, content: str) -> None:
    step = graph[ArtifactId(name, "v1")]
    store.forget(step.id)
    commit(store, graph, step, content)


def test_an_input_rebuilt_with_equal_content_is_no_drift(store: Store) -> None:
    changed = chain(a=0.75)
    rebuild(store, changed, "a", "a")
    assert drift(store, changed, "b") == ()
    assert drift(store, changed, "c") == ()


def test_an_input_rebuilt_with_other_content_is_data_drift_downstream(store: Store) -> None:
    rebuild(store, chain(), "a", "x")
    found = drift(store, chain(), "b")
    assert [(each.kind, each.artifact, each.field) for each in found] == [("data", "b@v1", "a@v1")]
    assert drift(store, chain(), "c") == found


def test_a_field_that_was_added_or_removed_is_named(store: Store) -> None:
    graph = ArtifactGraph([toy("a", table={"new": 1})])
    fields = {each.field: (each.recorded, each.declared) for each in drift(store, graph, "a")}
    assert fields == {"table": ("{}", "absent"), "table.new": ("absent", "1")}
