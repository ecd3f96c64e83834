"""The plan of a cleanup: what could be deleted, why, and what looks so and stays. Changes nothing."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from marin_core.artifact.graph import ArtifactGraph
from marin_core.artifact.identity import DEV, ArtifactId
from marin_core.artifact.inventory import Folder, Holding, Shadow, Survey, survey
from marin_core.artifact.inventory.addresses import folders_and_doomed, is_linked, modified_at, place_inside, tree
from marin_core.artifact.inventory.survey import moment
from marin_core.artifact.objects import LocalObjects, Objects
from marin_core.artifact.record import Claim, End
from marin_core.artifact.store import META, Store, attempt_folder
from marin_core.errors import ConfigError

Kind = Literal["debris", "expired", "unreferenced", "jobs", "reproductions"]
"""What attempts left behind that don't count; artifacts past their keep limit; artifacts that no experiment declares and no record
refers to; folders of jobs that ended; shadow stores of reproductions."""

JOBS = ".jobs"
"""Folder of a store in which jobs have theirs: those of this machine where the store is a file system, and those of a cluster."""

BEGUN = "an interrupted cleanup had begun to delete it"

_JOB = re.compile(r"m-[a-z0-9-]+")


@dataclass(frozen=True)
class Rules:
    """What may be deleted, beside what an artifact itself says (`ArtifactStep.keep_days`).

    Attributes:
        unreferenced: also committed artifacts that no experiment declares and no committed record refers to.
        older_than_days: bound for `unreferenced` and for what unsuccessful attempts left; None = no bound for the former,
            `resume_days` for a folder from which the next attempt may go on.
        jobs_days: how long the folder of a job is kept after its attempt was closed.
        failed_jobs_days: the same for attempts that failed, whose logs somebody may still want to read.
        reproduction_days: how long a reproduction is kept after the last thing that happened to it.
        resume_days: how long a folder is kept from which the next attempt may go on.
    """

    unreferenced: bool = False
    older_than_days: float | None = None
    jobs_days: float = 14
    failed_jobs_days: float = 90
    reproduction_days: float = 1
    resume_days: float = 7


@dataclass(frozen=True)
class Item:
    """A folder to be deleted.

    Attributes:
        path: relative to the store's prefix; the folder of a remote store's job lies on this machine and has a whole path.
        generation: of artifacts, 0 if nothing refers to them, n + 1 if only artifacts up to generation n do, which go first.
    """

    kind: Kind
    path: str
    reason: str
    bytes: int
    artifact: ArtifactId | None = None
    attempt: int | None = None
    owner: str | None = None
    generation: int = 0


@dataclass(frozen=True)
class Spared:
    """A folder that looks as if it could go, and stays."""

    path: str
    reason: str
    bytes: int
    artifact: ArtifactId | None = None


@dataclass(frozen=True)
class CleanupPlan:
    """What a cleanup would delete, in the order in which it would.

    Attributes:
        survey: what the plan was made from.
        jobs: folder of this machine's jobs, where that isn't the store's own; None if there is none.
        returning: artifacts that an interrupted cleanup took back although something refers to them; they come back first.
    """

    items: tuple[Item, ...]
    spared: tuple[Spared, ...]
    rules: Rules
    made_at: datetime
    survey: Survey = field(repr=False)
    jobs: Path | None = None
    returning: tuple[ArtifactId, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)


def plan_cleanup(
    store: Store,
    graph: ArtifactGraph,
    rules: Rules,
    *,
    now: datetime,
    experiments: Mapping[ArtifactId, Sequence[str]] | None = None,
    jobs: Path | None = None,
) -> CleanupPlan:
    """What can be deleted at a store. Changes nothing.

    Args:
        graph: everything that is declared.
        now: the time, with its zone.
        experiments: names of the experiments that lead to a family.
        jobs: folder of this machine's jobs, where that isn't the store's own.

    Raises:
        InfrastructureError: a part of the store can't be read.
    """
    if isinstance(store.objects, LocalObjects) and jobs == store.objects.root / JOBS:
        jobs = None
    found = survey(store, graph, experiments)
    planner = _Planner(store, graph, rules, now, found)
    items = [*planner.artifacts(), *planner.debris(), *planner.jobs(jobs), *planner.reproductions()]
    returning = tuple(holding.artifact for holding, _ in taken_back_in_error(found))
    return CleanupPlan(tuple(items), tuple(planner.spared), rules, now, found, jobs, returning)


class _Planner:
    def __init__(self, store: Store, graph: ArtifactGraph, rules: Rules, now: datetime, found: Survey) -> None:
        self._store = store
        self._graph = graph
        self._rules = rules
        self._now = now
        self._survey = found
        self.spared: list[Spared] = [
            Spared(path, "no artifact is known here; find out whose it is", size) for path, size in found.foreign.items()
        ]

    def _age_days(self, time: datetime | None) -> float | None:
        return None if time is None else (self._now - time) / timedelta(days=1)

    def _older(self, time: datetime | None, days: float) -> bool:
        """Whether a time is past by more than so many days; one that nobody knows is not."""
        age = self._age_days(time)
        return age is not None and age > days

    # Artifacts -------------------------------------------------------------------------------------------------------

    def artifacts(self) -> Iterator[Item]:
        """Expired and unreferenced artifacts, those that nothing refers to first."""
        wanted = {path: why for path, holding in self._survey.holdings.items() if (why := self._reason(holding)) is not None}
        holdings = {path: self._survey.holdings[path] for path in wanted}
        blocked = {path: stop for path, holding in holdings.items() if (stop := self._blocked(holding)) is not None}
        generations = _generations({path: holding for path, holding in holdings.items() if path not in blocked})
        for path, (kind, reason) in sorted(wanted.items(), key=lambda each: generations.get(each[0], 0)):
            holding = holdings[path]
            if path not in generations:
                if kind == "expired" or path in blocked:  # of the unreferenced it goes without saying that they aren't if they aren't
                    but = blocked.get(path) or f"{holding.referrers[0]} refers to it"
                    self.spared.append(Spared(path, f"{reason}, but {but}", holding.payload_bytes, holding.artifact))
                continue
            if kind == "unreferenced":
                reason += ", and only what goes before it refers to it" if generations[path] else ", and no record refers to it"
            yield Item(
                kind=kind,
                path=f"{path}/{attempt_folder(holding.attempt or 0)}",
                reason=reason,
                bytes=holding.payload_bytes,
                artifact=holding.artifact,
                attempt=holding.attempt,
                owner=holding.owner,
                generation=generations[path],
            )

    def _reason(self, holding: Holding) -> tuple[Kind, str] | None:
        """Why a committed artifact may go, whatever refers to it."""
        if holding.state != "committed" or (holding.declared and holding.artifact.version == DEV):
            return None
        keep_days = self._keep_days(holding)
        if keep_days is not None and self._older(holding.ended_at, keep_days):
            return "expired", f"was to be kept for {keep_days} days, and is {self._age_days(holding.ended_at):.0f} days old"
        if not self._rules.unreferenced or holding.declared:
            return None
        bound = self._rules.older_than_days
        if bound is not None and not self._older(holding.newest_activity, bound):
            return None
        return "unreferenced", "no experiment declares it"

    def _keep_days(self, holding: Holding) -> int | None:
        """What the record says, unless the experiment now says longer."""
        if holding.keep_days is None or holding.artifact not in self._graph:
            return holding.keep_days
        declared = self._graph[holding.artifact].keep_days
        return None if declared is None else max(declared, holding.keep_days)

    def _blocked(self, holding: Holding) -> str | None:
        """Why an artifact stays whatever becomes of what was built from it."""
        if holding.linked or any(folder.linked for folder in holding.folders if folder.role == "payload"):
            return "it lies behind a symbolic link"
        if not holding.payload:
            return "it was built before attempts had folders of their own, and its files can't be told from others"
        if self._survey.damaged:
            return "a damaged record or attempt may refer to it"
        if holding.readers:
            return f"{holding.readers[0]} is being built from it"
        return "it is being built" if holding.open_attempts else None

    # Debris ----------------------------------------------------------------------------------------------------------

    def debris(self) -> Iterator[Item]:
        """What closed attempts left that don't count."""
        returning = {f"{holding.path}/{folder.name}" for holding, folder in taken_back_in_error(self._survey)}
        for holding in self._survey.holdings.values():
            for folder in holding.folders:
                path = f"{holding.path}/{folder.name}"
                if folder.role not in ("debris", "unknown") or path in returning:
                    continue
                blocked = self._debris_blocked(holding, folder, path)
                if blocked is not None:
                    self.spared.append(Spared(path, blocked, folder.bytes, holding.artifact))
                    continue
                yield Item("debris", path, folder.reason, folder.bytes, holding.artifact, folder.attempt, holding.owner)

    def _debris_blocked(self, holding: Holding, folder: Folder, path: str) -> str | None:
        if folder.role == "unknown":
            return f"{folder.reason}; find out whose it is"
        if folder.linked:
            return "it lies behind a symbolic link"
        if holding.open_attempts:
            return "the attempt that is open may go on from it, and clears it itself"
        if pinned := self._survey.pinned_by(path):
            return f"{pinned} is pinned to it"
        if folder.succeeded and self._survey.damaged:
            return "a damaged record or attempt may refer to it"
        bound = self._rules.older_than_days
        if self._may_resume(holding, folder):
            bound = self._rules.resume_days if bound is None else bound
            if not self._older(folder.ended_at, bound):
                return f"{folder.reason}; the next attempt may go on from it"
        elif bound is not None and not folder.succeeded and not self._older(folder.ended_at, bound):
            return f"{folder.reason}, less than {bound:g} days ago"
        return None

    def _may_resume(self, holding: Holding, folder: Folder) -> bool:
        """Whether the next attempt could go on from a folder: not if it would build something else by now."""
        if not folder.resumable or holding.artifact not in self._graph:
            return folder.resumable
        return self._graph.fingerprint(self._graph[holding.artifact]) == folder.fingerprint

    # Jobs and reproductions ------------------------------------------------------------------------------------------

    def jobs(self, elsewhere: Path | None) -> Iterator[Item]:
        """Folders of jobs whose attempts were closed long ago.

        Args:
            elsewhere: folder of this machine's jobs, besides the store's own.
        """
        if is_linked(self._store.objects, JOBS):
            self.spared.append(Spared(JOBS, "it lies behind a symbolic link", 0))
        else:
            yield from self._jobs_in(self._store.objects, f"{JOBS}/", f"{JOBS}/")
        if elsewhere is not None and elsewhere.is_dir():
            yield from self._jobs_in(LocalObjects(elsewhere), "", f"{elsewhere}/")

    def _jobs_in(self, jobs: Objects, inside: str, shown: str) -> Iterator[Item]:
        """Those of one folder.

        Args:
            inside: where it lies in `jobs`.
            shown: what paths of items begin with.
        """
        there = folders_and_doomed(jobs, inside.rstrip("/"))
        names = {f"{inside}{name}": doomed for name, doomed in there.items() if is_job(name) and not is_linked(jobs, f"{inside}{name}")}
        specs = {path: _read_spec(jobs, path) for path in names}
        places = {name: self._attempt_place(spec) for name, spec in specs.items()}
        found = self._store.objects.read_many([f"{place}/{file}.json" for place in places.values() if place for file in ("claim", "end")])
        for path, spec in specs.items():
            claim, end = found.get(f"{places[path]}/claim.json"), found.get(f"{places[path]}/end.json")
            reason = BEGUN if names[path] else self._job_is_over(jobs, path, claim, end)
            if reason is not None:
                artifact = _built_by(spec)
                owner = self._graph[artifact].owner if artifact is not None and artifact in self._graph else None
                name = path.removeprefix(inside)
                yield Item("jobs", f"{shown}{name}", reason, sum(tree(jobs, path).values()), artifact, owner=owner)

    def _attempt_place(self, spec: Mapping[str, Any]) -> str | None:
        """Where the attempt of a job keeps its claim and its end, if it lies at this store."""
        artifact = _built_by(spec)
        shadow = spec.get("output_prefix")
        inside = place_inside(self._store, shadow) if isinstance(shadow, str) else ""
        if artifact is None or inside is None or not isinstance(spec.get("attempt"), int):
            return None
        return f"{inside}/{artifact.path}/{META}/attempts/{spec['attempt']:05d}".lstrip("/")

    def _job_is_over(self, jobs: Objects, path: str, claim: bytes | None, end: bytes | None) -> str | None:
        """Why the folder of a job may go, or None while it is kept."""
        failed_days = max(self._rules.failed_jobs_days, self._rules.jobs_days)
        try:
            mine = claim is not None and Claim.model_validate_json(claim).job == path.rpartition("/")[2]
            ended = End.model_validate_json(end) if mine and end is not None else None
        except ValueError:
            return None
        if not mine:  # its attempt was cleared away by hand, or never began
            return "nothing is known of its attempt" if self._older(modified_at(jobs, path), failed_days) else None
        if ended is None:
            return None
        days = self._rules.jobs_days if ended.state == "succeeded" else failed_days
        closed_at = moment(ended.ended_at) or modified_at(jobs, path)
        return f"its attempt {ended.state} {self._age_days(closed_at):.0f} days ago" if self._older(closed_at, days) else None

    def reproductions(self) -> Iterator[Item]:
        """Shadow stores in which nothing happens any more."""
        for each in self._survey.shadows:
            if not each.doomed and not self._older(each.newest_activity, self._rules.reproduction_days):
                continue
            blocked = reproduction_blocked(each, self._survey)
            if blocked is not None:
                self.spared.append(Spared(each.path, blocked, each.bytes))
                continue
            reason = BEGUN if each.doomed else f"nothing happened for {self._age_days(each.newest_activity):.0f} days"
            yield Item("reproductions", each.path, reason, each.bytes)


def _read_spec(jobs: Objects, path: str) -> Mapping[str, Any]:
    """The spec of a job, whichever version of this code wrote it; empty where its launcher died before it was written."""
    try:
        spec = json.loads(jobs.read(f"{path}/spec.json") or b"{}")
    except ValueError:
        return {}
    return spec if isinstance(spec, dict) else {}


def _built_by(spec: Mapping[str, Any]) -> ArtifactId | None:
    try:
        return ArtifactId(spec["name"], spec["version"], spec["partition"])
    except (KeyError, TypeError, AttributeError, ConfigError):
        return None


def reproduction_blocked(shadow: Shadow, found: Survey) -> str | None:
    """Why a shadow store stays however old it is."""
    if shadow.linked:
        return "it lies behind a symbolic link"
    if shadow.open_builds and not shadow.doomed:
        return f"{shadow.open_builds[0]} is being built there; if its builder is gone for good, delete the folder by hand"
    pinned = found.pinned_by(shadow.path)
    return f"{pinned} is pinned to it" if pinned else None


def _generations(holdings: Mapping[str, Holding]) -> dict[str, int]:
    """For each of some artifacts that can go if all of them go: how many generations of consumers go before it."""
    waiting = {path: {referrer.path for referrer in holding.referrers} for path, holding in holdings.items()}
    consumed: dict[str, list[str]] = defaultdict(list)
    for path, referrers in waiting.items():
        for referrer in referrers:
            consumed[referrer].append(path)
    generations: dict[str, int] = {}
    free = [path for path, referrers in waiting.items() if not referrers]
    generation = 0
    while free:
        following = []
        for path in free:
            generations[path] = generation
            for read in consumed[path]:
                waiting[read].discard(path)
                if not waiting[read]:
                    following.append(read)
        free, generation = following, generation + 1
    return generations


def taken_back_in_error(found: Survey) -> Iterator[tuple[Holding, Folder]]:
    """Fixed versions that an interrupted cleanup took back although something refers to them; it had deleted nothing of them yet."""
    for holding in found.holdings.values():
        if holding.state == "committed" or holding.artifact.version == DEV or not (holding.referrers or holding.readers):
            continue
        withdrawn = [folder for folder in holding.folders if folder.role == "debris" and folder.succeeded]
        if withdrawn:
            yield holding, max(withdrawn, key=lambda folder: folder.attempt)


def is_job(name: str) -> bool:
    """Whether a folder is one that a launcher made for a job, as against what jobs share."""
    return _JOB.fullmatch(name) is not None
