"""The one configuration system: frozen pydantic models that refuse unknown fields and name what is wrong."""

from typing import Any, Self

import pydantic
from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict

from marin_core.errors import ConfigError

OPERATIONAL: JsonDict = {"operational": True}
"""`Field(json_schema_extra=OPERATIONAL)` marks a field that changes how a job runs but never what it makes:
worker counts, log intervals, trackers. It stays out of the fingerprint, so changing it is no drift."""


class Config(BaseModel):
    """Base of every configuration: immutable, closed, finite.

    Raises:
        ConfigError: on an unknown field, a wrong type or a value out of range; names the field, the value and what is allowed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except pydantic.ValidationError as error:
            raise config_error(type(self), error) from error

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Validate parsed JSON, with the same errors as construction."""
        try:
            return cls.model_validate(values)
        except pydantic.ValidationError as error:
            raise config_error(cls, error) from error

    def changed(self, **values: Any) -> Self:
        """A copy with some fields replaced, validated like a new one."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**(fields | values))


def config_error(cls: type[BaseModel], error: pydantic.ValidationError) -> ConfigError:
    """One readable error for all the fields that pydantic refused."""
    problems = []
    unknown = False
    for problem in error.errors(include_url=False):
        field = ".".join(str(part) for part in problem["loc"]) or cls.__name__
        if problem["type"] == "extra_forbidden":
            unknown = True
            problems.append(f"unknown field {field!r} (value {problem['input']!r})")
        else:
            problems.append(f"field {field!r} has value {problem['input']!r}: {problem['msg']}")
    advice = "Correct the field where the experiment sets it."
    if unknown:
        advice = f"Known fields of {cls.__name__}: {', '.join(cls.model_fields)}."
    return ConfigError(f"{cls.__name__}: {'; '.join(problems)}", advice=advice)
