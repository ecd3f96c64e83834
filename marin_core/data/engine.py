"""What turns texts into ids: the `tokenizers` library, or a faster one where it gives the very same ids."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from marin_core.data.probes import PROBES
from marin_core.data.tokenizer import Tokenizer

COMPARED_PER_100 = 1
"""Share of a part's documents that are encoded with both libraries, chosen by their ids."""
COMPARED_FIRST = 8
"""Documents at the beginning of a part that are encoded with both, whatever their ids."""


class Encoded(NamedTuple):
    """Ids of several texts.

    Attributes:
        ids: uint32 [tokens], one text after the other, without BOS and EOS.
        lengths: int64 [texts], tokens of each.
    """

    ids: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[npt.NDArray[np.uint32]]) -> "Encoded":
        """Ids that come text by text."""
        return cls(np.concatenate(texts) if texts else np.empty(0, np.uint32), np.array([len(ids) for ids in texts], np.int64))


class Engine(Protocol):
    """Encodes the documents of one part, in order."""

    name: str

    def encode(self, identities: Sequence[str], texts: Sequence[str]) -> Encoded:
        """Ids of documents; `identities` are their ids."""


class EncodesTexts(Protocol):
    """Encodes texts exactly, one array each."""

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]: ...


class EngineUnusableError(Exception):
    """The fast engine can't be used for this tokenizer or these documents; the message says why."""


class PlainEngine:
    """The `tokenizers` library."""

    name = "tokenizers"

    def __init__(self, exact: EncodesTexts) -> None:
        self._exact = exact

    def encode(self, identities: Sequence[str], texts: Sequence[str]) -> Encoded:
        return Encoded.of(self._exact.encode(texts))


class GigatokenEngine:
    """The `gigatoken` library: 40 times as fast, for byte-level BPE.

    It knows no plain text of special tokens, so it is built without them, and then gives equal ids. That is proven for the very tokenizer
    before it is used, on the 200 probes and the texts of all added tokens, and again on documents of every part.

    Args:
        tokenizer: whose ids it must give.
        exact: encodes the documents that are compared.

    Raises:
        EngineUnusableError: if the library isn't installed, can't build this tokenizer, or gives other ids for a probe.
    """

    name = "gigatoken"

    def __init__(self, tokenizer: Tokenizer, exact: EncodesTexts) -> None:
        self._exact = exact
        self._left = COMPARED_FIRST
        self.compared = 0
        self._encoder = _build(tokenizer)
        added = [token["content"] for token in tokenizer.content.get("added_tokens") or ()]
        probes = [*PROBES, *(form for text in added for form in (text, f"a{text}b", f" {text} "))]
        encoded = self._encode(probes)
        for probe, ours, theirs in zip(probes, _split(encoded), tokenizer.encode_batch(probes), strict=True):
            if ours.tolist() != theirs:
                raise EngineUnusableError(f"gigatoken gives other ids for {probe!r}")

    def encode(self, identities: Sequence[str], texts: Sequence[str]) -> Encoded:
        """Ids of documents.

        Raises:
            EngineUnusableError: if it gives other ids for a document that is compared.
        """
        encoded = self._encode(texts)
        first, self._left = self._left, max(0, self._left - len(texts))
        chosen = [row for row, identity in enumerate(identities) if row < first or int(identity[:8], 16) % 100 < COMPARED_PER_100]
        ours = _split(encoded)
        for row, exact in zip(chosen, self._exact.encode([texts[row] for row in chosen]), strict=True):
            if not np.array_equal(ours[row], exact):
                raise EngineUnusableError(f"gigatoken gives other ids for document {identities[row]}")
        self.compared += len(chosen)
        return encoded

    def _encode(self, texts: Sequence[str]) -> Encoded:
        """One by one: a batch comes as an array of awkward, whose import costs more than many a part."""
        try:
            return Encoded.of([self._encoder.encode(text) for text in texts])
        except BaseException as error:
            _raise_unless_library_failed(error)
            raise EngineUnusableError(f"gigatoken fails ({type(error).__name__}: {error})") from error


def _build(tokenizer: Tokenizer) -> Any:
    if find_spec("gigatoken") is None:
        raise EngineUnusableError("gigatoken is not installed; the extra `fast` brings it")
    from gigatoken import Tokenizer as Gigatoken

    added = [token for token in tokenizer.content.get("added_tokens") or () if not token.get("special")]
    try:
        return Gigatoken.from_json(json.dumps({**tokenizer.content, "added_tokens": added})).backend
    except BaseException as error:
        _raise_unless_library_failed(error)
        raise EngineUnusableError(f"gigatoken can't build this tokenizer ({type(error).__name__}: {error})") from error


def _raise_unless_library_failed(error: BaseException) -> None:
    """Let pass what isn't the library's own; its panics derive from BaseException."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error


def _split(encoded: Encoded) -> list[npt.NDArray[np.uint32]]:
    ends = np.cumsum(encoded.lengths).tolist()
    return [encoded.ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]
