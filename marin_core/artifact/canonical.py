"""Canonical JSON and digests: equal configurations give equal bytes on every machine and Python version. And how two of them differ."""

import dataclasses
import hashlib
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel

from marin_core.errors import ConfigError

FINGERPRINT_DIGITS = 16
"""A Dagster tag value holds 63 characters and people compare by eye; records keep the whole digest's first 64 bits."""

INTEGER_BITS = 4096
"""Longer integers are refused: Python neither prints nor parses more than 4,300 digits."""

_Where = tuple[Any, "str | int"]
"""Place of a value: the place of what holds it, and its key; put into words only for an error."""


def identity_value(value: Any, *, where: str = "config") -> Any:
    """The part of a configuration value that decides what is made, as plain JSON values.

    Enums stand for their values, models and dataclasses for mappings of their fields, tuples for lists, types of array elements
    (`numpy.dtype` and its like) for their names. Operational fields of models (`marin_core.config.OPERATIONAL`) are left out.

    Raises:
        ConfigError: for a value whose text form could differ between machines or not be read back, naming the field.
    """
    try:
        return _identity(value, (None, where))
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply, or holds itself", advice="Use a flatter configuration.") from None


def _identity(value: Any, where: _Where) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _identity(value.value, where)
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, int):
        if value.bit_length() > INTEGER_BITS:
            raise ConfigError(f"{_words(where)} is a number of {value.bit_length()} bits", advice="Give a number, not data.")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"{_words(where)} is {value!r}", advice="Give a finite number.")
        return float(value) + 0.0  # one zero: no reader of a configuration tells -0.0 apart
    if isinstance(value, BaseModel):
        return {name: _identity(item, (where, name)) for name, item in _model_items(value)}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{_words(where)} has the key {key!r}", advice="Use text keys in configurations.")
        return {_text(key, where): _identity(item, (where, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_identity(item, (where, index)) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _identity(getattr(value, each.name), (where, each.name)) for each in dataclasses.fields(value)}
    name = _dtype_name(value)
    if name is not None:
        return name
    raise ConfigError(
        f"{_words(where)} has a value of type {type(value).__name__}, which has no canonical form",
        advice="Use numbers, text, lists, mappings, enums, dataclasses or Config models.",
    )


def _text(value: str, where: _Where) -> str:
    """Plain text of a value or key, also of an enum's or another subclass of `str`."""
    text = str.__str__(value.value if isinstance(value, Enum) else value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{_words(where)} holds {text!r}, which has a lone surrogate at {error.start} and is no valid Unicode",
                advice="Decode the text with the right encoding, or replace what can't be decoded.",
            ) from None
    return text


def _model_items(value: BaseModel) -> Iterator[tuple[str, Any]]:
    """Fields of a model that are part of its identity."""
    for name, field in type(value).model_fields.items():
        if not is_operational(field.json_schema_extra):
            yield name, getattr(value, name)
    yield from (value.model_extra or {}).items()


def is_operational(extra: Any) -> bool:
    """Whether a field's `json_schema_extra` says that it changes how a job runs but not what it makes."""
    return isinstance(extra, dict) and bool(extra.get("operational"))


def _dtype_name(value: Any) -> str | None:
    """Name of a type of array elements, such as `bfloat16`; None for anything else, and for types that a name doesn't determine."""
    numpy = sys.modules.get("numpy")  # whoever has such a value has imported it
    if numpy is None:
        return None
    dtype = value
    if isinstance(value, type):
        if issubclass(value, numpy.generic):
            try:
                dtype = numpy.dtype(value)
            except TypeError:  # an abstract one, such as `numpy.floating`
                return None
        elif type(value).__module__.startswith("jax."):
            dtype = getattr(value, "dtype", None)
    if not isinstance(dtype, numpy.dtype) or not dtype.isnative or dtype.type is numpy.void:
        return None
    return str(dtype.name)


def _words(where: _Where) -> str:
    """A place as people write it: `config.train.optimizer`."""
    keys: list[str | int] = []
    place: _Where | None = where
    while place is not None:
        place, key = place
        keys.append(key)
    name = str(keys.pop())
    while keys:
        name = dotted(name, keys.pop())
    return name


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys, no spaces, shortest float form; the input must consist of plain JSON values.

    Raises:
        ConfigError: text that is no valid Unicode, naming the field.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        identity_value(value, where="document")  # says where
        raise


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, 64 lower-case hex digits."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


# Comparison, field by field -----------------------------------------------------------------------------------------

_PLAIN_KEY = re.compile(r'(?![0-9]+\Z)[^."\x00-\x1f\x7f]+')


def dotted(prefix: str, key: str | int) -> str:
    """Name of a field within another. A key that could be taken for two fields, or for a position in a list, is quoted."""
    part = key if isinstance(key, str) and _PLAIN_KEY.fullmatch(key) else json.dumps(key)
    return f"{prefix}.{part}" if prefix else part


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested JSON values as dotted field → leaf, the form in which two configurations are compared.

    An empty list or mapping is a leaf of its own, so that adding the first element is a visible change.
    """
    flat: dict[str, Any] = {}
    waiting = [(prefix, value)]
    while waiting:
        name, item = waiting.pop()
        inner = _items(item)
        if inner:
            waiting += [(dotted(name, key), each) for key, each in reversed(inner)]
        else:
            flat[name] = item
    return flat


def _items(value: Any) -> list[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


@dataclasses.dataclass(frozen=True)
class FieldNotes:
    """What today's models say about the fields of a configuration, each named as `flatten` names it.

    Attributes:
        defaults: fields that stand at their class's default.
        operational: fields that are no part of the identity.
    """

    defaults: frozenset[str] = frozenset()
    operational: frozenset[str] = frozenset()


def field_notes(value: Any) -> FieldNotes:
    """Notes on every field of a configuration, models inside models, lists and mappings included."""
    defaults: set[str] = set()
    operational: set[str] = set()
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        prefix, item = waiting.pop()
        if isinstance(item, BaseModel):
            for name, field in type(item).model_fields.items():
                if is_operational(field.json_schema_extra):
                    operational.add(dotted(prefix, name))
                elif not field.is_required() and _is_same(
                    getattr(item, name), field.get_default(call_default_factory=True, validated_data=dict(item))
                ):
                    defaults.add(dotted(prefix, name))
            waiting += [(dotted(prefix, name), each) for name, each in _model_items(item)]
        elif dataclasses.is_dataclass(item) and not isinstance(item, type):
            for each in dataclasses.fields(item):
                default = each.default_factory() if each.default_factory is not dataclasses.MISSING else each.default
                if default is not dataclasses.MISSING and _is_same(getattr(item, each.name), default):
                    defaults.add(dotted(prefix, each.name))
                waiting.append((dotted(prefix, each.name), getattr(item, each.name)))
        elif isinstance(item, Mapping):
            waiting += [(dotted(prefix, key), each) for key, each in item.items()]
        elif isinstance(item, list | tuple):
            waiting += [(dotted(prefix, index), each) for index, each in enumerate(item)]
    return FieldNotes(frozenset(defaults), frozenset(operational))


def _is_same(value: Any, other: Any) -> bool:
    try:
        return canonical_json(identity_value(value)) == canonical_json(identity_value(other))
    except ConfigError:
        return False  # a default that no configuration could have


def value_differences(recorded: Any, declared: Any, notes: FieldNotes) -> dict[str, tuple[str, str]]:
    """Dotted field → (recorded, declared) as text, `absent` included, for every field that makes a difference.

    Models grow: a field that the record doesn't know is no difference while it stands at its default, which has to mean "as before";
    nor is one that was recorded and has become operational since. Where a field went away too, it may have been renamed, and both
    are shown. Numbers are compared by value.
    """
    ours, theirs = (flatten(document) for document in _reconciled(recorded, declared, notes, ""))
    return {
        name: _shown(ours.get(name, _ABSENT), theirs.get(name, _ABSENT))
        for name in sorted(ours.keys() | theirs.keys())
        if name not in ours or name not in theirs or not _is_equal(ours[name], theirs[name])
    }


def _reconciled(recorded: Any, declared: Any, notes: FieldNotes, name: str) -> tuple[Any, Any]:
    """Two documents without what is no difference between them."""
    if isinstance(recorded, list) and isinstance(declared, list):
        both = [_reconciled(*pair, notes, dotted(name, index)) for index, pair in enumerate(zip(recorded, declared, strict=False))]
        return [old for old, _ in both] + recorded[len(both) :], [new for _, new in both] + declared[len(both) :]
    if not isinstance(recorded, dict) or not isinstance(declared, dict):
        return recorded, declared
    gone = {key: item for key, item in recorded.items() if key not in declared and dotted(name, key) not in notes.operational}
    new = {key: item for key, item in declared.items() if key not in recorded and (gone or dotted(name, key) not in notes.defaults)}
    kept = {key: _reconciled(recorded[key], declared[key], notes, dotted(name, key)) for key in recorded if key in declared}
    return {key: pair[0] for key, pair in kept.items()} | gone, {key: pair[1] for key, pair in kept.items()} | new


def _is_equal(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


_ABSENT = object()


def _shown(recorded: Any, declared: Any) -> tuple[str, str]:
    """Both values for people, in JSON if they would look alike: text `1` and the number 1."""
    texts = [("absent" if value is _ABSENT else str(value)) for value in (recorded, declared)]
    if texts[0] == texts[1]:
        texts = ["absent" if value is _ABSENT else json.dumps(value, ensure_ascii=False) for value in (recorded, declared)]
    return texts[0], texts[1]
