"""Decision records: what was decided about the data, why and by whom, each in a file of its own that is written once. Needs no Dagster.

They lie at `.decisions/MIX/SEQ-ID.json` below the store's prefix, beside the failure records, wherever the mix itself is published: the
lab's own log has what it decided even where the world's copy is another's bucket.
"""

from itertools import islice
from typing import Literal

from pydantic import BaseModel, ConfigDict

from marin_core.artifact import Store
from marin_core.artifact.canonical import canonical_json
from marin_core.mix.commit import Commit
from marin_core.mix.read import MixReader
from marin_core.redaction import redact

FOLDER = ".decisions"
WEIGHTS = "/phases/"
"""Beginning of the paths of a mix's weights and phases."""

LOOK_BACK = 24
"""Commits that a publication looks through for one whose publisher died before it wrote the record."""


class WeightChange(BaseModel):
    """One changed field of the phases: JSON Pointer, and its value before and after; None where it wasn't there."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str
    old: str | None
    new: str | None


class DecisionRecord(BaseModel):
    """Weights of a published mix that somebody changed.

    Attributes:
        mix: its name, such as `published/web`.
        url: where it is published.
        seq: number of the commit that made the change.
        commit: its id.
        hour: from when on it is valid.
        code: git commit of the checkout that published it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: Literal[1] = 1
    decision: Literal["mix_weights"] = "mix_weights"
    mix: str
    url: str
    seq: int
    commit: str
    hour: str
    author: str
    message: str
    code: str
    changes: tuple[WeightChange, ...]


def decision_path(mix: str, commit: Commit) -> str:
    """Where the record of a commit lies, relative to the store's prefix."""
    return f"{FOLDER}/{mix}/{commit.seq:08d}-{commit.id}.json"


def decision_of(mix: str, url: str, commit: Commit) -> DecisionRecord | None:
    """What a commit decided; None if it changed no weight. Nothing but the commit enters, so that writing it twice makes no difference."""
    changes = [change for change in commit.diff if change.path.startswith(WEIGHTS)]
    if not changes:
        return None
    return DecisionRecord(
        mix=mix,
        url=url,
        seq=commit.seq,
        commit=commit.id,
        hour=commit.hour,
        author=commit.author,
        message=commit.message,
        code=commit.code.commit,
        changes=tuple(WeightChange(path=each.path, old=_said(each.old), new=_said(each.new)) for each in changes),
    )


def record_decisions(store: Store, mix: str, reader: MixReader, newest: Commit) -> list[DecisionRecord]:
    """Record the changes of weights up to a commit that have no record yet; those that are new, newest first."""
    new = []
    for commit in islice(reader.history(newest), LOOK_BACK):
        decision = decision_of(mix, reader.url, commit)
        if decision is None:
            continue
        document = redact(canonical_json(decision.model_dump(mode="json")).decode()).encode()
        if not store.objects.create(decision_path(mix, commit), document):
            break
        new.append(decision)
    return new


def _said(value: object) -> str | None:
    return None if value is None else str(value)
