"""Tokenizers of DNA and other sequences over a few letters: words of k letters, or single ones."""

from itertools import product
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from marin_core.data.config import KmerConfig
from marin_core.data.files import write_json
from marin_core.data.tokenizer import INFO_FILE, LIBRARY, TOKENIZER_FILE, load_tokenizer, tokenizer_checks
from marin_core.report import Report, Reporter


def make_kmer_tokenizer(config: KmerConfig, output: Path, reporter: Reporter) -> Report:
    """Write the tokenizer whose words are all runs of k bases; it is made from its description, no text is read.

    Ids 0, 1 and 2 are BOS, EOS and padding, the 256 bytes follow, and for k > 1 the bases^k words, in the order of `bases`. A text is
    cut into words from the left, and anew behind whatever isn't a base: an ambiguous base (`N`), a soft-masked one (`acgt`), a line feed.
    These and the rest of a run are taken byte by byte. So every text survives, which an unknown-word id would not let it.
    """
    specials = [config.specials.bos, config.specials.eos, config.specials.pad]
    words = ["".join(letters) for letters in product(config.bases, repeat=config.k)] if config.k > 1 else []
    vocabulary = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet()), *words]
    rust = RustTokenizer(models.BPE(vocab={token: index for index, token in enumerate(vocabulary)}, merges=[], ignore_merges=True))
    # Each other character stands alone: as a run, "<|eos|>" would be looked up whole and found.
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rf"[{config.bases}]{{{config.k}}}|[\s\S]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    output.mkdir(parents=True, exist_ok=True)
    rust.save(str(output / TOKENIZER_FILE), pretty=False)
    write_json(output / INFO_FILE, {"specials": config.specials.model_dump(), "library": LIBRARY})
    tokenizer = load_tokenizer(output)
    reporter.log(f"{len(words)} words of {config.k} bases" if words else "single characters")
    return Report(
        metrics={"vocab_size": tokenizer.vocab_size, "words": len(words), "k": config.k},
        checks=tokenizer_checks(tokenizer),
        content_digest=tokenizer.digest,
    )
