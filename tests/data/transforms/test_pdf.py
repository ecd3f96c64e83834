"""Text of PDF files: whole words, no page furniture."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.data.transforms.child import ChildError
from marin_core.data.transforms.pdf import join_hyphens, joined_pages, work
from tests.data.formats.made import pdf

LIMITS = {"max_pages": 2_000, "min_characters_per_page": 20}


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("an exam-\nple of it", "an example of it"),
        ("an exam\u2010\n  ple", "an example"),
        ("soft\u00ad\nware", "software"),
        ("Jean-\nLuc", "Jean-\nLuc"),
        ("A-\nB", "A-\nB"),
        ("from 1-\n2", "from 1-\n2"),
        ("end -\nnext", "end -\nnext"),
        ("größ-\nßer über-\nall", "größßer überall"),
        ("well-known", "well-known"),
    ],
)
def test_words_divided_at_a_line_end_are_joined(text: str, joined: str) -> None:
    assert join_hyphens(text) == joined


def test_repeated_edges_go_and_what_only_looks_like_them_stays() -> None:
    pages = [f"Journal of Tests\n\nChapter {n}\nThe text of page {n}.\nRepeated inside\nmore\n\n- {n} -" for n in range(1, 6)]
    text = joined_pages(pages)
    assert "Journal of Tests" not in text
    assert "- 3 -" not in text
    assert text.count("Repeated inside") == 5
    assert all(f"The text of page {n}." in text for n in range(1, 6))
    two = joined_pages(["Head\nbody one", "Head\nbody two"])
    assert two.count("Head") == 2  # two pages prove nothing


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.text(alphabet="abcdef ", min_size=1).filter(str.strip), min_size=6, max_size=9), min_size=1, max_size=6))
def test_the_middle_of_pages_is_never_touched(pages: list[list[str]]) -> None:
    text = joined_pages(["\n".join(page) for page in pages])
    assert all(line.rstrip() in text for page in pages for line in page[2:-2])


def test_title_and_date_come_along() -> None:
    found, text = work(LIMITS, pdf([["A line of text that is long enough"]], title="On lines"))
    assert found == {"title": "On lines", "created": "2020-01-02T03:04:05+00:00", "pages": 1}
    assert text == b"A line of text that is long enough"


def test_a_figure_of_matplotlib_has_its_words() -> None:
    """A real writer's file, with embedded fonts."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.figure import Figure

    figure = Figure()
    FigureCanvasPdf(figure)
    figure.text(0.1, 0.5, "Loss falls with the square root of the number of tokens")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="pdf")
    _, text = work(LIMITS, buffer.getvalue())
    assert "square root of the number of tokens" in " ".join(text.decode().split())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pdf([["x"]]), "pdf_no_text"),
        (pdf([["long enough, this line of text"]])[:400], "pdf_damaged"),
        (b"%PDF-1.7\n" + b"\0" * 5_000, "pdf_damaged"),
        (pdf([["x"]] * 3), "pdf_no_text"),
    ],
)
def test_reasons(data: bytes, reason: str) -> None:
    with pytest.raises(ChildError) as caught:
        work(LIMITS, data)
    assert caught.value.reason == reason
