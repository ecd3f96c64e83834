"""What a model consists of: every parameter's shape, counted by formula and by tracing the real parameters, which allocates nothing."""

import math
from typing import Any

import jax

from marin_core.errors import MarinError
from marin_core.model.config import TransformerConfig
from marin_core.model.counts import parameter_count, training_flops_per_token
from marin_core.model.transformer import SplitTransformer
from marin_core.plan.description import LayerRow, ModelDescription, ParameterRow


def describe(model: TransformerConfig, name: str) -> ModelDescription:
    """Describe a model.

    Raises:
        MarinError: formula and parameters disagree, which is a defect of one of them.
    """
    tree = jax.eval_shape(SplitTransformer(model).init, jax.random.key(0))
    rows = tuple(_row(path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree))
    bias = model.layers * model.moe.experts if model.moe else 0
    counted, formula = sum(row.parameters for row in rows) + bias, parameter_count(model)
    if counted != formula.total:
        raise MarinError(
            f"{name} has {counted:,} parameters by its shapes and {formula.total:,} by the formula",
            advice="Correct marin_core.model.counts.",
        )
    training, headless = training_flops_per_token(model), training_flops_per_token(model, with_head=False)
    return ModelDescription(
        name=name,
        parameters=formula.total,
        active_parameters=formula.active,
        selection_bias=bias,
        forward_flops_per_token=training // 3,
        forward_flops_per_token_without_head=headless // 3,
        training_flops_per_token=training,
        training_flops_per_token_without_head=headless,
        groups=rows,
        layers=_layers(model, rows, headless // 3),
    )


def _row(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> ParameterRow:
    names = [str(getattr(key, "key", key)) for key in path]
    return ParameterRow(name=".".join(names), shape=tuple(leaf.shape), dtype=str(leaf.dtype), parameters=math.prod(leaf.shape))


def _layers(model: TransformerConfig, rows: tuple[ParameterRow, ...], forward: int) -> tuple[LayerRow, ...]:
    """Each layer with its FLOPs: global ones differ from local ones by a constant."""
    layers, wide = model.layers, sum(model.global_layers)
    local = training_flops_per_token(model, n_global=0, with_head=False) // 3
    everywhere = training_flops_per_token(model, n_global=layers, with_head=False) // 3
    flops = {False: local // layers, True: everywhere // layers}
    if wide * flops[True] + (layers - wide) * flops[False] != forward:
        raise MarinError("The FLOPs of layers don't sum up to the model's", advice="Correct marin_core.model.counts.")
    stacked = sum(row.parameters for row in rows if row.name.startswith("blocks.")) // layers
    bias = model.moe.experts if model.moe else 0
    return tuple(
        LayerRow(
            layer=layer,
            attention="global" if is_global else "local",
            span_tokens=model.max_sequence_length if is_global else min(model.window, model.max_sequence_length),
            kv_heads=model.global_kv_heads if is_global else model.local_kv_heads,
            feed_forward="dense" if model.moe is None else f"{model.moe.experts} experts, {model.moe.experts_per_token} a token",
            parameters=stacked + bias,
            forward_flops_per_token=flops[is_global],
        )
        for layer, is_global in enumerate(model.global_layers)
    )
