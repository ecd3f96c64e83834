"""Work in a child process: what it may use is bounded, and a dead one is replaced."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from marin_core.artifact.code import code_table
from marin_core.data.transforms.child import Child, ChildError
from marin_core.errors import ExitCode, MarinError
from tests.data.formats.made import PAGE, pdf

HTML = {"to": "text", "main_content": False, "links": False, "charset": None}
PDF = {"max_pages": 2_000, "min_characters_per_page": 20}


@pytest.fixture
def pages() -> Iterator[Child]:
    child = Child("html", cpu_seconds=5)
    yield child
    child.close()


def test_one_worker_answers_request_after_request(pages: Child) -> None:
    for number in range(50):
        answer, text = pages.call(HTML, f"<title>T{number}</title><p>text {number}".encode())
        assert (answer["title"], text.decode()) == (f"T{number}", f"text {number}")
    assert pages.started == 1


def test_a_refusal_is_no_death(pages: Child) -> None:
    for _ in range(3):
        with pytest.raises(ChildError) as caught:
            pages.call(HTML, b"<script>x</script>")
        assert caught.value.reason == "html_empty"
    assert pages.started == 1


def test_cpu_time_ends_a_request_and_the_next_one_has_a_new_worker(pages: Child) -> None:
    with pytest.raises(ChildError) as caught:
        pages.call(HTML | {"cpu_seconds": 0.05}, PAGE.encode() * 30_000)
    assert caught.value.reason == "timeout"
    assert pages.call(HTML, b"<p>fine")[1] == b"fine"
    assert pages.started == 2


def test_time_used_by_earlier_requests_is_not_counted(pages: Child) -> None:
    page = PAGE.encode() * 200
    for _ in range(40):  # each far below the limit, all of them above it
        pages.call(HTML | {"cpu_seconds": 0.5}, page)
    assert pages.started == 1


def test_memory_is_bounded_and_the_shard_goes_on() -> None:
    child = Child("html", cpu_seconds=20, memory_bytes=300 << 20)
    try:
        with pytest.raises(ChildError) as caught:
            child.call(HTML, b"<p>x</p>" * 6_000_000)
        assert caught.value.reason in ("memory", "crashed")
        assert child.call(HTML, b"<p>fine")[1] == b"fine"
    finally:
        child.close()


def test_a_worker_that_is_killed_is_replaced(pages: Child) -> None:
    pages.call(HTML, b"<p>one")
    assert pages._process is not None
    os.kill(pages._process.pid, signal.SIGKILL)
    pages._process.wait()
    with pytest.raises(ChildError) as caught:
        pages.call(HTML, b"<p>two")
    assert caught.value.reason == "crashed"
    assert pages.call(HTML, b"<p>three")[1] == b"three"


def test_a_worker_that_cannot_start_is_no_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a broken installation would reject every document and say nothing."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    child = Child("html", cpu_seconds=5)
    with pytest.raises(MarinError, match="ended with exit code") as caught:
        child.call(HTML, b"<p>x" * 100_000)
    assert caught.value.exit_code == ExitCode.BUG
    child.close()


def test_what_a_worker_does_is_code_behind_the_artifact() -> None:
    files = code_table("marin_jobs.filter").files
    assert "page_text" in files["marin_core/data/transforms/html.py"]
    assert "joined_pages" in files["marin_core/data/transforms/pdf.py"]
    assert "parsed_text" in files["marin_core/data/transforms/wiki.py"]


def test_threads_of_the_parent_do_no_harm(pages: Child) -> None:
    held = threading.Lock()
    held.acquire()
    thread = threading.Thread(target=held.acquire, daemon=True)
    thread.start()
    assert pages.call(HTML, b"<p>fine")[1] == b"fine"
    held.release()


def test_a_worker_ends_with_its_parent() -> None:
    script = (
        "import os, signal, sys\n"
        "from marin_core.data.transforms.child import Child\n"
        f"child = Child('html', 5); child.call({HTML!r}, b'<p>x')\n"
        "print(child._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    worker = int(done.stdout)
    for _ in range(1_000):
        try:
            with open(f"/proc/{worker}/stat") as file:  # noqa: PTH123
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return  # ended; nobody has collected it
        except FileNotFoundError:
            return
        os.sched_yield()
        threading.Event().wait(0.01)
    pytest.fail("the worker outlived its parent")


def test_nothing_of_the_environment_reaches_a_worker(pages: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_SECRET", "token")
    pages.call(HTML, b"<p>x")
    assert pages._process is not None
    with open(f"/proc/{pages._process.pid}/environ", "rb") as file:  # noqa: PTH123
        assert b"MARIN_SECRET" not in file.read()


def test_a_pdf_that_takes_too_long_is_a_timeout() -> None:
    child = Child("pdf", cpu_seconds=0.3)
    try:
        with pytest.raises(ChildError) as caught:
            child.call(PDF, pdf([["A line of text"] * 200] * 500))
        assert caught.value.reason == "timeout"
    finally:
        child.close()
