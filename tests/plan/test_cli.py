"""`marin model`: what it prints, and how it ends. The plan is that of a model small enough to compile in seconds."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from marin_assets.cli import main
from marin_core.plan import process
from marin_core.plan.config import PlanConfig
from marin_core.plan.report import PlanReport
from tests.plan.test_report import GOOD, report
from tests.plan.test_traffic import BOTH, collective

Said = tuple[int, str, str]


@pytest.fixture
def marin(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def run(*arguments: str) -> Said:
        code = main(arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PlanConfig]:
    """Plans that a command asked for, answered at once with a report on other figures."""
    plans: list[PlanConfig] = []

    def answer(config: PlanConfig, progress: Callable[[str], None]) -> tuple[PlanReport, dict[str, float]]:
        plans.append(config)
        progress("compiling the step")
        leaving = [collective("all-to-all", BOTH)] if config.fleet.device == "h100" else []
        return report(*GOOD, *leaving), {"lower_seconds": 1.0, "compile_seconds": 2.0}

    monkeypatch.setattr(process, "plan_run", answer)
    return plans


def test_a_model_is_shown_with_its_parameters_and_layers(marin: Callable[..., Said]) -> None:
    code, out, _ = marin("model", "moe_tiny")
    assert code == 0
    assert all(
        text in out for text in ("1,434,176", "565,248", "blocks.feed_forward.experts.w_gate", "4×16×64×64", "16 experts, 2 a token")
    )


def test_a_model_as_json_has_the_numbers_whole(marin: Callable[..., Said]) -> None:
    code, out, _ = marin("model", "moe_tiny", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["parameters"], found["active_parameters"], len(found["layers"])) == (1_434_176, 565_248, 4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["model", "nonsense"], "no model preset 'nonsense'"),
        (["model", "moe_tiny", "--mesh", "2x4"], "both --mesh and --device"),
        (["model", "moe_tiny", "--mesh", "2by4", "--device", "gb200"], "like 11x64"),
        (["model", "moe_tiny", "--mesh", "2x4", "--device", "abacus"], "no device profile 'abacus'"),
        (["model", "moe_tiny", "--mesh", "2x4", "--device", "gb200", "--batch", "9"], "multiple of the 8 devices"),
        (["model", "moe_tiny", "--mesh", "2x4", "--device", "gb200", "--sequence", "4096"], "exceeds model.max_sequence_length"),
    ],
)
def test_wrong_usage_is_explained_and_exits_64(arguments: list[str], says: str, marin: Callable[..., Said]) -> None:
    code, out, err = marin(*arguments)
    assert (code, out) == (64, "")
    assert says in err
    assert "What to do" in err


def test_a_plan_is_asked_for_as_the_options_say(marin: Callable[..., Said], asked: list[PlanConfig]) -> None:
    options = {"--batch": 64, "--sequence": 32, "--microbatches": 2, "--tokens": 10**9, "--attention-block": 16}
    code, out, err = marin(
        "model", "moe_tiny", "--mesh", "2x4", "--device", "gb200", *(str(part) for each in options.items() for part in each)
    )
    assert code == 0
    (plan,) = asked
    train = plan.train
    assert (train.global_batch_size, train.sequence_length, train.micro_batches) == (64, 32, 2)
    assert (train.model.attention_block, plan.budget_tokens, plan.fleet.mesh.devices) == (16, 10**9, 8)
    assert all(title in out for title in ("Memory of one device", "Fit", "Collectives", "Least time of a step", "Checks", "note: "))
    assert "compiling the step" in err


def test_a_plan_takes_16_sequences_a_device_and_the_whole_context(marin: Callable[..., Said], asked: list[PlanConfig]) -> None:
    marin("model", "marin_535b_a23b", "--mesh", "11x64", "--device", "gb200")
    assert (asked[0].train.global_batch_size, asked[0].train.sequence_length) == (11_264, 4096)


def test_a_plan_that_breaks_a_promise_exits_1_and_says_so_in_json(marin: Callable[..., Said], asked: list[PlanConfig]) -> None:
    code, out, _ = marin("model", "moe_tiny", "--mesh", "2x4", "--device", "h100", "--json")
    found: dict[str, Any] = json.loads(out)
    assert (code, found["passed"], found["preset"]) == (1, False, "moe_tiny")
    assert PlanReport.from_json(found["report"]).mesh.devices == 704


def test_asking_for_a_plan_imports_no_jax() -> None:
    script = "import sys, marin_core.plan.process, marin_core.plan.tables, marin_assets.cli.model; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
