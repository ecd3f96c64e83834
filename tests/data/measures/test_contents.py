"""What measures find in texts: languages, personal data, secrets, words, licences, URLs."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from datatrove.pipeline.formatters import PIIFormatter
from hypothesis import given
from hypothesis import strategies as st

from marin_core.data.measures import config as measures
from marin_core.data.measures.characters import count_alphanumeric, count_letters
from marin_core.data.measures.config import MeasureConfig
from marin_core.data.measures.interface import Measured
from marin_core.data.measures.license_texts import LICENSE_TEXTS
from marin_core.data.measures.make import make_measure
from marin_core.data.measures.personal_data import EMAIL, IPV4
from marin_core.data.measures.secrets import entropy
from marin_core.data.measures.url_lists import datatrove_list, url_key, write_url_lists
from marin_core.data.rules.config import MaskPersonalData
from marin_core.data.rules.decide import make_decision
from marin_core.data.rules.edits import apply_edits
from marin_core.data.words import UnicodeWords
from marin_core.errors import DataError
from tests.data.measures.corpus import real_texts

WORDS = UnicodeWords()


def measured(config: MeasureConfig, text: str, metadata: dict[str, Any] | None = None, **resources: Path) -> dict[str, Any]:
    return dict(make_measure(config, resources).measure(Measured(text, json.dumps(metadata or {}), WORDS)))


@given(st.text(max_size=200))
def test_letters_and_digits_are_counted_as_python_does(text: str) -> None:
    text = text.encode(errors="replace").decode()
    assert count_letters(text) == sum(character.isalpha() for character in text)
    assert count_alphanumeric(text) == sum(character.isalnum() for character in text)


# Articles 1 and 2 of the Universal Declaration of Human Rights.
DECLARATION = {
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience. ",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt. ",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de conscience. ",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью. ",
    "ar": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا وضميرا وعليهم أن يعامل بعضهم بعضا بروح الإخاء. ",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と良心とを授けられている。",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이성과 양심을 부여받았다. ",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม ",
}


@pytest.mark.parametrize("language", DECLARATION)
def test_languages_are_told_apart(language: str) -> None:
    values = measured(measures.LanguageMeasure(), DECLARATION[language] * 8)
    assert values["language"] == language
    assert values["score"] > 0.4
    assert values["letters"] >= 300


@pytest.mark.parametrize(
    ("lang", "code"),
    [
        ("python", True),
        ("C++", True),
        ("go", True),
        ("css", True),
        ("objective-c", True),
        ("markdown", False),
        ("en", False),
        ("pt-BR", False),
        ("deu_Latn", False),
        (None, False),
        (3, False),
    ],
)
def test_source_code_has_no_natural_language(lang: object, code: bool) -> None:
    values = measured(measures.LanguageMeasure(), DECLARATION["en"] * 8, {"lang": lang})
    assert (values["language"] is None) is code


def test_a_text_without_letters_is_no_language() -> None:
    assert measured(measures.LanguageMeasure(), "12 34 " * 100)["letters"] == 0
    assert measured(measures.LanguageMeasure(), "!")["score"] <= 1


def spans(text: str, **options: Any) -> list[tuple[str, str]]:
    """Kind and text of each place with personal data."""
    found = measured(measures.PersonalDataMeasure(**options), text)["spans"]
    assert all(left["end"] <= right["start"] for left, right in pairwise(found))
    return [(span["kind"], text[span["start"] : span["end"]]) for span in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write to jo.doe+x@mail.uni-x.ac.uk, or not", [("email", "jo.doe+x@mail.uni-x.ac.uk")]),
        ("a@ b@c.de @ x@y", [("email", "b@c.de")]),
        ("help@example.com and help@docs.example.org are nobody's", []),
        ("8.8.8.8 is public, 192.168.1.1 and 127.0.0.1 are not", [("ipv4", "8.8.8.8")]),
        ("version 3.12.1 of 300.1.1.1", []),
        ("2001:4860:4860::8888 but not fe80::1, ::1 or 2001:db8::1; C++ has std::vector", [("ipv6", "2001:4860:4860::8888")]),
        (
            "call +49 30 901820 or (212) 736-5000 or 212-736-5000",
            [("phone", text) for text in ("+49 30 901820", "(212) 736-5000", "212-736-5000")],
        ),
        ("call 202-555-0143 in a film; 200 300 4000 in a table; 2020-01-02 10:20", []),
        (
            "4111 1111 1111 1111 and 378282246310005 pass, 4111 1111 1111 1112 does not",
            [("card", "4111 1111 1111 1111"), ("card", "378282246310005")],
        ),
        ("3141592653589793 and 4111111111111112 are numbers", []),
        (
            "pay DE89 3704 0044 0532 0130 00 or GB82WEST12345698765432",
            [("iban", "DE89 3704 0044 0532 0130 00"), ("iban", "GB82WEST12345698765432")],
        ),
        ("not DE88 3704 0044 0532 0130 00", []),
    ],
)
def test_personal_data_is_found_where_it_stands(text: str, expected: list[tuple[str, str]]) -> None:
    assert spans(text) == expected


def test_only_the_kinds_asked_for_are_found() -> None:
    assert spans("me@here.net at 8.8.8.8", kinds=("ipv4",)) == [("ipv4", "8.8.8.8")]


def mask(text: str, **options: Any) -> str:
    config = measures.PersonalDataMeasure(**options)
    outcome = make_decision(MaskPersonalData(measure=config, max_per_1000_words=10**6))(measured(config, text))
    return apply_edits(text, outcome.edits)


def test_masked_text_holds_nothing_to_mask() -> None:
    text = "me@here.net, 8.8.8.8, 2001:4860:4860::8888, +49 30 901820, 4111111111111111, DE89370400440532013000"
    masked = mask(text)
    assert masked == "email@example.com, 192.0.2.1, 2001:db8::1, +1 202-555-0100, <card number>, <account number>"
    assert spans(masked) == []


def test_addresses_are_masked_as_datatrove_masks_them() -> None:
    formatter = PIIFormatter(email_replacement="email@example.com", ip_replacement="192.0.2.1")
    assert formatter.emails_replacer.regex.pattern == EMAIL
    assert formatter.ip_replacer.regex.pattern == IPV4
    source = random.Random(5)
    pieces = ["a@b.co", "x.y@z-1.org", "@", "@@", "me@", "8.8.8.8", "1.2.3.4.5", "10.0.0.1", "[", "é", "-", ".", " ", "word", "b@c.de@f.gh"]
    for text in [*real_texts()[:150], *("".join(source.choices(pieces, k=12)) for _ in range(500))]:
        assert mask(text, kinds=("email", "ipv4")) == formatter.format(text), text


def test_many_letters_before_an_at_sign_takes_linear_time() -> None:
    """The pattern alone takes minutes: it begins anew at each dash. The time limit of all tests would end this one."""
    assert spans("a-" * 150_000 + "@" + "b-" * 150_000) == []


KEY = "\n".join(["-----BEGIN " + "RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA" * 4, "-----END " + "RSA PRIVATE KEY-----"])
RANDOM = "q7Rz2LkV9xTn4WbYc8MdJ5hGf3Ps6AeU1oXi"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (KEY, True),
        (f"key = {KEY!r}", True),
        ("MARK = '-----BEGIN " + "PRIVATE KEY-----'  # what a key begins with", False),
        ("token: gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8", True),
        ("id = 'AK" + "IAQ3EGRJ7T5X2WZL4B'", True),
        ("id = 'AK" + "IAIOSFODNN7EXAMPLE'", False),
        (f"password = '{RANDOM}'", True),
        (f"PASSWORD={RANDOM}", True),
        (f"the string {RANDOM} stands alone", False),
        ("digest = '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08'", False),
        ('"integrity": "sha512-' + RANDOM * 2 + '=="', False),
        ("alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'", False),
        ("picture = '" + RANDOM * 20 + "'", False),
        ("name = 'a_rather_long_name_of_a_function_in_some_module'", False),
    ],
)
def test_secrets_are_keys_tokens_and_random_strings(text: str, secret: bool) -> None:
    values = measured(measures.SecretsMeasure(), text)
    assert bool(values["known"] or (values["max_entropy"] or 0) >= 4.5) is secret


def test_the_standard_library_holds_no_secret() -> None:
    measure = make_measure(measures.SecretsMeasure(), {})
    found = [measure.measure(Measured(text, "{}", WORDS)) for text in real_texts()]
    assert all(values["known"] == 0 and (values["max_entropy"] or 0) < 4.5 for values in found)


def test_entropy_is_that_of_shannon() -> None:
    assert entropy("aaaa") == 0
    assert entropy("abcd") == 2
    assert entropy("0123456789abcdef" * 4) == 4


def test_listed_words_are_found_whole_and_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("# a comment\nsnake\nrattle snake\nStraße\n\n")
    config = measures.BadWordsMeasure(words="list")
    values = measured(config, "Snake, SNAKES, rattle snake, STRASSE; snake_case is one word too.", list=tmp_path)
    assert values["hits"] == 4
    assert values["words"] == 15
    with pytest.raises(DataError, match="no word"):
        measured(config, "x", list=tmp_path / "nowhere")


@pytest.mark.parametrize("name", sorted(LICENSE_TEXTS))
def test_every_licence_is_known_by_its_text(name: str) -> None:
    for text in LICENSE_TEXTS[name]:
        commented = "".join(f"# {line.strip()}\n" for line in text.strip().split("\n"))
        values = measured(measures.LicenseMeasure(), f"#!/bin/sh\n# Copyright 2020 somebody\n{commented}\nimport os\n")
        assert (values["license"], values["evidence"], values["containment"]) == (name, "text", 1.0)


@pytest.mark.parametrize(
    ("text", "metadata", "expected"),
    [
        ("// SPDX-License-Identifier: MIT OR Apache-2.0\nx", {"license": "GPL-2.0-only"}, ("MIT OR Apache-2.0", "tag")),
        ("/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) */", {}, ("(GPL-2.0-only WITH Linux-syscall-note)", "tag")),
        ("<!-- SPDX-License-Identifier: MIT -->", {}, ("MIT", "tag")),
        ("\n" * 30 + "# SPDX-License-Identifier: MIT", {}, (None, None)),
        ("x = 1", {"license": "BSD-3-Clause"}, ("BSD-3-Clause", "metadata")),
        ("x = 1", {"license": ["MIT", "GPL-2.0-only"]}, ("MIT AND GPL-2.0-only", "metadata")),
        ("x = 1", {"license": "NOASSERTION"}, (None, None)),
        ("# This module prints licenses.", {}, (None, None)),
    ],
)
def test_the_tag_comes_before_metadata_and_that_before_the_text(text: str, metadata: dict[str, Any], expected: tuple[Any, Any]) -> None:
    values = measured(measures.LicenseMeasure(), text, metadata)
    assert (values["license"], values["evidence"]) == expected


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("HTTP://user:secret@WWW.Example.COM:8080/a/?q=1#top", "www.example.com/a?q=1"),
        ("www.example.com/", "www.example.com"),
        ("https://[2001:db8::1]/x", "2001:db8::1/x"),
        ("https://[broken/x", "https://[broken/x"),
        ("localhost", "localhost"),
    ],
)
def test_urls_are_compared_without_what_does_not_identify_them(url: str, key: str) -> None:
    assert url_key(url) == key


def test_listed_urls_are_found_by_domain_host_and_address(tmp_path: Path) -> None:
    write_url_lists(["bad.co.uk", "some.host.org", "192.0.2.7", "intranet"], ["https://fine.org/one/bad/page/"], tmp_path)
    config = measures.UrlListsMeasure(lists="lists", domains=("Own.net",))
    measure = make_measure(config, {"lists": tmp_path})

    def found(url: str | None) -> set[str]:
        values = measure.measure(Measured("text", json.dumps({"url": url}), WORDS))
        return {name for name, value in values.items() if value}

    assert found("https://www.bad.co.uk/x") == {"domain"}
    assert found("https://bad.co.uk") == {"domain", "host"}
    assert found("http://some.host.org/") == {"host"}
    assert found("http://other.host.org/") == set()
    assert found("http://192.0.2.7/x") == {"host"}
    assert found("http://intranet/x") == {"host"}
    assert found("http://[2001:db8::1]:80/x") == set()
    assert found("http://FINE.org/one/bad/page") == {"url"}
    assert found("http://shop.own.net") == {"domain"}
    assert found(None) == set()
    (tmp_path / "domains.npy").write_bytes(b"\x93NUMPY nonsense")
    with pytest.raises(DataError, match=r"domains\.npy"):
        make_measure(config, {"lists": tmp_path})


def test_words_in_urls_are_counted_by_kind() -> None:
    banned = [line for line in _datatrove_words("banned_words.txt") if line.isalnum()]
    inner = [line for line in _datatrove_words("banned_subwords.txt") if line.isalnum()]
    config = measures.UrlListsMeasure()
    assert measured(config, "x", {"url": f"http://a.org/{banned[0].upper()}/x"})["hard_words"] == 1
    assert measured(config, "x", {"url": f"http://a.org/a{banned[0]}a"})["hard_words"] == 0
    assert measured(config, "x", {"url": f"http://a.org/zz{inner[0][:2]}-{inner[0][2:]}zz"})["inner_words"] >= 1


def _datatrove_words(name: str) -> list[str]:
    from marin_core.data.measures.word_lists import datatrove_assets

    return [line for line in (datatrove_assets() / name).read_text().split("\n") if line and not line.startswith("#")]


def test_the_archive_of_datatrove_is_read_as_a_stream() -> None:
    urls = datatrove_list("urls")
    assert all(next(urls) for _ in range(10))
