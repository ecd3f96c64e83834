"""Tokenizers: train a byte-level BPE, identify and load any, use it. Special-token text in documents is always plain text."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from string import ascii_letters
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
        vocab_size: one more than the largest id: ids of files from elsewhere may have gaps.
        digest: of what the file says (`tokenizer_digest`).
        probe_digest: of what the library makes of 200 fixed strings; catches a library whose behaviour changed.
        splittable: whether a document may be cut before a single space between two ASCII letters without changing its ids.
        content: the parsed file.

    Raises:
        ConfigError: if a special token is missing, some text is encoded as one, or ids aren't those of the file.
    """

    def __init__(self, rust: RustTokenizer, specials: Specials, content: Mapping[str, Any]) -> None:
        # Not saved in the file: without it, "<|eos|>" in a document would end the document.
        rust.encode_special_tokens = True
        self._rust = rust
        self.specials = specials
        self.content = content
        self.digest = content_digest(content)
        vocabulary = rust.get_vocab(with_added_tokens=True)
        _refuse_other_ids(vocabulary, content)
        self.vocab_size: int = 1 + max(vocabulary.values())
        self.bos_id, self.eos_id, self.pad_id = (_special_id(rust, text, content) for text in (specials.bos, specials.eos, specials.pad))
        self._refuse_special_text()
        self.splittable = _splittable(rust, content)
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

    def renew(self) -> None:
        """Put a fresh object of the library in the place of the one in use, whose memory grows with the text (tokenizers #1495, #1539)."""
        self._rust = RustTokenizer.from_str(self._rust.to_str())
        self._rust.encode_special_tokens = True

    def _refuse_special_text(self) -> None:
        ids = {self.bos_id: self.specials.bos, self.eos_id: self.specials.eos, self.pad_id: self.specials.pad}
        for index, special in ids.items():
            if index in self.encode(special):
                raise ConfigError(
                    f"the text {special!r} in a document would be encoded as id {index}, which means {special!r}",
                    advice="Use a tokenizer that marks it as special in 'added_tokens', or name other special tokens.",
                )


def _refuse_other_ids(vocabulary: Mapping[str, int], content: Mapping[str, Any]) -> None:
    """The library gives added tokens the next ids behind the vocabulary, whatever the file says, and even ids that are taken."""
    for token in content.get("added_tokens") or ():
        if vocabulary.get(token["content"]) != token["id"]:
            raise ConfigError(
                f"{token['content']!r} has id {token['id']} in the file, and {vocabulary.get(token['content'])} as {LIBRARY} loads it",
                advice="Write the file anew with that library, or give the tokens ids without gaps.",
            )
    if len(set(vocabulary.values())) < len(vocabulary):
        counts = Counter(vocabulary.values())
        twice = next(index for index, count in counts.items() if count > 1)
        names = ", ".join(repr(token) for token, index in vocabulary.items() if index == twice)
        raise ConfigError(f"id {twice} means {names}", advice="Write the file anew; each token needs an id of its own.")


def _special_id(rust: RustTokenizer, text: str, content: Mapping[str, Any]) -> int:
    index = rust.token_to_id(text)
    if index is None:
        known = {token["content"]: token["id"] for token in content.get("added_tokens") or () if token.get("special")}
        listed = ", ".join(f"{name!r} = {index}" for name, index in sorted(known.items(), key=lambda item: item[1])[:12])
        raise ConfigError(
            f"the tokenizer has no special token {text!r}; its special tokens are {listed or 'none'}",
            advice="Name those that begin, end and pad documents in 'specials', or use a tokenizer with BOS, EOS and padding tokens.",
        )
    return int(index)


def _splittable(rust: RustTokenizer, content: Mapping[str, Any]) -> bool:
    """Whether a word begins at every single space between two ASCII letters, whatever the letters are.

    Only of byte-level tokenizers without normalizer and prefix space, tried on all pairs of letters. An added token that holds such a
    space could lie across the cut.
    """
    pre = content.get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers") or [pre]
    byte_level = [step for step in steps if step.get("type") == "ByteLevel"]
    if content.get("normalizer") is not None or not byte_level or any(step.get("add_prefix_space") for step in byte_level):
        return False
    if any(re.search("[A-Za-z] [A-Za-z]", token["content"]) for token in content.get("added_tokens") or ()):
        return False
    pairs = (f"xy{first} {second}xy" for first in ascii_letters for second in ascii_letters)
    return all(any(start == 3 for _, (start, _) in rust.pre_tokenizer.pre_tokenize_str(pair)) for pair in pairs)


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
        *tokenizer_checks(tokenizer),
        Check(
            "vocab_size_reached",
            tokenizer.vocab_size == config.vocab_size,
            f"{tokenizer.vocab_size} of {config.vocab_size} entries could be learnt from the text",
        ),
    ]
    return Report(metrics=metrics, tables={"longest_tokens": _longest(tokenizer)}, checks=checks, content_digest=tokenizer.digest)


def tokenizer_checks(tokenizer: Tokenizer) -> list[Check]:
    """What every tokenizer must keep, wherever it comes from."""
    ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id}
    survive = sum(tokenizer.decode(tokenizer.encode(text)) == text for text in PROBES)
    return [
        Check("special_ids", len(set(ids.values())) == 3, "BOS, EOS and padding have ids of their own, which no text gives", ids),
        Check("round_trip", survive == len(PROBES), f"{survive} of {len(PROBES)} fixed strings survive encoding and decoding"),
    ]


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
    return content_digest(read_tokenizer_file(path))


def content_digest(content: Mapping[str, Any]) -> str:
    """`tokenizer_digest` of a parsed file."""
    said = {key: value for key, value in content.items() if key not in ("padding", "truncation")}
    model = said.get("model")
    if isinstance(model, dict) and isinstance(model.get("merges"), list):
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
        said["model"] = {**model, "merges": pairs}
    return hashlib.sha256(canonical_json(said)).hexdigest()


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load a tokenizer artifact.

    Raises:
        DataError: if a file is missing or broken.
        ConfigError: if the tokenizer can't be used (`usable_tokenizer`).
    """
    info = folder / INFO_FILE
    try:
        specials = Specials.from_json(json.loads(info.read_bytes())["specials"]) if info.exists() else Specials()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder.name!r} is not a readable tokenizer ({error})", advice="Rebuild the tokenizer artifact.") from error
    return usable_tokenizer(folder / TOKENIZER_FILE, specials)


def usable_tokenizer(path: Path, specials: Specials) -> Tokenizer:
    """Load a `tokenizer.json`, if a document's ids depend on nothing but its text.

    Raises:
        DataError: if the file is missing or broken.
        ConfigError: if the tokenizer truncates or pads, which would change documents silently, drops merges at random, lacks BOS, EOS or
            padding, or makes one of them from text.
    """
    content = read_tokenizer_file(path)
    model = content.get("model")
    settings = {"truncation": content.get("truncation"), "padding": content.get("padding")}
    settings["dropout"] = (model.get("dropout") if isinstance(model, dict) else None) or None
    for setting, value in settings.items():
        if value is not None:
            raise ConfigError(
                f"{path.name!r} has {setting} set ({value!r}), which would change documents silently",
                advice=f"Remove {setting} from the tokenizer.",
            )
    try:
        rust = RustTokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"{path.name!r} is not a readable tokenizer ({error})", advice="Rebuild the tokenizer artifact.") from error
    return Tokenizer(rust, specials, content)
