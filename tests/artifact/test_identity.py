"""Names, versions and partitions: what is refused, and that every identity survives its text and its asset key."""

import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote, urlsplit

import dagster as dg
import pytest
from dagster._utils.tags import is_valid_strict_tag_value
from hypothesis import example, given
from hypothesis import strategies as st

from marin_assets.keys import artifact_id, asset_key
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Store
from marin_core.artifact.identity import LONGEST_PART, LONGEST_PATH
from marin_core.artifact.store import META, attempt_folder
from marin_core.config import Config
from marin_core.errors import ConfigError

part = st.from_regex(r"[a-z0-9]{1,6}(_[a-z0-9]{1,4}){0,2}", fullmatch=True)
names = st.lists(part, min_size=1, max_size=4).map("/".join)
versions = st.from_regex(r"[A-Za-z0-9]{1,4}([._][A-Za-z0-9]{1,3}){0,3}", fullmatch=True)
partitions = st.none() | st.from_regex(r"[A-Za-z0-9]{1,4}([._-][A-Za-z0-9]{1,3}){0,3}", fullmatch=True)

PREFIXES = ("file:///data/lab", "gs://bucket/lab", "memory://lab")
pieces = st.sampled_from(
    [*"/\\.@:-_~% \t\n\r\x00\x7f\u202e\ud800#?*$&|,[]<>\"'", "..", "attempt-1", "ATTEMPT-", ".artifact", "gs://", "file:", "%2e%2e", "C:"]
)
anything = st.text() | st.lists(pieces | part, max_size=6).map("".join)
"""Text of any kind, and text made of what is dangerous in paths, URLs, shells and keys, between harmless words."""


@given(name=names, version=versions, partition=partitions)
def test_identity_survives_text_and_asset_key(name: str, version: str, partition: str | None) -> None:
    artifact = ArtifactId(name, version, partition)
    assert ArtifactId.parse(str(artifact)) == artifact
    assert artifact_id(asset_key(artifact)) == artifact.family


@given(name=anything | names, version=anything | versions, partition=anything | partitions)
@example("raw/web", "v1", "attempt-1")
@example("raw/web", "v1", "Attempt-12.new")
@example("a" * (LONGEST_PART + 1), "v1", None)
@example("a", "v" * (LONGEST_PART + 1), None)
@example("a", "v1", "p" * (LONGEST_PART + 1))
@example("/".join(["a" * LONGEST_PART] * 9), "v1", None)
@example("tokenized/\u212aelvin", "v1", "\u017f")
@example("a", "1\u0663", "\uff11")
def test_whatever_is_accepted_is_safe_everywhere_and_the_rest_is_refused(name: str, version: str, partition: str | None) -> None:
    try:
        artifact = ArtifactId(name, version, partition)
    except ConfigError:
        return
    assert ArtifactId.parse(str(artifact)) == artifact
    assert artifact_id(asset_key(artifact)) == artifact.family
    _assert_safe_path(artifact)
    _assert_legal_in_dagster(artifact)


def _assert_safe_path(artifact: ArtifactId) -> None:
    parts = artifact.path.split("/")
    assert re.fullmatch(r"[A-Za-z0-9._/-]+", artifact.path)
    assert all(part.strip(".") == part != "" and len(part) <= LONGEST_PART for part in parts)
    assert len(artifact.path) <= LONGEST_PATH + 2
    assert META not in parts
    assert not any(part.lower().startswith("attempt-") for part in parts)  # else a payload could be another artifact's
    for prefix in PREFIXES:
        url = f"{prefix}/{artifact.path}"
        assert urlsplit(url).path.endswith(f"/{artifact.path}")
        assert not urlsplit(url).query
        assert not urlsplit(url).fragment
        assert quote(url, safe=":/") == url
    joined = Path("/data/lab", artifact.path)
    assert joined.resolve().is_relative_to(Path("/data/lab").resolve())
    assert PurePosixPath("/data/lab", artifact.path).parts == ("/", "data", "lab", *parts)
    assert PureWindowsPath("D:/lab", artifact.path).parts == ("D:\\", "lab", *parts)
    assert Store("file:///data/lab").address(artifact) == f"file:///data/lab/{artifact.path}"


def _assert_legal_in_dagster(artifact: ArtifactId) -> None:
    key = asset_key(artifact)
    assert dg.AssetKey.from_user_string(key.to_user_string()) == key
    assert dg.AssetKey.from_db_string(key.to_string()) == key
    spec = dg.AssetSpec(key, group_name=artifact.name.split("/")[0], tags={"marin/version": artifact.version})
    assert spec.key == key
    assert is_valid_strict_tag_value(artifact.name.split("/")[-1])
    if artifact.partition is not None:
        assert dg.StaticPartitionsDefinition([artifact.partition]).get_partition_keys() == [artifact.partition]
        assert is_valid_strict_tag_value(artifact.partition)


@pytest.mark.parametrize("text", ["", "a", "a@", "@v1", "a@v1/", "a@v1/b/c", "a@v1@v2", "a/b@v1//c", "gs://a@v1", " a@v1", "a@v1\n"])
def test_text_that_is_no_identity_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        ArtifactId.parse(text)


@given(anything)
def test_text_is_an_identity_only_if_it_is_written_as_one(text: str) -> None:
    try:
        artifact = ArtifactId.parse(text)
    except ConfigError:
        return
    assert str(artifact) == text


@pytest.mark.parametrize("given", [("a", 1), ("a", 2026.11), (None, "v1"), (b"a", "v1"), ("a", "v1", 3), ("a", ["v1"]), ("a", "v1", False)])
def test_what_is_no_text_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match=r"is (int|float|NoneType|bytes|list|bool), not text"):
        ArtifactId(*given)


@given(name=names, version=versions, other_name=names, other_version=versions)
def test_two_identities_never_share_a_key_or_an_address(name: str, version: str, other_name: str, other_version: str) -> None:
    one, other = ArtifactId(name, version), ArtifactId(other_name, other_version)
    if one != other:
        assert asset_key(one) != asset_key(other)
        assert one.path != other.path


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "a/../b",
        "/a",
        "a/",
        "a//b",
        "A",
        "a b",
        "a-b",
        "a__b",
        "_a",
        "a_",
        "a\nb",
        "a\x00",
        "a@b",
        "ä",
        ".artifact",
        "a/.",
        "a\\b",
    ],
)
def test_a_name_that_could_leave_its_place_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="artifact name") as error:
        ArtifactId(name, "v1")
    assert "What to do" in str(error.value)


@pytest.mark.parametrize("version", ["", "..", "v/1", "v 1", "v-1", "1..2", ".1", "1.", "v1\n", "@"])
def test_an_invalid_version_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match="version"):
        ArtifactId("a", version)


@pytest.mark.parametrize(
    "key", ["", "..", "a/b", "a b", "a...b", "-a", "a\n", ".artifact", attempt_folder(1), "Attempt-1", "attempt-1.new"]
)
def test_an_invalid_partition_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="partition"):
        ArtifactId("a", "v1", key)


@given(st.text())
def test_no_text_becomes_an_address_outside_its_prefix(text: str) -> None:
    try:
        artifact = ArtifactId(text, "v1")
    except ConfigError:
        return
    assert not artifact.path.startswith("/")
    assert all(part and part.strip(".") for part in artifact.path.split("/"))


@pytest.mark.parametrize("key", ["attempt", "attempt1", "attempts-1", "an-attempt-1", "attempt_1"])
def test_a_partition_key_that_only_looks_like_a_folder_of_the_store_is_accepted(key: str) -> None:
    assert ArtifactId("a", "v1", key).path == f"a/v1/{key}"


def step(name: str, version: str, partitions: tuple[str, ...] = ()) -> ArtifactStep:
    return ArtifactStep(name, version, job="toy", build_config=lambda ctx: Config(), partitions=partitions)


def test_partition_keys_that_a_file_system_without_case_confuses_are_refused() -> None:
    with pytest.raises(ConfigError, match="lists a partition key twice"):
        step("a", "v1", ("en", "EN"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "v1"), ("a", "V1")),  # one folder where case doesn't count
        (("a", "1.0"), ("a", "1_0")),  # one operation in Dagster
        (("raw/a", "b_1"), ("raw/a_b", "1")),
    ],
)
def test_two_artifacts_that_differ_only_in_case_or_punctuation_are_refused(one: tuple[str, str], other: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="differ only in case or punctuation"):
        ArtifactGraph([step(*one), step(*other)])


@given(st.lists(st.tuples(names, versions), min_size=2, max_size=2, unique=True))
def test_artifacts_of_one_graph_have_operations_of_their_own(pair: list[tuple[str, str]]) -> None:
    try:
        graph = ArtifactGraph([step(*each) for each in pair])
    except ConfigError:
        return
    operations = {asset_key(each.id).to_python_identifier() for each in graph}
    assert len(operations) == len({each.id.path.lower() for each in graph}) == 2


def test_one_family_with_two_sets_of_members_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"declared twice .*: partitions\.1: absent against b"):
        ArtifactGraph([step("a", "v1", ("a",)), step("a", "v1", ("a", "b"))])
