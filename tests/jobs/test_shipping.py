"""What a pod sends to the store: whole lines, each once and in order, whatever the store does, in bounded memory."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.artifact.job_folder import MESSAGES, JobFolder, Outcome, log_stream
from marin_core.errors import InfrastructureError
from marin_jobs import shipping
from marin_jobs.shipping import Printed, Said, Shipper

G1 = f"{1_790_000_000_000_000_000:020d}"
OUTCOME = Outcome(generation=G1, process=0, exit_code=0, ended_at=datetime(2026, 11, 30, tzinfo=UTC))


class Flaky(JobFolder):
    """A folder whose every second write is done, or isn't, and says that it failed."""

    def __init__(self, url: str, *, done: bool) -> None:
        super().__init__(url)
        self._done = done
        self._writes = 0
        self.failures = 0

    def put(self, stream: str, generation: str, sequence: int, data: bytes) -> None:
        self._writes += 1
        if self._writes % 2 and not self._done:
            self._fail()
        super().put(stream, generation, sequence, data)
        if self._writes % 2:
            self._fail()

    def leave(self, outcome: Outcome) -> None:
        self._writes += 1
        if self._writes % 2:
            self._fail()
        super().leave(outcome)

    def _fail(self) -> None:
        self.failures += 1
        raise InfrastructureError("the store is away", advice="Wait.")


def stream(folder: JobFolder, name: str) -> bytes:
    return b"".join(folder.read(name, chunk) for chunk in folder.chunks(name))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces are small and sent at once."""
    monkeypatch.setattr(shipping, "SHORTEST_SECONDS", 0.001)
    monkeypatch.setattr(shipping, "PIECE_BYTES", 64)


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.usefixtures("often")
def test_a_flaky_store_gets_every_line_once_and_the_outcome_last(tmp_path: Path, *, done: bool) -> None:
    folder, messages = Flaky(str(tmp_path / "job"), done=done), tmp_path / "messages"
    shipper = Shipper(folder, G1, 0, messages)
    lines = [f"line {number}\n".encode() for number in range(200)]
    with messages.open("ab", buffering=0) as file:
        for line in lines:
            shipper.printed.add(line)
            file.write(line[:3])
            file.write(line[3:])
    assert shipper.finish(OUTCOME, seconds=100)
    assert stream(folder, log_stream(0)) == stream(folder, MESSAGES) == b"".join(lines)
    assert folder.outcomes() == [OUTCOME]
    assert folder.failures > 2


@pytest.mark.usefixtures("often")
def test_a_store_that_stays_away_holds_nobody_up_for_longer_than_it_may(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Away(JobFolder):
        def put(self, stream: str, generation: str, sequence: int, data: bytes) -> None:
            raise OSError("a kind of error that nobody expected")

    shipper = Shipper(Away(str(tmp_path)), G1, 1, None)
    shipper.printed.add(b"a line\n")
    assert not shipper.finish(OUTCOME, seconds=0.05)
    assert capfd.readouterr().err.count("the job goes on") == 1


def test_a_log_that_nobody_takes_is_bounded_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "LOG_BYTES", 1000)
    printed, lines = Printed(), [f"line {number:04d}\n".encode() for number in range(1000)]
    for line in lines:
        printed.add(line)
    taken = [piece for piece in iter(lambda: printed.take(last=True), b"") if piece is not None]
    kept = b"".join(taken[1:])
    assert kept == b"".join(lines[-100:])
    assert taken[0] == f"[{9000} bytes of the log are missing here: the store didn't answer]\n".encode()


@given(st.lists(st.text("ab\n", max_size=40)), st.integers(1, 30))
def test_what_is_printed_comes_out_as_it_went_in_by_whole_lines(parts: list[str], piece_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipping, "PIECE_BYTES", piece_bytes)
        printed, taken = Printed(), b""
        for part in parts:
            printed.add(part.encode())
            lines = printed.take(last=False) or b""
            assert len(lines) <= piece_bytes + 1
            assert lines.endswith(b"\n") or not lines
            taken += lines
        while piece := printed.take(last=True):
            taken += piece
        whole = "".join(parts)
        if all(len(line) < piece_bytes for line in whole.split("\n")):
            assert taken.decode() == whole + ("\n" if whole and not whole.endswith("\n") else "")
        else:  # a line that is too long is cut, and nothing of it lost
            assert taken.decode().replace("\n", "") == whole.replace("\n", "")


@given(st.lists(st.text("ab", max_size=60), max_size=20), st.text("ab", max_size=5), st.integers(1, 30))
def test_a_message_longer_than_a_piece_is_sent_whole_and_half_a_one_never(lines: list[str], torn: str, piece_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(shipping, "PIECE_BYTES", piece_bytes)
        path = Path(folder, "messages")
        path.write_text("".join(f"{line}\n" for line in lines) + torn)
        said, pieces = Said(path), list[bytes]()
        while piece := said.take(last=True):
            pieces.append(piece)
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert b"".join(pieces).decode() == "".join(f"{line}\n" for line in lines)


@pytest.mark.usefixtures("often")
def test_no_secret_reaches_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_API_KEY", "correct-horse-battery")
    shipper = Shipper(JobFolder(str(tmp_path)), G1, 0, None)
    shipper.printed.add(b"logging in with correct-")
    shipper.printed.add(b"horse-battery\n")
    assert shipper.finish(OUTCOME, seconds=100)
    assert stream(JobFolder(str(tmp_path)), log_stream(0)) == b"logging in with [redacted LAB_API_KEY]\n"
