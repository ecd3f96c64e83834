"""The lab's experiments: every module here that defines `EXPERIMENT` is loaded."""

import importlib
import os
import pkgutil
from functools import cache

from marin_core.errors import ConfigError
from marin_core.experiment import Experiment

EXPERIMENTS_VARIABLE = "MARIN_EXPERIMENTS"
"""Names another package of experiments, for labs that keep theirs outside this project."""


@cache
def load_experiments() -> tuple[Experiment, ...]:
    """All experiments of the package, by module name.

    Raises:
        ConfigError: the package can't be found, or two experiments have one name.
    """
    name = os.environ.get(EXPERIMENTS_VARIABLE) or __name__
    try:
        package = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the package of experiments {name!r} can't be imported: {error}", advice=f"Correct {EXPERIMENTS_VARIABLE}."
        ) from error
    modules = [importlib.import_module(f"{name}.{module.name}") for module in pkgutil.iter_modules(package.__path__)]
    experiments = [module.EXPERIMENT for module in modules if hasattr(module, "EXPERIMENT")]
    names = [experiment.name for experiment in experiments]
    for twice in {each for each in names if names.count(each) > 1}:
        raise ConfigError(f"two experiments in {name} are called {twice!r}", advice="Rename one of them.")
    return tuple(experiments)
