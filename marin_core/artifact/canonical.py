"""Canonical JSON and digests: equal configurations give equal bytes on every machine and Python version."""

import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel

from marin_core.errors import ConfigError

FINGERPRINT_DIGITS = 16
"""A Dagster tag value holds 63 characters and people compare by eye; records keep the whole digest's first 64 bits."""


def identity_value(value: Any, *, where: str = "config") -> Any:
    """The part of a configuration value that decides what is made, as plain JSON values.

    Operational fields of models (`marin_core.config.OPERATIONAL`) are left out.

    Raises:
        ConfigError: for a type whose text form could differ between machines, naming the field.
    """
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"{where} is {value!r}", advice="Give a finite number.")
        return value
    if isinstance(value, Enum):
        return identity_value(value.value, where=where)
    if isinstance(value, BaseModel):
        return {
            name: identity_value(getattr(value, name), where=f"{where}.{name}")
            for name, field in type(value).model_fields.items()
            if not (isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("operational"))
        }
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{where} has the key {key!r}", advice="Use text keys in configurations.")
        return {key: identity_value(item, where=f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [identity_value(item, where=f"{where}.{index}") for index, item in enumerate(value)]
    raise ConfigError(
        f"{where} has a value of type {type(value).__name__}, which has no canonical form",
        advice="Use numbers, text, lists, mappings, enums or Config models.",
    )


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys, no spaces, shortest float form; the input must consist of plain JSON values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, 64 lower-case hex digits."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested JSON values as dotted field → leaf, the form in which two configurations are compared.

    An empty list or mapping is a leaf of its own, so that adding the first element is a visible change.
    """
    if isinstance(value, dict) and value:
        items = list(value.items())
    elif isinstance(value, list) and value:
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in items:
        flat.update(flatten(item, f"{prefix}.{key}" if prefix else key))
    return flat
