"""The training step of a PyTorch library at one shape: a peer of `benchmarks.moe_step`. Runs inside an environment with its REQUIREMENTS.

    PYTHON -I benchmarks/moe_step_torch.py --library transformers --shape '{"d_model": 256, …}'

Prints one JSON object, like `benchmarks.moe_step_ours`. All libraries get the same loop: float32, AdamW as PyTorch fuses it on a CPU
too, gradients clipped at a norm of 1, as many threads as the process may use CPUs. Nothing is compiled.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

REQUIREMENTS = {
    "transformers": ("torch==2.13.0", "transformers==5.24.0"),
    "ai2-olmo-core": ("torch==2.13.0", "ai2-olmo-core==3.0.0"),
    "torchtitan": ("torch==2.13.0", "torchtitan==0.3.0"),
}
"""By the library's distribution."""

Shape = Mapping[str, int]
Loss = Callable[[Any], Any]
"""Mean cross entropy of predicting each next token of int64 [B, S]."""


def hugging_face(shape: Shape) -> tuple[Any, Loss]:
    """Mixtral or Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM  # type: ignore[import-not-found]

    sizes = {
        "vocab_size": shape["vocabulary"],
        "hidden_size": shape["d_model"],
        "intermediate_size": shape["width"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["heads"],
        "max_position_embeddings": shape["sequence"],
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
    }
    model: Any
    if shape["experts"]:
        experts = {"num_local_experts": shape["experts"], "num_experts_per_tok": shape["experts_per_token"]}
        # On a CPU a loop over experts takes half as long again, and the batched way copies an expert's weights for every token.
        model = MixtralForCausalLM(MixtralConfig(**sizes, **experts, experts_implementation="grouped_mm"))
    else:
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    return model, lambda tokens: model(input_ids=tokens, labels=tokens, use_cache=False).loss


def olmo_core(shape: Shape) -> tuple[Any, Loss]:
    """Its Llama; its experts need kernels in Triton."""
    import torch  # type: ignore[import-not-found]
    from olmo_core.nn.attention import AttentionBackendName  # type: ignore[import-not-found]
    from olmo_core.nn.feed_forward import FeedForwardConfig  # type: ignore[import-not-found]
    from olmo_core.nn.transformer import TransformerConfig  # type: ignore[import-not-found]

    config = TransformerConfig.llama_like(
        d_model=shape["d_model"],
        vocab_size=shape["vocabulary"],
        n_layers=shape["layers"],
        n_heads=shape["heads"],
        feed_forward=FeedForwardConfig(hidden_size=shape["width"], bias=False),
        attn_backend=AttentionBackendName.torch,
    )
    model = config.build(init_device="cpu")
    model.init_weights(max_seq_len=shape["sequence"], device=torch.device("cpu"))

    def loss_of(tokens: Any) -> Any:
        labels = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)
        return model(tokens, labels=labels, return_logits=False).loss

    return model, loss_of


def torchtitan(shape: Shape) -> tuple[Any, Loss]:
    """Its Llama. The attention that it chooses for language models needs a GPU; its own call of PyTorch's attention doesn't.

    A mixture takes the block of its Qwen3, which is Llama's where queries and keys aren't normed, and takes experts too.
    """
    import torch
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm  # type: ignore[import-not-found]
    from torchtitan.models.common.attention import ScaledDotProductAttention  # type: ignore[import-not-found]
    from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config  # type: ignore[import-not-found]
    from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock  # type: ignore[import-not-found]
    from torchtitan.models.qwen3.model import Qwen3TransformerBlock  # type: ignore[import-not-found]

    d, heads, vocabulary = shape["d_model"], shape["heads"], shape["vocabulary"]
    matrix = {"weight": partial(torch.nn.init.trunc_normal_, std=0.02)}
    norm = RMSNorm.Config(normalized_shape=d, param_init={"weight": torch.nn.init.ones_})
    block, network = Llama3TransformerBlock, {}
    if shape["experts"]:
        block, network["moe"] = Qwen3TransformerBlock, _torchtitan_experts(shape, matrix["weight"])
    else:
        network["feed_forward"] = make_ffn_config(dim=d, hidden_dim=shape["width"], w1_param_init=matrix, w2w3_param_init=matrix)
    layer = block.Config(
        attention_norm=norm,
        ffn_norm=norm,
        attention=make_gqa_config(
            dim=d,
            n_heads=heads,
            wqkv_param_init=matrix,
            wo_param_init=matrix,
            inner_attention=ScaledDotProductAttention.Config(),
            fuse_qkv=True,
            rope=ComplexRoPE.Config(dim=d // heads, max_seq_len=shape["sequence"]),
        ),
        **network,
    )
    config = Llama3Model.Config(
        dim=d,
        vocab_size=vocabulary,
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=d, param_init=matrix),
        norm=norm,
        lm_head=Linear.Config(in_features=d, out_features=vocabulary, param_init=matrix),
        layers=[layer] * shape["layers"],
    )
    model = config.build()
    model.init_states(buffer_device=torch.device("cpu"))

    def loss_of(tokens: Any) -> Any:
        logits = model(tokens)[:, :-1].flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())

    return model, loss_of


def _torchtitan_experts(shape: Shape, init: Callable[[Any], Any]) -> Any:
    """The configuration of its mixture: as in its Qwen3, without the bias that balances loads.

    Its experts compute in bfloat16 whatever the weights are. CPUs without instructions for bfloat16 take five times as long for it, and
    all others here compute in float32, so these experts leave its conversions out and are its own besides.
    """
    import torch
    from torchtitan.models.common.config_utils import make_moe_config, make_router_config, make_token_dispatcher_config
    from torchtitan.models.common.moe import GroupedExperts, RoutedExperts  # type: ignore[import-not-found]

    class Float32Experts(GroupedExperts):  # type: ignore[misc]
        @dataclass(kw_only=True, slots=True)
        class Config(GroupedExperts.Config):  # type: ignore[misc]
            pass

        def forward(self, rows: Any, rows_per_expert: Any) -> Any:
            ends = torch.cumsum(rows_per_expert, dim=0, dtype=torch.int32)

            def product(rows: Any, weights: Any) -> Any:
                # A loop over experts takes twice as long.
                return self._grouped_mm(A=rows, B_t=weights.transpose(-2, -1), offs=ends)

            hidden = torch.nn.functional.silu(product(rows, self.w1_EFD)) * product(rows, self.w3_EFD)
            return product(hidden, self.w2_EDF)

    model, experts = {"dim": shape["d_model"]}, {"num_experts": shape["experts"]}
    chosen = {**experts, "top_k": shape["experts_per_token"]}
    weights = dict.fromkeys(("w1_EFD", "w2_EDF", "w3_EFD"), init)
    return make_moe_config(
        **experts,
        router=make_router_config(**model, **chosen, gate_param_init={"weight": init}, score_func="softmax", route_norm=True),
        routed_experts=RoutedExperts.Config(
            inner_experts=Float32Experts.Config(**model, **experts, hidden_dim=shape["width"], param_init=weights),
            token_dispatcher=make_token_dispatcher_config(**chosen, comm_backend="standard"),
        ),
        load_balance_coeff=None,
    )


LIBRARIES: Mapping[str, Callable[[Shape], tuple[Any, Loss]]] = {
    "transformers": hugging_face,
    "ai2-olmo-core": olmo_core,
    "torchtitan": torchtitan,
}


def measure(library: str, shape: Shape, steps: int, warmup: int) -> dict[str, Any]:
    """Train for warm-up and timed steps on random tokens."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    model, loss_of = LIBRARIES[library](shape)
    model.train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds, cpu_seconds, losses = [], [], []
    for _ in range(warmup + steps):
        tokens = torch.randint(shape["vocabulary"], (shape["batch"], shape["sequence"]))
        began, cpu_began = time.perf_counter(), time.process_time()
        loss = loss_of(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
        cpu_seconds.append(time.process_time() - cpu_began)
    return {
        "versions": {"python": platform.python_version(), "torch": torch.__version__, library: version(library)},
        "seconds": seconds[warmup:],
        "cpu_seconds": cpu_seconds[warmup:],
        "first_loss": losses[0],
        "loss": losses[-1],
        "parameters": sum(each.numel() for each in parameters),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=LIBRARIES, required=True)
    parser.add_argument("--shape", type=json.loads, required=True, help="fields of `benchmarks.moe_step_shapes.Shape` as JSON")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="timed steps (default 5)")
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="steps before them (default 2)")
    options = parser.parse_args()
    # OpenMP reads it when torch is loaded: how long a thread that waits spins. The default wins nothing on idle CPUs, and makes a step
    # several times longer where others use them too.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    print(json.dumps(measure(options.library, options.shape, options.steps, options.warmup)))


if __name__ == "__main__":
    main()
