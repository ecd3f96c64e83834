import subprocess
import sys
from typing import Any

import pytest

from marin_core.data.dedup.config import DropExactDuplicates
from marin_core.data.measures.interface import Measured
from marin_core.data.rules.config import (
    AllowLicenses,
    BadWords,
    BlockUrls,
    C4Quality,
    CodeQuality,
    DropSecrets,
    FilterRule,
    FineWebQuality,
    GopherQuality,
    GopherRepetition,
    KeepLanguages,
    MaskPersonalData,
    MeasuredRule,
    MinCharacters,
    MinQuality,
)
from marin_core.data.rules.contents import PLACEHOLDERS, is_allowed
from marin_core.data.rules.decide import make_decision, make_rules
from marin_core.data.rules.interface import Edit, Outcome
from marin_core.data.words import UnicodeWords
from marin_core.errors import ConfigError

GOOD: dict[str, dict[str, Any]] = {
    "gopher_quality": {
        "words": 300,
        "symbol_words": 30,
        "mean_word_length": 5.0,
        "hashes_per_word": 0.0,
        "ellipses_per_word": 0.0,
        "bullet_lines": 0.0,
        "ellipsis_lines": 0.0,
        "alpha_words": 0.9,
        "stop_words": 5,
    },
    "c4_quality": {"lines": 9, "removed_lines": 1, "sentences": 8, "lorem_ipsum": None, "curly_bracket": None, "spans": []},
    "code_quality": {
        "bytes": 500,
        "max_line_characters": 80,
        "mean_line_characters": 30.0,
        "alphanumeric_share": 0.7,
        "generated": False,
        "binary": False,
    },
    "language": {"language": "en", "score": 0.75, "letters": 1_000},
    "personal_data": {"words": 2_000, "spans": []},
    "secrets": {"known": 0, "max_entropy": None},
    "bad_words": {"words": 2_000, "hits": 0},
    "license": {"license": "MIT", "evidence": "tag", "containment": None},
    "url_lists": {"domain": False, "host": False, "url": False, "hard_words": 0, "soft_words": 0, "inner_words": 0},
    "quality": {"score": 0.9},
    "length": {"characters": 5_000, "words": 900, "bytes": 5_000},
}
EMAILS = [{"start": 10 * index, "end": 10 * index + 5, "kind": "email"} for index in range(11)]
FATES: list[tuple[FilterRule, dict[str, Any], str | None]] = [
    (GopherQuality(), {}, None),
    (GopherQuality(), {"words": 79}, "gopher_short_doc"),
    (GopherQuality(max_words=200), {}, "gopher_long_doc"),
    (GopherQuality(), {"stop_words": 1}, "gopher_enough_stop_words"),
    (GopherQuality(min_stop_words=0), {"stop_words": 0}, None),
    (C4Quality(), {"lorem_ipsum": 3, "curly_bracket": 3}, "lorem_ipsum"),
    (C4Quality(), {"lorem_ipsum": 4, "curly_bracket": 3}, "curly_bracket"),
    (C4Quality(drop_curly_brackets=False), {"lorem_ipsum": 4, "curly_bracket": 3}, "lorem_ipsum"),
    (C4Quality(), {"sentences": 4}, "too_few_sentences"),
    (CodeQuality(), {"binary": True, "generated": True}, "binary"),
    (CodeQuality(), {"max_line_characters": 1_001}, "minified"),
    (CodeQuality(), {"mean_line_characters": 100.5}, "minified"),
    (CodeQuality(), {"bytes": 2**20 + 1}, "data_file"),
    (KeepLanguages(languages=("en",)), {}, None),
    (KeepLanguages(languages=("de", "fr")), {}, "lang_other"),
    (KeepLanguages(languages=("en",)), {"score": 0.39}, "lang_low_score"),
    (KeepLanguages(languages=("en",)), {"language": "unknown", "score": 0.0}, "lang_low_score"),
    (KeepLanguages(languages=("de",)), {"letters": 299}, None),
    (KeepLanguages(languages=("de",)), {"language": None, "score": None}, None),
    (MaskPersonalData(), {"spans": EMAILS}, "pii_dense"),
    (MaskPersonalData(), {"spans": EMAILS[:10]}, None),
    (MaskPersonalData(), {"spans": EMAILS[:1], "words": 10}, None),
    (DropSecrets(), {"known": 1}, "secret"),
    (DropSecrets(), {"max_entropy": 4.5}, "secret"),
    (DropSecrets(), {"max_entropy": 4.49}, None),
    (BadWords(), {"hits": 11}, "bad_words"),
    (BadWords(), {"hits": 10}, None),
    (AllowLicenses(), {}, None),
    (AllowLicenses(), {"license": "GPL-3.0-or-later"}, "license_denied"),
    (AllowLicenses(), {"license": None}, "license_unknown"),
    (AllowLicenses(unknown="keep"), {"license": None}, None),
    (BlockUrls(), {"domain": True, "url": True}, "url_domain"),
    (BlockUrls(), {"host": True}, "url_host"),
    (BlockUrls(), {"url": True}, "url_exact"),
    (BlockUrls(), {"hard_words": 1}, "url_words"),
    (BlockUrls(), {"soft_words": 1}, None),
    (BlockUrls(), {"soft_words": 2}, "url_words"),
    (MinQuality(threshold=0.95), {}, "quality_below"),
    (MinQuality(threshold=0.9), {}, None),
    (MinCharacters(characters=5_001), {}, "too_short"),
]


@pytest.mark.parametrize(("rule", "changed", "reason"), FATES)
def test_a_rule_decides_from_values_alone(rule: FilterRule, changed: dict[str, Any], reason: str | None) -> None:
    outcome = make_decision(rule)(GOOD[rule.attribute] | changed)
    assert outcome.reason == reason
    assert isinstance(rule, MeasuredRule)
    assert reason is None or reason in rule.reasons


def test_personal_data_gets_the_placeholder_of_its_kind() -> None:
    spans = [{"start": 3 * index, "end": 3 * index + 2, "kind": kind} for index, kind in enumerate(PLACEHOLDERS)]
    outcome = make_decision(MaskPersonalData(max_per_1000_words=100))({"words": 100, "spans": spans})
    assert outcome.edits == tuple(Edit(3 * index, 3 * index + 2, text) for index, text in enumerate(PLACEHOLDERS.values()))


@pytest.mark.parametrize(
    ("expression", "met"),
    [
        ("MIT", True),
        ("mit", True),
        ("GPL-2.0-only", False),
        ("MIT OR GPL-2.0-only", True),
        ("MIT AND GPL-2.0-only", False),
        ("GPL-2.0-only OR MIT AND Apache-2.0", True),
        ("(MIT OR GPL-2.0-only) AND Apache-2.0", True),
        ("(MIT OR Apache-2.0) AND GPL-2.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0 OR MIT", True),
        ("(" * 5_000, False),
        ("MIT OR", False),
        ("", False),
        ("BSD-like, see LICENSE", False),
        ("my own", True),
    ],
)
def test_licence_expressions_are_met_by_allowed_licences(expression: str, met: bool) -> None:
    assert is_allowed(expression, frozenset({"mit", "apache-2.0", "my own"})) is met


def test_one_pass_measures_only_for_the_rules_that_are_asked() -> None:
    (first, second) = make_rules([MinCharacters(characters=10), GopherQuality(min_words=1)])
    document = Measured("short", "{}", UnicodeWords())
    assert first.decide(document) == Outcome("too_short", 5)
    assert "facts" not in vars(document)
    assert second.decide(document).reason == "gopher_enough_stop_words"
    assert "facts" in vars(document)


def test_one_pass_refuses_rules_about_many_documents_and_missing_resources() -> None:
    with pytest.raises(ConfigError, match="'exact_duplicates'"):
        make_rules([DropExactDuplicates()])
    with pytest.raises(ConfigError, match="reads 'classifier'"):
        make_rules([MinQuality()])


def test_limits_of_n_grams_that_are_not_measured_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_top_n_grams limits n-grams of \[7\]"):
        GopherRepetition(max_top_n_grams=((7, 0.1),))


def test_decisions_import_nothing_heavy() -> None:
    script = (
        "import sys; from marin_core.data.rules.decide import make_decision; from marin_core.data.rules.config import *; "
        "make_decision(GopherRepetition()); make_decision(FineWebQuality()); "
        "assert not {'numpy', 'datatrove', 'pyarrow', 'sklearn', 'xxhash'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert make_decision(FineWebQuality()) is not None
