"""Commits: the same bytes for everybody, and nothing that can be changed without being seen."""

import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.errors import ConfigError, DataError, MarinError
from marin_core.mix.commit import CodeState, Commit, differences, make_commit, parse_commit, pointers, skip_seqs
from marin_core.mix.content import decimal_weights
from marin_core.mix.message import composed, message_of, rounded
from tests.mix.chains import content

ANCHOR = (
    '{"domains":{},"mixture":{"name":"mix/demo","version":"2026.11.29"},"phases":[{"start":"0","weights":{"code":"0.25","prose":"0.75"}}],'
    '"tokenizer":{"digest":"00","vocab_size":32768}}'
)
TEN = datetime(2026, 11, 29, 10, tzinfo=UTC)


def first(**changes: Any) -> Commit:
    fields: dict[str, Any] = {
        "parent": None,
        "skip": (),
        "hour": TEN,
        "author": "curator",
        "message": "first mix",
        "code": CodeState(),
        "content": json.loads(ANCHOR),
    }
    return make_commit(**(fields | changes))


def test_the_anchors_of_the_specification() -> None:
    commit = first()
    assert commit.content_digest == "6f27eaf89bfe5849399da4407646fda9a8b93e6554a3c5fd31753a4110bcf714"
    assert commit.id == "ad2023aeb769459d37312ba0310959fb10941f49b39c6a6e427c6e85365f5ce8"


def test_any_json_library_can_check_an_id() -> None:
    document = json.loads(first(message="naïve → “façade”").bytes())
    claimed = document.pop("id")
    plain = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert hashlib.sha256(plain).hexdigest() == claimed


def test_a_commit_reads_back_and_an_hour_of_another_zone_is_the_same_hour() -> None:
    commit = first()
    assert parse_commit(commit.bytes(), "it") == commit
    assert first(hour=TEN.astimezone(timezone(timedelta(hours=2)))) == commit


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("message", "another"),
        ("seq", 1),
        ("hour", "2026-11-29T11:00:00Z"),
        ("content_digest", "0" * 64),
        ("diff", [{"path": "/x", "old": None, "new": 1}]),
        ("content", {}),
        ("id", "0" * 64),
    ],
)
def test_whatever_is_changed_afterwards_is_seen(field: str, value: Any) -> None:
    document = first().document() | {field: value}
    with pytest.raises(DataError, match="not what was published"):
        parse_commit(json.dumps(document).encode(), "it")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seq", -1),
        ("seq", True),
        ("parent", "0" * 64),
        ("skip", [{"seq": 0, "id": "0" * 64}]),
        ("hour", "2026-11-29T10:30:00Z"),
        ("message", ""),
        ("author", "x" * 101),
        ("content_digest", "0" * 64),
        ("extra", 1),
    ],
)
def test_a_forger_who_hashes_again_is_seen_too(field: str, value: Any) -> None:
    document = first().document() | {field: value}
    document.pop("id")
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["id"] = hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(DataError, match="not what was published"):
        parse_commit(json.dumps(document, sort_keys=True, separators=(",", ":")).encode(), "it")


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"seq": 1.5}', b"\xff", b'{"seq": NaN}', b"[" * 100_000])
def test_what_is_no_commit_is_an_error_that_says_so(data: bytes) -> None:
    with pytest.raises(MarinError, match="not what was published"):
        parse_commit(data, "it")


def test_another_schema_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'mix-commit/9', this reader knows 'mix-commit/1'"):
        parse_commit(b'{"schema":"mix-commit/9"}', "it")


def test_floats_half_hours_and_empty_texts_are_refused_by_field() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"content": {"phases": [{"weights": {"web": 0.7}}]}}, "content/phases/0/weights/web"),
        ({"hour": TEN.replace(minute=30)}, "'hour'"),
        ({"hour": TEN.replace(tzinfo=None)}, "'hour'"),
        ({"author": " "}, "'author'"),
        ({"message": "\n"}, "'message'"),
        ({"code": CodeState("HEAD")}, "'code'"),
    ]
    for changes, named in refused:
        with pytest.raises(ConfigError, match=named):
            first(**changes)


def test_texts_are_cut_and_hold_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIX_TOKEN", "hunter2hunter2")
    commit = first(
        message="from https://user:hunter@host/a?b=1 and https://host/x?X-Goog-Signature=abc and https://host/p?page=2, hunter2hunter2",
        author="x" * 500,
    )
    assert commit.message == "from https://host/a and https://host/x and https://host/p?page=2, [redacted MIX_TOKEN]"
    assert len(commit.author) == 100
    huge = first(message="<b>" * 4_000_000)
    assert len(huge.message) == 4_000
    odd = first(message="a\ud800b\u202ec\x00d")
    assert parse_commit(odd.bytes(), "it").message == "a\\ud800b\u202ec\x00d"


@given(st.integers(1, 1 << 20))
def test_links_lead_two_to_the_k_back(seq: int) -> None:
    links = skip_seqs(seq)
    assert [seq - each for each in links] == [2**k for k in range(1, 21) if 2**k <= seq]


leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
documents = st.dictionaries(
    st.text(max_size=3),
    st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)),
)


@given(documents, documents)
def test_a_diff_is_every_leaf_that_differs_and_no_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    found = differences(old, new)
    assert [each.path for each in found] == sorted(each.path for each in found)
    changed = {each.path for each in found}
    ours, theirs = pointers(old), pointers(new)
    for path in ours.keys() | theirs.keys():
        same = path in ours and path in theirs and json.dumps(ours[path]) == json.dumps(theirs[path])
        assert (path in changed) is not same


@given(st.dictionaries(st.text("abc", min_size=1, max_size=4), st.floats(0, 1e12), min_size=1).filter(lambda each: sum(each.values()) > 0))
def test_decimal_weights_sum_to_exactly_one_and_miss_by_less_than_a_unit(weights: dict[str, float]) -> None:
    from fractions import Fraction

    found = decimal_weights(weights)
    assert sum(Fraction(each) for each in found.values()) == 1
    total = sum(map(Fraction, weights.values()))
    assert all(abs(Fraction(found[name]) - Fraction(weight) / total) < Fraction(1, 10**10) for name, weight in weights.items())
    assert all(each == "0" or ("e" not in each.lower() and not each.endswith((".", "00"))) for each in found.values())


def test_decimal_weights_of_thirds() -> None:
    assert decimal_weights({"a": 1.0, "b": 1.0, "c": 1.0}) == {"a": "0.3333333334", "b": "0.3333333333", "c": "0.3333333333"}
    assert decimal_weights({"web": 0.7, "code": 0.3, "rare": 0.0}) == {"web": "0.7", "code": "0.3", "rare": "0"}


def test_messages_of_moved_tokens() -> None:
    old, new = content(), content(tokens=1_200_001_000)
    new["domains"]["web"]["shards"] = 4
    assert composed(differences(old, new)) == "web +1.2 B tokens, 3 shards"
    assert composed(differences(new, old)) == "web −1.2 B tokens, −3 shards"
    assert rounded(999) == "999"
    assert rounded(999_950) == "1.0 M"
    assert rounded(7_000_000_000_000_000) == "7000.0 T"


def test_weights_changed_by_hand_need_a_message_and_derived_ones_dont() -> None:
    moved = differences(content(), content("0.6", "0.4", tokens=2_000))
    with pytest.raises(ConfigError, match=r"field 'message': weights changed by hand \(/phases/0/weights/code, /phases/0/weights/web\)"):
        message_of(moved, None, is_first=False, weights_are_derived=False)
    assert message_of(moved, "more code", is_first=False, weights_are_derived=False) == "more code"
    assert message_of(moved, None, is_first=False, weights_are_derived=True) == "web +1.0 k tokens"
    with pytest.raises(ConfigError, match="for the first time"):
        message_of((), " ", is_first=True, weights_are_derived=False)
    longer = differences(content(), content(sequence_length=256))
    assert message_of(longer, None, is_first=False, weights_are_derived=False) == "sequence_length changed"
    assert message_of(longer, "longer", is_first=False, weights_are_derived=False) == "longer"
