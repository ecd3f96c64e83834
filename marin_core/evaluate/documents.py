"""Held-out documents, and how their text becomes the tokens that a model is scored on."""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from marin_core.errors import DataError


class HeldOutDocument(NamedTuple):
    """A document that no training set contains.

    Attributes:
        id: unique within its domain.
        text: in the corpus' normal form.
        domain: like `code` or `prose/docstrings`.
        title: file name, module or topic; may be empty.
    """

    id: str
    text: str
    domain: str
    title: str


class EncodedDocument(NamedTuple):
    """A document as a model sees it.

    Attributes:
        id: unique within its domain.
        tokens: int32 [n], BOS + text + EOS.
        bytes: UTF-8 bytes of the text, without BOS and EOS.
    """

    id: str
    tokens: npt.NDArray[np.int32]
    bytes: int


class TextCodec(Protocol):
    """A tokenizer. Special text such as `<|eos|>` inside a document is plain text to it, never the special token."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int: ...

    @property
    def eos_id(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Token ids of the text alone, without BOS and EOS."""

    def decode(self, ids: list[int]) -> str:
        """The text of token ids."""


def encode_document(codec: TextCodec, document: HeldOutDocument) -> EncodedDocument:
    """Encode as training does: [BOS] + text + [EOS].

    Raises:
        DataError: the text is empty, or the codec yields BOS or EOS inside it.
    """
    if not document.text:
        raise DataError(f"held-out document {document.id!r} is empty", advice="Drop empty documents when the held-out set is chosen.")
    ids = codec.encode(document.text)
    if codec.bos_id in ids or codec.eos_id in ids:
        raise DataError(
            f"the tokenizer encodes special text inside document {document.id!r} as a special token",
            advice="Load the tokenizer with encode_special_tokens = True and without special tokens of its own.",
        )
    tokens = np.array([codec.bos_id, *ids, codec.eos_id], np.int32)
    return EncodedDocument(document.id, tokens, len(document.text.encode("utf-8")))
