"""Held-out token caches as the documents that evaluation scores."""

from collections.abc import Iterator, Mapping

from marin_core.data.cache import TokenCache
from marin_core.evaluate.documents import EncodedDocument
from marin_jobs.runtime import JobContext


def held_out_documents(job: JobContext, caches: Mapping[str, str]) -> dict[str, Iterator[EncodedDocument]]:
    """Domain → the documents of its held-out cache, read as they are scored."""
    return {domain: _documents(TokenCache([job.local(address)])) for domain, address in caches.items()}


def _documents(cache: TokenCache) -> Iterator[EncodedDocument]:
    for document in cache.documents():
        yield EncodedDocument(document.id, document.tokens, document.bytes)
