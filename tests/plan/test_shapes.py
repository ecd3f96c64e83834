"""Models described by name: the exact counts of `spec/moe.md` §1.2 to §1.4, and none without a device of its own."""

import pytest

from marin_core.errors import ConfigError, MarinError
from marin_core.model.counts import parameter_count
from marin_core.model.presets import PRESETS, preset
from marin_core.plan import process
from marin_core.plan.process import describe_model
from marin_core.plan.shapes import describe


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_as_many_parameters_by_its_shapes_as_by_formula(name: str) -> None:
    found = describe(preset(name), name)
    assert sum(row.parameters for row in found.groups) + found.selection_bias == found.parameters
    assert sum(layer.forward_flops_per_token for layer in found.layers) == found.forward_flops_per_token_without_head


def test_the_large_model_is_exact() -> None:
    found = describe(preset("marin_535b_a23b"), "marin_535b_a23b")
    assert (found.parameters, found.active_parameters) == (535_477_106_688, 22_762_487_808)
    assert found.forward_flops_per_token_without_head == 48_336_076_800
    assert {layer.parameters for layer in found.layers} == {11_122_873_728}
    assert [layer.layer for layer in found.layers if layer.attention == "global"] == list(range(3, 48, 4))


def test_a_wrong_formula_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_core.plan.shapes.parameter_count", lambda model: parameter_count(model)._replace(total=1))
    with pytest.raises(MarinError, match="by the formula"):
        describe(preset("moe_tiny"), "moe_tiny")


def test_another_process_says_the_same() -> None:
    model = preset("moe_tiny")
    assert describe_model(model, "moe_tiny") == describe(model, "moe_tiny")


def test_errors_of_the_other_process_come_back_as_they_were() -> None:
    with pytest.raises(ConfigError, match="The request has nothing") as caught:
        process._ask({}, lambda line: None)
    assert "plan" in caught.value.advice
