"""Places for a mix: a folder, and a bucket of the real fake-gcs-server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_core.mix.place import GcsPlace, Place, open_place
from tests.storage.gcs import FakeGcs


@pytest.fixture(scope="module")
def gcs() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


def bucket(server: FakeGcs, name: str, monkeypatch: pytest.MonkeyPatch) -> GcsPlace:
    """A folder of the server's bucket."""
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    place = open_place(server.prefix(f"lab/{name}"))
    assert isinstance(place, GcsPlace)
    return place


@pytest.fixture(params=["file", "gcs"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "file":
        return open_place(f"file://{tmp_path}/mix")
    return bucket(request.getfixturevalue("gcs"), f"{tmp_path.name}/mix", monkeypatch)
