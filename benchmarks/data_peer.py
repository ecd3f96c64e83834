"""datatrove's filters and MinHash with their defaults, as a user chains them, one rank in this process.

Run as a script inside the peer's environment, which has spaCy: `python data_peer.py TEXTS.jsonl`; prints CPU-seconds as JSON. It imports
nothing of ours.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the chain and print what it took."""
    from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter
    from loguru import logger

    logger.disable("datatrove")
    source = Path(sys.argv[1])
    config = MinhashConfig()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        signature: Any = MinhashDedupSignature(str(folder / "signatures"), config)
        signature._hash_func = _hash64
        blocks: list[Any] = [
            GopherRepetitionFilter(),
            GopherQualityFilter(),
            C4QualityFilter(filter_no_terminal_punct=False),
            FineWebQualityFilter(),
        ]
        signature.word_tokenizer.word_tokenize("Models are loaded before the clock starts.")
        began = time.process_time()
        data: Any = JsonlReader(str(source.parent), glob_pattern=source.name).run()
        for block in blocks:
            data = block.run(data)
        for _ in JsonlWriter(str(folder / "kept"), compression=None).run(data):
            pass
        filtered = time.process_time()
        signature.run(JsonlReader(str(folder / "kept")).run())
        signed = time.process_time()
        for bucket in range(config.num_buckets):
            MinhashDedupBuckets(str(folder / "signatures"), str(folder / "buckets"), config=config).run(
                rank=bucket, world_size=config.num_buckets
            )
        MinhashDedupCluster(str(folder / "buckets"), str(folder / "remove"), config).run()
        left = MinhashDedupFilter(str(folder / "remove")).run(JsonlReader(str(folder / "kept")).run())
        for _ in JsonlWriter(str(folder / "deduplicated"), compression=None).run(left):
            pass
        ended = time.process_time()
    print(json.dumps({"filters": filtered - began, "signatures": signed - filtered, "rest": ended - signed, "total": ended - began}))


def _hash64(text: str) -> int:
    """Its own default: xxhash 4 takes bytes alone, and datatrove 0.10.1 gives it strings."""
    import xxhash

    return int(xxhash.xxh64_intdigest(text.encode()))


if __name__ == "__main__":
    main()
