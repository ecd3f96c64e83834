"""Files of a data artifact: small JSON for people and programs, and harmless names for what others named."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

SAFE_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789._-")
MAX_NAME_CHARACTERS = 200


def write_json(path: Path, value: Any) -> None:
    """Write a small JSON file for people and programs: sorted and indented, with a final newline."""
    path.write_text(json.dumps(value, ensure_ascii=False, sort_keys=True, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def percent_encoded(name: str) -> str:
    """Any file name as plain ASCII, reversible: bytes outside `[a-z0-9._-]` (capitals too) become `%xx`."""
    return "".join(chr(byte) if byte in SAFE_CHARACTERS else f"%{byte:02x}" for byte in os.fsencode(name))


def safe_name(name: str) -> str:
    """Encode any relative path as one harmless file name.

    Capitals are encoded too, so names equal up to case stay apart on every file system, and a leading dot. A name that would exceed
    200 characters is cut and gets a digest before its extension.
    """
    encoded = percent_encoded(name)
    if encoded.startswith("."):
        encoded = "%2e" + encoded[1:]
    if len(encoded) > MAX_NAME_CHARACTERS:
        ending = encoded[-8:] if "." in encoded[-8:] else ""
        encoded = f"{encoded[:150]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}{ending[ending.find('.') :]}"
    return encoded
