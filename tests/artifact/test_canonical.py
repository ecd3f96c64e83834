"""Canonical JSON: one text for one value, and no text for a value that has none."""

import enum
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.artifact.canonical import canonical_json, digest, flatten, identity_value
from marin_core.errors import ConfigError

leaf = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20)


@given(values)
def test_canonical_json_round_trips_and_is_a_fixed_point(value: object) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


def test_the_digest_of_a_known_value_never_changes() -> None:
    value = {"b": [1, 2.5, "ü", None, True], "a": {"y": 1e-7, "x": 10**20}}
    assert canonical_json(value).decode() == '{"a":{"x":100000000000000000000,"y":1e-07},"b":[1,2.5,"ü",null,true]}'
    assert digest(value) == "ad22fcb62f12c9c14eec5f914228dc454dde4445d588b302e449c754e5312072"


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", lambda: 1, {1: 2}, math.nan, math.inf])
def test_a_value_without_a_canonical_form_is_an_error_that_names_the_field(value: object) -> None:
    with pytest.raises(ConfigError, match=r"config\.field"):
        identity_value({"field": value})


def test_enums_stand_for_their_values() -> None:
    class Colour(enum.Enum):
        RED = "red"

    assert identity_value([Colour.RED]) == ["red"]


@given(st.dictionaries(st.text(alphabet="abc", min_size=1), values, max_size=4))
def test_flatten_distinguishes_what_differs(value: dict[str, object]) -> None:
    changed = {**value, "new": 1}
    assert flatten(changed) != flatten(value) or value.get("new") == 1
