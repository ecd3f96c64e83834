"""Secrets in source code: private keys, tokens of well-known services, and random strings that something is set to."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa

from marin_core.data.measures.config import SecretsMeasure
from marin_core.data.measures.interface import Measured

_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----[\s\\rn\"'+,]{1,40}(?:[\w-]+: [^\n]*\n)*[A-Za-z0-9+/=]{40}"
)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"A(?:KIA|SIA)[0-9A-Z]{16}(?![0-9A-Za-z])"  # Amazon
    r"|gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60}"
    r"|glpat-[A-Za-z0-9_-]{20}"  # GitLab
    r"|xox[abprs]-[A-Za-z0-9-]{20}"  # Slack
    r"|[sr]k_live_[A-Za-z0-9]{20}"  # Stripe
    r"|sk-(?:proj-|ant-)[A-Za-z0-9_-]{32}"
    r"|AIza[A-Za-z0-9_-]{35}"  # Google
    r"|hf_[A-Za-z]{34}|npm_[A-Za-z0-9]{36}|pypi-AgEI[A-Za-z0-9_-]{50}|dop_v1_[a-f0-9]{64}"
    r"|SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"  # SendGrid
    r")"
)
_BEGINNINGS = ("PRIVATE KEY", "AKIA", "ASIA", "gh", "glpat-", "xox", "k_live_", "sk-", "AIza", "hf_", "npm_", "pypi-", "dop_v1_", "SG.")
MAX_CHARACTERS = 256
"""Longer strings are data, such as pictures in base64."""
_RUN = 6
"""Characters in a row that follow each other in the alphabet; an alphabet is no secret."""


class Secrets:
    """How many keys and tokens of known kinds there are, and the highest entropy of a string in an assignment; null if there is none."""

    name = "secrets"
    columns: Mapping[str, pa.DataType] = {"known": pa.int32(), "max_entropy": pa.float64()}

    def __init__(self, config: SecretsMeasure) -> None:
        kind = "[A-Za-z0-9+/_=-]"
        self._assigned = re.compile(rf"(?<![=:])[=:]=?>?\s{{0,4}}[\"'`]?({kind}{{{config.min_characters},{MAX_CHARACTERS}}}+)(?!{kind})")

    def measure(self, document: Measured) -> Mapping[str, Any]:
        """Entropy is in bits a character, of the string's own distribution of characters (Shannon 1948)."""
        text = document.text
        known = 0
        if any(beginning in text for beginning in _BEGINNINGS):
            known = sum(1 for _ in _PRIVATE_KEY.finditer(text))
            known += sum("EXAMPLE" not in token for token in _TOKEN.findall(text))
        entropies = [entropy(string) for string in self._assigned.findall(text) if _looks_random(string)]
        return {"known": known, "max_entropy": round(max(entropies), 6) if entropies else None}


def entropy(text: str) -> float:
    """Bits a character."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())


def _looks_random(text: str) -> bool:
    """Small and capital letters and digits, no checksum by its name, no part of an alphabet."""
    if not (re.search("[a-z]", text) and re.search("[A-Z]", text) and re.search("[0-9]", text)) or re.match(r"(?:sha|md)\d+[-=:]", text):
        return False
    run = 1
    for left, right in pairwise(text):
        run = run + 1 if ord(right) - ord(left) == 1 else 1
        if run == _RUN:
            return False
    return True
