"""The page of a published mix, as a person sees it: opened from a folder and from a bucket, whatever was written into it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from marin_core.mix.commit import Commit
from marin_core.mix.place import open_place
from marin_core.mix.read import MixReader
from tests.mix.chains import content, put
from tests.mix.conftest import bucket
from tests.storage.gcs import FakeGcs

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u202egnp.exe"
HISTORY = [
    (content(), "first mix"),
    (content("0.6", "0.4"), "more code: it helps reasoning"),
    (content("0.6", "0.4", tokens=1_200_001_000), None),
    (content("0.25", "0.75", tokens=1_200_001_000), HOSTILE),
]


@pytest.fixture(params=["folder", "bucket"])
def opened(
    request: pytest.FixtureRequest, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Page, list[Commit]]]:
    """The page in the browser, and the commits that it is about; whatever the browser complains of while it is open fails the test."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if page.url.endswith("index.html") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    if request.param == "folder":
        place, address = open_place(f"{tmp_path}/mix"), f"file://{tmp_path}/mix/index.html"
    else:
        server: FakeGcs = request.getfixturevalue("server")
        place, address = bucket(server, f"{tmp_path.name}/mix", monkeypatch), f"{server.url}/lab/{tmp_path.name}/mix/index.html"
    for number, (each, message) in enumerate(HISTORY):
        put(place, number, each, message, author="Ada")
    page.goto(address)
    page.screenshot(path=str(tmp_path / f"{request.param}.png"), full_page=True)
    yield page, list(MixReader(place).history())
    assert complaints == []
    assert "owned" not in page.title()


@pytest.fixture(scope="module")
def server() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


def table(page: Page, heading: str) -> list[list[str]]:
    """Texts of the cells of the table below a heading."""
    rows = page.locator(f"h2:has-text('{heading}') + div.scroll tbody tr").all()
    return [[cell.inner_text().strip() for cell in row.locator("td").all()] for row in rows]


def test_history_diff_chart_and_links_are_right(opened: tuple[Page, list[Commit]]) -> None:
    page, commits = opened
    assert page.locator("h1").inner_text() == "mixtures/small"

    history = table(page, "History")
    assert [(row[0], row[1], row[2], row[5]) for row in history] == [
        (str(commit.seq), commit.hour, "Ada", commit.id[:12]) for commit in commits
    ]
    assert [row[3] for row in history[1:]] == ["web +1.2 B tokens", "more code: it helps reasoning", "first mix"]
    assert history[0][3] == HOSTILE.replace("\u202e", "\\u202e"), "shown as text"

    assert table(page, "Changed by this commit") == [
        ["/phases/0/weights/code", "0.4", "0.75"],
        ["/phases/0/weights/web", "0.6", "0.25"],
    ]
    domains = {row[0]: row for row in table(page, "Domains")}
    assert (domains["code"][1], domains["web"][1], domains["web"][2], domains["web"][6]) == ("75 %", "25 %", "1.2 B", "CC-BY-4.0")
    bars = {row.locator("td").first.inner_text(): row.locator(".bar span").bounding_box() for row in page.locator("tr:has(.bar)").all()}
    widths = {name: box["width"] if box else 0 for name, box in bars.items()}
    assert widths["code"] == pytest.approx(3 * widths["web"], rel=0.02)

    chart = page.locator("figure svg")
    expect(chart).to_have_count(1)
    shares = [float(commit.weights()["code"]) for commit in reversed(commits)]
    assert heights(page, 0) == pytest.approx([share / max(shares) for share in shares], abs=0.02)

    page.get_by_role("link", name="this commit").click()
    shown = json.loads(page.locator("body").inner_text())
    assert (shown["seq"], shown["id"]) == (commits[0].seq, commits[0].id)


def heights(page: Page, band: int) -> list[float]:
    """Heights of the steps of a band of the chart as they are filled, relative to the highest: probed where each hour's middle is."""
    probed: list[float] = page.evaluate(
        """band => {
            const svg = document.querySelector("figure svg"), path = svg.querySelectorAll("path[fill]:not([fill=none])")[band];
            const hours = 4, box = {left: 44, width: 906, top: 10, bottom: 214};
            return [...Array(hours).keys()].map(hour => {
                let filled = 0;
                for (let y = box.top + 0.5; y < box.bottom; y++)
                    filled += path.isPointInFill(new DOMPoint(box.left + box.width * (hour + 0.5) / hours, y));
                return filled;
            });
        }""",
        band,
    )
    return [height / max(probed) for height in probed]
