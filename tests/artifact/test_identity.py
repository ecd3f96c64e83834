"""Names, versions and partitions: what is refused, and that every identity survives its text and its asset key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_assets.keys import artifact_id, asset_key
from marin_core.artifact import ArtifactId
from marin_core.errors import ConfigError

part = st.from_regex(r"[a-z0-9]{1,6}(_[a-z0-9]{1,4}){0,2}", fullmatch=True)
names = st.lists(part, min_size=1, max_size=4).map("/".join)
versions = st.from_regex(r"[A-Za-z0-9]{1,4}([._][A-Za-z0-9]{1,3}){0,3}", fullmatch=True)


@given(name=names, version=versions)
def test_identity_survives_text_and_asset_key(name: str, version: str) -> None:
    artifact = ArtifactId(name, version)
    assert ArtifactId.parse(str(artifact)) == artifact
    assert artifact_id(asset_key(artifact)) == artifact


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


@pytest.mark.parametrize("key", ["", "..", "a/b", "a b", "a...b", "-a", "a\n"])
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
