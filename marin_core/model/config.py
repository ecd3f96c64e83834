"""What a transformer is, as values. Imports no JAX. `presets` names whole models, `counts` counts their parameters and FLOPs.

Dimension letters used in `marin_core.model` and `marin_core.train`:
B batch, S sequence, T tokens (B·S), D model width, H query heads, G key/value heads, K head dim, E experts, A experts per token,
C expert capacity, M latent width, F expert width, V vocabulary, L layers.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from marin_core.config import Config


class QuantileHistogramConfig(Config):
    """Quantile balancing: a selection bias solved once a step from a histogram of margins (arXiv 2502.15451, kexue.fm/archives/11619)."""

    name: Literal["quantile_histogram"] = "quantile_histogram"
    score_space: Literal["logits", "sigmoid"] = Field(default="logits", description="Where the bias is added and margins are taken.")
    bins: int = Field(default=1000, ge=2, le=100_000, description="Histogram bins per expert.")
    pad: float | None = Field(
        default=None, gt=0, description="How far beyond the previous bias a frozen range reaches; None: 4 logits, or 1 of sigmoid scores."
    )
    margin_range: Literal["frozen", "live"] = Field(
        default="frozen", description="frozen: from the bias in force, no collective; live: the step's least and largest margin."
    )
    ema: float = Field(
        default=0.0, ge=0, lt=1, description="Weight of the old β in the new one; helps with few sequences, harms with many."
    )


class QuantileExactConfig(Config):
    """The same solve from the margins themselves, which it gathers: a reference for tests and small runs."""

    name: Literal["quantile_exact"] = "quantile_exact"
    score_space: Literal["logits", "sigmoid"] = "logits"
    ema: float = Field(default=0.0, ge=0, lt=1)


class LocalQuantilesConfig(Config):
    """The mean over shards of each shard's own quantile: no global quantile, for comparison only (marin #7279)."""

    name: Literal["mean_of_local_quantiles"] = "mean_of_local_quantiles"
    score_space: Literal["logits", "sigmoid"] = "logits"


class LossFreeConfig(Config):
    """DeepSeek's integrator: the bias of an expert below the mean load rises by a fixed step, of one above it falls."""

    name: Literal["loss_free"] = "loss_free"
    score_space: Literal["logits", "sigmoid"] = "sigmoid"
    step_size: float = Field(default=1e-3, gt=0)


class AuxiliaryLossConfig(Config):
    """Switch's balance loss, weight·E·Σ f·P; it pulls on the language model's gradient."""

    name: Literal["aux_loss"] = "aux_loss"
    weight: float = Field(default=1e-2, gt=0)


class NoBalancerConfig(Config):
    """Plain top-k routing without a selection bias."""

    name: Literal["none"] = "none"


BalancerConfig = Annotated[
    QuantileHistogramConfig | QuantileExactConfig | LocalQuantilesConfig | LossFreeConfig | AuxiliaryLossConfig | NoBalancerConfig,
    Field(discriminator="name"),
]


class PooledWavesConfig(Config):
    """Static pools of rows for each destination, sent in waves of which one lives at a time: runs on every backend."""

    name: Literal["pooled_waves"] = "pooled_waves"
    waves: int = Field(default=3, ge=1)
    rotate: bool = Field(default=True, description="Start the ranking at another token each step, so that no place is always cut last.")


class RaggedConfig(Config):
    """`ragged_all_to_all` of exactly the rows that are kept; where a backend lacks it, the same offsets over an all-gather."""

    name: Literal["ragged"] = "ragged"
    expert_chunks: int = Field(default=2, ge=1, description="Local experts are exchanged in so many groups, one after the other.")


class DenseTransportConfig(Config):
    """Every shard sees all tokens of its rack and computes its own experts on them: dropless, for references and small runs."""

    name: Literal["dense"] = "dense"


TransportConfig = Annotated[PooledWavesConfig | RaggedConfig | DenseTransportConfig, Field(discriminator="name")]


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
    transport: TransportConfig = Field(
        default=PooledWavesConfig(), description="How rows reach experts of other devices; without other devices nothing travels."
    )
    router_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Type of the router's product; bfloat16 reproduces the large run, which reorders some choices."
    )
    forced_balance: bool = Field(default=False, description="Route round-robin instead: to measure speed apart from balance.")

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
    """A decoder-only transformer whose blocks are all mixtures of experts, or all dense; each feature can be switched off.

    The defaults are those of the mixture-of-experts family (marin #8435, #9277; `spec/moe.md` §1.1); `marin_core.model.presets` has
    the dense families too.
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
    global_every: int = Field(default=4, ge=1, description="Every n-th layer sees the whole context.")
    global_last: bool = Field(default=True, description="The last layer sees the whole context too.")
    rope_theta: float = Field(default=10_000.0, gt=1)
    half_rope: bool = Field(default=True, description="Rotary positions turn the first half of a head's dimensions; off = all.")
    global_rope: bool = Field(default=False, description="Rotary positions on global layers too; off = no positions there (NoPE).")
    qk_norm: bool = Field(default=True, description="RMS norm of each query and key head.")
    qk_norm_gain: bool = Field(default=False, description="Learned gains of `qk_norm`, one for queries and one for keys, shared by heads.")
    qk_mult: float = Field(default=1.3, gt=0, description="Factor on queries after `qk_norm`.")
    xsa: bool = Field(default=True, description="Remove from a head's output the part parallel to the token's own value.")
    head_gate: bool = Field(default=True, description="Gate each head's output by 2·sigmoid(x·W).")
    attention_soft_cap: float | None = Field(default=None, gt=0, description="Attention scores s become cap·tanh(s/cap).")
    attention_block: int | None = Field(
        default=None,
        ge=1,
        description="Queries whose scores exist at once, recomputed in the backward pass; None = all of a sequence.",
    )
    recompute: Literal["block", "all_but_projections", "nothing"] = Field(
        default="block",
        description="What of a block is computed again in the backward pass instead of kept; the less, the more memory. Projections are"
        " products with plain matrices, not those of attention and experts.",
    )
    scan_layers: bool = Field(
        default=True,
        description="Layers run in a loop over one program; off = in line: faster for few, slower to compile.",
    )
    short_conv_kernel: int = Field(default=4, ge=0, description="Taps of the causal depthwise convolutions; 0 = none.")
    gated_norm_rank: int = Field(default=128, ge=0, description="Rank of the gate that follows each full-width norm; 0 = none.")
    post_norms: bool = Field(default=False, description="A norm also behind attention and behind the feed-forward layer, before the sum.")
    embedding_norm: bool = Field(default=True, description="A norm behind the embedding.")
    embedding_scale: bool = Field(default=False, description="Multiply embeddings by √d_model.")
    tied_head: bool = Field(default=False, description="The embedding is the head too.")
    logit_soft_cap: float | None = Field(default=None, gt=0, description="Logits z become cap·tanh(z/cap).")
    norm_eps: float = Field(default=1e-5, gt=0)
    qk_norm_eps: float = Field(default=1e-6, gt=0)
    init_scale: float = Field(default=0.5, gt=0, description="Matrices start as normals of σ = init_scale/√d_model cut at ±3σ.")
    z_loss: float = Field(default=1e-4, ge=0, description="Weight of logsumexp(logits)² in the loss.")
    compute_dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="Type of activations; parameters are float32.")
    activation: Literal["silu", "gelu"] = Field(default="silu", description="Of the gated feed-forward networks: SwiGLU or GeGLU.")
    feed_forward_width: int | None = Field(default=None, ge=1, description="Hidden width of a dense block's feed-forward network.")
    moe: MoEConfig | None = Field(default=None, description="The mixture of experts of each block; None: dense blocks.")

    @property
    def kv_heads(self) -> int:
        """Stored key/value heads (G)."""
        return max(self.local_kv_heads, self.global_kv_heads)

    @property
    def rope_dims(self) -> int:
        """Leading dimensions of a head that rotary positions turn, in interleaved pairs."""
        return self.head_dim // 2 if self.half_rope else self.head_dim

    @property
    def init_std(self) -> float:
        """σ of the truncated normal before truncation (not variance-corrected)."""
        return float(self.init_scale / self.d_model**0.5)

    @property
    def expert_dim(self) -> int:
        """Width of the rows that experts read and write (M); the model width of a dense model."""
        return (self.moe and self.moe.latent_dim) or self.d_model

    @property
    def global_layers(self) -> tuple[bool, ...]:
        """Per layer, whether it sees the whole context."""
        last = self.layers - 1
        return tuple((layer + 1) % self.global_every == 0 or (self.global_last and layer == last) for layer in range(self.layers))

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
        if (self.moe is None) == (self.feed_forward_width is None):
            raise ValueError(f"give either moe or feed_forward_width, not {'neither' if self.moe is None else 'both'}")
        if self.moe is not None and self.activation != "silu":
            raise ValueError(f"activation = {self.activation!r} is for dense blocks; routed experts are SwiGLU")
        if self.qk_norm_gain and not self.qk_norm:
            raise ValueError("qk_norm_gain needs qk_norm")
        return self
