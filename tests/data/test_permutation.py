import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.data.permutation import PHASE_STEP, UNIT, Apportionment, Permutation, floor_sum, integer_weights, permutation_key

WEB = permutation_key(0, "web", 0, "blocks")


def test_keys_and_orders_are_those_of_the_specification() -> None:
    assert WEB == 10354228467273912355
    assert Permutation(10, WEB)(np.arange(10)).tolist() == [9, 2, 5, 1, 8, 0, 7, 4, 3, 6]
    assert Permutation(1000, WEB)(np.arange(8)).tolist() == [431, 571, 534, 234, 243, 833, 536, 561]
    code = Permutation(90257, permutation_key(17, "code", 3, "blocks"))
    assert code(np.arange(5)).tolist() == [41244, 2142, 78667, 36886, 86780]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 1023, 1024, 1025, 1_000_000])
def test_it_is_a_bijection_with_its_inverse(n: int) -> None:
    permutation = Permutation(n, 42)
    indices = np.arange(n)
    images = permutation(indices)
    assert np.array_equal(np.sort(images), indices)
    assert np.array_equal(permutation.inverse(images), indices)


@settings(max_examples=50)
@given(n=st.integers(1, 3_000), key=st.integers(0, 2**64 - 1))
def test_any_size_and_key_give_a_bijection(n: int, key: int) -> None:
    permutation = Permutation(n, key)
    images = permutation(np.arange(n))
    assert len(set(images.tolist())) == n
    assert np.array_equal(permutation.inverse(images), np.arange(n))


def test_an_empty_domain_is_refused() -> None:
    with pytest.raises(ValueError, match="n = 0"):
        Permutation(0, 1)


def test_the_lowest_bit_depends_on_all_input_bits() -> None:
    n = 1 << 16
    images = Permutation(n, 7)(np.arange(n))
    low = images & 1
    for bit in range(16):
        flipped = low[np.arange(n) ^ (1 << bit)]
        assert 0.45 < (low != flipped).mean() < 0.55


def test_block_counts_are_those_of_the_specification() -> None:
    shares = Apportionment(integer_weights([0.7, 0.2, 0.1]), 8)
    counts = [np.diff(shares.block_bounds(block)).tolist() for block in range(5)]
    assert counts == [[5, 2, 1], [6, 1, 1], [5, 2, 1], [6, 2, 0], [6, 1, 1]]


@settings(max_examples=60)
@given(weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=12).filter(lambda w: sum(w) > 0), block=st.integers(0, 300))
def test_blocks_sum_up_and_prefixes_are_closed_form(weights: list[float], block: int) -> None:
    integers = integer_weights(weights)
    assert sum(integers) == UNIT
    assert all((weight > 0) >= (integer > 0) for weight, integer in zip(weights, integers, strict=True))
    shares = Apportionment(integers, 64)
    counts = np.array([np.diff(shares.block_bounds(index)) for index in range(block + 1)])
    assert (counts.sum(axis=1) == 64).all()
    assert (counts >= 0).all()
    assert shares.counts_before(block) == counts[:block].sum(axis=0).tolist()


def test_no_prefix_is_off_by_more_than_four_sequences() -> None:
    weights = np.random.default_rng(0).dirichlet(np.full(200, 0.3))
    integers = integer_weights(weights.tolist())
    shares = Apportionment(integers, 2_048)
    for block in (1, 10, 999, 40_000, 90_000):
        for count, integer in zip(shares.counts_before(block), integers, strict=True):
            assert abs(count - block * 2_048 * integer / UNIT) <= 4


@given(n=st.integers(0, 50), m=st.integers(1, 1_000), a=st.integers(0, 5_000), b=st.integers(0, 5_000))
def test_the_floor_sum_is_the_sum(n: int, m: int, a: int, b: int) -> None:
    assert floor_sum(n, m, a, b) == sum((a * i + b) // m for i in range(n))


def test_equal_remainders_go_to_the_first_names() -> None:
    assert integer_weights([1, 1, 1]) == [UNIT // 3 + 1, UNIT // 3, UNIT // 3]
    assert integer_weights([1, 0]) == [UNIT, 0]
    assert PHASE_STEP % 2 == 1
