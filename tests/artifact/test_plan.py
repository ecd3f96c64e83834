"""What an artifact needs, and plans of deep and wide graphs."""

import pytest

from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Store
from marin_core.artifact.code import CodeTable
from marin_core.artifact.drift import DriftFinder
from marin_core.artifact.plan import Plan, needed, plan
from marin_core.errors import ConfigError
from tests.artifact.test_graph import Toy, toy


def family(name: str, *deps: ArtifactStep, keys: tuple[str, ...] = ("0", "1", "2")) -> ArtifactStep:
    return ArtifactStep(name, "v1", job="toy", build_config=lambda ctx: Toy(), deps=deps, partitions=keys)


def names(graph: ArtifactGraph, *targets: str) -> list[str]:
    return [str(artifact) for artifact in needed(graph, map(ArtifactId.parse, targets))]


def test_members_that_several_targets_need_are_joined() -> None:
    source = family("source")
    graph = ArtifactGraph([family("alike", source), toy("whole", source)])
    assert names(graph, "alike@v1/2", "alike@v1/0") == ["source@v1/0", "source@v1/2", "alike@v1/0", "alike@v1/2"]
    assert names(graph, "alike@v1/2", "whole@v1") == ["source@v1/0", "source@v1/1", "source@v1/2", "alike@v1/2", "whole@v1"]
    assert names(graph, "source@v1") == ["source@v1/0", "source@v1/1", "source@v1/2"]


def test_a_target_nobody_declares_is_refused() -> None:
    with pytest.raises(ConfigError, match="no experiment declares other@v1"):
        names(ArtifactGraph([toy("a")]), "other@v1")


def planned(target: ArtifactStep) -> Plan:
    graph, store = ArtifactGraph([target]), Store("memory://plan")
    return plan(graph, [target.id], store, DriftFinder(graph, store, code=lambda job: CodeTable(files={})))


def test_a_chain_of_5000_and_a_fan_of_5000_need_no_recursion() -> None:
    last = toy("n0")
    for index in range(1, 5_000):
        last = toy(f"n{index}", last)
    assert planned(last).counts() == {"build": 5_000}
    fan = planned(toy("all", *(toy(f"leaf{index}") for index in range(5_000))))
    assert (fan.counts(), fan.is_done, fan.without_estimate) == ({"build": 5_001}, False, 5_001)
