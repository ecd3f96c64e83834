"""Decisions about what a text says: language, personal data, secrets, bad words, licence, URL, quality. Light: nothing is measured here."""

import re
from collections.abc import Mapping
from typing import Any

from marin_core.data.rules.config import AllowLicenses, BadWords, BlockUrls, DropSecrets, KeepLanguages, MaskPersonalData, MinQuality
from marin_core.data.rules.interface import KEEP, Decide, Edit, Outcome

PLACEHOLDERS = {
    "email": "email@example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "phone": "+1 202-555-0100",
    "card": "<card number>",
    "iban": "<account number>",
}
"""One for each kind, always the same; where there are addresses and numbers that are kept for examples, one of them, so that masked text
isn't masked again."""


def decide_languages(config: KeepLanguages) -> Decide:
    allowed = frozenset(config.languages)

    def decide(values: Mapping[str, Any]) -> Outcome:
        if values["language"] is None or values["letters"] < config.min_letters:
            return KEEP
        if values["score"] < config.min_score:
            return Outcome("lang_low_score", values["score"])
        return Outcome(None if values["language"] in allowed else "lang_other", values["score"])

    return decide


def decide_personal_data(config: MaskPersonalData) -> Decide:
    def decide(values: Mapping[str, Any]) -> Outcome:
        spans = values["spans"]
        density = per_1000_words(len(spans), values["words"])
        if density > config.max_per_1000_words:
            return Outcome("pii_dense", density)
        return Outcome(score=density, edits=tuple(Edit(span["start"], span["end"], PLACEHOLDERS[span["kind"]]) for span in spans))

    return decide


def per_1000_words(count: int, words: int) -> float:
    """Density; a text of fewer than 1,000 words counts as 1,000."""
    return 1_000 * count / max(words, 1_000)


def decide_secrets(config: DropSecrets) -> Decide:
    def decide(values: Mapping[str, Any]) -> Outcome:
        entropy = values["max_entropy"]
        if values["known"]:
            return Outcome("secret", values["known"])
        return Outcome("secret", entropy) if entropy is not None and entropy >= config.min_entropy else KEEP

    return decide


def decide_bad_words(config: BadWords) -> Decide:
    def decide(values: Mapping[str, Any]) -> Outcome:
        density = per_1000_words(values["hits"], values["words"])
        return Outcome("bad_words" if density > config.max_per_1000_words else None, density)

    return decide


def decide_license(config: AllowLicenses) -> Decide:
    allowed = frozenset(name.lower() for name in config.allowed)

    def decide(values: Mapping[str, Any]) -> Outcome:
        license = values["license"]
        if license is None:
            return KEEP if config.unknown == "keep" else Outcome("license_unknown")
        return KEEP if is_allowed(license, allowed) else Outcome("license_denied")

    return decide


_TOKEN = re.compile(r"[()]|[^\s()]+")


def is_allowed(expression: str, allowed: frozenset[str]) -> bool:
    """Whether an SPDX expression (SPDX 2.3, annex D) can be met by allowed licences alone; what is no expression is one name.

    Args:
        allowed: identifiers in lower case.
    """
    tokens = _TOKEN.findall(expression.lower())
    try:
        met = _any(tokens, allowed)
        if not tokens:
            return met
    except (IndexError, RecursionError):
        pass
    return expression.strip().lower() in allowed


def _any(tokens: list[str], allowed: frozenset[str]) -> bool:
    """Terms joined by `or`; takes what it reads from the front of `tokens`, and leaves the rest."""
    met = _all(tokens, allowed)
    while tokens and tokens[0] == "or":
        del tokens[0]
        met = _all(tokens, allowed) or met
    return met


def _all(tokens: list[str], allowed: frozenset[str]) -> bool:
    """Licences joined by `and`."""
    met = _one(tokens, allowed)
    while tokens and tokens[0] == "and":
        del tokens[0]
        met = _one(tokens, allowed) and met
    return met


def _one(tokens: list[str], allowed: frozenset[str]) -> bool:
    """A licence, with or without an exception, or an expression in brackets."""
    name = tokens.pop(0)
    if name == "(":
        met = _any(tokens, allowed)
        if tokens.pop(0) != ")":
            raise IndexError("no closing bracket")
        return met
    if tokens and tokens[0] == "with":
        del tokens[:2]
    return name in allowed


def decide_urls(config: BlockUrls) -> Decide:
    def decide(values: Mapping[str, Any]) -> Outcome:
        for column, reason in (("domain", "url_domain"), ("host", "url_host"), ("url", "url_exact")):
            if values[column]:
                return Outcome(reason)
        if values["hard_words"] or values["inner_words"] or values["soft_words"] > config.max_soft_words:
            return Outcome("url_words", values["hard_words"] + values["inner_words"] + values["soft_words"])
        return KEEP

    return decide


def decide_quality(config: MinQuality) -> Decide:
    def decide(values: Mapping[str, Any]) -> Outcome:
        return Outcome("quality_below" if values["score"] < config.threshold else None, values["score"])

    return decide
