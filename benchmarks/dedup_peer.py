"""datatrove's MinHash and decontamination as a user would run them, one rank after the other, in this process.

Run as a script inside the peer's environment, which has spaCy: `python dedup_peer.py TEXTS.jsonl`; prints what it took as JSON. It imports
nothing of ours.
"""

import json
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

DEFAULT_WORDS = "eng"


def minhash(texts: Sequence[str], words: Any = DEFAULT_WORDS) -> dict[str, Any]:
    """Signatures, buckets and clusters with datatrove's default settings.

    Returns:
        CPU-seconds of the signatures and of the rest, and which texts it would remove.
    """
    from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from loguru import logger

    logger.disable("datatrove")
    config = MinhashConfig()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        signature: Any = MinhashDedupSignature(str(folder / "signatures"), config, language=words)
        signature._hash_func = _hash64
        signature.word_tokenizer.word_tokenize("Models are loaded before the clock starts.")
        began = time.process_time()
        signature.run(_documents(texts))
        signed = time.process_time()
        for bucket in range(config.num_buckets):
            MinhashDedupBuckets(str(folder / "signatures"), str(folder / "buckets"), config=config).run(
                rank=bucket, world_size=config.num_buckets
            )
        MinhashDedupCluster(str(folder / "buckets"), str(folder / "remove"), config).run()
        ended = time.process_time()
        removed = [index for path in (folder / "remove").glob("*.remove") for (index,) in struct.iter_unpack("<I", path.read_bytes())]
    return {"signatures": signed - began, "rest": ended - signed, "removed": removed}


def decontamination(texts: Sequence[str], grams: Any, words: Any) -> float:
    """CPU-seconds to look for an index of 64-bit n-gram hashes (its own hash function) in some texts."""
    from datatrove.data import Document
    from datatrove.pipeline.decont import NGramsDecontFilter

    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "eval.index.hashes").write_bytes(grams.tobytes())
        block = NGramsDecontFilter(name, language=words)
        block.hash_func = _hash64
        block.filter(Document(text="The index is read before the clock starts.", id=""))
        began = time.process_time()
        for text in texts:
            block.filter(Document(text=text, id=""))
        return time.process_time() - began


def _hash64(text: str) -> int:
    """Its own default: xxhash 4 takes bytes alone, and datatrove 0.10.1 gives it strings."""
    import xxhash

    return int(xxhash.xxh64_intdigest(text.encode()))


def _documents(texts: Sequence[str]) -> Iterator[Any]:
    from datatrove.data import Document

    return (Document(text=text, id=str(index)) for index, text in enumerate(texts))


def main(read: Callable[[str], str] = lambda path: Path(path).read_text(encoding="utf-8")) -> None:
    texts = [json.loads(line) for line in read(sys.argv[1]).splitlines()]
    print(json.dumps(minhash(texts)))


if __name__ == "__main__":
    main()
