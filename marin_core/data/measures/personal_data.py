"""Personal data in a text: e-mail and IP addresses, telephone, bank account and card numbers. What has a checksum must pass it."""

import ipaddress
import re
import string
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from marin_core.data.measures.config import PersonalDataKind, PersonalDataMeasure
from marin_core.data.measures.interface import SPANS, Measured

# The two patterns of datatrove 0.10.1's PIIFormatter.
EMAIL = (
    r"\b[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@(?:(?:[A-Za-z0-9](?:["
    r"A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?|\[(?:(?:25[0-5]|2[0-4][0-9]|["
    r"01]?[0-9][0-9]?)\.){3}(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?|[A-Za-z0-9-]*[A-Za-z0-9]:)])"
)
IPV4 = r"(?:(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)\.){3}(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"

_EMAIL = re.compile(EMAIL)
_IPV4 = re.compile(IPV4)
_EXAMPLE_DOMAIN = re.compile(r"@(?:[\w-]+\.)*example\.(?:com|net|org)$", re.IGNORECASE)
"""Reserved by RFC 2606: nobody's address."""
_ADDRESS_REACH = 320
"""Characters before and behind an `@` that can belong to an address: 64 and 255 by RFC 5321. Without a limit, a long run of letters takes
quadratic time."""
_LOCAL = frozenset("!#$%&'*+/=?^_`{|}~.-" + string.ascii_letters + string.digits)
_DOMAIN = re.compile(r"\[?[A-Za-z0-9.:-]*\]?")
# What an address or number of each kind has in it; most texts have none of it, and are done at a tenth of the cost.
_DOTS = re.compile(r"\.\d{1,3}\.\d{1,3}\.\d")
_COLONS = re.compile(r":(?:[0-9A-Fa-f]{1,4}:|:[0-9A-Fa-f])")
_DIGITS = re.compile(r"\d[\d ().-]{8}")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]{2,39}(?![\w:])")
_PHONE = re.compile(
    r"(?<![\w.+-])(?:\+\d[\d ().-]{6,20}\d|(?:1[-. ])?(?:\([2-9]\d\d\) ?[2-9]\d\d[-. ]|[2-9]\d\d([-.])[2-9]\d\d\1)\d{4})(?![\w-])"
)
"""International, or as written in North America."""
_CARD = re.compile(r"(?<![\w.+-])(?:[2-6]\d{3}([ -])(?:\d{4}\1\d{4}\1\d{1,7}|\d{6}\1\d{5})|[2-6]\d{12,18})(?![\w-])")
_ISSUERS = re.compile(r"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]|2[2-7]|35|65)\d{14}|3[47]\d{13}|6011\d{12}")
_FICTION = re.compile(r"555\d?01\d\d$")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b")
_NOT_DIGITS = re.compile(r"\D+")

Span = tuple[int, int, PersonalDataKind]


class PersonalData:
    """Spans of personal data, sorted and apart, and the number of words that their density is taken over."""

    name = "personal_data"
    columns: Mapping[str, pa.DataType] = {"words": pa.int32(), "spans": SPANS}

    def __init__(self, config: PersonalDataMeasure) -> None:
        self._kinds = frozenset(config.kinds)

    def measure(self, document: Measured) -> Mapping[str, Any]:
        """The spans' kinds are those of the configuration. Where two overlap, the kind that is looked for first stands."""
        found: list[Span] = []
        for kind, spans in groupby(_find(document.text), key=itemgetter(2)):
            if kind in self._kinds:
                found = _with(found, spans)
        return {"words": len(document.words), "spans": [{"start": start, "end": end, "kind": kind} for start, end, kind in found]}


def _with(found: list[Span], more: Iterable[Span]) -> list[Span]:
    """Spans and those of another kind that overlap none of them, in order."""
    starts = [start for start, _, _ in found]
    fresh = []
    for span in more:
        place = bisect_left(starts, span[1])
        if place == 0 or found[place - 1][1] <= span[0]:
            fresh.append(span)
    return sorted([*found, *fresh]) if fresh else found


def _find(text: str) -> Iterator[Span]:
    """Places of each kind, one kind after the other, those of a kind in order and apart."""
    if "@" in text:
        yield from _emails(text)
    if _DOTS.search(text):
        for match in _IPV4.finditer(text):
            if _is_public(match[0]):
                yield match.start(), match.end(), "ipv4"
    if _COLONS.search(text):
        for match in _IPV6.finditer(text):
            if match[0].count(":") > 1 and _is_public(match[0]):
                yield match.start(), match.end(), "ipv6"
    if _DIGITS.search(text):
        for match in _CARD.finditer(text):
            if _is_card(_NOT_DIGITS.sub("", match[0])):
                yield match.start(), match.end(), "card"
        for match in _PHONE.finditer(text):
            if _is_phone(_NOT_DIGITS.sub("", match[0])):
                yield match.start(), match.end(), "phone"
        for match in _IBAN.finditer(text):
            if _is_iban(match[0].replace(" ", "")):
                yield match.start(), match.end(), "iban"


def _emails(text: str) -> Iterator[Span]:
    """What the pattern finds, looked for only around each `@`."""
    searched = 0
    place = text.find("@")
    while place >= 0:
        start, limit = place, max(searched, place - _ADDRESS_REACH)
        while start > limit and text[start - 1] in _LOCAL:
            start -= 1
        domain = _DOMAIN.match(text, place + 1, place + 1 + _ADDRESS_REACH)
        match = _EMAIL.search(text, start, domain.end()) if domain and start < place else None
        if match:
            searched = match.end()
            if not _EXAMPLE_DOMAIN.search(match[0]):
                yield match.start(), match.end(), "email"
        place = text.find("@", max(place + 1, searched))


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def _is_phone(digits: str) -> bool:
    """8 to 15 digits (E.164), and none of the numbers 555-01xx that are kept for fiction."""
    return 8 <= len(digits) <= 15 and not _FICTION.search(digits)


def _is_card(digits: str) -> bool:
    """Prefix and length of a large issuer (ISO/IEC 7812), and Luhn's checksum.

    Every second digit from the right is doubled, the digits of all are summed, and the sum divides by ten (US patent 2,950,048).
    """
    if not _ISSUERS.fullmatch(digits):
        return False
    doubled = [sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2]]
    return (sum(doubled) + sum(map(int, digits[-1::-2]))) % 10 == 0


def _is_iban(text: str) -> bool:
    """ISO 13616: 15 to 34 characters; with the first four moved to the end and letters as 10 … 35, the number is 1 modulo 97."""
    if not 15 <= len(text) <= 34:
        return False
    return int("".join(str(int(character, 36)) for character in text[4:] + text[:4])) % 97 == 1
