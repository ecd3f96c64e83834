"""The how-tos on automation and backfills are followed with a real daemon, command by command."""

import importlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.integration.backfill_experiments.words import DOCUMENTS_VARIABLE, SHARDS
from tests.integration.deployment import PROJECT, wait_for
from tests.integration.test_backfill import FAMILY, DaemonAlone

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

AUTOMATE = (PROJECT / "docs" / "how-to" / "automate.md").read_text()
BACKFILL = (PROJECT / "docs" / "how-to" / "backfill.md").read_text()
BAD = "00004"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonAlone]:
    deployment = DaemonAlone(tmp_path_factory.mktemp("how_tos"))
    try:
        yield deployment
    finally:
        deployment.stop()


@pytest.fixture(scope="module")
def experiment(lab: DaemonAlone) -> Iterator[ModuleType]:
    """What the deployment declares, for this process."""
    from tests.integration.backfill_experiments import words

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DOCUMENTS_VARIABLE, lab.environment[DOCUMENTS_VARIABLE])
        yield importlib.reload(words)
    importlib.reload(words)


@pytest.fixture(scope="module")
def whole(lab: DaemonAlone) -> bytes:
    """What the file of the bad shard should be; half of it is there."""
    path = bad_file(lab)
    found = path.read_bytes()
    path.write_bytes(found[: len(found) // 2])
    return found


def test_sensors_that_are_switched_on_build_what_is_missing_and_write_down_what_fails(
    lab: DaemonAlone, experiment: ModuleType, whole: bytes
) -> None:
    lab.build_raw(experiment)
    start, look = block(AUTOMATE, "Five things can happen").splitlines()
    listed = lab.command(*shlex.split(look))
    lab.start_daemon()  # not before: Dagster's first two processes in a new home make its tables at once, and one of them fails
    named = [name for name in re.findall(r"`(\w+)`", AUTOMATE.partition("\n## ")[0]) if name in listed]
    assert named == ["build_missing_shards", "record_failed_runs", "record_stalled_attempts"]  # there is no evaluation, and no mix
    for name in named:
        lab.command(*shlex.split(start.replace("evaluate_new_checkpoints", name)))

    wait_for("every shard's end", lambda: all(ended(lab, key) for key in keys()), 1200)
    assert {key: lab.states(key) for key in keys()} == {key: ["failed" if key == BAD else "succeeded"] for key in keys()}
    failure = lab.folder / "store" / ".failures" / "filtered" / "words" / "dev" / BAD / "00001.json"
    wait_for("the record of the failure", failure.exists, 300)
    written, promised = json.loads(failure.read_text()), json.loads(block(AUTOMATE, "keeps one file", number=1).replace("…", ""))
    assert promised.keys() == written.keys()
    assert (written["artifact"], written["failure"], written["exit_code"]) == (f"{FAMILY}/{BAD}", "data", 65)


def test_a_backfill_is_asked_for_as_written(lab: DaemonAlone, experiment: ModuleType, whole: bytes) -> None:
    bad_file(lab).write_bytes(whole)
    lab.build_raw(experiment)
    mend = re.findall(r"`(marin backfill .+? --failed)`", BACKFILL)[0]
    said = lab.command(*ours(mend))
    assert lab.states(BAD) == ["failed", "succeeded"], said
    requested = block(BACKFILL, "says what it will do").splitlines()[1]
    assert re.search(pattern_of(requested), said), said

    choices = [row.split("|")[1].strip() for row in BACKFILL.splitlines() if row.startswith("| `--")]
    assert len(choices) == 5
    for choice in choices:
        said = lab.command(*ours(f"marin backfill filtered/web@v2 {choice.strip('`')}"))
        assert "0 to build" in said, said
    assert "succeeded" in lab.command(*ours(re.findall(r"`(marin show .+?)`", BACKFILL)[0]))

    native = re.findall(r"`(dagster job backfill .+?)`", BACKFILL)[0]
    lab.command(*ours(native.replace("filter_web", "filter_words")))
    assert [lab.states(key) for key in keys() if key != BAD] == [["succeeded"]] * (SHARDS - 1)


# What it takes ---------------------------------------------------------------------------------------------------------


def block(document: str, after: str, number: int = 0) -> str:
    """A fenced block behind some words."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", document[document.index(after) :], re.MULTILINE | re.DOTALL)
    return str(blocks[number])


def ours(command: str) -> list[str]:
    """A command of the how-to, with the names of this lab; its ranges lie among six shards."""
    for theirs, here in (
        ("filtered/web@v2", FAMILY),
        ("tokenized/web@v1", FAMILY),
        ("00010", "00001"),
        ("00019", "00003"),
        ("00007", "00005"),
    ):
        command = command.replace(theirs, here)
    return shlex.split(command)


def pattern_of(line: str) -> str:
    """A line of output that may have other numbers and another identifier."""
    return re.sub(r"(backfill )\w+", r"\1\\w+", re.sub(r"\b\d+\b", r"\\d+", line.strip()))


def keys() -> list[str]:
    return [f"{index:05d}" for index in range(SHARDS)]


def ended(lab: DaemonAlone, key: str) -> bool:
    return bool(lab.states(key)) and "open" not in lab.states(key)


def bad_file(lab: DaemonAlone) -> Path:
    return lab.folder / "documents" / "4.jsonl.gz"
