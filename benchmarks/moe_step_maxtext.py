"""MaxText's training step at one shape: a peer of `benchmarks.moe_step`. Runs inside an environment with its REQUIREMENTS.

    PYTHON -I benchmarks/moe_step_maxtext.py --shape '{"d_model": 256, …}'

Prints one JSON object, like `benchmarks.moe_step_ours`: its own Mixtral or Llama 2 with its own training step, AdamW and clipping, on one
CPU device. All is set as a command line of its trainer would set it. Experts have a capacity, as ours do, but one for each sequence.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

REQUIREMENTS = (
    "maxtext==0.2.5",
    # Its wheel lists no dependencies outside of extras for TPUs and GPUs, which bring libraries of either. These are what its trainer
    # imports without them.
    "absl-py==2.5.1",
    "aqtp==0.9.0",
    "drjax==0.2.1",
    "etils==1.15.0",
    "flax==0.12.12",
    "grain==0.2.18",
    "huggingface-hub==2.4.0",
    "jax==0.12.0.1",
    "jaxtyping==0.3.11",
    "jinja2==3.1.6",
    "ml-collections==1.1.0",
    "numpy==2.5.5",
    "omegaconf==2.4.0",
    "optax==0.2.8",
    "orbax-checkpoint==0.12.8",
    "packaging==26.4",
    "pathwaysutils==0.1.13",
    "pillow==13.0.0",
    "psutil==7.2.2",
    "pydantic==2.14.4",
    "pyyaml==6.0.4",
    "qwix==0.1.8",
    "sentencepiece==0.2.3",
    "sympy==1.14.0",
    "tiktoken==0.14.0",
    "tokamax==0.0.17",
    "tokenizers==0.23.3",
    "transformers==5.24.0",
)
"""What the environment of this script needs."""

CAPACITY_FACTOR = 1.25

Shape = Mapping[str, int]


def settings(shape: Shape) -> dict[str, Any]:
    """What differs from MaxText's `base.yml`."""
    made: dict[str, Any] = {
        "run_name": "benchmark",
        "hardware": "cpu",
        "skip_jax_distributed_system": True,
        "dataset_type": "synthetic",  # its trainer can't be set up without data; we pass batches of our own
        "enable_checkpointing": False,
        "log_config": False,
        "jax_cache_dir": "",  # else it keeps programs in the user's home folder
        "decoder_block": "llama2",
        "base_emb_dim": shape["d_model"],
        "base_num_decoder_layers": shape["layers"],
        "base_num_query_heads": shape["heads"],
        "base_num_kv_heads": shape["heads"],
        "head_dim": shape["d_model"] // shape["heads"],
        "base_mlp_dim": shape["width"],
        "vocab_size": shape["vocabulary"],
        "per_device_batch_size": shape["batch"],
        "max_target_length": shape["sequence"],
        "dtype": "float32",
        "weight_dtype": "float32",
        "matmul_precision": "highest",
        "attention": "dot_product",
        "remat_policy": "none",
        "scan_layers": False,
        "steps": 10_000,
        "learning_rate": 1e-3,
        "opt_type": "adamw",
        "adam_b1": 0.9,
        "adam_b2": 0.95,
        "adam_weight_decay": 0.1,
        "gradient_clipping_threshold": 1.0,
    }
    if shape["experts"]:
        made |= {
            "decoder_block": "mixtral",
            "base_moe_mlp_dim": shape["width"],
            "num_experts": shape["experts"],
            "num_experts_per_tok": shape["experts_per_token"],
            "load_balance_loss_weight": 0.0,
            # Experts' rows by products with one-hot masks. Its other way, grouped products that drop nothing, takes five times as long
            # on a CPU.
            "sparse_matmul": False,
            "megablox": False,
            "capacity_factor": CAPACITY_FACTOR,
        }
    return made


def random_batch(shape: Shape, step: int) -> dict[str, Any]:
    """Uniform tokens in one segment; the last of a sequence has no next one, so its target doesn't count."""
    import numpy as np

    size = (shape["batch"], shape["sequence"])
    tokens = np.random.default_rng(step).integers(0, shape["vocabulary"], size).astype(np.int32)
    positions, segments = np.broadcast_to(np.arange(size[1], dtype=np.int32), size), np.ones(size, np.int32)
    counted = segments.copy()
    counted[:, -1] = 0
    inputs = {"inputs": tokens, "inputs_position": positions, "inputs_segmentation": segments}
    return inputs | {"targets": np.roll(tokens, -1, axis=1), "targets_position": positions, "targets_segmentation": counted}


def measure(shape: Shape, steps: int, warmup: int) -> dict[str, Any]:
    """Train for warm-up and timed steps on random tokens, each until its loss is there: MaxText's own timer stops at the dispatch."""
    import jax
    from flax import nnx
    from flax.core.spmd import logical_axis_rules
    from maxtext.trainers.pre_train import train  # type: ignore[import-not-found]
    from maxtext.utils import sharding, train_utils  # type: ignore[import-not-found]

    config, recorder = train.initialize([train.__file__, *(f"{key}={value}" for key, value in settings(shape).items())])
    _, _, shardings, model, mesh, _, _, _, _, _, train_state = train_utils.setup_train_loop(config, recorder)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    # From here as its `train_loop`, which takes no batches from outside.
    graph, state = nnx.split(train_state)
    parameter_shardings, shardings = sharding.maybe_update_params_sharding_with_opt(config, shardings)
    train_step, _ = train_utils.jit_train_and_eval_step(
        config, graph, mesh, state, shardings, train.train_step, params_shardings=parameter_shardings
    )
    seconds, cpu_seconds, losses = [], [], []
    for step in range(warmup + steps):
        batch = random_batch(shape, step)
        began, cpu_began = time.perf_counter(), time.process_time()
        with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
            state, metrics = train_step(state, batch)
        losses.append(float(metrics["scalar"]["learning/loss"]))
        seconds.append(time.perf_counter() - began)
        cpu_seconds.append(time.process_time() - cpu_began)
    return {
        "versions": {"python": platform.python_version(), **{each: version(each) for each in ("maxtext", "jax")}},
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
