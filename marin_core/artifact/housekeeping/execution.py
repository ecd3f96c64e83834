"""The execution of a cleanup, which believes nothing that the plan believed."""

import re
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from marin_core.artifact.housekeeping.plan import JOBS, CleanupPlan, Item, Kind, is_job, reproduction_blocked, taken_back_in_error
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.inventory import REPRODUCTIONS, Holding, Survey, survey, survey_shadow
from marin_core.artifact.inventory.addresses import PART, doom_marker, is_linked, tree
from marin_core.artifact.objects import LocalObjects
from marin_core.artifact.store import Store, attempt_folder
from marin_core.errors import ConfigError, MarinError

GONE = "it was deleted or built anew meanwhile"


@dataclass(frozen=True)
class Skipped:
    """An item that wasn't deleted, and why."""

    item: Item
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What became of a plan."""

    deleted: tuple[Item, ...]
    skipped: tuple[Skipped, ...]
    restored: tuple[ArtifactId, ...]

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.deleted)


def execute(plan: CleanupPlan, store: Store, progress: Callable[[int, int], None] = lambda done, total: None) -> Outcome:
    """Delete what a plan names, as far as it may still be deleted.

    Args:
        progress: called with the number of items that are dealt with, and of all.

    Raises:
        ConfigError: the plan names a path that isn't of its kind; nothing was deleted.
        InfrastructureError: the store can't be surveyed; what was taken back until then is completed by the next cleanup.
    """
    for item in plan.items:
        _require_own_path(item, plan)
    return _Execution(plan, store, progress).run()


def _require_own_path(item: Item, plan: CleanupPlan) -> None:
    if item.kind == "jobs":
        parent, _, name = item.path.rpartition("/")
        right = (parent == JOBS or (plan.jobs is not None and parent == str(plan.jobs))) and is_job(name)
    elif item.kind == "reproductions":
        right = re.fullmatch(rf"{re.escape(REPRODUCTIONS)}/{PART.pattern}", item.path) is not None
    else:
        artifact, number = _built(item)
        own = f"{artifact.path}/{attempt_folder(number)}"
        right = item.path == own or (item.kind == "debris" and item.path == f"{own}.new")
    if not right:
        raise ConfigError(f"{item.path!r} is no folder that housekeeping deletes as {item.kind}", advice="Make the plan anew.")


class _Execution:
    def __init__(self, plan: CleanupPlan, store: Store, progress: Callable[[int, int], None]) -> None:
        self._plan = plan
        self._store = store
        self._progress = progress
        self._deleted: list[Item] = []
        self._skipped: list[Skipped] = []
        self._restored: list[ArtifactId] = []

    def run(self) -> Outcome:
        of_kind: dict[Kind, list[Item]] = defaultdict(list)
        for item in self._plan.items:
            of_kind[item.kind].append(item)
        look = self._restore_unfinished()
        taken_back = self._take_back([*of_kind["expired"], *of_kind["unreferenced"]], look)
        if taken_back:
            look = survey(self._store)
            for item in self._still_unwanted(taken_back, look):
                self._delete_payload(item)
        corrupt = {f"{holding.path}/{folder.name}" for holding, folder in taken_back_in_error(look)}
        for item in of_kind["debris"]:
            self._delete_debris(item, look, corrupt)
        for item in of_kind["jobs"]:
            self._delete(item)
        for item in of_kind["reproductions"]:
            self._delete_reproduction(item, look)
        return Outcome(tuple(self._deleted), tuple(self._skipped), tuple(self._restored))

    def _restore_unfinished(self) -> Survey:
        """Bring back what an interrupted cleanup took back too much, which may show that more of it is referred to."""
        while True:
            look = survey(self._store)
            restored = [holding for holding, folder in taken_back_in_error(look) if self._restore(holding.artifact, folder.attempt)]
            if not restored:
                return look

    # Artifacts -------------------------------------------------------------------------------------------------------

    def _take_back(self, items: Sequence[Item], look: Survey) -> "dict[str, _TakenBack]":
        """Take back the commits of artifacts to which nothing refers, consumers before what they were built from; by address."""
        taken_back: dict[str, _TakenBack] = {}
        for item in sorted(items, key=lambda item: item.generation):
            artifact, number = _built(item)
            holding = look.holdings.get(artifact.path)
            try:
                reason = self._wanted(item, holding, look, taken_back)
                if reason is None:
                    self._store.forget(artifact, number)
            except MarinError as error:  # if it was taken back all the same, the next cleanup finds it
                reason = error.message
            if reason is not None or holding is None:
                self._skip(item, reason or GONE)
                continue
            taken_back[artifact.path] = _TakenBack(item, artifact, number, holding.inputs)
        return taken_back

    def _wanted(self, item: Item, holding: Holding | None, look: Survey, taken_back: Container[str]) -> str | None:
        """Why an artifact stays after all."""
        if holding is None or holding.state != "committed" or holding.attempt != item.attempt:
            return GONE
        if look.damaged:
            return "a damaged record or attempt may refer to it"
        if holding.linked or is_linked(self._store.objects, item.path):
            return "it lies behind a symbolic link"
        if holding.readers:
            return f"{holding.readers[0]} is being built from it"
        referrers = [referrer for referrer in holding.referrers if referrer.path not in taken_back]
        if referrers:
            return f"{referrers[0]} refers to it"
        attempts = self._store.attempts(holding.artifact)
        if any(attempt.end is None for attempt in attempts):
            return "it is being built"
        if not any(attempt.number == item.attempt and attempt.end is not None and attempt.end.record for attempt in attempts):
            return "the history of its attempts is incomplete, so that it couldn't be restored"
        return None

    def _still_unwanted(self, taken_back: "Mapping[str, _TakenBack]", look: Survey) -> list[Item]:
        """What was taken back and can go; the rest comes back: what a build refers to that was about to commit just then."""
        wanted: dict[str, str] = {}
        for path in taken_back:
            holding = look.holdings.get(path)
            users = (*holding.referrers, *holding.readers) if holding else ()
            if users:
                wanted[path] = f"{users[0]} refers to it since a moment ago"
            elif look.damaged:
                wanted[path] = "a damaged record or attempt may refer to it"
        waiting = list(wanted)
        while waiting:
            consumer = taken_back[waiting.pop()]
            for path in consumer.inputs:
                if path in taken_back and path not in wanted:
                    wanted[path] = f"{consumer.artifact} refers to it, and came back"
                    waiting.append(path)
        for path, each in reversed(list(taken_back.items())):  # what was built from others comes back after them
            if path in wanted:
                self._restore(each.artifact, each.attempt)
                self._skip(each.item, wanted[path])
        return [each.item for path, each in taken_back.items() if path not in wanted]

    def _restore(self, artifact: ArtifactId, number: int) -> bool:
        """Whether the commit of an attempt counts again; not if its payload is damaged by now."""
        record = next((attempt.end.record for attempt in self._store.attempts(artifact) if attempt.number == number and attempt.end), None)
        if record is None or self._store.damage(record):
            return False
        self._store.restore(artifact, number)
        self._restored.append(artifact)
        return True

    def _delete_payload(self, item: Item) -> None:
        if self._store.is_withdrawn(*_built(item)):
            self._delete(item)
        else:
            self._skip(item, "it was restored meanwhile")

    # Everything else -------------------------------------------------------------------------------------------------

    def _delete_debris(self, item: Item, look: Survey, corrupt: Container[str]) -> None:
        artifact, number = _built(item)
        try:
            reason = self._counts(item, artifact, number)
        except MarinError as error:
            reason = error.message
        if reason is None and (pinned := look.pinned_by(item.path)):
            reason = f"{pinned} is pinned to it"
        if reason is None and item.path in corrupt:
            reason = "something refers to it, but files of it are damaged, so that it can't be restored"
        if reason is not None:
            self._skip(item, reason)
            return
        if self._store.is_withdrawn(artifact, number):
            self._store.forget(artifact, number)  # an interrupted cleanup may have left the record
        self._delete(item)

    def _counts(self, item: Item, artifact: ArtifactId, number: int) -> str | None:
        """Why a payload folder is no debris, or none any more."""
        attempts = self._store.attempts(artifact)
        if any(attempt.end is None for attempt in attempts):
            return "an attempt is open there"
        mine = next((attempt for attempt in attempts if attempt.number == number), None)
        if mine is None or mine.end is None:
            return "its attempt isn't known any more"
        if mine.end.record is not None and item.path.endswith(attempt_folder(number)) and not self._store.is_withdrawn(artifact, number):
            return "it was restored meanwhile"
        return None

    def _delete_reproduction(self, item: Item, look: Survey) -> None:
        now = survey_shadow(self._store, item.path.removeprefix(f"{REPRODUCTIONS}/"))
        planned = next((each for each in self._plan.survey.shadows if each.path == item.path), None)
        reason = reproduction_blocked(now, look)
        if reason is None and not now.doomed and (planned is None or planned.newest_activity != now.newest_activity):
            reason = "something happened there meanwhile"
        if reason is None:
            self._delete(item)
        else:
            self._skip(item, reason)

    # Deleting --------------------------------------------------------------------------------------------------------

    def _delete(self, item: Item) -> None:
        objects, path = self._store.objects, item.path
        if item.kind == "jobs" and self._plan.jobs is not None and not path.startswith(f"{JOBS}/"):
            objects, path = LocalObjects(self._plan.jobs), path.rpartition("/")[2]
        if is_linked(objects, path):
            self._skip(item, "it lies behind a symbolic link")
            return
        doomed = item.kind in ("jobs", "reproductions")
        try:
            if doomed:
                objects.create(doom_marker(path), b"")
            objects.delete_tree(path)
            left = len(tree(objects, path))
            if doomed and not left:
                objects.delete(doom_marker(path))
        except MarinError as error:
            self._skip(item, error.message)
            return
        if left:
            self._skip(item, f"{left} of its files could not be deleted; this user may not, or somebody still writes there")
            return
        self._deleted.append(item)
        self._report()

    def _skip(self, item: Item, reason: str) -> None:
        self._skipped.append(Skipped(item, reason))
        self._report()

    def _report(self) -> None:
        self._progress(len(self._deleted) + len(self._skipped), len(self._plan.items))


@dataclass(frozen=True)
class _TakenBack:
    """An artifact whose commit was taken back, and what it was built from."""

    item: Item
    artifact: ArtifactId
    attempt: int
    inputs: tuple[str, ...]


def _built(item: Item) -> tuple[ArtifactId, int]:
    """Which attempt of which artifact built what lies in an item's folder."""
    if item.artifact is None or item.attempt is None:
        raise ConfigError(f"{item.path!r} names no attempt", advice="Make the plan anew.")
    return item.artifact, item.attempt
