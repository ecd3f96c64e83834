"""The digest of a state sees every change of its arrays, and nothing of how they lie on devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from marin_core.model.mesh import make_mesh
from marin_core.train.checkpoint import digest as digest_module
from marin_core.train.checkpoint.digest import finish_digests, lanes, start_digests
from marin_core.train.checkpoint.metadata import Leaf, content_digest

DTYPES = [np.float32, jnp.bfloat16, np.int32, np.uint8, np.bool_]
SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


def arrays(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    bits = np.random.default_rng(seed).integers(0, 256, size=(*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    elements = bits.astype(np.bool_) if dtype is np.bool_ else bits.view(dtype)
    return np.asarray(elements[..., 0])


def reference(array: np.ndarray) -> list[int]:
    """The formula as its docstring has it, in Python's integers, element by element."""

    def mix(x: int) -> int:
        x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
        x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
        return x ^ x >> 16

    table = np.atleast_1d(array).reshape(-1, np.atleast_1d(array).shape[-1])
    sums = [0] * table.shape[1]
    for row, elements in enumerate(table):
        for column, element in enumerate(elements):
            bits = int.from_bytes(element.tobytes(), "little")
            sums[column] += mix((0x9E3779B1 * bits + 0x85EBCA77 * row) % 2**32)
    pairs = ((0xC2B2AE3D, 0x27D4EB2F), (0x165667B1, 0x7FEB352D))
    return [sum(mix((p * total + q * column) % 2**32) for column, total in enumerate(sums)) % 2**32 for p, q in pairs]


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.sampled_from(DTYPES), st.integers(0, 1000))
def test_the_digest_is_its_formula(shape: tuple[int, ...], dtype: Any, seed: int) -> None:
    array = arrays(shape, dtype, seed)
    assert [int(lane) for lane in lanes(array, np)] == reference(array)


@settings(max_examples=200, deadline=None)
@given(SHAPES, st.sampled_from(DTYPES[:4]), st.integers(0, 1000), st.data())
def test_any_flipped_bit_and_any_two_swapped_elements_change_it(shape: tuple[int, ...], dtype: Any, seed: int, data: st.DataObject) -> None:
    array = arrays(shape, dtype, seed)
    flipped = array.copy().reshape(-1)
    raw = flipped.view(np.uint8)
    raw[data.draw(st.integers(0, raw.size - 1))] ^= np.uint8(1 << data.draw(st.integers(0, 7)))
    assert not np.array_equal(lanes(flipped.reshape(shape), np), lanes(array, np))
    first, second = (data.draw(st.integers(0, array.size - 1)) for _ in range(2))
    swapped = array.copy().reshape(-1)
    swapped[[first, second]] = swapped[[second, first]]
    if swapped.tobytes() != array.tobytes():
        assert not np.array_equal(lanes(swapped.reshape(shape), np), lanes(array, np))


def test_zeros_of_another_sign_nans_of_another_payload_and_other_shapes_differ() -> None:
    kinds = {
        "zero": np.zeros(4, np.float32),
        "negative zero": -np.zeros(4, np.float32),
        "nan": np.array([0x7FC00000] * 4, np.uint32).view(np.float32),
        "another nan": np.array([0x7FC00001] * 4, np.uint32).view(np.float32),
    }
    assert len(set(finish_digests({name: lanes(array, np) for name, array in kinds.items()}).values())) == 4
    leaf = Leaf(dtype="float32", shape=(4,), digest="0" * 16)
    others = [leaf.changed(shape=(2, 2)), leaf.changed(dtype="int32"), leaf.changed(digest="0" * 15 + "1")]
    assert len({content_digest({"a": each}) for each in (leaf, *others)} | {content_digest({"b": leaf})}) == 5


def test_devices_compute_what_numpy_does_however_an_array_is_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_module, "HOST_BYTES", 0)
    one = SingleDeviceSharding(jax.devices()[0])
    wide, tall = make_mesh(2, 4), make_mesh(4, 2)
    specs = [PartitionSpec(), PartitionSpec(None, "expert"), PartitionSpec("rack", None, "expert"), PartitionSpec(("rack", "expert"))]
    for dtype in (np.float32, jnp.bfloat16):
        array = arrays((8, 24, 16), dtype, seed=5)
        expected = finish_digests({"x": lanes(array, np)})
        three = [NamedSharding(wide, specs[0]), NamedSharding(tall, specs[2]), NamedSharding(wide, specs[3])]
        for sharding in (one, *three):
            assert finish_digests(start_digests({"x": jax.device_put(array, sharding)})) == expected, sharding
    scalar = jax.device_put(np.int32(7), NamedSharding(wide, PartitionSpec()))
    assert finish_digests(start_digests({"x": scalar})) == finish_digests({"x": lanes(np.array(7, np.int32), np)})


def test_elements_that_no_state_has_are_refused() -> None:
    with pytest.raises(TypeError, match="arrays of float64 have no digest"):
        lanes(np.zeros(3), np)
