import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_core.data.dedup.config import DropExactDuplicates, DropNearDuplicates, DuplicatesConfig, NearDuplicates, ParagraphHashes
from marin_core.data.dedup.rules import decide_exact_duplicates, decide_near_duplicates
from marin_core.data.documents import Document
from marin_core.data.normal_form import document_id
from marin_core.errors import ConfigError, DataError
from tests.data.dedup.conftest import document, edited, family, jaccard, near, search, words

NEAR = DuplicatesConfig(find="near_duplicates")
EXACT = DuplicatesConfig(find="exact_duplicates")


def dropped(row: dict[str, Any]) -> bool:
    return decide_near_duplicates(DropNearDuplicates())(row).reason == "near_dup"


def halves(documents: Sequence[Any], count: int) -> list[list[Any]]:
    return [list(documents[index::count]) for index in range(count)]


def test_planted_copies_are_found_and_strangers_are_not_merged(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    originals = [words(random, int(count)) for count in random.integers(60, 160, 8_200)]
    copied = originals[:800]
    nearly = [(original, edited(random, original, 1 / 60)) for original in originals[800:1_800]]
    plain = [" ".join(original) for original in originals]
    corpus = family(
        tmp_path, "corpus", halves([document(text) for text in plain + [" ".join(copy) for _, copy in nearly]], 3), NearDuplicates()
    )
    copies = family(tmp_path, "copies", [[document(" ".join(original), "units/b") for original in copied]], NearDuplicates())
    report, rows = search(NEAR, [corpus, copies], tmp_path / "near")

    assert all(dropped(row) and row["containment"] == 1 for row in rows["copies"])  # exact recall 100 %
    assert report.metrics["documents"] == 10_000
    by_id = {row["id"]: row for row in rows["corpus"]}
    expected = np.array([NearDuplicates().probability(jaccard(*pair)) for pair in nearly])
    found = np.array(
        [by_id[document_id(" ".join(left))]["keeper"] == by_id[document_id(" ".join(right))]["keeper"] for left, right in nearly]
    )
    shared = np.array([by_id[document_id(" ".join(copy))]["cluster_size"] > 1 for _, copy in nearly])
    assert (found & shared).mean() >= expected.mean() - 0.02
    pairs = {document_id(" ".join(left)): document_id(" ".join(right)) for left, right in nearly}
    allowed = {frozenset(pair) for pair in pairs.items()}
    for row in rows["corpus"]:
        assert row["keeper"] in (None, row["id"]) or frozenset((row["keeper"], row["id"])) in allowed  # precision 100 %
    assert report.metrics["largest_cluster"] == 2

    _, exact = search(EXACT, [corpus, copies], tmp_path / "exact")
    assert all(row["dup_of"] == row["id"] and row["dup_of_source"] == "corpus" for row in exact["copies"])
    assert all(row["dup_of"] is None for row in exact["corpus"])
    assert all(decide_exact_duplicates(DropExactDuplicates())(row).reason == "dup_of" for row in exact["copies"])


def test_recall_follows_the_curve_from_small_edits_to_large_ones(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    levels = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
    pairs = [
        (level, original, edited(random, original, level)) for level in levels for original in (words(random, 200) for _ in range(120))
    ]
    texts = [" ".join(each) for _, left, right in pairs for each in (left, right)]
    rows = near(tmp_path, {"a": halves(texts, 4)})
    for level in levels:
        inside = [(left, right) for each, left, right in pairs if each == level]
        expected = np.mean([NearDuplicates().probability(jaccard(*pair)) for pair in inside])
        found = np.mean([any(dropped(rows[" ".join(each)]) for each in pair) for pair in inside])
        error = np.sqrt(expected * (1 - expected) / len(inside))
        assert abs(found - expected) <= 3.5 * error + 0.02, level
        assert not all(dropped(rows[" ".join(each)]) for pair in inside for each in pair)


def test_the_keeper_is_of_the_first_family_then_the_longest_then_the_smallest_id(tmp_path: Path) -> None:
    base = words(np.random.default_rng(3), 300)
    text = " ".join(base)
    longer = text + " and one more word"
    one, two = sorted((text + " x", text + " y"), key=document_id)
    rows = near(tmp_path / "priority", {"first": [[text]], "second": [[longer]]})
    assert (dropped(rows[text]), dropped(rows[longer])) == (False, True)
    assert rows[longer] | {"containment": None} == {
        "id": document_id(longer),
        "shard": "00000",
        "keeper": document_id(text),
        "keeper_source": "first",
        "cluster_size": 2,
        "containment": None,
        "loser": True,
    }
    assert rows[longer]["containment"] == pytest.approx(296 / 300)  # 5-grams of its own that the keeper has
    rows = near(tmp_path / "swapped", {"second": [[longer]], "first": [[text]]})
    assert (dropped(rows[text]), dropped(rows[longer])) == (True, False)
    rows = near(tmp_path / "length", {"a": [[text], [longer]]})
    assert (dropped(rows[text]), dropped(rows[longer])) == (True, False)
    assert rows[text]["containment"] == 1
    rows = near(tmp_path / "id", {"a": [[two], [one]]})
    assert (dropped(rows[one]), dropped(rows[two])) == (False, True)


def messy_corpus() -> list[Document]:
    """Chains, clusters, copies at other places, strangers and short documents."""
    random = np.random.default_rng(4)
    documents = []
    for index in range(60):
        chain = words(random, 120)
        for step in range(index % 5 + 1):
            documents.append(document(" ".join(chain), f"units/{index}", step))
            chain = edited(random, chain, 0.03)
    documents += [document(each.text, f"units/copy{index}", 7) for index, each in enumerate(documents[::4])]
    return [*documents, *(document(f"short {index}") for index in range(20))]


@pytest.mark.parametrize("config", [NEAR, EXACT], ids=["near", "exact"])
def test_the_outcome_depends_on_no_shard_no_order_and_no_memory(tmp_path: Path, config: DuplicatesConfig) -> None:
    documents = messy_corpus()
    random = np.random.default_rng(5)
    outcomes = []
    for number, (shards, rows_at_once) in enumerate([(2, 1 << 20), (7, 50), (3, 13)]):
        cut: list[dict[str, Document]] = [{} for _ in range(shards)]
        for index in random.permutation(len(documents)).tolist():
            free = [shard for shard in cut if documents[index].id not in shard]
            free[int(random.integers(len(free)))][documents[index].id] = documents[index]
        made = family(tmp_path / str(number), "a", [list(shard.values()) for shard in cut], NearDuplicates())
        _, rows = search(config, [made], tmp_path / str(number) / "found", rows_at_once)
        places = {
            (each.key, document.id): document.metadata for each, shard in zip(made.shards, cut, strict=True) for document in shard.values()
        }
        outcomes.append(
            sorted([*(str(value) for name, value in row.items() if name != "shard"), places[row["shard"], row["id"]]] for row in rows["a"])
        )
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert any("True" in row for row in outcomes[0]) or config is EXACT


def test_of_equal_texts_in_one_family_the_smallest_place_stays(tmp_path: Path) -> None:
    text = "the very same text at four places"
    places = [("raw/x/b", "units/a", 1), ("raw/x/a", "units/b", 2), ("raw/x/a", "units/b", 10), ("raw/x/a", "units/c", 0)]
    made = family(tmp_path, "a", [[document(text, unit, offset, source)] for source, unit, offset in places])
    _, rows = search(EXACT, [made], tmp_path / "found")
    assert [row["dup_of"] is None for row in rows["a"]] == [False, True, False, False]
    assert {row["dup_of_source"] for row in rows["a"]} == {None, "a"}


def test_documents_of_the_context_stay_and_win(tmp_path: Path) -> None:
    base = " ".join(words(np.random.default_rng(6), 100))
    old = family(tmp_path, "old", [[document(base), document(base + " old")]], NearDuplicates(), context=True)
    new = family(
        tmp_path,
        "new",
        [[document(base), document(base + " and much longer"), document("something else, new here today")]],
        NearDuplicates(),
    )
    report, rows = search(NEAR, [new, old], tmp_path / "found")
    assert sorted((row["loser"], row["keeper_source"] or "") for row in rows["new"]) == [(False, ""), (True, "old"), (True, "old")]
    assert not (tmp_path / "found" / "old").exists()
    assert report.metrics["documents"] == 3
    assert report.tables["kept_by"] == [{"family": "new", "kept_by": "old", "documents": 2}]


def test_the_far_end_of_a_chain_stays_but_its_copies_do_not(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    chain = [words(random, 400)]
    for _ in range(40):
        previous = list(chain[-1])
        start = len(chain) * 9 % 380
        previous[start : start + 9] = words(random, 9)
        chain.append(previous)
    texts = [" ".join(each) for each in chain]
    rows = near(tmp_path, {"a": [texts], "b": [[texts[-1], texts[0]]]})
    cluster = {row["keeper"] for text, row in rows.items() if text not in (texts[0], texts[-1])}
    assert len(cluster) == 1, "the chain must hold together for this test to say anything"
    keeper = next(text for text in texts if document_id(text) in cluster)
    shares = {text: row["containment"] for text, row in rows.items() if row["shard"] == "00000" and row["containment"] is not None}
    far = [text for text, share in shares.items() if share < 0.6]
    near_by = [text for text, share in shares.items() if share >= 0.6]
    assert len(far) > 3
    assert len(near_by) > 3
    for text in far + near_by:
        have, wanted = ({tuple(each.split()[place : place + 5]) for place in range(396)} for each in (keeper, text))
        if rows[text]["keeper"] == document_id(keeper):
            assert rows[text]["containment"] == pytest.approx(len(have & wanted) / len(wanted))
            assert dropped(rows[text]) == (rows[text]["containment"] >= 0.6)


def test_copies_of_a_document_that_stays_are_dropped(tmp_path: Path) -> None:
    made = [family(tmp_path, name, [[document("few words only")]], NearDuplicates()) for name in ("a", "b", "c")]
    _, rows = search(NEAR, made, tmp_path / "found")
    assert [dropped(rows[name][0]) for name in "abc"] == [False, True, True]
    assert {rows[name][0]["cluster_size"] for name in "abc"} == {3}
    assert {rows[name][0]["keeper_source"] for name in "abc"} == {"a"}


def test_without_verification_every_loser_is_dropped_and_nothing_is_measured(tmp_path: Path) -> None:
    base = " ".join(words(np.random.default_rng(8), 100))
    made = family(tmp_path, "a", [[document(base), document(base + " x")]], NearDuplicates())
    _, rows = search(NEAR.changed(verify=False), [made], tmp_path / "found")
    assert sorted((row["loser"], row["containment"], dropped(row)) for row in rows["a"]) == [(False, None, False), (True, None, True)]


def test_a_threshold_lies_in_the_rule_and_not_in_what_was_found() -> None:
    values = {"loser": True, "containment": 0.7, "keeper": "k", "keeper_source": "a", "cluster_size": 2}
    assert decide_near_duplicates(DropNearDuplicates(min_containment=0.7))(values).reason == "near_dup"
    kept = decide_near_duplicates(DropNearDuplicates(min_containment=0.71))(values)
    assert (kept.reason, kept.score) == (None, 0.7)
    assert decide_near_duplicates(DropNearDuplicates(min_containment=0))(values | {"loser": False}).reason is None


def test_signatures_of_other_documents_are_refused(tmp_path: Path) -> None:
    one = family(tmp_path, "one", [[document("a b c d e f")]], NearDuplicates())
    two = family(tmp_path, "two", [[document("a b c d e g")]], NearDuplicates())
    mixed = (one.shards[0]._replace(signatures=two.shards[0].signatures),)
    with pytest.raises(DataError, match=r"signatures 00000 are out of step with part-00000-of-00001\.parquet"):
        search(NEAR, [type(one)("one", mixed)], tmp_path / "found")


def test_signatures_of_two_kinds_are_refused(tmp_path: Path) -> None:
    one = family(tmp_path, "one", [[document("a b c d e f")]], NearDuplicates())
    for name, other in (("seed", NearDuplicates(seed=1)), ("kind", ParagraphHashes())):
        two = family(tmp_path, name, [[document("a b c d e g")]], other)
        with pytest.raises(ConfigError, match="needs signatures of kind 'near_duplicates' made with one configuration"):
            search(NEAR, [one, two], tmp_path / f"found-{name}")
    with pytest.raises(ConfigError, match="needs signatures of kind 'paragraphs'"):
        search(DuplicatesConfig(find="repeated_paragraphs"), [one], tmp_path / "found")


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "swapped"])
def test_damaged_signatures_are_refused(tmp_path: Path, damage: str) -> None:
    made = family(tmp_path, "a", [[document(f"{index} a b c d e f g") for index in range(50)]], NearDuplicates())
    folder = made.shards[0].signatures
    assert folder is not None
    path = folder / "keys.npy"
    data = path.read_bytes()
    match damage:
        case "flipped":
            path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        case "cut":
            path.write_bytes(data[:-8])
        case "gone":
            path.unlink()
        case "swapped":
            path.write_bytes((folder / "ids.npy").read_bytes())
    with pytest.raises(DataError, match="array 'keys' of 00000"):
        search(NEAR, [made], tmp_path / "found")


def test_empty_shards_and_families_are_searched_too(tmp_path: Path) -> None:
    made = family(tmp_path, "a", [[], [document("one two three four five six")], []], NearDuplicates())
    none = family(tmp_path, "none", [[]], NearDuplicates())
    for config in (NEAR, EXACT):
        report, rows = search(config, [made, none], tmp_path / config.find)
        assert report.metrics["losers"] == 0
        assert (len(rows["a"]), len(rows["none"])) == (1, 0)


def test_the_same_search_gives_the_same_bytes(tmp_path: Path) -> None:
    made = family(tmp_path, "a", halves(list({each.id: each for each in messy_corpus()}.values()), 2), NearDuplicates())
    written = []
    for number in range(2):
        report, _ = search(NEAR, [made], tmp_path / str(number))
        files = {str(path.relative_to(tmp_path / str(number))): path for path in (tmp_path / str(number)).rglob("*") if path.is_file()}
        written.append((report.content_digest, {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}))
    assert written[0] == written[1]
    assert set(written[0][1]) == {
        "a/00000/part-00000-of-00002.parquet",
        "a/00001/part-00001-of-00002.parquet",
        "cluster_sizes.png",
        "summary.json",
    }
