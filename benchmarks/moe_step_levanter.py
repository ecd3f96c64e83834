"""Levanter's training step at one shape: a peer of `benchmarks.moe_step`. Runs inside the environment of Marin, which brings Levanter.

    PYTHON -I benchmarks/moe_step_levanter.py --shape '{"d_model": 256, …}'

Prints one JSON object, like `benchmarks.moe_step_ours`: the same optimizer, clipping and tokens, on one CPU device. Its Mixtral and its
Llama, without their auxiliary losses; blocks aren't recomputed, which makes them faster where memory is no matter.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

Shape = Mapping[str, int]


def new_model(shape: Shape) -> Any:
    """Mixtral or Llama with attention as JAX writes it: its blockwise one is for longer sequences."""
    import haliax as hax  # type: ignore[import-not-found]
    import jax
    from levanter.layers.attention import AttentionBackend  # type: ignore[import-not-found]
    from levanter.models.llama import LlamaConfig, LlamaLMHeadModel  # type: ignore[import-not-found]
    from levanter.models.mixtral import MixtralConfig, MixtralLMHeadModel  # type: ignore[import-not-found]

    sizes = {
        "max_seq_len": shape["sequence"],
        "hidden_dim": shape["d_model"],
        "intermediate_dim": shape["width"],
        "num_layers": shape["layers"],
        "num_heads": shape["heads"],
        "num_kv_heads": shape["heads"],
        "gradient_checkpointing": False,
        "attn_backend": AttentionBackend.VANILLA,
    }
    vocabulary, key = hax.Axis("vocab", shape["vocabulary"]), jax.random.key(0)
    if not shape["experts"]:
        return LlamaLMHeadModel.init(vocabulary, LlamaConfig(**sizes), key=key)
    experts = {"n_routed_experts": shape["experts"], "num_experts_per_tok": shape["experts_per_token"], "lbl_coef": None, "rzl_coef": None}
    return MixtralLMHeadModel.init(vocabulary, MixtralConfig(**sizes, **experts, sliding_window=shape["sequence"]), key=key)


def measure(shape: Shape, steps: int, warmup: int) -> dict[str, Any]:
    """Train for warm-up and timed steps on random tokens."""
    import equinox as eqx  # type: ignore[import-not-found]
    import haliax as hax
    import jax
    import numpy as np
    import optax
    from levanter.layers.attention import AttentionMask
    from levanter.models.lm_model import LmExample  # type: ignore[import-not-found]

    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b1=0.9, b2=0.95, weight_decay=0.1))
    seconds, cpu_seconds, losses = [], [], []
    with jax.set_mesh(mesh), hax.axis_mapping({"batch": "data"}):
        model = eqx.filter_jit(new_model)(shape)
        batch, position = hax.Axis("batch", shape["batch"]), model.Pos
        optimizer_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

        @eqx.filter_jit(donate="all")  # type: ignore[untyped-decorator]
        def train_step(model: Any, optimizer_state: Any, tokens: jax.Array) -> tuple[Any, Any, jax.Array]:
            named = hax.named(tokens, (batch, position))
            weight = hax.broadcast_to(LmExample.causal_loss_mask(position).astype(np.float32), (batch, position))
            example = LmExample(tokens=named, loss_weight=weight, attn_mask=AttentionMask.causal())

            def loss_of(model: Any) -> Any:
                loss = model.compute_next_token_loss(example)
                return loss.scalar() if isinstance(loss, hax.NamedArray) else loss

            loss, gradient = eqx.filter_value_and_grad(loss_of)(model)
            updates, optimizer_state = optimizer.update(gradient, optimizer_state, eqx.filter(model, eqx.is_inexact_array))
            return eqx.apply_updates(model, updates), optimizer_state, loss

        parameters = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
        for step in range(warmup + steps):
            tokens = np.random.default_rng(step).integers(0, shape["vocabulary"], (batch.size, position.size)).astype(np.int32)
            began, cpu_began = time.perf_counter(), time.process_time()
            model, optimizer_state, loss = train_step(model, optimizer_state, tokens)
            losses.append(float(loss))
            seconds.append(time.perf_counter() - began)
            cpu_seconds.append(time.process_time() - cpu_began)
    return {
        "versions": {"python": platform.python_version(), **{each: version(each) for each in ("marin-levanter", "jax")}},
        "seconds": seconds[warmup:],
        "cpu_seconds": cpu_seconds[warmup:],
        "first_loss": losses[0],
        "loss": losses[-1],
        "parameters": parameters,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=json.loads, required=True, help="fields of `benchmarks.moe_step_shapes.Shape` as JSON")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="timed steps (default 5)")
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="steps before them (default 2)")
    options = parser.parse_args()
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    print(json.dumps(measure(options.shape, options.steps, options.warmup)))


if __name__ == "__main__":
    main()
