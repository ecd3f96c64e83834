"""What a researcher writes an experiment with: functions that return lazy handles. Nothing here does any work."""

from marin_core.data.config import CodeQuality, GopherQuality, GopherRepetition, LocalFiles, MinCharacters, PythonStdlib
from marin_core.evaluate.config import EvaluateConfig
from marin_core.experiment.data import Phase, filtered, mixture, raw_source, tokenized, tokenizer
from marin_core.experiment.evaluation import eval_tasks, evaluate, ngram_baseline
from marin_core.experiment.existing import adopted, pinned, summary
from marin_core.experiment.experiment import Experiment, experiment
from marin_core.experiment.plans import plan
from marin_core.experiment.training import fork, train_lm
from marin_core.model.presets import moe_tiny, preset
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.config import MeshConfig, RollBack, TrackerConfig, TrainConfig
from marin_core.train.health.config import HERO, HealthConfig
from marin_core.train.optimizers.config import AdamW, Lion, Muon, MuonH, SkipSpikes, Sophia
from marin_core.train.schedules import BatchSchedule, BatchStage, Cosine, Linear, Reslope, Wsd

__all__ = [
    "HERO",
    "AdamW",
    "BatchSchedule",
    "BatchStage",
    "CheckpointPolicy",
    "CodeQuality",
    "Cosine",
    "EvaluateConfig",
    "Experiment",
    "GopherQuality",
    "GopherRepetition",
    "HealthConfig",
    "Linear",
    "Lion",
    "LocalFiles",
    "MeshConfig",
    "MinCharacters",
    "Muon",
    "MuonH",
    "Phase",
    "PythonStdlib",
    "Reslope",
    "RollBack",
    "SkipSpikes",
    "Sophia",
    "TrackerConfig",
    "TrainConfig",
    "Wsd",
    "adopted",
    "eval_tasks",
    "evaluate",
    "experiment",
    "filtered",
    "fork",
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
