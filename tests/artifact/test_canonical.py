"""Canonical JSON: one text for one value on every machine, and no text for a value that has none."""

import dataclasses
import enum
import inspect
import itertools
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from marin_core.artifact import ArtifactGraph, ArtifactStep
from marin_core.artifact.canonical import (
    FieldNotes,
    canonical_json,
    digest,
    field_notes,
    flatten,
    identity_value,
    value_differences,
)
from marin_core.config import OPERATIONAL, Config
from marin_core.errors import ConfigError

GOLDEN = Path(__file__).parent / "fixtures" / "canonical.json"
"""Values with the texts and digests that they had when this file was made; the fingerprints of all labs depend on them."""

leaf = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20)


def identity_digest(value: object) -> str:
    return digest(identity_value(value))


# One text for one value ----------------------------------------------------------------------------------------------


@given(values)
def test_canonical_json_round_trips_and_is_a_fixed_point(value: object) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@given(values)
def test_an_identity_is_plain_json_and_a_fixed_point(value: object) -> None:
    once = identity_value(value)
    assert canonical_json(identity_value(once)) == canonical_json(once)
    assert canonical_json(identity_value(json.loads(canonical_json(once)))) == canonical_json(once)


def meaning(value: Any, *, by_value: bool = False) -> Any:
    """What a value says, by other means: equal meanings are equal in Python, also inside sets.

    Args:
        by_value: 1 and 1.0 say the same, as they do in a comparison of two configurations.
    """
    if isinstance(value, bool) or value is None:
        return "constant", str(value)
    if isinstance(value, int | float):
        return "number" if by_value else type(value).__name__, Fraction(value)
    if isinstance(value, dict):
        return "mapping", frozenset((key, meaning(item, by_value=by_value)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return "list", tuple(meaning(item, by_value=by_value) for item in value)
    return "text", value


@given(values, values)
def test_digests_are_equal_exactly_if_values_are(one: object, other: object) -> None:
    assert (identity_digest(one) == identity_digest(other)) == (meaning(one) == meaning(other))


def otherwise(value: Any) -> Any:
    """The same value in other clothes: mappings backwards and of another class, tuples for lists."""
    if isinstance(value, dict):
        return OrderedDict((key, otherwise(item)) for key, item in reversed(value.items()))
    return tuple(otherwise(item) for item in value) if isinstance(value, list) else value


@given(values)
def test_order_of_keys_and_kind_of_container_do_not_matter(value: object) -> None:
    assert identity_digest(otherwise(value)) == identity_digest(value)


def with_leaf(value: Any, index: int, new: object) -> Any:
    """A value with another leaf in one place."""
    counted = itertools.count()

    def walk(item: Any) -> Any:
        if isinstance(item, dict) and item:
            return {key: walk(each) for key, each in item.items()}
        if isinstance(item, list) and item:
            return [walk(each) for each in item]
        return new if next(counted) == index else item

    return walk(value)


@given(values, leaf, st.data())
def test_one_other_leaf_is_another_digest_and_a_difference_of_one_field(value: object, new: object, data: st.DataObject) -> None:
    changed = with_leaf(value, data.draw(st.integers(0, len(flatten(value)) - 1)), new)
    assert (identity_digest(changed) == identity_digest(value)) == (meaning(changed) == meaning(value))
    shown = value_differences(identity_value(value), identity_value(changed), FieldNotes())
    assert len(shown) == (meaning(changed, by_value=True) != meaning(value, by_value=True))


@given(values, values)
def test_two_values_have_no_difference_only_if_they_are_equal(one: object, other: object) -> None:
    shown = value_differences(identity_value(one), identity_value(other), FieldNotes())
    assert bool(shown) == (meaning(one, by_value=True) != meaning(other, by_value=True))
    assert all(recorded != declared for recorded, declared in shown.values())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1], {"0": 1}),
        ({"a.b": 1}, {"a": {"b": 1}}),
        ({"a": {"": 1}}, {"a.": 1}),
        ({"": {"": 1}}, {".": 1}),
        ({'"0"': 1}, {"0": 1}),
        ([], {}),
        ([[]], []),
        ({"a": None}, {}),
        ("1", 1),
        (True, 1),
        (False, 0.0),
        (None, "null"),
        ("é", "e\u0301"),  # no Unicode normalisation: a file of either name is another file
    ],
)
def test_what_looks_alike_differs(one: object, other: object) -> None:
    assert identity_digest(one) != identity_digest(other)
    ((_, (recorded, declared)), *_) = value_differences(one, other, FieldNotes()).items()
    assert recorded != declared


def test_the_digest_of_a_known_value_never_changes() -> None:
    value = {"b": [1, 2.5, "ü", None, True], "a": {"y": 1e-7, "x": 10**20}}
    assert canonical_json(value).decode() == '{"a":{"x":100000000000000000000,"y":1e-07},"b":[1,2.5,"ü",null,true]}'
    assert digest(value) == "ad22fcb62f12c9c14eec5f914228dc454dde4445d588b302e449c754e5312072"


# Numbers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "1"),
        # Its field makes a number an integer or a float before it comes here. Where a class changes its mind, or a field takes
        # anything, fingerprints differ, but drift compares numbers by value.
        (1.0, "1.0"),
        (-0.0, "0.0"),
        (1e22, "1e+22"),
        (5e-324, "5e-324"),
        (2.0**53, "9007199254740992.0"),
        (2**53 + 1, "9007199254740993"),
        (10**400, f"1{'0' * 400}"),
        (0.1 + 0.2, "0.30000000000000004"),
        (np.float64(0.1), "0.1"),
        (True, "true"),
    ],
)
def test_a_number_has_one_text(number: float, text: str) -> None:
    assert canonical_json(identity_value(number)).decode() == text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused(number: float) -> None:
    with pytest.raises(ConfigError, match=r"config\.rate is (nan|inf|-inf)"):
        identity_value({"rate": number})


def test_a_number_longer_than_python_prints_is_refused() -> None:
    with pytest.raises(ConfigError, match="config is a number of 20000 bits"):
        identity_value(2**19_999)


# Values of other types -----------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Named(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass(frozen=True)
class Window:
    blocks: int
    colour: Colour = Colour.RED


class Pair(NamedTuple):
    left: int
    right: int


class Rule(Config):
    name: str = "rule"
    limit: float = 1.0
    workers: int = Field(default=8, json_schema_extra=OPERATIONAL)


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")

    known: int = 1


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Colour.RED, "red"),
        (Named.RED, "red"),
        (Level.HIGH, 3),
        ({Named.RED: 1}, {"red": 1}),
        (Window(2), {"blocks": 2, "colour": "red"}),
        (Pair(1, 2), [1, 2]),
        (MappingProxyType({"a": (1,)}), {"a": [1]}),
        (Rule(limit=2), {"name": "rule", "limit": 2.0}),
        (Loose.model_validate({"more": [1]}), {"known": 1, "more": [1]}),
        (np.dtype("float32"), "float32"),
        (np.float32, "float32"),
        (jnp.float32, "float32"),
        (jnp.bfloat16, "bfloat16"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (jnp.dtype("bfloat16"), "bfloat16"),
        (np.dtype("datetime64[ns]"), "datetime64[ns]"),
        (np.bool_, "bool"),
    ],
)
def test_a_value_stands_for_what_it_says(value: object, plain: object) -> None:
    assert identity_value({"field": value}) == {"field": plain}
    assert type(identity_value(value)) is type(plain)
    assert all(type(key) is str for key in flatten(identity_value(value)))


def test_a_model_is_its_fields_and_the_operational_ones_are_left_out() -> None:
    assert identity_digest({"rule": Rule()}) == identity_digest({"rule": {"limit": 1.0, "name": "rule"}})
    assert identity_digest(Rule(workers=64)) == identity_digest(Rule())
    assert identity_digest(Rule(limit=2)) != identity_digest(Rule())


HOLDS_ITSELF: list[object] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        frozenset("a"),
        b"bytes",
        bytearray(b"bytes"),
        Path("/tmp"),  # noqa: S108
        datetime(2026, 11, 29, tzinfo=UTC),
        date(2026, 11, 29),
        timedelta(1),
        Decimal("0.1"),
        Fraction(1, 3),
        1j,
        len,
        lambda: 1,
        Colour,
        Window,
        int,
        math,
        iter([1]),
        (each for each in [1]),
        range(3),
        np.arange(3),
        np.int64(3),
        np.float32(0.5),
        np.dtype(">f4"),  # another order of bytes under the same name
        np.dtype([("a", "f4")]),
        np.floating,
        math.nan,
        {1: "integer"},
        {True: "switch"},
        {None: "nothing"},
        {b"a": "bytes"},
        {Level.HIGH: "number"},
        {("a", "b"): "tuple"},
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("wrap", [lambda value: {"a": [0, {"field": value}]}, lambda value: {"a": (0, {"field": [value]})}])
def test_a_value_without_a_canonical_form_is_an_error_that_names_the_field(value: object, wrap: Callable[[object], object]) -> None:
    with pytest.raises(ConfigError, match=r"config\.a\.1\.field") as error:
        identity_value(wrap(value))
    assert "What to do" in str(error.value)


@pytest.mark.parametrize("value", ["\ud800", "a\udfffb", ["\ud800"], {"\ud800": 1}, {"x\udc80": {}}])
def test_text_that_is_no_unicode_is_an_error_that_names_the_field(value: object) -> None:
    with pytest.raises(ConfigError, match=r"config\.field.* lone surrogate at [01]"):
        identity_value({"field": value})
    with pytest.raises(ConfigError, match=r"document\.field.* lone surrogate"):
        canonical_json({"field": value})


@pytest.mark.parametrize("text", ["\U0010ffff", "\x00", "\u2028", "\ufeff", "\x7f", '"\\'])
def test_any_other_text_survives(text: str) -> None:
    assert json.loads(canonical_json(identity_value({text: text}))) == {text: text}


def test_a_value_that_is_too_deep_or_endless_is_an_error() -> None:
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, HOLDS_ITSELF):
        with pytest.raises(ConfigError, match="nested too deeply, or holds itself"):
            identity_value(value)


@given(st.dictionaries(st.text(alphabet="abc", min_size=1), values, max_size=4))
def test_flatten_distinguishes_what_differs(value: dict[str, object]) -> None:
    changed = {**value, "new": 1}
    assert flatten(changed) != flatten(value) or value.get("new") == 1


# Other processes, other versions of Python ---------------------------------------------------------------------------

OTHER_PROCESS = f"""
import hashlib, json, struct, sys
from typing import Any
{inspect.getsource(canonical_json)}
{inspect.getsource(digest)}
given = json.load(sys.stdin)
numbers = [struct.unpack(">d", bytes.fromhex(each))[0] for each in given["numbers"]]
made = [[canonical_json(value).decode(), digest(value)] for value in given["values"] + numbers]
print(json.dumps(made))
"""
"""Canonical JSON needs the standard library alone, so that an interpreter without this project's packages can be asked."""


def python_3_13() -> str | None:
    """A Python 3.13 of this machine that runs."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which("python3.13"), *map(str, sorted(pyenv.glob("versions/3.13*/bin/python")))]
    for each in filter(None, found):
        done = subprocess.run([each, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False)
        if done.stdout.split() == ["3", "13"]:
            return each
    return None


def golden() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(GOLDEN.read_text())
    return cases


@pytest.mark.parametrize("python", [sys.executable, pytest.param(python_3_13(), id="3.13")])
def test_another_process_writes_the_same_text(python: str | None) -> None:
    if python is None:
        pytest.skip("there is no Python 3.13 on this machine")
    source = random.Random(0)
    numbers = [each for _ in range(5_000) if math.isfinite(each := struct.unpack(">d", source.randbytes(8))[0])]
    plain = [json.loads(case["canonical"]) for case in golden()]
    given = json.dumps({"values": plain, "numbers": [struct.pack(">d", each).hex() for each in numbers]})
    done = subprocess.run([python, "-c", OTHER_PROCESS], input=given, capture_output=True, text=True, check=True)
    ours = [[canonical_json(value).decode(), digest(value)] for value in [*plain, *numbers]]
    assert json.loads(done.stdout) == ours
    assert [float(text) for text, _ in ours[len(plain) :]] == numbers


@pytest.mark.parametrize("case", golden(), ids=lambda case: case["name"])
def test_a_golden_value_has_the_text_and_the_digest_that_it_always_had(case: dict[str, Any]) -> None:
    assert canonical_json(identity_value(case["value"])).decode() == case["canonical"]
    assert identity_digest(case["value"]) == case["digest"]


def test_a_fingerprint_covers_what_it_always_did() -> None:
    source = ArtifactStep("raw/words", "v1", job="ingest", build_config=lambda ctx: Rule(limit=0.5))
    family = ArtifactStep(
        "filtered/words", "v1", job="filter", build_config=lambda ctx: Rule(name=ctx.address(source)), deps=(source,), partitions=("0", "1")
    )
    graph = ArtifactGraph([family])
    assert graph.identity(family) == {
        "job": "filter",
        "config": {"name": "artifact:raw/words@v1", "limit": 1.0},
        "deps": {"raw/words@v1": graph.fingerprint(source)},
    }
    assert [graph.fingerprint(step) for step in graph] == ["dd12530d0e042306", "f590bbe4f82442ca"]


# What a class says about its fields ----------------------------------------------------------------------------------


class Outer(Config):
    required: Rule
    rules: tuple[Rule, ...] = ()
    table: dict[str, Rule] = Field(default_factory=dict)
    window: Any = Window(2)
    place: str = Field(default="here", json_schema_extra=OPERATIONAL)


def test_fields_at_their_defaults_are_known_wherever_they_stand() -> None:
    outer = Outer(required=Rule(limit=2), rules=(Rule(), Rule(name="other")), table={"a.b": Rule(limit=3)}, window=Window(2))
    notes = field_notes(outer)
    assert notes.defaults == {
        "required.name",
        "rules.0.name",
        "rules.0.limit",
        "rules.1.limit",
        'table."a.b".name',
        "window",
        "window.colour",
    }
    assert notes.operational == {"place", "required.workers", "rules.0.workers", "rules.1.workers", 'table."a.b".workers'}


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ({"required": {"name": "rule"}}, {}),  # `limit` came later, and so did all the rest
        ({"required": {"name": "rule"}, "rules": []}, {}),
        ({"required": {"name": "rule"}, "place": "there"}, {}),
        ({"required": {}, "old": 1}, {"old": ("1", "absent"), "rules": ("absent", "[]"), "table": ("absent", "{}")}),
        ({"rules": []}, {"required.limit": ("absent", "1.0"), "required.name": ("absent", "rule")}),
        ({"required": {"name": "rule", "limit": 1.0}}, {}),
        ({"required": {"name": "rule", "limit": True}}, {"required.limit": ("True", "1.0")}),
        ({"required": {"name": "rule", "limit": 1}}, {}),
        ({"required": {"name": "rule", "limit": "1.0"}}, {"required.limit": ('"1.0"', "1.0")}),
        ({"required": {"name": None}}, {"required.name": ("None", "rule")}),
        ({"required": None}, {"required": ("None", "absent"), "required.limit": ("absent", "1.0"), "required.name": ("absent", "rule")}),
    ],
)
def test_a_field_that_came_later_is_no_difference_at_its_default(recorded: dict[str, Any], shown: dict[str, tuple[str, str]]) -> None:
    outer = Outer(required=Rule())
    found = value_differences(recorded, identity_value(outer), field_notes(outer))
    assert {name: pair for name, pair in found.items() if not name.startswith("window")} == shown


def test_an_element_that_came_later_is_a_difference_whatever_its_fields() -> None:
    outer = Outer(required=Rule(), rules=(Rule(),))
    recorded = identity_value(Outer(required=Rule()))
    assert value_differences(recorded, identity_value(outer), field_notes(outer)) == {
        "rules": ("[]", "absent"),
        "rules.0.limit": ("absent", "1.0"),
        "rules.0.name": ("absent", "rule"),
    }
