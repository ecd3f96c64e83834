"""Run lm-evaluation-harness 0.4.13 tasks on our `LanguageModel`, offline and without torch.

Importing this module imports part of lm-eval (half a second); running tasks imports the rest (2 s more).
"""

import contextlib
import importlib
import json
import logging
import math
import os
import random
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import yaml
from lm_eval.api.model import TemplateLM

from marin_core.errors import ConfigError, DataError
from marin_core.evaluate.documents import TextCodec
from marin_core.evaluate.language_model import LanguageModel
from marin_core.evaluate.scoring import Window, cut, length_buckets, score_windows

IMPOSSIBLE = -1e9
"""Stands for a log probability that is NaN or infinite, so that the harness' arg max stays defined; counted in `nonfinite`."""

OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "DISABLE_MULTIPROC")
"""Environment variables that are 1 while tasks run. Without the last one the harness forks a pool for some standard errors,
which deadlocks in a process with JAX's threads."""


@runtime_checkable
class TextGenerator(Protocol):
    """What a `LanguageModel` offers in addition where `generate_until` tasks shall run."""

    def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, eos_id: int) -> list[list[int]]:
        """The most probable next token again and again, for each prompt of at most `sequence_length − max_new_tokens` tokens,
        until EOS (left out) or `max_new_tokens`."""


@dataclass(frozen=True)
class Metric:
    """A metric of a task over its examples.

    Attributes:
        value: the aggregated metric.
        stderr: standard error of a mean; None where the harness knows none.
        higher_is_better: direction.
    """

    value: float
    stderr: float | None
    higher_is_better: bool


@dataclass(frozen=True)
class TaskResults:
    """What a model did on tasks.

    Attributes:
        metrics: task → metric (`acc`, `acc_norm`, …) → value.
        examples: task → number of examples.
        samples: task → one JSON object per example, in the order of docs.jsonl.
        nonfinite: continuations whose score was NaN or infinite.
    """

    metrics: Mapping[str, Mapping[str, Metric]]
    examples: Mapping[str, int]
    samples: Mapping[str, Sequence[Mapping[str, Any]]]
    nonfinite: int

    def write_samples(self, folder: Path) -> None:
        """Write `<task>.jsonl` per task."""
        folder.mkdir(parents=True, exist_ok=True)
        for task, samples in self.samples.items():
            lines = "".join(json.dumps(sample, ensure_ascii=False, sort_keys=True) + "\n" for sample in samples)
            (folder / f"{task}.jsonl").write_text(lines, encoding="utf-8", newline="\n")


class HarnessModel(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """Adapter of a `LanguageModel` and its tokenizer to the harness.

    Every sequence begins with BOS, as in training. Differences from the harness' own Hugging Face adapter, each a fix:
    a context that is too long loses its beginning but keeps BOS; a continuation longer than the model's sequence length is
    scored in windows instead of being cut; where the tokenizer merges across the border of context and continuation, the
    continuation begins at the first token that differs, so that it is never empty.
    """

    def __init__(self, model: LanguageModel, codec: TextCodec, *, batch_size: int, buckets: Sequence[int], window_overlap: float) -> None:
        super().__init__()
        self.model = model
        self.codec = codec
        self.batch_size = batch_size
        self.window_overlap = window_overlap
        self.buckets = length_buckets(model.sequence_length, buckets)
        self.nonfinite = 0

    @property
    def eot_token_id(self) -> int:
        return self.codec.eos_id

    @property
    def prefix_token_id(self) -> int:
        return self.codec.bos_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of the text alone; BOS is added where sequences are scored."""
        return self.codec.encode(string)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        stripped = context.rstrip()
        whole = self.codec.encode(context + continuation)
        shared = 0
        for ours, theirs in zip(self.codec.encode(stripped), whole, strict=False):
            if ours != theirs:
                break
            shared += 1
        shared = min(shared, len(whole) - 1)
        return whole[:shared], whole[shared:]

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """(Σ ln p of the continuation, whether each of its tokens is the most probable one) per request.

        Raises:
            DataError: a continuation is empty.
        """
        for request in requests:
            if not request.args[1]:
                raise DataError(f"example {request.doc_id} of task {request.task_name} has an empty choice", advice="Correct docs.jsonl.")
        results: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return results

    def _loglikelihood_tokens(self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any) -> list[tuple[float, bool]]:
        sequences = []
        for _pair, context, continuation in requests:
            room = self.model.sequence_length - 1 - len(continuation)
            kept = [] if context == [self.codec.bos_id] else context
            if room >= 0:
                kept = kept[len(kept) - room :] if room < len(kept) else kept
            sequences.append((np.array([self.codec.bos_id, *kept, *continuation], np.int32), 1 + len(kept)))
        return self._score(sequences)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Σ ln p of all tokens of each text given BOS; windows as in `perplexity.bits_per_byte`, without EOS as in the harness."""
        sequences = [(np.array([self.codec.bos_id, *self.codec.encode(request.args[0])], np.int32), 1) for request in requests]
        return [logprob for logprob, _ in self._score(sequences)]

    def _score(self, sequences: Sequence[tuple[npt.NDArray[np.int32], int]]) -> list[tuple[float, bool]]:
        """Score tokens[first:] of each (tokens, first)."""
        windows: list[Window] = []
        owners: list[int] = []
        for owner, (tokens, first) in enumerate(sequences):
            for window in cut(tokens, self.model.sequence_length, self.window_overlap):
                if window.start + len(window.tokens) > first:
                    windows.append(window._replace(first=max(window.first, first - window.start)))
                    owners.append(owner)
        logprobs, greedy = [0.0] * len(sequences), [True] * len(sequences)
        scores = score_windows(self.model, windows, self.batch_size, self.buckets)
        for owner, window, score in zip(owners, windows, scores, strict=True):
            logprobs[owner] += math.fsum(score.logprobs[window.first :].tolist())
            greedy[owner] &= bool(score.greedy[window.first :].all())
        self.nonfinite += sum(not math.isfinite(logprob) for logprob in logprobs)
        return [(logprob if math.isfinite(logprob) else IMPOSSIBLE, best) for logprob, best in zip(logprobs, greedy, strict=True)]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """The greedy continuation of each context, cut before the first stop string.

        Raises:
            ConfigError: the model is no `TextGenerator`, or the task wants sampling or more tokens than fit.
        """
        if not isinstance(self.model, TextGenerator):
            raise ConfigError(
                f"{type(self.model).__name__} can score text but not generate it",
                advice="Run loglikelihood and multiple_choice tasks only, or give the model a `generate` method (TextGenerator).",
            )
        texts = []
        for request in requests:
            context, settings = request.args
            if settings.get("do_sample") or settings.get("temperature"):
                raise ConfigError(f"task {request.task_name} asks for sampling", advice="Set do_sample: false and temperature: 0.")
            new_tokens = int(settings.get("max_gen_toks", 256))
            room = self.model.sequence_length - new_tokens - 1
            if room < 0:
                raise ConfigError(
                    f"task {request.task_name} generates {new_tokens} tokens, the model's sequence length is {self.model.sequence_length}",
                    advice="Lower max_gen_toks in the task.",
                )
            ids = self.codec.encode(context)
            prompt = [self.codec.bos_id, *ids[max(0, len(ids) - room) :]]
            text = self.codec.decode(self.model.generate([prompt], new_tokens, self.codec.eos_id)[0])
            stops = [stop for stop in settings.get("until", ()) if stop]
            texts.append(text[: min([text.find(stop) for stop in stops if stop in text], default=len(text))])
        return texts


def run_tasks(
    model: LanguageModel,
    codec: TextCodec,
    tasks_dir: Path,
    tasks: Sequence[str],
    limit: int | None = None,
    seed: int = 0,
    *,
    batch_size: int = 16,
    buckets: Sequence[int] = (),
    window_overlap: float = 0.5,
) -> TaskResults:
    """Run tasks of a folder made by `tasks.make_tasks`, or written like it, wherever it lies.

    Nothing is fetched, nothing is written outside a temporary folder, and the global random state is left as it was. Task
    files are data: a function, a Python class or a template in one is refused.

    Raises:
        ConfigError: an unknown task.
        DataError: a task's files are missing or not plain.
    """
    with tempfile.TemporaryDirectory(prefix="marin-tasks-") as name, _offline_and_quiet():
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

        folder = Path(name)
        for task in tasks:
            settings = _task_settings(tasks_dir, task)
            settings["dataset_kwargs"]["cache_dir"] = str(folder / "cache")
            (folder / f"{task}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        adapter = HarnessModel(model, codec, batch_size=batch_size, buckets=buckets, window_overlap=window_overlap)
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        try:
            loaded = manager.load(list(tasks))["tasks"]
        except Exception as error:  # lm-eval and datasets raise whatever comes to hand
            advice = "Make the task set again, or compare it with the columns that its task file names."
            raise DataError(f"the tasks {', '.join(tasks)} can't be loaded: {error!r}", advice=advice) from error
        for task in tasks:
            _columns_exist(task, loaded[task])
        raw = simple_evaluate(
            adapter,
            tasks=list(tasks),
            task_manager=manager,
            limit=limit,
            log_samples=True,
            random_seed=seed,
            numpy_random_seed=seed,
            torch_random_seed=seed,
            fewshot_random_seed=seed,
        )
    return TaskResults(
        {task: _metrics(raw, task) for task in tasks},
        {task: int(raw["n-samples"][task]["effective"]) for task in tasks},
        {task: [_sample(sample) for sample in raw["samples"][task]] for task in tasks},
        adapter.nonfinite,
    )


def _task_settings(tasks_dir: Path, task: str) -> dict[str, Any]:
    """A task's YAML with absolute data paths."""
    path = tasks_dir / task / f"{task}.yaml"
    if not path.is_file():
        known = sorted(folder.name for folder in tasks_dir.glob("*") if (folder / f"{folder.name}.yaml").is_file())
        raise ConfigError(f"there is no task {task!r}", advice=f"Choose among: {', '.join(known) or 'none is there'}.")
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        data_files = settings["dataset_kwargs"]["data_files"]
        plain = settings["task"] == task and settings["dataset_path"] == "json" and "class" not in settings and "include" not in settings
        settings["dataset_kwargs"] = {"data_files": {split: _inside(path.parent, file) for split, file in data_files.items()}}
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        plain, detail = False, f": {error}"
    else:
        detail = ""
    if not plain or any("{{" in text or "{%" in text for text in _strings(settings)):
        raise DataError(
            f"task {task!r} is not a plain task file{detail}",
            advice="Use dataset_path: json with data_files beside the file, and column names instead of functions and templates.",
        )
    checked: dict[str, Any] = settings
    return checked


def _columns_exist(name: str, task: Any) -> None:
    """The harness takes the name of a missing column for the text itself, and would score the word `context`."""
    for setting in ("doc_to_text", "doc_to_choice", "doc_to_target"):
        column = task.get_config(setting)
        if isinstance(column, str) and column and column not in task.features:
            raise DataError(
                f"{setting} of task {name!r} names the column {column!r}, the examples have {', '.join(sorted(task.features))}",
                advice="Correct the name, or add the column to docs.jsonl.",
            )


def _inside(folder: Path, file: str) -> str:
    path = (folder / file).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise DataError(f"data file {file!r} of task {folder.name!r} is not in its folder", advice="Make the task set again.")
    return str(path)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


@contextlib.contextmanager
def _offline_and_quiet() -> Iterator[None]:
    """No request to a hub, no progress bars, no Git process, no process pool; random state and log level as before."""
    # Imported before the environment changes: these modules read it once, and would stay offline for the whole process.
    import huggingface_hub.constants
    import lm_eval.api.task
    import lm_eval.evaluator

    datasets = importlib.import_module("datasets")
    with contextlib.ExitStack() as stack:
        for variable in OFFLINE:
            stack.enter_context(_replaced(os.environ, variable, "1"))
        logger = logging.getLogger("lm_eval")
        level, state, numpy_state = logger.level, random.getstate(), np.random.get_state()
        stack.callback(logger.setLevel, level)
        stack.callback(random.setstate, state)
        stack.callback(np.random.set_state, numpy_state)
        logger.setLevel(logging.ERROR)
        for module, attribute, value in (
            (huggingface_hub.constants, "HF_HUB_OFFLINE", True),
            (datasets.config, "HF_HUB_OFFLINE", True),
            (lm_eval.api.task, "tqdm", lambda items, **_: items),
            (lm_eval.evaluator, "get_git_commit_hash", lambda: None),
        ):
            stack.enter_context(_replaced(vars(module), attribute, value))
        if not datasets.are_progress_bars_disabled():
            datasets.disable_progress_bars()
            stack.callback(datasets.enable_progress_bars)
        yield


@contextlib.contextmanager
def _replaced(mapping: MutableMapping[str, Any], name: str, value: Any) -> Iterator[None]:
    before = mapping.get(name)
    mapping[name] = value
    try:
        yield
    finally:
        if before is None:
            del mapping[name]
        else:
            mapping[name] = before


def _metrics(raw: Mapping[str, Any], task: str) -> dict[str, Metric]:
    metrics = {}
    for key, value in sorted(raw["results"][task].items()):
        name, _, kind = key.partition(",")
        if kind and not name.endswith("_stderr"):
            stderr = raw["results"][task].get(f"{name}_stderr,{kind}")
            metrics[name] = Metric(
                float(value),
                float(stderr) if isinstance(stderr, int | float) else None,
                bool(raw["higher_is_better"][task].get(name, True)),
            )
    return metrics


def _sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    """One example without the texts, which are in docs.jsonl under the same id."""
    kept = {name: sample[name] for name in ("doc_id", "target", "doc_hash", "prompt_hash", "target_hash", *sample["metrics"])}
    return {"id": sample["doc"].get("id", sample["doc_id"]), "responses": sample["filtered_resps"], **kept}
