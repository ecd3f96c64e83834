import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from marin_core.errors import ConfigError, DataError
from marin_core.evaluate.documents import TextCodec
from marin_core.evaluate.harness import HarnessModel, run_tasks
from marin_core.evaluate.language_model import LanguageModel
from marin_core.evaluate.tasks import TEMPLATE

Bigram = Callable[[int], LanguageModel]
TaskFile = Callable[[str, str], Path]

EXAMPLES: list[tuple[str, list[str], int]] = [
    ("", ["ab", "b", "héé", "dddd"], 0),
    ("x", ["ab", "b", "cc", "dddd"], 1),
    ("def f(x):\n    y = 1\n", ["    return y", "    return z", "    x = 3 + 4", "    pass"], 2),
    ("trailing spaces   ", ["ab", " b", "cc", "d" * 200], 3),
    ("long " * 100, ["ab", "b", "cc", "dddd"], 0),
    ("{{ 7 * 7 }} 1234", ["{{ 7 }}", "b", "5678", "dddd"], 2),
]
JSONL = "".join(json.dumps({"id": str(n), "context": c, "choices": a, "answer": t}) + "\n" for n, (c, a, t) in enumerate(EXAMPLES))


def by_hand(table: npt.NDArray[np.float64], context: str, choice: str) -> float:
    """ln p of the choice after the context after BOS; the context's trailing blanks are part of what is scored."""
    before = [256, *context.rstrip().encode()]
    scored = [*context[len(context.rstrip()) :].encode(), *choice.encode()]
    return sum(math.log(table[a, b]) for a, b in itertools.pairwise([before[-1], *scored]))


@pytest.mark.parametrize("sequence_length", [33, 4096])
def test_multiple_choice_scores_of_a_closed_form_model_are_exact(
    bigram: Bigram, table: npt.NDArray[np.float64], codec: TextCodec, task_file: TaskFile, sequence_length: int
) -> None:
    results = run_tasks(bigram(sequence_length), codec, task_file("letters", JSONL), ["letters"])
    right = right_norm = 0
    for sample, (context, choices, answer) in zip(results.samples["letters"], EXAMPLES, strict=True):
        expected = [by_hand(table, context, choice) for choice in choices]
        assert [logprob for logprob, _ in sample["responses"]] == pytest.approx(expected, rel=1e-5)
        right += int(np.argmax(expected)) == answer
        right_norm += int(np.argmax([value / len(choice) for value, choice in zip(expected, choices, strict=True)])) == answer
    metrics = results.metrics["letters"]
    assert metrics["acc"].value == pytest.approx(right / 6)
    assert metrics["acc_norm"].value == pytest.approx(right_norm / 6)
    share = right / 6
    assert metrics["acc"].stderr == pytest.approx(math.sqrt(share * (1 - share) / 5))
    assert metrics["acc"].higher_is_better
    assert results.examples == {"letters": 6}
    assert [sample["id"] for sample in results.samples["letters"]] == [str(n) for n in range(6)]
    assert results.nonfinite == 0


def test_batches_buckets_and_runs_change_nothing_and_a_limit_takes_the_first(bigram: Bigram, codec: TextCodec, task_file: TaskFile) -> None:
    folder = task_file("letters", JSONL)
    state = np.random.get_state()[1].tolist()
    first = run_tasks(bigram(512), codec, folder, ["letters"])
    assert run_tasks(bigram(512), codec, folder, ["letters"], batch_size=5, buckets=(8, 500)) == first
    assert np.random.get_state()[1].tolist() == state
    limited = run_tasks(bigram(512), codec, folder, ["letters"], limit=2)
    assert limited.samples["letters"] == first.samples["letters"][:2]
    first.write_samples(folder / "samples")
    assert len((folder / "samples" / "letters.jsonl").read_text().splitlines()) == 6


def test_rolling_loglikelihood_is_bits_per_byte_without_eos(
    bigram: Bigram, table: npt.NDArray[np.float64], codec: TextCodec, task_file: TaskFile
) -> None:
    folder = task_file("texts", "".join(json.dumps({"text": text}) + "\n" for text in ("hello", "wörld " * 40)))
    settings = yaml.safe_load(TEMPLATE.format(task="texts")) | {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
    }
    settings["metric_list"] = [{"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}]
    del settings["doc_to_choice"]
    (folder / "texts" / "texts.yaml").write_text(yaml.safe_dump(settings))
    results = run_tasks(bigram(16), codec, folder, ["texts"])
    texts = ["hello", "wörld " * 40]
    expected = -sum(by_hand(table, "", text) for text in texts) / sum(len(text.encode()) for text in texts) / math.log(2)
    assert results.metrics["texts"]["bits_per_byte"].value == pytest.approx(expected, rel=1e-5)
    assert not results.metrics["texts"]["bits_per_byte"].higher_is_better


def test_a_merge_across_the_border_belongs_to_the_continuation(bigram: Bigram) -> None:
    class Merging:
        """Bytes, but `ab` is one token, 200."""

        vocab_size, bos_id, eos_id = 258, 256, 257

        def encode(self, text: str) -> list[int]:
            return list(text.encode().replace(b"ab", b"\xc8"))

        def decode(self, ids: list[int]) -> str:
            raise NotImplementedError

    adapter = HarnessModel(bigram(64), Merging(), batch_size=2, buckets=(), window_overlap=0.5)
    assert adapter._encode_pair("xa", "b") == ([ord("x")], [200])
    assert adapter._encode_pair("xa", "c") == ([ord("x"), ord("a")], [ord("c")])
    assert adapter._encode_pair("a", "b") == ([], [200])


def generating_task(task_file: TaskFile, **settings: object) -> Path:
    folder = task_file("complete", json.dumps({"context": "ab", "answer": "cd"}) + "\n")
    task = yaml.safe_load(TEMPLATE.format(task="complete")) | {"output_type": "generate_until", "generation_kwargs": settings}
    task["metric_list"] = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
    del task["doc_to_choice"]
    (folder / "complete" / "complete.yaml").write_text(yaml.safe_dump(task))
    return folder


def test_generation_needs_a_generator_and_stops_at_the_stop_string(bigram: Bigram, codec: TextCodec, task_file: TaskFile) -> None:
    folder = generating_task(task_file, until=["\n"], max_gen_toks=8)
    with pytest.raises(ConfigError, match="can score text but not generate it"):
        run_tasks(bigram(64), codec, folder, ["complete"])

    class Generator:
        vocab_size, sequence_length, score = 258, 64, bigram(64).score

        def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, eos_id: int) -> list[list[int]]:
            assert (list(prompts[0]), max_new_tokens, eos_id) == ([256, ord("a"), ord("b")], 8, 257)
            return [list(b"cd\nef")]

    assert run_tasks(Generator(), codec, folder, ["complete"]).metrics["complete"]["exact_match"].value == 1


def test_sampling_is_refused(bigram: Bigram, codec: TextCodec, task_file: TaskFile) -> None:
    class Generator:
        vocab_size, sequence_length, score = 258, 64, bigram(64).score

        def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, eos_id: int) -> list[list[int]]:
            raise AssertionError

    with pytest.raises(ConfigError, match="sampling"):
        run_tasks(Generator(), codec, generating_task(task_file, until=["\n"], do_sample=True, temperature=0.7), ["complete"])


@pytest.mark.parametrize(
    "change",
    [
        'doc_to_text: "{{ context }}"',
        "doc_to_text: !function os.getcwd",
        "class: !function os.getcwd",
        "dataset_path: some/hub_dataset",
        "dataset_kwargs: {data_files: {test: ../../outside.jsonl}}",
        "dataset_kwargs: {data_files: {test: missing.jsonl}}",
        "dataset_kwargs: {}",
        "include: other.yaml",
        "task: other",
        "[",
    ],
)
def test_a_task_file_that_is_more_than_data_is_refused(
    bigram: Bigram, codec: TextCodec, task_file: TaskFile, tmp_path: Path, change: str
) -> None:
    folder = task_file("letters", JSONL)
    (tmp_path / "outside.jsonl").write_text(JSONL)
    with (folder / "letters" / "letters.yaml").open("a") as file:
        file.write(change + "\n")
    with pytest.raises(DataError, match="letters"):
        run_tasks(bigram(64), codec, folder, ["letters"])


def test_an_unknown_task_names_the_known_ones(bigram: Bigram, codec: TextCodec, task_file: TaskFile) -> None:
    with pytest.raises(ConfigError, match="Choose among: letters"):
        run_tasks(bigram(64), codec, task_file("letters", JSONL), ["words"])


@pytest.mark.parametrize(
    "lines",
    [
        '{"id": "0", "context": "a", "choices": ["x", ""], "answer": 0}\n',
        '{"id": "0", "context": "a", "choices": ["x", "y"], "answer": 0}\n{"id": "1", "context": "a", "choices": ["x", ""], "answer": 0}\n',
        '{"id": "0", "choices": ["x", "y"], "answer": 0}\n',
        '{"id": "0", "context": "a", "choices": ["x", "y"]',
        "",
    ],
)
def test_broken_examples_are_bad_data(bigram: Bigram, codec: TextCodec, task_file: TaskFile, lines: str) -> None:
    with pytest.raises(DataError, match="letters"):
        run_tasks(bigram(64), codec, task_file("letters", lines), ["letters"])


SCRIPT = """
import socket, sys
from pathlib import Path

def refuse(*_, **__):
    raise RuntimeError("network")

class Socket(socket.socket):
    connect = connect_ex = sendto = refuse

socket.socket, socket.create_connection, socket.getaddrinfo = Socket, refuse, refuse
import numpy as np
from marin_core.evaluate.harness import run_tasks
from marin_core.evaluate.ngram import NgramModel

class Codec:
    vocab_size, bos_id, eos_id = 258, 256, 257
    def encode(self, text): return list(text.encode())
    def decode(self, ids): return bytes(ids).decode()

model = NgramModel.fit(np.array([256, *b"some text to count", 257]), 258, 2, eos_id=257)
print(run_tasks(model, Codec(), Path(sys.argv[1]), ["letters"]).metrics["letters"]["acc"].value)
assert not {"torch", "transformers", "jax"} & set(sys.modules)
import huggingface_hub.constants
assert not huggingface_hub.constants.HF_HUB_OFFLINE
"""


def test_a_run_is_offline_quiet_without_torch_and_leaves_nothing_behind(task_file: TaskFile, tmp_path: Path) -> None:
    folder = task_file("letters", JSONL)
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    environment = {"HOME": str(home), "TMPDIR": str(temporary), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    before = sorted(folder.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], env=environment, capture_output=True, text=True, check=False, cwd=home
    )
    assert done.returncode == 0, done.stderr
    assert 0 <= float(done.stdout) <= 1
    assert done.stderr == ""
    assert [*home.rglob("*"), *temporary.rglob("*")] == []
    assert sorted(folder.rglob("*")) == before
