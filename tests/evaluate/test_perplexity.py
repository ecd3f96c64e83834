import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from marin_core.errors import ConfigError, DataError, PreemptedError
from marin_core.evaluate.documents import EncodedDocument, HeldOutDocument, TextCodec, encode_document
from marin_core.evaluate.language_model import LanguageModel, Scores
from marin_core.evaluate.perplexity import DocumentScore, bits_per_byte, summarize
from marin_core.evaluate.scoring import cut, length_buckets
from marin_core.report import SilentReporter

Bigram = Callable[[int], LanguageModel]
TEXTS = ["a", "héllo\n", "x = 1\n" * 30, "The quick brown fox. " * 50, "ab"]


@pytest.fixture
def encoded(codec: TextCodec) -> list[EncodedDocument]:
    return [encode_document(codec, HeldOutDocument(str(n), text, "code", "")) for n, text in enumerate(TEXTS)]


def by_hand(table: npt.NDArray[np.float64], text: str) -> float:
    """Nats of [BOS] text [EOS], token by token."""
    sequence = [256, *text.encode(), 257]
    return -sum(math.log(table[before, after]) for before, after in itertools.pairwise(sequence))


@pytest.mark.parametrize("sequence_length", [2, 5, 64, 100, 4096])
def test_bits_per_byte_of_a_closed_form_model_is_exact(
    bigram: Bigram, table: npt.NDArray[np.float64], encoded: list[EncodedDocument], sequence_length: int
) -> None:
    result = bits_per_byte(bigram(sequence_length), encoded, batch_size=3)
    for document, text in zip(result.documents, TEXTS, strict=True):
        assert document.nats == pytest.approx(by_hand(table, text), rel=1e-6)
        assert document.bytes == len(text.encode())
        assert document.tokens == document.bytes + 1  # BOS is context only, EOS is predicted
    expected = sum(by_hand(table, text) for text in TEXTS) / (sum(len(text.encode()) for text in TEXTS) * math.log(2))
    assert result.bits_per_byte.value == pytest.approx(expected, rel=1e-6)


def test_bits_per_byte_does_not_depend_on_batches_or_buckets(bigram: Bigram, encoded: list[EncodedDocument]) -> None:
    shapes: list[tuple[int, tuple[int, ...]]] = [(1, ()), (16, ()), (3, (2, 3, 50)), (7, (64,))]
    results = [bits_per_byte(bigram(64), encoded, batch_size=size, buckets=buckets) for size, buckets in shapes]
    assert len({result.documents for result in results}) == 1
    assert len({result.bits_per_byte for result in results}) == 1


def test_order_of_documents_does_not_matter(bigram: Bigram, encoded: list[EncodedDocument]) -> None:
    assert bits_per_byte(bigram(64), encoded).bits_per_byte == bits_per_byte(bigram(64), encoded[::-1]).bits_per_byte


def test_batches_have_one_shape_per_bucket(bigram: Bigram, encoded: list[EncodedDocument]) -> None:
    model = bigram(300)
    bits_per_byte(model, encoded * 1, batch_size=4)
    assert model.shapes <= {(4, bucket) for bucket in length_buckets(300)}  # type: ignore[attr-defined]
    assert length_buckets(300) == (64, 128, 256, 300)


@pytest.mark.parametrize("n", [1, 2, 3, 16, 17, 31, 32, 33, 100])
@pytest.mark.parametrize("overlap", [0.0, 0.5, 0.9])
def test_windows_score_each_token_once_with_enough_context(n: int, overlap: float) -> None:
    tokens = np.arange(n, dtype=np.int32)
    windows = list(cut(tokens, 16, overlap))
    scored = [int(token) for window in windows for token in window.tokens[window.first :]]
    assert scored == list(range(1, n))
    for window in windows:
        assert window.tokens.tolist() == list(range(window.start, window.start + len(window.tokens)))
        assert len(window.tokens) <= 16
        assert window.first >= 1
    assert all(window.first == max(1, int(overlap * 16)) for window in windows[1:])


def test_padding_is_not_seen(encoded: list[EncodedDocument]) -> None:
    class Padding:
        vocab_size, sequence_length = 258, 4096

        def score(self, tokens: npt.NDArray[np.int32], segment_ids: npt.NDArray[np.int32]) -> Scores:
            inside = segment_ids == segment_ids[:, :1]
            assert not tokens[~inside].any()
            return Scores(np.where(inside & (segment_ids == 0), -1.0, -1e30).astype(np.float32), inside)

    result = bits_per_byte(Padding(), encoded, batch_size=2)
    assert result.nats == result.tokens


def test_interval_contains_the_estimate_and_shrinks_with_more_documents() -> None:
    generator = np.random.default_rng(0)
    scores = [DocumentScore(f"{n:05}", float(generator.gamma(2, 50)), 10, 100, 0) for n in range(2000)]
    few, many = summarize(scores[:20], 500, 1).bits_per_byte, summarize(scores, 500, 1).bits_per_byte
    for low_to_high in (few, many):
        assert low_to_high.low <= low_to_high.value <= low_to_high.high
    assert many.high - many.low < (few.high - few.low) / 4
    assert summarize(scores, 500, 1).bits_per_byte == many
    alone = summarize(scores[:1], 100, 0).bits_per_byte
    assert alone.low == alone.value == alone.high


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    hits = 0
    for trial in range(200):
        nats = generator.gamma(4, 25, 60)
        result = summarize([DocumentScore(str(n), float(value), 1, 100, 0) for n, value in enumerate(nats)], 300, trial).bits_per_byte
        hits += result.low <= 1 / math.log(2) <= result.high
    assert 175 <= hits <= 200


def test_a_nan_is_counted_and_not_hidden(encoded: list[EncodedDocument]) -> None:
    class Broken:
        vocab_size, sequence_length = 258, 4096

        def score(self, tokens: npt.NDArray[np.int32], segment_ids: npt.NDArray[np.int32]) -> Scores:
            logprobs = np.full(tokens.shape, -1, np.float32)
            logprobs[tokens == ord("q")] = np.nan
            return Scores(logprobs, np.zeros(tokens.shape, np.bool_))

    result = bits_per_byte(Broken(), encoded)
    assert result.nonfinite == 50
    assert math.isnan(result.bits_per_byte.value)


def test_empty_and_repeated_documents_are_refused(bigram: Bigram, codec: TextCodec, encoded: list[EncodedDocument]) -> None:
    with pytest.raises(DataError, match="no held-out documents"):
        bits_per_byte(bigram(64), [])
    with pytest.raises(DataError, match="occurs twice"):
        bits_per_byte(bigram(64), encoded + encoded[:1])
    with pytest.raises(DataError, match="is empty"):
        encode_document(codec, HeldOutDocument("x", "", "code", ""))
    with pytest.raises(ConfigError, match="length bucket 128"):
        bits_per_byte(bigram(64), encoded, buckets=(128,))


def test_special_text_that_becomes_a_special_token_is_refused(codec: TextCodec) -> None:
    class Careless:
        vocab_size, bos_id, eos_id, decode = codec.vocab_size, codec.bos_id, codec.eos_id, codec.decode

        def encode(self, text: str) -> list[int]:
            return [257 if part == "<|eos|>" else ord(part) for part in text.split()]

    with pytest.raises(DataError, match="special text"):
        encode_document(Careless(), HeldOutDocument("x", "a <|eos|> b", "code", ""))


def test_a_stop_request_ends_scoring(bigram: Bigram, encoded: list[EncodedDocument]) -> None:
    @dataclasses.dataclass
    class Stop(SilentReporter):
        def stop_requested(self) -> bool:
            return True

    many = [document._replace(id=f"{n}") for n, document in enumerate(encoded * 30)]
    with pytest.raises(PreemptedError):
        bits_per_byte(bigram(64), many, batch_size=1, reporter=Stop())
