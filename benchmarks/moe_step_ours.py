"""Our training step at one shape: a process of its own, like each peer of `benchmarks.moe_step`, which runs it.

Prints one JSON object: seconds and CPU seconds of every timed step, the loss, the number of parameters.
"""

import argparse
import json
import time
from typing import Any

import jax
import numpy as np

from benchmarks.moe_step_shapes import Shape
from marin_core.data.batch import Batch
from marin_core.model.config import MoEConfig, TransformerConfig
from marin_core.train.config import OptimizerConfig, TrainConfig
from marin_core.train.step import initial_state, make_train_step


def train_config(shape: Shape) -> TrainConfig:
    """The shape as a run: a plain Llama or Mixtral, with our router and balancer."""
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
        z_loss=0.0,
        feed_forward_width=None if moe else shape.width,
        moe=moe,
    )
    return TrainConfig(
        model=model,
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=0),
        num_steps=10_000,
        global_batch_size=shape.batch,
        sequence_length=shape.sequence,
        checkpoint_every_steps=10_000,
    )


def random_batch(shape: Shape, step: int) -> Batch:
    size = (shape.batch, shape.sequence)
    tokens = np.random.default_rng(step).integers(0, shape.vocabulary, size).astype(np.int32)
    return Batch(tokens, np.zeros(size, np.int32), np.ones(size, np.float32))


def measure(shape: Shape, steps: int, warmup: int) -> dict[str, Any]:
    config = train_config(shape)
    state, train_step = initial_state(config), make_train_step(config)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    seconds, cpu_seconds, loss = [], [], 0.0
    for step in range(warmup + steps):
        batch = random_batch(shape, step)
        began, cpu_began = time.perf_counter(), time.process_time()
        state, output = train_step(state, batch)
        loss = float(output["loss"])
        if step >= warmup:
            seconds.append(time.perf_counter() - began)
            cpu_seconds.append(time.process_time() - cpu_began)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "loss": loss, "parameters": parameters}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", type=json.loads, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    options = parser.parse_args()
    print(json.dumps(measure(Shape(**options.shape), options.steps, options.warmup)))
