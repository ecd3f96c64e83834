"""The bed that all tests of this folder share. It is brought up by the first one that asks for it."""

from collections.abc import Iterator

import pytest

from tests.kubernetes.bed.cluster import Bed


@pytest.fixture(scope="session")
def standing_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """The cluster, whatever the tests before have left in it."""
    with Bed(tmp_path_factory.mktemp("bed")) as bed:
        yield bed


@pytest.fixture
def bed(standing_bed: Bed) -> Iterator[Bed]:
    """The cluster without jobs, and with all its nodes and programs; what a test leaves is cleared away."""
    yield standing_bed
    standing_bed.clear()
