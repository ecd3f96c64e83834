from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.data.dedup import components
from marin_core.data.dedup.components import Components, propagated
from marin_core.errors import MarinError

EDGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).filter(lambda edge: edge[0] != edge[1]), max_size=60)


def expected(edges: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Union-find, one edge at a time."""
    parent: dict[int, int] = {}

    def root(node: int) -> int:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for left, right in edges:
        low, high = sorted((root(left), root(right)))
        parent[high] = low
    return {node: root(node) for node in parent}


@given(EDGES, st.sampled_from([1, 7, 1000]), st.sampled_from([0, 10**8]))
def test_components_are_those_of_union_find(edges: list[tuple[int, int]], buffer: int, scipy_edges: int) -> None:
    made = Components(buffer, scipy_edges)
    for start in range(0, len(edges), 5):
        left, right = np.array(edges[start : start + 5], np.int64).T
        made.add(left, right)
    rows, roots = made.finish()
    assert dict(zip(rows.tolist(), roots.tolist(), strict=True)) == expected(edges)
    assert rows.tolist() == sorted(rows.tolist())


def test_a_long_chain_in_random_order_is_one_component() -> None:
    order = np.random.default_rng(0).permutation(10_000)
    assert not propagated(order[:-1], order[1:], len(order)).any()
    made = Components(buffer_edges=700)
    for start in range(0, len(order) - 1, 1_000):
        made.add(order[start : start + 1_000][: len(order) - 1 - start], order[start + 1 : start + 1_001])
    rows, roots = made.finish()
    assert len(rows) == len(order)
    assert not roots.any()


def test_labels_that_dont_settle_are_a_failure_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "MAX_ROUNDS", 1)
    order = np.random.default_rng(0).permutation(10_000)
    with pytest.raises(MarinError, match="don't settle within 1 rounds") as caught:
        propagated(order[:-1], order[1:], len(order))
    assert caught.value.exit_code == 70
