"""Byte-level BPE tokenizers: train one, identify one, use one. Special-token text in documents is always plain text."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from marin_core.artifact.canonical import canonical_json
from marin_core.data.config import Specials, TokenizerConfig
from marin_core.data.files import write_json
from marin_core.data.probes import PROBES
from marin_core.data.shard import find_part, read_part
from marin_core.errors import ConfigError, DataError, PreemptedError
from marin_core.report import Check, Report, Reporter, Scalar

TOKENIZER_FILE = "tokenizer.json"
INFO_FILE = "tokenizer_info.json"
LIBRARY = f"tokenizers {version('tokenizers')}"


class Tokenizer:
    """A tokenizer as the lab uses it: plain encoding, ids for the special tokens, and an identity.

    Attributes:
        bos_id, eos_id, pad_id: ids of the special tokens; `encode` never returns them.
        vocab_size: number of ids, special tokens included.
        digest: of what the file says (`tokenizer_digest`).
        probe_digest: of what the library makes of 200 fixed strings; catches a library whose behaviour changed.
        splittable: whether a document may be cut before a single space between two ASCII letters without changing its ids.
    """

    def __init__(self, rust: RustTokenizer, specials: Specials, digest: str, *, splittable: bool) -> None:
        # Not saved in the file: without it, "<|eos|>" in a document would end the document.
        rust.encode_special_tokens = True
        self._rust = rust
        self.specials = specials
        self.digest = digest
        self.splittable = splittable
        self.vocab_size: int = rust.get_vocab_size(with_added_tokens=True)
        self.bos_id, self.eos_id, self.pad_id = (_special_id(rust, text) for text in (specials.bos, specials.eos, specials.pad))
        self.probe_digest = hashlib.sha256(canonical_json(self.encode_batch(PROBES))).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without BOS and EOS."""
        ids: list[int] = self._rust.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; faster than one by one."""
        return [encoding.ids for encoding in self._rust.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens show as their text. `decode(encode(text)) == text` for every valid text."""
        text: str = self._rust.decode(list(ids), skip_special_tokens=False)
        return text

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's entries for ids, in its byte alphabet."""
        return [self._rust.id_to_token(index) or "" for index in ids]


def _special_id(rust: RustTokenizer, text: str) -> int:
    index = rust.token_to_id(text)
    if index is None:
        raise ConfigError(f"the tokenizer has no special token {text!r}", advice="Use a tokenizer with BOS, EOS and padding tokens.")
    return int(index)


def train_tokenizer(config: TokenizerConfig, shards: Sequence[Path], output: Path, reporter: Reporter) -> Report:
    """Train a byte-level BPE tokenizer on filtered shards; writes `tokenizer.json` and `tokenizer_info.json`.

    The same documents give the same file, with any number of threads.

    Args:
        shards: folders of filtered shards, read in this order.

    Raises:
        DataError: if a shard is damaged, or there is no text.
    """
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    specials = [config.specials.bos, config.specials.eos, config.specials.pad]
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    corpus = _Corpus(shards, reporter)
    rust.train_from_iterator(iter(corpus), trainer)
    if corpus.documents == 0:
        raise DataError(f"{len(shards)} shards hold no document to train on", advice="Loosen the filters or choose other shards.")
    output.mkdir(parents=True, exist_ok=True)
    rust.save(str(output / TOKENIZER_FILE), pretty=False)
    write_json(output / INFO_FILE, {"specials": config.specials.model_dump(), "library": LIBRARY})
    tokenizer = load_tokenizer(output)
    ids = tokenizer.encode(corpus.sample)
    metrics: dict[str, Scalar] = {
        "vocab_size": tokenizer.vocab_size,
        "documents": corpus.documents,
        "bytes": corpus.bytes,
        "sample_bytes_per_token": len(corpus.sample.encode()) / max(1, len(ids)),
    }
    checks = [
        Check("special_ids", (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2), "BOS, EOS and padding are 0, 1 and 2"),
        Check("round_trip", all(tokenizer.decode(tokenizer.encode(text)) == text for text in PROBES), "200 fixed strings survive"),
        Check(
            "vocab_size_reached",
            tokenizer.vocab_size == config.vocab_size,
            f"{tokenizer.vocab_size} of {config.vocab_size} entries could be learnt from the text",
        ),
    ]
    return Report(metrics=metrics, tables={"longest_tokens": _longest(tokenizer)}, checks=checks, content_digest=tokenizer.digest)


class _Corpus:
    """Texts of shards, one row group at a time, counted while they are read; keeps the first document as a sample."""

    def __init__(self, shards: Sequence[Path], reporter: Reporter) -> None:
        self._shards = shards
        self._reporter = reporter
        self.documents = 0
        self.bytes = 0
        self.sample = ""

    def __iter__(self) -> Iterator[list[str]]:
        for done, shard in enumerate(self._shards):
            if self._reporter.stop_requested():
                raise PreemptedError("training of the tokenizer was asked to stop", advice="Start it again; it begins anew.")
            for columns in read_part(find_part(shard), ("text",)):
                texts = columns["text"]
                self.sample = self.sample or texts[0]
                self.documents += len(texts)
                self.bytes += sum(len(text.encode()) for text in texts)
                yield texts
            self._reporter.progress(done + 1, len(self._shards), "shards")


def _longest(tokenizer: Tokenizer) -> list[dict[str, Scalar]]:
    rows = [(len(tokenizer.decode([index])), index) for index in range(3, tokenizer.vocab_size)]
    longest = sorted(rows, key=lambda row: (-row[0], row[1]))[:20]
    return [{"id": index, "characters": length, "token": tokenizer.tokens([index])[0]} for length, index in longest]


def read_tokenizer_file(path: Path) -> dict[str, Any]:
    """Parse a `tokenizer.json`.

    Raises:
        DataError: if it is missing or no JSON object.
    """
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        return content
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name!r} is not a readable tokenizer ({error})", advice="Rebuild the tokenizer artifact.") from error


def tokenizer_digest(path: Path) -> str:
    """sha256 of what a tokenizer says: canonical JSON of its file, merges as pairs, without padding, truncation and formatting."""
    content = read_tokenizer_file(path)
    content.pop("padding", None)
    content.pop("truncation", None)
    model = content.get("model")
    if isinstance(model, dict) and isinstance(model.get("merges"), list):
        model["merges"] = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
    return hashlib.sha256(canonical_json(content)).hexdigest()


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load a tokenizer artifact.

    Raises:
        DataError: if a file is missing or broken.
        ConfigError: if the tokenizer truncates or pads, which would change documents silently, or lacks BOS, EOS or padding.
    """
    path = folder / TOKENIZER_FILE
    content = read_tokenizer_file(path)
    for setting in ("truncation", "padding"):
        if content.get(setting) is not None:
            raise ConfigError(
                f"{path.name!r} has {setting} set ({content[setting]!r}), which would change documents silently",
                advice=f"Remove {setting} from the tokenizer.",
            )
    info = folder / INFO_FILE
    try:
        specials = Specials.from_json(json.loads(info.read_bytes())["specials"]) if info.exists() else Specials()
        rust = RustTokenizer.from_file(str(path))
    except (ConfigError, DataError):
        raise
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"{folder.name!r} is not a readable tokenizer ({error})", advice="Rebuild the tokenizer artifact.") from error
    pre = content.get("pre_tokenizer") or {}
    splittable = pre.get("type") == "ByteLevel" and not pre.get("add_prefix_space") and content.get("normalizer") is None
    return Tokenizer(rust, specials, tokenizer_digest(path), splittable=splittable)
