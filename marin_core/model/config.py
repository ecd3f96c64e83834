"""What a transformer is, as values: its configuration, a small preset, and how many parameters and FLOPs it has. Imports no JAX.

Dimension letters used in `marin_core.model` and `marin_core.train`:
B batch, S sequence, T tokens (B·S), D model width, H query heads, G key/value heads, K head dim, E experts, A experts per token,
C expert capacity, M latent width, F expert width, V vocabulary, L layers.
"""

from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from marin_core.config import Config


class QuantileHistogramConfig(Config):
    """Quantile balancing: a selection bias solved once a step from a histogram of margins (arXiv 2502.15451, kexue.fm/archives/11619)."""

    name: Literal["quantile_histogram"] = "quantile_histogram"
    bins: int = Field(default=1000, ge=2, le=100_000, description="Histogram bins per expert.")
    pad: float = Field(default=4.0, gt=0, description="How far beyond the previous bias the frozen range reaches, in logits.")


class NoBalancerConfig(Config):
    """Plain top-k routing without a selection bias."""

    name: Literal["none"] = "none"


BalancerConfig = Annotated[QuantileHistogramConfig | NoBalancerConfig, Field(discriminator="name")]


class MoEConfig(Config):
    """The mixture-of-experts layer that follows attention in every block."""

    experts: int = Field(ge=1, description="Routed experts a layer (E).")
    experts_per_token: int = Field(ge=1, description="Experts that each token is sent to (A).")
    expert_width: int = Field(ge=1, description="Hidden width of a routed SwiGLU expert (F).")
    latent_dim: int | None = Field(
        default=None, ge=1, description="Width in which experts work (M); None: the model width, no projections."
    )
    shared_experts: int = Field(default=0, ge=0, description="Experts that every token passes, on the full width.")
    shared_width: int = Field(default=0, ge=0, description="Hidden width of a shared expert.")
    combine_scale: float = Field(default=2.5, gt=0, description="Sum of a token's combine weights.")
    capacity_factor: float = Field(default=1.25, gt=0, description="Rows an expert accepts in training, as a multiple of the mean load.")
    balancer: BalancerConfig = QuantileHistogramConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        # The balancer needs the score of the first expert that was not chosen, so at least one must be left.
        if self.experts_per_token >= self.experts:
            raise ValueError(f"experts_per_token = {self.experts_per_token} must be below experts = {self.experts}")
        if (self.shared_experts == 0) != (self.shared_width == 0):
            raise ValueError(
                f"shared_experts = {self.shared_experts} and shared_width = {self.shared_width} must both be 0 or both positive"
            )
        return self


class TransformerConfig(Config):
    """A decoder-only transformer whose blocks are all mixtures of experts; each feature can be switched off.

    Source of the shape: marin #8435, #9277 (`spec/moe.md` §1.1 holds the figures of the large model).
    """

    vocab_size: int = Field(ge=2, description="Token ids (V).")
    d_model: int = Field(ge=2, description="Width of the residual stream (D).")
    layers: int = Field(ge=1, description="Blocks (L).")
    heads: int = Field(ge=1, description="Query heads (H).")
    head_dim: int = Field(ge=2, description="Width of a head (K).")
    local_kv_heads: int = Field(ge=1, description="Key/value heads of sliding-window layers.")
    global_kv_heads: int = Field(ge=1, description="Key/value heads of global layers: the first ones of the stored heads.")
    max_sequence_length: int = Field(ge=2, description="Longest context in tokens.")
    window: int = Field(ge=1, description="Tokens that a sliding-window layer sees, itself included.")
    global_every: int = Field(default=4, ge=1, description="Every n-th layer and the last one see the whole context.")
    rope_theta: float = Field(default=10_000.0, gt=1)
    global_rope: bool = Field(default=False, description="Rotary positions on global layers too; off = no positions there (NoPE).")
    qk_norm: bool = Field(default=True, description="Parameter-free RMS norm of each query and key head.")
    qk_mult: float = Field(default=1.3, gt=0, description="Factor on queries after `qk_norm`.")
    xsa: bool = Field(default=True, description="Remove from a head's output the part parallel to the token's own value.")
    head_gate: bool = Field(default=True, description="Gate each head's output by 2·sigmoid(x·W).")
    short_conv_kernel: int = Field(default=4, ge=0, description="Taps of the causal depthwise convolutions; 0 = none.")
    gated_norm_rank: int = Field(default=128, ge=0, description="Rank of the gate that follows each full-width norm; 0 = none.")
    norm_eps: float = Field(default=1e-5, gt=0)
    qk_norm_eps: float = Field(default=1e-6, gt=0)
    init_scale: float = Field(default=0.5, gt=0, description="Matrices start as normals of σ = init_scale/√d_model cut at ±3σ.")
    z_loss: float = Field(default=1e-4, ge=0, description="Weight of logsumexp(logits)² in the loss.")
    compute_dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="Type of activations; parameters are float32.")
    moe: MoEConfig

    @property
    def kv_heads(self) -> int:
        """Stored key/value heads (G)."""
        return max(self.local_kv_heads, self.global_kv_heads)

    @property
    def rope_dims(self) -> int:
        """Leading dimensions of a head that rotary positions turn, in interleaved pairs."""
        return self.head_dim // 2

    @property
    def init_std(self) -> float:
        """σ of the truncated normal before truncation (not variance-corrected)."""
        return float(self.init_scale / self.d_model**0.5)

    @property
    def expert_dim(self) -> int:
        """Width of the rows that experts read and write (M)."""
        return self.moe.latent_dim or self.d_model

    @property
    def global_layers(self) -> tuple[bool, ...]:
        """Per layer, whether it sees the whole context."""
        return tuple((layer + 1) % self.global_every == 0 or layer == self.layers - 1 for layer in range(self.layers))

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("local_kv_heads", "global_kv_heads"):
            if self.heads % getattr(self, name):
                raise ValueError(f"heads = {self.heads} must be a multiple of {name} = {getattr(self, name)}")
        if self.global_kv_heads > self.local_kv_heads:
            raise ValueError(
                f"global_kv_heads = {self.global_kv_heads} must not exceed local_kv_heads = {self.local_kv_heads}, which are stored"
            )
        if self.head_dim % 4:
            raise ValueError(f"head_dim = {self.head_dim} must be a multiple of 4, so that half of it splits into rotary pairs")
        return self


def moe_tiny(vocab_size: int = 512, **changes: Any) -> TransformerConfig:
    """The preset that learns on two CPU cores in about a minute; `changes` replace fields of `TransformerConfig`."""
    preset: dict[str, Any] = {
        "vocab_size": vocab_size,
        "d_model": 128,
        "layers": 4,
        "heads": 4,
        "head_dim": 32,
        "local_kv_heads": 2,
        "global_kv_heads": 1,
        "max_sequence_length": 128,
        "window": 64,
        "gated_norm_rank": 16,
        "moe": MoEConfig(experts=16, experts_per_token=2, latent_dim=64, expert_width=64, shared_experts=2, shared_width=64),
    }
    return TransformerConfig(**(preset | changes))


class ParameterCount(NamedTuple):
    """Exact numbers of parameters; `active` is Marin's: matrices that a token multiplies with, without embedding, head, gates and norms."""

    total: int
    active: int


def parameter_count(config: TransformerConfig) -> ParameterCount:
    """Count parameters in closed form; the selection bias (E a layer) is counted although it is not trained (marin #9277)."""
    c, moe = config, config.moe
    d, heads, kv, rank = c.d_model, c.heads * c.head_dim, c.kv_heads * c.head_dim, c.gated_norm_rank
    taps, m = c.short_conv_kernel, c.expert_dim
    attention = 2 * d * heads + 2 * d * kv
    router = d * moe.experts
    expert = 3 * m * moe.expert_width
    latent = 2 * d * m if moe.latent_dim is not None else 0
    shared = moe.shared_experts * 3 * d * moe.shared_width
    layer = attention + router + moe.experts + moe.experts * expert + latent + shared
    layer += d * c.heads if c.head_gate else 0
    layer += taps * kv + 2 * taps * d
    layer += 2 * (2 * d * rank) + 2 * d
    layer += m if moe.latent_dim is not None else 0
    total = c.layers * layer + 2 * c.vocab_size * d + 2 * (d + 2 * d * rank)
    active = c.layers * (attention + router + moe.experts_per_token * expert + latent + shared)
    return ParameterCount(total, active)


def training_flops_per_token(
    config: TransformerConfig, *, sequence_length: int | None = None, n_global: int | None = None, with_head: bool = True
) -> int:
    """Model FLOPs of forward and backward for one token: three times the forward pass.

    Args:
        sequence_length: span of global layers in tokens; None = `max_sequence_length`.
        n_global: number of global layers; None = what the model has (Marin's published d2048 figure counts one less, `spec/moe.md` §1.4).
        with_head: count the output projection, as the numerator of model FLOPs utilisation does.
    """
    c, moe, d = config, config.moe, config.d_model
    span = sequence_length or c.max_sequence_length
    global_layers = sum(c.global_layers) if n_global is None else n_global
    heads = c.heads * c.head_dim
    latent = 4 * d * c.expert_dim if moe.latent_dim is not None else 0
    shared = 6 * d * moe.shared_width * moe.shared_experts
    feed_forward = 6 * c.expert_dim * moe.expert_width * moe.experts_per_token + shared + 2 * d * moe.experts + latent

    def attention(kv_heads: int, seen: int) -> int:
        return 2 * d * (heads + 2 * kv_heads * c.head_dim) + 2 * d * heads + 4 * seen * heads + 3 * seen * c.heads

    forward = c.layers * feed_forward
    forward += global_layers * attention(c.global_kv_heads, span)
    forward += (c.layers - global_layers) * attention(c.local_kv_heads, min(span, c.window))
    forward += 2 * d * c.vocab_size if with_head else 0
    return 3 * forward
