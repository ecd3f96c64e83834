"""Handles and graphs: laziness, fingerprints, conflicts, cycles, depth."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Resources, StepContext
from marin_core.config import OPERATIONAL, Config
from marin_core.errors import ConfigError


class Toy(Config):
    literal: float = 0.5
    inputs: tuple[str, ...] = ()
    table: dict[str, int] = Field(default_factory=dict)
    workers: int = Field(default=1, json_schema_extra=OPERATIONAL)


def toy(
    name: str, *deps: ArtifactStep, version: str = "v1", make: Callable[[StepContext], Config] | None = None, **changes: Any
) -> ArtifactStep:
    build = make or (lambda ctx: Toy(inputs=tuple(ctx.address(dep) for dep in deps), **changes))
    return ArtifactStep(name, version, job="toy", build_config=build, deps=deps)


def fingerprint(step: ArtifactStep) -> str:
    graph = ArtifactGraph([step])
    return graph.fingerprint(graph[step.id])


def test_literals_enter_the_fingerprint_and_context_values_do_not() -> None:
    base = fingerprint(toy("b", toy("a")))
    assert fingerprint(toy("b", toy("a"), literal=0.25)) != base
    assert fingerprint(toy("b", toy("a"), workers=64)) == base
    step = toy("b", toy("a"))
    assert step.config("gs://bucket/x").inputs != step.config("file:///y").inputs  # type: ignore[attr-defined]
    assert fingerprint(step) == base


def test_a_change_upstream_changes_every_fingerprint_downstream() -> None:
    def chain(literal: float) -> ArtifactGraph:
        return ArtifactGraph([toy("c", toy("b", toy("a", literal=literal)))])

    first, second = chain(0.5), chain(0.6)
    for one, other in zip(first, second, strict=True):
        assert first.fingerprint(one) != second.fingerprint(other)


@given(st.dictionaries(st.text(min_size=1), st.integers(), max_size=6))
def test_the_order_of_a_mapping_does_not_matter(table: dict[str, int]) -> None:
    backwards = dict(reversed(table.items()))
    assert fingerprint(toy("a", table=table)) == fingerprint(toy("a", table=backwards))


def test_resources_and_place_of_declaration_are_not_identity() -> None:
    def step(cpus: int) -> ArtifactStep:
        return ArtifactStep("a", "v1", job="toy", build_config=lambda ctx: Toy(), resources=Resources(cpus=cpus))

    assert fingerprint(step(1)) == fingerprint(step(16))


def test_reading_an_undeclared_dependency_is_an_error_when_the_handle_is_made() -> None:
    hidden = toy("hidden")
    with pytest.raises(ConfigError, match="hidden@v1, which is not among its deps"):
        toy("b", make=lambda ctx: Toy(inputs=(ctx.address(hidden),)))


def test_a_bad_literal_fails_where_the_handle_is_made_and_names_the_field() -> None:
    with pytest.raises(ConfigError, match="unknown field 'literall'"):
        toy("a", literall=1.0)
    with pytest.raises(ConfigError, match="literal"):
        toy("a", literal=float("nan"))


def test_one_identity_with_two_configurations_names_both_places_and_the_field() -> None:
    one, other = toy("a", literal=0.5), toy("a", literal=0.75)
    places = r"a@v1 is declared twice .*test_graph.py:\d+ and at .*test_graph.py:\d+"
    with pytest.raises(ConfigError, match=places + ": config.literal: 0.5 against 0.75"):
        ArtifactGraph([toy("b", one), toy("c", other)])


def test_equal_handles_made_twice_are_one_artifact() -> None:
    graph = ArtifactGraph([toy("b", toy("a")), toy("c", toy("a"))])
    assert [str(step.id) for step in graph] == ["a@v1", "b@v1", "c@v1"]


def test_a_cycle_is_refused_and_named() -> None:
    with pytest.raises(ConfigError, match="declared twice"):
        ArtifactGraph([toy("a", toy("b", toy("a")))])  # the inner a has no dependency, so it is another declaration
    loop = toy("a")
    object.__setattr__(loop, "deps", (toy("b", loop),))
    with pytest.raises(ConfigError, match="cycle: a@v1, b@v1"):
        ArtifactGraph([loop])


def test_a_fixed_version_may_not_depend_on_a_mutable_one() -> None:
    with pytest.raises(ConfigError, match="depends on a@dev"):
        toy("b", toy("a", version="dev"))
    assert toy("b", toy("a", version="dev"), version="dev").deps


def test_no_artifact_may_lie_inside_another() -> None:
    with pytest.raises(ConfigError, match=r"a/v1/c@v1 .* would lie inside a@v1"):
        ArtifactGraph([toy("a"), toy("a/v1/c")])


def test_chains_of_5000_and_fans_of_10000_need_no_recursion() -> None:
    last = toy("n0")
    for index in range(1, 5_000):
        last = toy(f"n{index}", last)
    graph = ArtifactGraph([last])
    assert len(graph) == 5_000
    assert len(graph.upstream([graph[last.id]])) == 5_000
    fan = toy("all", *(toy(f"leaf{index}") for index in range(10_000)))
    assert len(ArtifactGraph([fan])) == 10_001


def test_a_family_read_by_a_family_cut_alike_is_read_shard_by_shard() -> None:
    keys = ("00000", "00001")
    source = ArtifactStep("s", "v1", job="toy", build_config=lambda ctx: Toy(), partitions=keys)
    same = ArtifactStep("t", "v1", job="toy", build_config=lambda ctx: Toy(inputs=ctx.members(source)), deps=(source,), partitions=keys)
    whole = ArtifactStep("u", "v1", job="toy", build_config=lambda ctx: Toy(inputs=ctx.members(source)), deps=(source,))
    assert same.reads(source, "00001") == (ArtifactId("s", "v1", "00001"),)
    assert whole.reads(source, None) == source.ids()
    assert same.config("file:///x", "00001").inputs == ("file:///x/s/v1/00001",)  # type: ignore[attr-defined]
    assert len(whole.config("file:///x").inputs) == 2  # type: ignore[attr-defined]
