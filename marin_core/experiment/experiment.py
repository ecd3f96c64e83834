"""`Experiment`: what somebody wants to find out, and the artifacts that answer it."""

import re
from dataclasses import dataclass

from marin_core.artifact.step import ArtifactStep
from marin_core.errors import ConfigError
from marin_core.experiment.publishing import PublishedMix


@dataclass(frozen=True)
class Experiment:
    """A question and its targets; everything that the targets depend on comes along.

    Attributes:
        name: short identifier, used to select the experiment's artifacts.
        question: what the experiment is to find out.
        hypothesis: what is expected, written before the run.
        targets: handles whose materialization answers it.
        published: mixes that it publishes; their mixtures are among the targets.
    """

    name: str
    question: str
    hypothesis: str
    targets: tuple[ArtifactStep, ...]
    published: tuple[PublishedMix, ...] = ()


def experiment(name: str, *targets: ArtifactStep | PublishedMix, question: str, hypothesis: str) -> Experiment:
    """Declare an experiment.

    Raises:
        ConfigError: for a name that could not be a tag, or an experiment without targets.
    """
    if not re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", name):
        raise ConfigError(f"experiment name {name!r} is not allowed", advice="Use lower-case letters, digits and single underscores.")
    if not targets:
        raise ConfigError(f"experiment {name!r} has no targets", advice="Give the handles that it is to build.")
    steps = dict.fromkeys(target.mixture if isinstance(target, PublishedMix) else target for target in targets)
    published = tuple(target for target in targets if isinstance(target, PublishedMix))
    return Experiment(name, question, hypothesis, tuple(steps), published)
