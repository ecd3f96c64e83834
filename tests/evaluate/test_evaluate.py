import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from marin_core.errors import ConfigError, DataError
from marin_core.evaluate.config import EvaluateConfig, NgramConfig, TaskSetConfig
from marin_core.evaluate.documents import EncodedDocument, HeldOutDocument, TextCodec, encode_document
from marin_core.evaluate.evaluate import evaluate, ngram_baseline
from marin_core.evaluate.language_model import LanguageModel, Scores
from marin_core.evaluate.ngram import NgramModel
from marin_core.evaluate.perplexity import DocumentScore, summarize
from marin_core.evaluate.results import Baseline, HeldOutScores, differences
from marin_core.evaluate.tasks import make_tasks
from marin_core.report import Report, SilentReporter

Bigram = Callable[[int], LanguageModel]
HeldOut = dict[str, list[EncodedDocument]]
BPB_ONLY = EvaluateConfig(tasks=(), bootstrap_samples=200)


@pytest.fixture
def held_out(documents: list[HeldOutDocument], codec: TextCodec) -> HeldOut:
    chosen = {"code": documents[10:20], "prose/topics": documents[30:]}
    return {domain: [encode_document(codec, document) for document in found] for domain, found in chosen.items()}


@pytest.fixture
def training_tokens(documents: list[HeldOutDocument], codec: TextCodec) -> npt.NDArray[np.uint16]:
    texts = [document.text for document in documents[:10] + documents[20:30]]
    return np.concatenate([np.array([256, *codec.encode(text), 257], np.uint16) for text in texts])


@pytest.fixture
def baseline(training_tokens: npt.NDArray[np.uint16], codec: TextCodec, held_out: HeldOut, tmp_path: Path) -> Baseline:
    (tmp_path / "baseline").mkdir()
    ngram_baseline(
        NgramConfig(order=2, bootstrap_samples=200),
        training_tokens,
        codec.vocab_size,
        codec.eos_id,
        held_out,
        tmp_path / "baseline",
        SilentReporter(),
    )
    return Baseline.load(tmp_path / "baseline")


def checks(report: Report) -> dict[str, bool]:
    return {check.name: check.passed for check in report.checks}


def test_the_baseline_is_saved_and_scored(
    baseline: Baseline, codec: TextCodec, held_out: HeldOut, tmp_path: Path, training_tokens: npt.NDArray[np.uint16]
) -> None:
    model = NgramModel.load(tmp_path / "baseline" / "ngram.npz")
    nats = {domain: -sum(model.logprobs(document.tokens).sum() for document in documents) for domain, documents in held_out.items()}
    size = {domain: sum(document.bytes for document in documents) for domain, documents in held_out.items()}
    for domain in held_out:
        assert baseline.bits_per_byte[domain] == pytest.approx(nats[domain] / size[domain] / math.log(2), rel=1e-6)
    assert baseline.bits_per_byte["total"] == pytest.approx(sum(nats.values()) / sum(size.values()) / math.log(2), rel=1e-6)
    assert baseline.bits_per_byte["macro"] == pytest.approx(sum(baseline.bits_per_byte[domain] for domain in held_out) / 2)
    assert baseline.name == "2-gram"
    rows = [json.loads(line) for line in (tmp_path / "baseline" / "documents.jsonl").read_text().splitlines()]
    assert sum(row["nats"] for row in rows) == pytest.approx(sum(nats.values()), rel=1e-6)
    assert json.loads((tmp_path / "baseline" / "results.json").read_text())["training_tokens"] == len(training_tokens)


def test_a_full_evaluation_writes_what_it_reports(
    baseline: Baseline,
    codec: TextCodec,
    held_out: HeldOut,
    documents: list[HeldOutDocument],
    training_tokens: npt.NDArray[np.uint16],
    tmp_path: Path,
) -> None:
    make_tasks(TaskSetConfig(examples_per_task=24, minimum_examples=10), documents, tmp_path / "tasks", SilentReporter())
    model = NgramModel.fit(training_tokens, 258, 5, eos_id=257)
    outputs = [tmp_path / "a", tmp_path / "b"]
    for output in outputs:
        output.mkdir()
        config = EvaluateConfig(bootstrap_samples=200, batch_size=8 if output is outputs[0] else 3, limit_examples=20)
        shuffled = {domain: found[::-1] if output is outputs[1] else found for domain, found in held_out.items()}
        report = evaluate(config, model, codec, shuffled, baseline, tmp_path / "tasks", output, SilentReporter())
    names = ["documents.jsonl", "results.json", "samples/doc_continuation.jsonl", "samples/python_next_line.jsonl"]
    assert sorted(str(path.relative_to(outputs[0])) for path in outputs[0].rglob("*.json*")) == names
    for name in names:
        assert (outputs[0] / name).read_bytes() == (outputs[1] / name).read_bytes()
        assert str(tmp_path) not in (outputs[0] / name).read_text()
    assert checks(report) == {"beats_ngram_baseline": True, "finite_scores": True}
    results = json.loads((outputs[0] / "results.json").read_text())
    for name, entry in results["bits_per_byte"].items():
        assert entry["low_95"] <= entry["bits_per_byte"] <= entry["high_95"]
        assert entry["difference"] == pytest.approx(entry["bits_per_byte"] - entry["baseline"], abs=1e-9)
        assert entry["difference_low_95"] <= entry["difference"] <= entry["difference_high_95"] < 0
        assert report.metrics[f"bits_per_byte/{name}"] == entry["bits_per_byte"]
    assert list(results["bits_per_byte"]) == ["code", "macro", "prose/topics", "total"]
    for task in ("python_next_line", "doc_continuation"):
        assert results["tasks"][task]["examples"] == 20
        samples = [json.loads(line) for line in (outputs[0] / "samples" / f"{task}.jsonl").read_text().splitlines()]
        assert sum(sample["acc"] for sample in samples) / 20 == pytest.approx(report.metrics[f"{task}/acc"])
    assert {len(row) for row in report.tables["bits_per_byte"]} == {12}
    assert len(report.tables["tasks"]) == 4
    values = next(check.values for check in report.checks if check.name == "beats_ngram_baseline")
    assert values["total"] == report.metrics["bits_per_byte/total"]
    assert values["total_2-gram"] == baseline.bits_per_byte["total"]


def test_the_difference_is_paired_by_document() -> None:
    """A baseline that costs 0.1 bits per byte more on every document is worse by 0.1 for certain, however the documents vary."""
    generator = np.random.default_rng(2)
    ours, theirs = [], {}
    for n, nats in enumerate(generator.gamma(1, 100, 30)):
        ours.append(DocumentScore(str(n), float(nats), 10, 100 + n, 0))
        theirs[f"code/{n}"] = float(nats) + 0.1 * (100 + n) * math.log(2)
    code = summarize(ours, 200, (0, 0))
    total = summarize([score._replace(id=f"code/{score.id}") for score in ours], 200, 0)
    scores = HeldOutScores({"code": code}, total, code.bits_per_byte, "")
    assert code.bits_per_byte.high - code.bits_per_byte.low > 0.3
    for name, found in differences(scores, Baseline("2-gram", {}, theirs, ""), 200, 0).items():
        assert tuple(found) == pytest.approx((-0.1, -0.1, -0.1)), name


def test_an_untrained_model_does_not_beat_the_baseline(
    bigram: Bigram, baseline: Baseline, codec: TextCodec, held_out: HeldOut, tmp_path: Path
) -> None:
    report = evaluate(BPB_ONLY, bigram(128), codec, held_out, baseline, tmp_path, tmp_path, SilentReporter())
    assert checks(report) == {"beats_ngram_baseline": False, "finite_scores": True}


def test_a_broken_model_fails_both_checks_and_still_writes_valid_json(
    baseline: Baseline, codec: TextCodec, held_out: HeldOut, tmp_path: Path
) -> None:
    class Broken:
        vocab_size, sequence_length = 258, 128

        def score(self, tokens: npt.NDArray[np.int32], segment_ids: npt.NDArray[np.int32]) -> Scores:
            return Scores(np.where(tokens == ord("_"), np.nan, -1).astype(np.float32), np.zeros(tokens.shape, np.bool_))

    report = evaluate(BPB_ONLY, Broken(), codec, held_out, baseline, tmp_path, tmp_path, SilentReporter())
    assert checks(report) == {"beats_ngram_baseline": False, "finite_scores": False}
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["bits_per_byte"]["code"]["bits_per_byte"] is None
    assert results["bits_per_byte"]["prose/topics"]["bits_per_byte"] > 0
    assert results["nonfinite_tokens"] == sum(int((document.tokens == ord("_")).sum()) for found in held_out.values() for document in found)
    assert "bits_per_byte/code" not in report.metrics
    json.dumps([check.values for check in report.checks], allow_nan=False)


def test_a_baseline_of_other_documents_is_refused(
    bigram: Bigram, baseline: Baseline, codec: TextCodec, held_out: HeldOut, tmp_path: Path
) -> None:
    fewer = {**held_out, "code": held_out["code"][1:]}
    with pytest.raises(DataError, match="other held-out documents"):
        evaluate(BPB_ONLY, bigram(128), codec, fewer, baseline, tmp_path, tmp_path, SilentReporter())
    with pytest.raises(DataError, match="other held-out documents"):
        evaluate(BPB_ONLY.changed(limit_documents=3), bigram(128), codec, held_out, baseline, tmp_path, tmp_path, SilentReporter())
    with pytest.raises(DataError, match="'code' has no documents"):
        evaluate(BPB_ONLY, bigram(128), codec, {"code": []}, baseline, tmp_path, tmp_path, SilentReporter())


def test_a_tokenizer_larger_than_the_model_is_refused(baseline: Baseline, codec: TextCodec, held_out: HeldOut, tmp_path: Path) -> None:
    model = NgramModel.fit(np.array([0, 5, 1]), 100, 1, eos_id=1)
    with pytest.raises(ConfigError, match="258 ids, the model only 100"):
        evaluate(BPB_ONLY, model, codec, held_out, baseline, tmp_path, tmp_path, SilentReporter())


@pytest.mark.parametrize(
    "content", ["", "{}", '{"bits_per_byte": {"total": {"bits_per_byte": null}}, "model": "x", "held_out_digest": ""}']
)
def test_a_damaged_baseline_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(DataError, match="baseline"):
        Baseline.load(tmp_path)


def test_configurations_import_nothing_heavy_and_evaluation_imports_lm_eval_late() -> None:
    script = (
        "import sys, marin_core.evaluate.config; assert not {'numpy', 'lm_eval', 'jax', 'yaml'} & set(sys.modules);"
        "import marin_core.evaluate.evaluate, marin_core.evaluate.tasks; assert not {'torch', 'lm_eval', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
