import subprocess
import sys
from typing import Any

import pytest

from marin_core.data.config import MixtureConfig, TokenizeConfig, TokenizerConfig
from marin_core.data.rules.config import MinCharacters
from marin_core.data.sources.config import IngestConfig, LocalFiles
from marin_core.data.stages import FilterConfig
from marin_core.errors import ConfigError

REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (MixtureConfig, {"weights": {"web": -1.0}, "sequence_length": 8}, "weights"),
    (MixtureConfig, {"weights": {"web": 0.0, "code": 0.0}, "sequence_length": 8}, "weights"),
    (MixtureConfig, {"weights": {"web": float("nan")}, "sequence_length": 8}, "weights"),
    (MixtureConfig, {"weights": {"web": float("inf")}, "sequence_length": 8}, "weights"),
    (MixtureConfig, {"weights": {}, "sequence_length": 8}, "weights"),
    (MixtureConfig, {"weights": {"Web/x": 1.0}, "sequence_length": 8}, "weights"),
    (MixtureConfig, {"weights": {"web": 1.0}, "sequence_length": 1}, "sequence_length"),
    (FilterConfig, {"shards": 0}, "shards"),
    (FilterConfig, {"shards": 1, "filters": [{"name": "unheard_of"}]}, "filters"),
    (FilterConfig, {"shards": 1, "filters": (MinCharacters(), MinCharacters())}, "filters"),
    (FilterConfig, {"shards": 1, "domains": ("../x",)}, "domains"),
    (TokenizerConfig, {"vocab_size": 100}, "vocab_size"),
    (TokenizerConfig, {"vocab_size": 512, "specials": {"bos": "x", "eos": "x", "pad": "y"}}, "bos, eos and pad"),
    (TokenizeConfig, {"split": "held_out"}, "held_out_per_10000"),
    (LocalFiles, {"root": "x", "pattern": "../*"}, "pattern"),
    (IngestConfig, {"source": {"kind": "python_stdlib"}, "license": "x", "policy": "MAYBE"}, "policy"),
    (IngestConfig, {"source": {"kind": "telepathy"}, "license": "x", "policy": "BLOCKED"}, "source"),
]


@pytest.mark.parametrize(("config", "values", "field"), REFUSED)
def test_a_bad_value_is_refused_with_its_field(config: type[Any], values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        config(**values)


def test_configurations_import_nothing_heavy() -> None:
    heavy = ["numpy", "datatrove", "pyarrow", "tensorstore", "tokenizers", "jax", "matplotlib"]
    script = f"import sys, marin_core.data.config; print([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"
