"""From raw text to a mix that is published in a bucket: real services, and a clock that the test moves instead of sleeping.

Real are fake-gcs-server, PostgreSQL, code server, daemon and webserver, the run workers and jobs that they start, git and the browser.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from marin_core.artifact import ArtifactId
from marin_core.mix.commit import Commit, hour_text
from marin_core.mix.place import open_place
from marin_core.mix.read import MixReader, verify
from tests.browser.conftest import page  # noqa: F401 - a fixture
from tests.browser.test_mix_page import table
from tests.deploy.machine import PROJECT
from tests.integration.deployment import wait_for
from tests.integration.lab_on_gcs import LabOnGcs, running
from tests.integration.standing_clock import move

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(1500)]

HOW_TO = PROJECT / "docs" / "how-to" / "publish-a-mix.md"
DAY = datetime(2026, 3, 2, tzinfo=UTC)
MIX = "published/python"
SCHEDULE = "publish_python_hourly"
SHARD, CHECKPOINT = "00000", "step-000040"

FIRST = "First weights: by hand, to be revised."
MORE_DOCSTRINGS = "More docstrings: the last run wrote too few."
EVEN = "Half and half until the next ablation."
MOSTLY_DOCSTRINGS = "Mostly docstrings: the ablation said so."
WEIGHTS = [("0.7", "0.3"), ("0.6", "0.4"), ("0.5", "0.5"), ("0.25", "0.75")]
"""Of topics and docstrings, in the order of the commits."""


def at(hour: int, minute: int) -> datetime:
    """A time at second 59, when the scheduler looks once a second."""
    return DAY + timedelta(hours=hour, minutes=minute, seconds=59)


def hour(number: int) -> str:
    return hour_text(DAY + timedelta(hours=number))


@pytest.fixture(scope="module")
def lab() -> Iterator[LabOnGcs]:
    with running(at(10, 4)) as lab:
        lab.checkout.commit(FIRST)
        lab.start()
        yield lab


def test_the_whole_way_from_raw_text_to_scores_lies_in_the_bucket(lab: LabOnGcs) -> None:
    """Stage by stage, as somebody clicks through the graph."""
    runs = [
        lab.materialize(["raw/python-v1"]),
        lab.materialize(["filtered/topics-v1", "filtered/docstrings-v1"], SHARD),
        lab.materialize(["tokenizer/python-v1"]),
        lab.materialize(["tokenized/topics-v1", "tokenized/docstrings-v1"], SHARD),
        lab.materialize(
            [
                "tokenized/docstrings_held_out-v1",
                "mixtures/python-v1",
                "checkpoints/small-v1",
                "eval_tasks/docstrings-v1",
                "baselines/python-v1",
            ]
        ),
        lab.materialize(["evals/small-v1"], CHECKPOINT),
    ]
    scores = lab.store.record(ArtifactId("evals/small", "v1", CHECKPOINT))
    assert scores is not None
    assert scores.dagster_run_id == runs[-1]
    training = lab.store.record(ArtifactId("checkpoints/small", "v1"))
    assert training is not None
    objects = lab.objects()
    payload = lab.store.payload_url(training).removeprefix(lab.gcs.prefix(f"{lab.gcs.bucket}/"))
    kept = {f"{payload}/{file.path}" for file in training.files}
    assert kept
    assert kept <= set(objects)
    assert any(name.startswith(f"dagster/storage/{runs[0]}/compute_logs/") for name in objects), "the output of run workers"
    local = [path for path in lab.folder.rglob("record.json") if ".artifact" in path.parts]
    assert local == [], "nothing but jobs and Dagster's own state lies on the machine"
    assert list((lab.folder / "dagster" / "jobs").glob("*/m-*")), "where jobs_folder says, and not in the project"


def test_three_hours_are_published_and_a_quiet_one_says_why_it_isnt(lab: LabOnGcs) -> None:
    lab.switch_on(SCHEDULE)
    move(lab.clock, at(10, 6))
    tick = next_tick(lab, 1)
    lab.finished(tick["runIds"][0])

    change_weights(lab, 1)
    lab.checkout.commit(MORE_DOCSTRINGS)
    lab.reload()
    move(lab.clock, at(11, 6))
    tick = next_tick(lab, 2)
    lab.finished(tick["runIds"][0])

    change_weights(lab, 2)  # not in git: the reason is given by hand, before the clock of the schedule strikes
    code, said = lab.command_on_the_machine("marin", "mix", "publish", "--hour", hour(12), "--message", EVEN)
    assert code == 0, said
    lab.checkout.commit("Later, for the record.")
    lab.reload()
    move(lab.clock, at(12, 6))
    tick = next_tick(lab, 3)
    assert (tick["status"], tick["runIds"]) == ("SKIPPED", [])
    assert tick["skipReason"] == f"nothing has changed since commit 2 of {hour(12)}"

    assert [(each.hour, each.message) for each in commits(lab)] == [(hour(10), FIRST), (hour(11), MORE_DOCSTRINGS), (hour(12), EVEN)]


def test_a_day_of_missed_hours_is_caught_up_by_one_tick_in_one_run(lab: LabOnGcs) -> None:
    before = len(lab.runs())
    lab.stop_daemon()
    change_weights(lab, 3)
    lab.checkout.commit(MOSTLY_DOCSTRINGS)
    lab.reload()
    move(lab.clock, at(24 + 12, 6))
    lab.start()
    tick = next_tick(lab, 4)
    (run,) = tick["runIds"]
    lab.finished(run)
    tags = lab.tags(run)
    hours = (tags["dagster/asset_partition_range_start"], tags["dagster/asset_partition_range_end"])
    assert hours == ("2026-03-02-13:00", "2026-03-03-12:00")
    assert len(lab.runs()) == before + 1
    assert lab.partitions_made(MIX) == 2 + 24, "the one published by hand is Dagster's affair no more than a quiet one"
    assert [each.hour for each in commits(lab)] == [hour(10), hour(11), hour(12), hour(36)]


def test_the_page_shows_history_difference_and_shares_as_published(lab: LabOnGcs, page: Page) -> None:  # noqa: F811
    published = commits(lab)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{lab.gcs.url}/{lab.gcs.bucket}/store/{MIX}/index.html")
    page.screenshot(path=str(lab.machine.root / "mix.png"), full_page=True)

    said = [FIRST, MORE_DOCSTRINGS, EVEN, MOSTLY_DOCSTRINGS]
    history = [[row[index] for index in (0, 1, 2, 3, 5)] for row in table(page, "History")]
    assert history == [
        [str(each.seq), each.hour, "Ada", message, each.id[:12]] for each, message in reversed(list(zip(published, said, strict=True)))
    ]
    fingerprints = [each.content["mixture"]["fingerprint"] for each in published[-2:]]
    assert table(page, "Changed by this commit") == [
        ["/mixture/fingerprint", *fingerprints],
        ["/phases/0/weights/docstrings", "0.5", "0.75"],
        ["/phases/0/weights/topics", "0.5", "0.25"],
    ]
    domains = {row[0]: row for row in table(page, "Domains")}
    assert {name: row[1] for name, row in domains.items()} == {"topics": "25 %", "docstrings": "75 %"}
    for name, row in domains.items():
        record = lab.store.record(ArtifactId(f"tokenized/{name}", "v1", SHARD))
        assert record is not None
        assert row[6:9] == ["PSF-2.0", published[-1].content["domains"][name]["cache_digest"][:12], f"tokenized/{name}@v1"]

    expect(page.locator("figure svg")).to_have_count(1)
    middles = [0.5, 1.5, 14.0, 26.5]  # of the commits' spans, in hours from the first: 10–11, 11–12, 12 to 12 of the next day, one more
    for band, domain in enumerate(("docstrings", "topics")):
        expected = [float(weights[1 - band]) for weights in WEIGHTS]
        assert shares(page, band, [middle / 27 for middle in middles]) == pytest.approx(expected, abs=0.01), domain
    assert complaints == []


def test_each_change_of_weights_is_in_the_labs_log_and_the_chain_is_sound(lab: LabOnGcs) -> None:
    published = commits(lab)
    recorded = {name: lab.store.objects.read(f".decisions/{MIX}/{name}") for name in lab.store.objects.names(f".decisions/{MIX}")}
    assert list(recorded) == [f"{each.seq:08d}-{each.id}.json" for each in published[1:]], "the first changed nothing"
    for data, commit, old, new in zip(recorded.values(), published[1:], WEIGHTS, WEIGHTS[1:], strict=False):
        decision = json.loads(data or b"")
        assert (decision["message"], decision["author"], decision["hour"]) == (commit.message, "Ada", commit.hour)
        assert decision["changes"] == [
            {"path": "/phases/0/weights/docstrings", "old": old[1], "new": new[1]},
            {"path": "/phases/0/weights/topics", "old": old[0], "new": new[0]},
        ]
    verdict = verify(reader(lab))
    assert (verdict.commits, verdict.problems, verdict.unreachable) == (4, (), ())


def test_the_how_to_reads_it_word_for_word(lab: LabOnGcs) -> None:
    """Its commands, but for the name of a domain; `diff` says by its exit code that there is one."""
    commands = HOW_TO.read_text().partition("## Read it\n\n```\n")[2].partition("```")[0].splitlines()
    assert {command.split()[2] for command in commands} == {"log", "show", "diff", "at", "blame", "verify"}
    for command in commands:
        code, said = lab.command_on_the_machine(*command.replace("python_code", "docstrings").split())
        assert code == (1 if " diff " in command else 0), said
        expected = {"diff": "/phases/0/weights/docstrings", "verify": "4 commits read, no problems"}
        assert expected.get(command.split()[2], MOSTLY_DOCSTRINGS) in said, command


# What it takes ---------------------------------------------------------------------------------------------------------


def next_tick(lab: LabOnGcs, number: int) -> dict[str, Any]:
    """The tick that makes so many; there is no other."""
    ticks = wait_for(f"tick {number}", lambda: found if len(found := lab.ticks(SCHEDULE)) >= number else None, 300)
    assert len(ticks) == number, ticks
    assert ticks[-1]["status"] in ("SUCCESS", "SKIPPED"), ticks[-1]
    return ticks[-1]


def change_weights(lab: LabOnGcs, to: int) -> None:
    """Edit the experiment, as a curator does."""
    old, new = ((f"{{topic_tokens: {topics}, docstring_tokens: {docstrings}}}") for topics, docstrings in WEIGHTS[to - 1 : to + 1])
    lab.checkout.edit(old, new)


def reader(lab: LabOnGcs) -> MixReader:
    return MixReader(open_place(f"{lab.store.prefix}/{MIX}"))


def commits(lab: LabOnGcs) -> list[Commit]:
    """All of them, oldest first."""
    return list(reader(lab).history())[::-1]


def shares(shown: Page, band: int, where: list[float]) -> list[float]:
    """Shares of a band of the chart as it is filled, at places between its left (0) and its right edge (1)."""
    found: list[float] = shown.evaluate(
        """([band, where]) => {
            const svg = document.querySelector("figure svg"), path = svg.querySelectorAll("path[fill]:not([fill=none])")[band];
            const box = {left: 44, width: 906, top: 10, bottom: 214};
            return where.map(share => {
                let filled = 0;
                for (let y = box.top + 0.5; y < box.bottom; y++)
                    filled += path.isPointInFill(new DOMPoint(box.left + box.width * share, y));
                return filled / (box.bottom - box.top);
            });
        }""",
        [band, where],
    )
    return found
