"""The page: right, safe whatever was written into a commit, and equal for equal commits."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from marin_core.mix.chart import Series, chart
from marin_core.mix.commit import Commit
from marin_core.mix.page import HISTORY, SECURITY, page_seq, render
from marin_core.mix.place import PAGE_FILE, open_place
from marin_core.mix.read import MixReader
from tests.mix.chains import chain_of, content, domain, hour, put

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">\u202edlrow\x1b[31m\x00\u2028"\'&amp; --==0=='


class Elements(HTMLParser):
    """Every element with its attributes, every comment, and the text."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said = ""
        self.open: list[str] = []
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data


def history(tmp_path: Path, *contents: dict[str, Any], messages: tuple[str, ...] = ()) -> list[Commit]:
    place = open_place(f"{tmp_path}/mix")
    for number, each in enumerate(contents):
        put(place, number, each, messages[number] if number < len(messages) else "as wanted", author=f"author {number}")
    return list(MixReader(place).history())


def test_the_page_says_what_the_commit_says(tmp_path: Path) -> None:
    web = domain(1_234_567, epochs_at_planned="1.3", missing_shards=["00003"], shards=7)
    second = content("0.6", "0.4", domains={"code": domain(500), "web": web})
    commits = history(tmp_path, content(), second, messages=("first mix", "more code"))
    page = Elements(render(commits))
    for wanted in ("mixtures/small", "60 %", "40 %", "1.2 M", "7 (1 missing)", "1.3", "CC-BY-4.0", "more code", "first mix", "author 1"):
        assert wanted in page.said, wanted
    assert "/phases/0/weights/web" in page.said
    links = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert links == {"HEAD.json", "status.json", *(commit.path for commit in commits)}
    assert sum(tag == "svg" for tag, _ in page.elements) == 1
    assert page.open == []


def test_nothing_that_was_written_into_a_commit_becomes_markup(tmp_path: Path) -> None:
    name = "evil" + HOSTILE.replace("/", "")
    evil = content(
        phases=[{"start": HOSTILE, "weights": {name: "0.5", "web": HOSTILE}}],
        domains={
            name: domain(1, license=HOSTILE, artifact=HOSTILE, cache_digest=HOSTILE, epochs_at_planned=HOSTILE),
            "web": {"tokens": HOSTILE},
        },
        mixture={"name": HOSTILE, "version": HOSTILE},
        tokenizer={"digest": HOSTILE, "vocab_size": HOSTILE},
    )
    commits = history(tmp_path, content(), evil, messages=("first", HOSTILE))
    page = render(commits)
    found = Elements(page)
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in Elements(render(commits[1:])).elements} | {"p"}
    assert not [name for _, attributes in found.elements for name in attributes if name.startswith("on")]
    assert {attributes.get("href") for tag, attributes in found.elements if tag == "a"} == {
        "HEAD.json",
        "status.json",
        *(each.path for each in commits),
    }
    assert found.open == []
    text = page.decode()
    assert not re.search("[\x00\x1b\u202e\u2028]", text)
    assert "\\u202edlrow\\u001b[31m\\u0000\\u2028" in found.said
    assert "<script>alert(1)</script>" in found.said


def test_the_page_forbids_itself_everything(tmp_path: Path) -> None:
    page = Elements(render(history(tmp_path, content())))
    policies = [each["content"] for tag, each in page.elements if tag == "meta" and each.get("http-equiv") == "Content-Security-Policy"]
    assert policies == [SECURITY] == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert [attributes["href"] for tag, attributes in page.elements if tag == "link"] == ["data:,"]
    assert not {"script", "img", "iframe", "object", "form", "base"} & {tag for tag, _ in page.elements}


def test_equal_commits_give_equal_bytes_and_the_page_says_its_number(tmp_path: Path) -> None:
    commits = history(tmp_path, content(), content(tokens=2))
    assert render(commits) == render(commits) == open_place(f"{tmp_path}/mix").read(PAGE_FILE)
    assert page_seq(render(commits)) == 1
    assert page_seq(b"<html>") == -1


def test_a_long_history_and_many_domains_are_cut_and_say_so() -> None:
    names = [f"d{number:04d}" for number in range(1_200)]
    many = content(
        phases=[{"start": "0", "weights": dict.fromkeys(names, "0") | {"d0000": "1"}}], domains={name: domain() for name in names}
    )
    commits = chain_of([*(content(tokens=number) for number in range(HISTORY + 9)), many])[::-1]
    page = render(commits[:HISTORY])
    said = Elements(page).said
    assert f"The last {HISTORY} of {HISTORY + 10} commits." in said
    assert "1,000 of 1,200; all of them" in said
    assert "200 of" in said
    assert len(page) < 2_000_000


def test_domains_beyond_the_colours_are_taken_together(tmp_path: Path) -> None:
    weights = {f"d{number:02d}": "0.05" for number in range(20)}
    commits = history(tmp_path, content(phases=[{"start": "0", "weights": weights}], domains={}))
    page = Elements(render(commits))
    assert "11 others" in page.said


def bands(svg: str) -> list[list[tuple[float, float]]]:
    paths = re.findall(r'<path d="M([^"]*)Z" fill', svg)
    return [[(float(x), float(y)) for x, y in (point.split() for point in path.split("L"))] for path in paths]


def test_the_chart_is_steps_that_stack_to_the_whole() -> None:
    times = [hour(0), hour(1), hour(3)]
    first, second = bands(chart(times, [Series("a", "red", (0.5, 0.25, 1.0)), Series("b", "blue", (0.5, 0.75, 0.0))], "title"))
    width, height = 960 - 44 - 10, 240 - 10 - 26
    xs = [44 + width * share for share in (0, 0.25, 0.75, 1)]
    ys = [240 - 26 - height * share for share in (0.5, 0.25, 1.0)]
    upper = [(xs[0], ys[0]), (xs[1], ys[0]), (xs[1], ys[1]), (xs[2], ys[1]), (xs[2], ys[2]), (xs[3], ys[2])]
    assert [point for pair in first[:6] for point in pair] == pytest.approx([point for pair in upper for point in pair], abs=0.01)
    assert second[6:] == first[:6][::-1], "each stands on the one below"
    assert {y for _, y in second[:6]} == {10.0}
