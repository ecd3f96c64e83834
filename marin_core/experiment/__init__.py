"""What a researcher writes an experiment with: functions that return lazy handles. Nothing here does any work."""

from marin_core.data.config import CodeQuality, GopherQuality, GopherRepetition, LocalFiles, MinCharacters, PythonStdlib
from marin_core.evaluate.config import EvaluateConfig
from marin_core.experiment.data import filtered, mixture, raw_source, tokenized, tokenizer
from marin_core.experiment.evaluation import eval_tasks, evaluate, ngram_baseline
from marin_core.experiment.existing import adopted, pinned, summary
from marin_core.experiment.experiment import Experiment, experiment
from marin_core.experiment.plans import plan
from marin_core.experiment.training import train_lm
from marin_core.model.presets import moe_tiny, preset
from marin_core.train.config import OptimizerConfig, TrainConfig

__all__ = [
    "CodeQuality",
    "EvaluateConfig",
    "Experiment",
    "GopherQuality",
    "GopherRepetition",
    "LocalFiles",
    "MinCharacters",
    "OptimizerConfig",
    "PythonStdlib",
    "TrainConfig",
    "adopted",
    "eval_tasks",
    "evaluate",
    "experiment",
    "filtered",
    "mixture",
    "moe_tiny",
    "ngram_baseline",
    "pinned",
    "plan",
    "preset",
    "raw_source",
    "summary",
    "tokenized",
    "tokenizer",
    "train_lm",
]
