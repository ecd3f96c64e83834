"""The folder in which an attempt builds: how it begins with what earlier tries left for good, and what becomes of those."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.job import JobSpec
from marin_core.artifact.job_folder import GENERATION
from marin_core.artifact.objects import FileState, local_state
from marin_core.artifact.record import Attempt, File, Record, file_sha256
from marin_core.artifact.store import Store, attempt_folder, payload_folder, standing_output, unfinished_folder
from marin_core.errors import InfrastructureError, MarinError
from marin_core.train.checkpoint.mirror import Mirror
from marin_jobs.fence import Fence
from marin_jobs.reporting import say

CarryOver = Callable[[Path, Path], None]
"""Fills a new attempt's empty folder with what the folder of an earlier one holds for good."""


@dataclass(frozen=True)
class _Earlier:
    """What an earlier try left for good: on this machine, in the store, or in both.

    Attributes:
        number, generation: of the attempt, and of its pod or "". Whatever is greater went on with whatever is less.
    """

    number: int
    generation: str
    folder: Path | None = None
    mirror: Mirror | None = None


def prepare_output(
    spec: JobSpec, store: Store, scratch: Path, carry_over: CarryOver | None, fence: Fence | None, mirror: Mirror | None = None
) -> Path:
    """The attempt's own empty folder, or with `carry_over` one that holds what earlier tries left for good.

    It appears by a rename, complete, so that the next one can carry it over in turn, wherever this one dies. A pod comes after others of
    the same attempt, which went on from each other.

    Args:
        mirror: of the folder, in a store that is no file system. It is complete, too, before what came before is removed.
    """
    whole = store.output_path(spec.id, spec.attempt) or scratch / "output"
    output = whole if fence is None else whole / fence.generation
    before = [attempt for attempt in store.attempts(spec.id) if attempt.number < spec.attempt] if spec.attempt > 1 else []
    places = {attempt.number: _output_of(attempt, spec, store, scratch) for attempt in before}
    usable = {each.number for each in before if each.state in ("failed", "lost") and each.claim.fingerprint == spec.fingerprint}
    earlier = None if carry_over is None else _newest(spec, store, {n: places[n] for n in usable}, whole, fence, mirror)
    fresh = output.with_name(unfinished_folder(spec.attempt) if fence is None else f"{fence.generation}.new")
    for path in (output, fresh):
        shutil.rmtree(path, ignore_errors=True)
    fresh.mkdir(parents=True)
    if earlier is not None and carry_over is not None and earlier.folder is not None:
        carry_over(earlier.folder, fresh)
    elif earlier is not None and earlier.mirror is not None:
        earlier.mirror.fetch(fresh)
    fresh.rename(output)
    if earlier is not None and mirror is not None:
        mirror.begin(output, earlier.mirror)
    if spec.attempt > 1:
        store.clear_debris(spec.id, keep=spec.attempt)
    if not store.is_local:  # in a local one clearing the debris did it
        for path in places.values():
            shutil.rmtree(path, ignore_errors=True)
    if fence is not None:
        _clear_older(whole, fence)
        if mirror is not None:
            _clear_older_mirrors(spec, store, fence)
    return output


def discard_output(spec: JobSpec, store: Store, fence: Fence) -> None:
    """Remove what a pod wrote after it was given up, since nobody else will."""
    store.objects.delete_tree(f"{spec.id.path}/{payload_folder(spec.attempt, fence.generation)}")


def clear_other_generations(store: Store, artifact: ArtifactId, record: Record, number: int) -> None:
    """Once an attempt has committed, remove what its other pods left."""
    whole = f"{artifact.path}/{attempt_folder(number)}"
    for name in store.objects.names(whole):
        if f"{attempt_folder(number)}/{name}" != record.payload:
            store.objects.delete_tree(f"{whole}/{name}")


def clear_debris(spec: JobSpec, store: Store, *, keep: int = 0) -> None:
    """Clear what closed attempts left, once nobody may carry it over any more; that it fails changes nothing."""
    try:
        if store.record(spec.id) is not None:
            store.clear_debris(spec.id, keep=keep)
    except MarinError as error:
        say(f"debris of {spec.id} could not be cleared: {error}")


def manifest(output: Path) -> tuple[File, ...]:
    """Size, checksum and stamp of every file of the payload."""
    files = []
    for path in sorted(output.rglob("*")):
        if path.is_file():
            state = local_state(path)
            files.append(File(path=path.relative_to(output).as_posix(), size=state.size, sha256=file_sha256(path), stamp=state.stamp))
    return tuple(files)


def as_uploaded(files: tuple[File, ...], states: Mapping[str, FileState]) -> tuple[File, ...]:
    """The manifest with the stamps that the store gave.

    Raises:
        InfrastructureError: the store doesn't have what was sent.
    """
    missing = [file.path for file in files if file.path not in states or states[file.path].size != file.size]
    if missing:
        raise InfrastructureError(f"{len(missing)} files are not in the store as they were sent: {missing[:5]}", advice="Try again.")
    return tuple(file.model_copy(update={"stamp": states[file.path].stamp}) for file in files)


def _output_of(attempt: Attempt, spec: JobSpec, store: Store, scratch: Path) -> Path:
    """Where an attempt puts its output: in the store, or if that lies elsewhere in its job's folder, beside this job's on one machine."""
    return store.output_path(spec.id, attempt.number) or scratch.parent / attempt.claim.job / "output"


def _newest(
    spec: JobSpec, store: Store, places: Mapping[int, Path], whole: Path, fence: Fence | None, mirror: Mirror | None
) -> _Earlier | None:
    """What the newest try left that left anything; of several pods only that of the newest counts, since it went on with theirs.

    Args:
        places: where on this machine earlier attempts that may be gone on with have put their output, if they ran here.
        whole: where this one's pods have.
    """
    found = [_Earlier(number, _generation(path), path) for number, place in places.items() if (path := standing_output(place)).is_dir()]
    if fence is not None and (own := standing_output(whole)) != whole:
        found.append(_Earlier(spec.attempt, own.name, own))
    numbers = sorted(places, reverse=True) if fence is None else [spec.attempt, *sorted(places, reverse=True)]
    kept = None if mirror is None else next(_mirrors(spec, store, numbers, fence, mirror), None)
    newest = max(found, key=_order, default=None)
    if kept is None or (newest is not None and _order(newest) > _order(kept)):
        return newest
    if newest is not None and _order(newest) == _order(kept):  # the one here is at least as new
        return _Earlier(kept.number, kept.generation, newest.folder, kept.mirror)
    return kept


def _mirrors(spec: JobSpec, store: Store, numbers: Sequence[int], fence: Fence | None, mirror: Mirror) -> Iterator[_Earlier]:
    """What earlier tries left in the store, newest first."""
    for number in numbers:
        names = [name for name in store.objects.names(f"{spec.id.path}/{attempt_folder(number)}") if GENERATION.fullmatch(name)]
        if number == spec.attempt and fence is not None:
            names = [name for name in names if name < fence.generation]
        elif not names:
            names = [""]
        for name in reversed(names):
            kept = mirror.beside(f"{spec.id.path}/{payload_folder(number, name or None)}")
            if kept.stands():
                yield _Earlier(number, name, mirror=kept)


def _order(earlier: _Earlier) -> tuple[int, str]:
    return earlier.number, earlier.generation


def _generation(path: Path) -> str:
    return path.name if GENERATION.fullmatch(path.name) else ""


def _clear_older(whole: Path, fence: Fence) -> None:
    """Remove what pods left that can't commit any more. A newer one's isn't touched, should this one be the sleeper that was given up."""
    for path in whole.iterdir():
        if _is_superseded(path.name.removesuffix(".new"), fence):
            shutil.rmtree(path, ignore_errors=True)


def _clear_older_mirrors(spec: JobSpec, store: Store, fence: Fence) -> None:
    """The same in the store."""
    whole = f"{spec.id.path}/{attempt_folder(spec.attempt)}"
    for name in store.objects.names(whole):
        if _is_superseded(name, fence):
            store.objects.delete_tree(f"{whole}/{name}")


def _is_superseded(name: str, fence: Fence) -> bool:
    return bool(GENERATION.fullmatch(name)) and name < fence.generation and name not in fence.spared
