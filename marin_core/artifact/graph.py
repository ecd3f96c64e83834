"""`ArtifactGraph`: some handles and everything they depend on, each artifact once, in an order in which it can be built."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from marin_core.artifact.canonical import FINGERPRINT_DIGITS, FieldNotes, digest, value_differences
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.step import ArtifactStep
from marin_core.errors import ConfigError

SHOWN_FIELDS = 10
"""Differences that an error lists."""


class ArtifactGraph:
    """The steps behind `targets`, upstream first. Nothing here recurses, so depth and width are limited by memory alone.

    Raises:
        ConfigError: one `name@version` declared twice with different configurations (names both places and the fields),
            a cycle, or an artifact whose address lies inside another's.
    """

    def __init__(self, targets: Iterable[ArtifactStep]) -> None:
        declared = _declarations(list(targets))
        self._steps = {step.id: step for step in _upstream_first(declared)}
        self._refuse_nested_addresses()
        self._refuse_twins()
        self._fingerprints: dict[ArtifactId, str] = {}
        for step in self._steps.values():
            inputs = {str(dep.id): self._fingerprints[dep.id] for dep in step.deps}
            self._fingerprints[step.id] = digest({**step.own_identity, "deps": inputs})[:FINGERPRINT_DIGITS]

    def __iter__(self) -> Iterator[ArtifactStep]:
        return iter(self._steps.values())

    def __len__(self) -> int:
        return len(self._steps)

    def __contains__(self, artifact: ArtifactId) -> bool:
        return artifact.family in self._steps

    def __getitem__(self, artifact: ArtifactId) -> ArtifactStep:
        try:
            return self._steps[artifact.family]
        except KeyError:
            raise ConfigError(
                f"no experiment declares {artifact.family}",
                advice=f"Declared are: {', '.join(str(known) for known in sorted(self._steps)) or 'no artifacts at all'}.",
            ) from None

    def fingerprint(self, step: ArtifactStep) -> str:
        """16 hex digits over the step's own identity and the fingerprints of everything upstream."""
        return self._fingerprints[step.id]

    def identity(self, step: ArtifactStep) -> dict[str, Any]:
        """The document behind the fingerprint, as a record keeps it: job, config, and dependency → fingerprint."""
        return {**step.own_identity, "deps": {str(dep.id): self._fingerprints[dep.id] for dep in step.deps}}

    def versions(self, code: Callable[[str], str]) -> dict[ArtifactId, str]:
        """Fingerprints that cover code as well: 16 hex digits over a step's own identity, its job's code, and the same upstream.

        Args:
            code: digest of a job's code, by the job's name.
        """
        digests = {job: code(job) for job in {step.job for step in self}}
        versions: dict[ArtifactId, str] = {}
        for step in self:
            inputs = {str(dep.id): versions[dep.id] for dep in step.deps}
            versions[step.id] = digest({**step.own_identity, "code": digests[step.job], "deps": inputs})[:FINGERPRINT_DIGITS]
        return versions

    @property
    def depth(self) -> int:
        """Artifacts on the longest chain."""
        depths: dict[ArtifactId, int] = {}
        for step in self:
            depths[step.id] = 1 + max((depths[dep.id] for dep in step.deps), default=0)
        return max(depths.values(), default=0)

    def upstream(self, targets: Iterable[ArtifactStep]) -> list[ArtifactStep]:
        """The targets and everything they depend on, in build order."""
        wanted = {step.id for step in targets}
        for step in reversed(self._steps.values()):
            if step.id in wanted:
                wanted.update(dep.id for dep in step.deps)
        return [step for step in self if step.id in wanted]

    def _refuse_nested_addresses(self) -> None:
        paths = {step.id.path: step for step in self}
        for path, step in paths.items():
            parts = path.split("/")
            for cut in range(1, len(parts)):
                outer = paths.get("/".join(parts[:cut]))
                if outer is not None:
                    raise ConfigError(
                        f"{step.id} ({step.declared_at}) would lie inside {outer.id} ({outer.declared_at})",
                        advice="Rename one of them: no artifact's name/version may be the beginning of another's.",
                    )

    def _refuse_twins(self) -> None:
        """`a@1.0` and `a@1_0`, or `a@b_1` and `a_b@1`, have one operation name in Dagster; `a@V1` and `a@v1` can have one folder."""
        known: dict[str, ArtifactStep] = {}
        for step in self:
            twin = known.setdefault(f"{step.name}_{step.version}".replace(".", "_").lower(), step)
            if twin is not step:
                raise ConfigError(
                    f"{step.id} ({step.declared_at}) and {twin.id} ({twin.declared_at}) differ only in case or punctuation",
                    advice="Rename one of them: not every file system, nor Dagster, can tell them apart.",
                )


def _declarations(targets: list[ArtifactStep]) -> dict[ArtifactId, ArtifactStep]:
    """Every step reachable from the targets, one for each identity."""
    declared: dict[ArtifactId, ArtifactStep] = {}
    seen: set[int] = set()
    waiting = deque(targets)
    while waiting:
        step = waiting.popleft()
        if id(step) in seen:
            continue
        seen.add(id(step))
        first = declared.setdefault(step.id, step)
        if first is not step:
            _refuse_conflict(first, step)
        waiting.extend(step.deps)
    return declared


def _refuse_conflict(first: ArtifactStep, second: ArtifactStep) -> None:
    one, other = ({**step.own_identity, "partitions": list(step.partitions)} for step in (first, second))
    differences = value_differences(one, other, FieldNotes())
    if differences:
        fields = [f"{name}: {ours} against {theirs}" for name, (ours, theirs) in differences.items()]
        raise ConfigError(
            f"{first.id} is declared twice with different configurations, at {first.declared_at} and at {second.declared_at}: "
            + "; ".join(fields[:SHOWN_FIELDS])
            + (f"; and {len(fields) - SHOWN_FIELDS} more" if len(fields) > SHOWN_FIELDS else ""),
            advice="Use one handle in both places, or give one of them another name or version.",
        )


def _upstream_first(declared: dict[ArtifactId, ArtifactStep]) -> list[ArtifactStep]:
    """Kahn's algorithm, stable by identity so that every process sees the same order."""
    missing = {artifact: {dep.id for dep in step.deps} for artifact, step in declared.items()}
    consumers: dict[ArtifactId, list[ArtifactId]] = {}
    for artifact, deps in missing.items():
        for dep in deps:
            consumers.setdefault(dep, []).append(artifact)
    ready = sorted(artifact for artifact, deps in missing.items() if not deps)
    order: list[ArtifactStep] = []
    while ready:
        following: list[ArtifactId] = []
        for artifact in ready:
            order.append(declared[artifact])
            for consumer in consumers.get(artifact, []):
                missing[consumer].discard(artifact)
                if not missing[consumer]:
                    following.append(consumer)
        ready = sorted(following)
    if len(order) < len(declared):
        stuck = sorted(str(artifact) for artifact, deps in missing.items() if deps)
        raise ConfigError(f"these artifacts depend on each other in a cycle: {', '.join(stuck)}", advice="Break the cycle.")
    return order
