"""What a launcher and its pods tell each other through the store: one schema, written and read here, on files and on a bucket."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.artifact.job_folder import BLOCK, MESSAGES, JobFolder, Outcome, log_stream
from marin_core.errors import ConfigError, DataError, InfrastructureError, SupersededError
from tests.storage.gcs import FakeGcs

G1, G2, G3 = (f"{number:020d}" for number in (1_790_000_000_000_000_000, 1_790_000_000_000_000_001, 1_800_000_000_000_000_000))


@pytest.fixture(scope="module")
def gcs() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


@pytest.fixture(params=["file", "gcs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    if request.param == "file":
        return JobFolder(f"file://{tmp_path}/.jobs/m-toy-a1")
    server: FakeGcs = request.getfixturevalue("gcs")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return JobFolder(server.prefix(f"lab/{tmp_path.name}/.jobs/m-toy-a1"))


def outcome(generation: str = G1, process: int = 0, exit_code: int = 75, **values: Any) -> Outcome:
    return Outcome(generation=generation, process=process, exit_code=exit_code, ended_at=datetime(2026, 11, 30, tzinfo=UTC), **values)


def test_a_folder_that_nobody_wrote_holds_nothing(folder: JobFolder) -> None:
    assert folder.spec() is None
    assert folder.chunks(MESSAGES) == []
    assert folder.outcomes() == []
    folder.require_newest(G1)


def test_the_first_spec_stays(folder: JobFolder) -> None:
    assert folder.write_spec('{"attempt": 1}')
    assert not folder.write_spec('{"attempt": 2}')
    assert folder.spec() == '{"attempt": 1}'


def test_a_reader_gets_every_piece_once_and_in_order_over_all_generations(folder: JobFolder) -> None:
    log = log_stream(11)
    folder.put(log, G1, 0, b"a")
    folder.put(log, G1, 1, b"b")
    first = folder.chunks(log)
    assert [folder.read(log, chunk) for chunk in first] == [b"a", b"b"]
    folder.put(log, G1, 2, b"c")
    folder.put(log, G2, 0, b"d")
    folder.put(log_stream(1), G3, 0, b"another process's")
    new = folder.chunks(log, after=first[-1])
    assert [folder.read(log, chunk) for chunk in new] == [b"c", b"d"]
    assert folder.chunks(log, after=new[-1]) == []
    assert folder.chunks(log) == first + new


def test_a_look_for_new_pieces_lists_only_the_newest_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = JobFolder(f"file://{tmp_path}")
    for sequence in (0, BLOCK - 1, BLOCK, 3 * BLOCK):  # not every one is needed to tell
        folder.put(MESSAGES, G1, sequence, b"x")
    listed: list[str] = []
    names = folder._objects.names

    def counted(path: str) -> list[str]:
        listed.append(path)
        return names(path)

    monkeypatch.setattr(folder._objects, "names", counted)
    assert folder.chunks(MESSAGES, after=f"{G1}-00003/000") == []
    assert listed == ["messages", f"messages/{G1}-00003"]


@given(st.sets(st.tuples(st.sampled_from((G1, G2, G3)), st.integers(0, 5 * BLOCK)), min_size=1, max_size=40))
def test_names_sort_as_they_were_written(pieces: set[tuple[str, int]]) -> None:
    folder = JobFolder("memory://sorted")
    for generation, sequence in pieces:
        folder.put(MESSAGES, generation, sequence, f"{generation} {sequence}".encode())
    names = folder.chunks(MESSAGES)
    written = [f"{generation} {sequence}" for generation, sequence in sorted(pieces)]
    assert [folder.read(MESSAGES, name).decode() for name in names] == written
    middle = names[len(names) // 2]
    assert folder.chunks(MESSAGES, after=middle) == names[len(names) // 2 + 1 :]
    fsspec.filesystem("memory").store.clear()


def test_a_piece_may_be_sent_again_when_the_answer_was_lost(folder: JobFolder) -> None:
    folder.put(MESSAGES, G1, 0, b"{}\n")
    folder.put(MESSAGES, G1, 0, b"{}\n")
    assert [folder.read(MESSAGES, chunk) for chunk in folder.chunks(MESSAGES)] == [b"{}\n"]


def test_a_piece_that_was_removed_is_an_error_that_names_it(folder: JobFolder) -> None:
    with pytest.raises(DataError, match=f"{G1}-00000/000 of messages"):
        folder.read(MESSAGES, f"{G1}-00000/000")


@pytest.mark.parametrize("stream", ["log", "log-", "log-x", "../spec", "messages/x"])
def test_there_are_no_other_streams(tmp_path: Path, stream: str) -> None:
    with pytest.raises(ValueError, match="no stream"):
        JobFolder(str(tmp_path)).put(stream, G1, 0, b"")


def test_outcomes_come_back_as_they_were_left_by_generation(folder: JobFolder) -> None:
    late = outcome(G2, 0, 0)
    early = outcome(G1, 12, 143, message="saved after step 3", restart=2, pod="m-toy-a1-rack-0-12-x", node="n7", peer_lost=True)
    for each in (late, early, early):
        folder.leave(each)
    assert folder.outcomes() == [early, late]


def test_an_outcome_of_a_newer_image_can_be_read(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path))
    (tmp_path / "outcomes").mkdir()
    text = outcome().model_dump_json()
    (tmp_path / "outcomes" / f"{G1}-0.json").write_text(text[:-1] + ', "from_the_future": 1}')
    assert folder.outcomes() == [outcome()]


@pytest.mark.parametrize("damage", ["", "{", '{"exit_code": 0}'])
def test_a_damaged_outcome_is_named_and_not_guessed(tmp_path: Path, damage: str) -> None:
    folder = JobFolder(str(tmp_path))
    folder.leave(outcome())
    (tmp_path / "outcomes" / f"{G1}-0.json").write_text(damage)
    with pytest.raises(DataError, match=f"outcomes/{G1}-0.json is damaged"):
        folder.outcomes()


@pytest.mark.parametrize("values", [{"generation": "1"}, {"process": -1}, {"exit_code": -9}])
def test_an_impossible_outcome_is_refused_where_it_is_made(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        outcome(**values)


def test_an_older_generation_is_refused_from_the_moment_a_newer_one_begins(folder: JobFolder) -> None:
    assert folder.supersede(G1) == set()
    folder.require_newest(G1)
    assert folder.supersede(G2) == set()
    for refused in (folder.require_newest, folder.supersede, folder.begin_commit):
        with pytest.raises(SupersededError, match=f"superseded: generation {G1} .* replaced by"):
            refused(G1)
    folder.require_newest(G2)
    folder.begin_commit(G2)


def test_a_generation_that_had_begun_to_commit_is_spared(folder: JobFolder) -> None:
    folder.supersede(G1)
    folder.supersede(G2)
    folder.begin_commit(G2)
    folder.begin_commit(G2)  # the answer was lost
    assert folder.supersede(G3) == {G2}
    assert folder.supersede(G3) == {G2}
    folder.begin_commit(G2)


def test_a_commit_and_its_replacement_at_one_moment_have_one_winner(tmp_path: Path) -> None:
    """Either the older one commits and keeps its output, or it is replaced and can't."""
    for round_ in range(30):
        folder, start = JobFolder(f"{tmp_path}/{round_}"), threading.Barrier(2)
        folder.supersede(G1)
        committed: list[bool] = []

        def commit(folder: JobFolder = folder, start: threading.Barrier = start, committed: list[bool] = committed) -> None:
            start.wait()
            with suppress(SupersededError):
                folder.begin_commit(G1)
                committed.append(True)

        older = threading.Thread(target=commit)
        older.start()
        start.wait()
        spared = folder.supersede(G2)
        older.join()
        assert bool(committed) == (spared == {G1})


def test_a_new_pod_is_of_a_higher_generation_even_if_its_clock_is_behind(folder: JobFolder) -> None:
    now = int(G3)
    assert folder.next_generation(0, now) == G3
    folder.supersede(G3)
    folder.put(log_stream(4), f"{now + 7:020d}", 0, b"x")
    assert folder.next_generation(0, now - 10**9) == f"{now + 1:020d}"
    assert folder.next_generation(4, now - 10**9) == f"{now + 8:020d}"
    assert folder.next_generation(0, now + 10**9) == f"{now + 10**9:020d}"


def test_a_store_that_does_not_answer_is_infrastructure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeGcs() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MARIN_STORE_TIMEOUT_SECONDS", "1")
        folder = JobFolder("gs://lab/away")
    with pytest.raises(InfrastructureError, match="gs://lab/away"):
        folder.leave(outcome())
