"""Linking: a member of a family that continues an older version, and whose work would be the older member's, points at its payload.

What makes work equal is the job, its configuration and the content of its inputs; versions are only names. Code isn't asked, as nowhere
else where artifacts are served: a linked record has the code that built the payload, so that drift shows (marin_core.artifact.drift).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.record import Input, Record

LINKED = "linked_to"
"""Metric of a linked record: the artifact in which its payload was built."""


def is_same_work(base: Record, identity: Mapping[str, Any], inputs: Sequence[Input]) -> bool:
    """Whether an artifact with this identity, made from these inputs, would be made as `base` was.

    Inputs are compared by name, key and content digest; what either of them read of its own family's base is no input of the work.
    """
    own = ArtifactId(base.name, base.version)
    ours, theirs = _inputs(inputs, own.name), _inputs(base.inputs, own.name)
    return ours == theirs and work(identity) == work(base.identity)


def work(identity: Mapping[str, Any], without: Collection[str] = ()) -> bytes:
    """Job and configuration of an identity as bytes, with inputs by name alone.

    Args:
        without: fields of the configuration (dotted) that only say how a family is cut.
    """
    names = {f"artifact:{dep}": f"artifact:{dep.partition('@')[0]}" for dep in identity.get("deps", ())}
    return canonical_json([identity.get("job"), _erased(identity.get("config"), names, "", frozenset(without))])


def _inputs(inputs: Sequence[Input], family: str) -> list[tuple[str, str | None, str]]:
    return sorted((each.name, each.partition or "", each.content_digest) for each in inputs if each.name != family)


def _erased(value: Any, names: Mapping[str, str], where: str, without: frozenset[str]) -> Any:
    if isinstance(value, str):
        name, at, rest = value.partition("@")
        version, slash, member = rest.partition("/")
        return names.get(f"{name}{at}{version}", f"{name}{at}{version}") + slash + member
    if isinstance(value, Mapping):
        items = ((key, f"{where}.{key}".lstrip("."), item) for key, item in value.items())
        return {key: _erased(item, names, place, without) for key, place, item in items if place not in without}
    if isinstance(value, list):
        return [_erased(item, names, where, without) for item in value]
    return value


def linked_record(base: Record, payload_url: str, **own: Any) -> Record:
    """The record of an artifact that is what `base` is.

    Args:
        payload_url: where the files of `base` lie.
        own: the fields that are the artifact's own: its names, identity, inputs, attempt, times and usage.
    """
    metrics = {LINKED: str(base.id), **base.metrics}  # a base that is linked itself names where the payload was built
    return base.model_copy(update={"payload": payload_url, "metrics": metrics, **own})
