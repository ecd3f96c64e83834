"""Our training step at one shape: a process of its own, like each peer of `benchmarks.moe_step`, which runs it.

Prints one JSON object: seconds and CPU seconds of every timed step and of its parts, the first and the last loss, the share of
assignments that were dropped, the number of parameters.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.moe_step_routing import make_routing
from benchmarks.moe_step_shapes import Shape
from benchmarks.timing import Timing, timed
from marin_core.data.batch import Batch
from marin_core.model.config import MoEConfig, TransformerConfig
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.config import TrainConfig
from marin_core.train.optimizers.config import AdamW
from marin_core.train.schedules import Wsd
from marin_core.train.step import StepOutput, TrainState, compile_train_step, initial_state


def train_config(shape: Shape) -> TrainConfig:
    """The shape as a run: a plain Llama or Mixtral, with our router and balancer, and the library of products that PyTorch has too."""
    moe = None
    if shape.experts:
        moe = MoEConfig(experts=shape.experts, experts_per_token=shape.experts_per_token, expert_width=shape.width, combine_scale=1.0)
    model = TransformerConfig(
        vocab_size=shape.vocabulary,
        d_model=shape.d_model,
        layers=shape.layers,
        heads=shape.heads,
        head_dim=shape.d_model // shape.heads,
        local_kv_heads=shape.heads,
        global_kv_heads=shape.heads,
        max_sequence_length=shape.sequence,
        window=shape.sequence,
        global_every=1,
        half_rope=False,
        global_rope=True,
        qk_norm=False,
        xsa=False,
        head_gate=False,
        short_conv_kernel=0,
        gated_norm_rank=0,
        embedding_norm=False,
        recompute="nothing",
        scan_layers=False,
        z_loss=0.0,
        feed_forward_width=None if moe else shape.width,
        moe=moe,
    )
    return TrainConfig(
        model=model,
        optimizer=AdamW(learning_rate=1e-3, schedule=Wsd()),
        num_steps=10_000,
        global_batch_size=shape.batch,
        sequence_length=shape.sequence,
        checkpoints=CheckpointPolicy(permanent_every_steps=10_000),
        cpu_products="onednn",
    )


def random_batch(shape: Shape, step: int) -> Batch:
    """Uniform tokens without padding or ends of documents."""
    size = (shape.batch, shape.sequence)
    tokens = np.random.default_rng(step).integers(0, shape.vocabulary, size).astype(np.int32)
    return Batch(tokens, np.zeros(size, np.int32), np.ones(size, np.float32))


def measure(shape: Shape, steps: int, warmup: int) -> dict[str, Any]:
    """Train for warm-up and timed steps on random tokens; after each timed step of a mixture, its routing alone."""
    config = train_config(shape)
    state, train_step = initial_state(config), compile_train_step(config, None, config.batches.stages[0])
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    parts = routing_parts(config.model, shape.tokens)
    timings: dict[str, list[Timing]] = {name: [] for name in ("step", *parts)}
    losses, dropped = [], 0.0
    for step in range(warmup + steps):
        batch = random_batch(shape, step)

        def train(state: TrainState = state, batch: Batch = batch) -> tuple[TrainState, float, StepOutput]:
            state, output = train_step(state, batch)
            return state, float(output["loss"]), output

        (state, loss, output), timing = timed(train)
        losses.append(loss)
        if step >= warmup:
            timings["step"].append(timing)
            dropped += dropped_share(output) / steps
            for name, part in parts.items():
                timings[name].append(timed(part)[1])
    measured = {
        name: {"seconds": [t.seconds for t in each], "cpu_seconds": [t.cpu_seconds for t in each]} for name, each in timings.items()
    }
    return {
        **measured.pop("step"),
        "parts": measured,
        "first_loss": losses[0],
        "loss": losses[-1],
        "dropped": dropped,
        "parameters": parameters,
    }


def routing_parts(model: TransformerConfig, tokens: int) -> dict[str, Callable[[], None]]:
    """Parts of a step by name: router, balancer and the bookkeeping of dispatch; and the same with the rows that are moved."""
    if model.moe is None:
        return {}
    return {
        "routing": make_routing(model, model.moe, tokens, 1),
        "routing and rows": make_routing(model, model.moe, tokens, model.expert_dim),
    }


def dropped_share(output: StepOutput) -> float:
    """Of the assignments of all layers, those beyond an expert's capacity; 0 for a dense model."""
    if "receiver_dropped" not in output:
        return 0.0
    return float(output["receiver_dropped"].sum() / output["valid_assignments"].sum())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=json.loads, required=True, help="fields of `benchmarks.moe_step_shapes.Shape` as JSON")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="timed steps (default 5)")
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="steps before them (default 2)")
    options = parser.parse_args()
    print(json.dumps(measure(Shape(**options.shape), options.steps, options.warmup)))


if __name__ == "__main__":
    main()
