"""What `shapes` says of a model. Imports no JAX."""

from marin_core.config import Config


class ParameterRow(Config):
    """One array of parameters; those of blocks have a leading axis of layers."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    parameters: int


class LayerRow(Config):
    """One block; `span_tokens` is how far a token sees, at the longest context."""

    layer: int
    attention: str
    span_tokens: int
    kv_heads: int
    feed_forward: str
    parameters: int
    forward_flops_per_token: int


class ModelDescription(Config):
    """A model in exact numbers; `parameters` includes the `selection_bias`, which is no array of parameters."""

    name: str
    parameters: int
    active_parameters: int
    selection_bias: int
    forward_flops_per_token: int
    forward_flops_per_token_without_head: int
    training_flops_per_token: int
    training_flops_per_token_without_head: int
    groups: tuple[ParameterRow, ...]
    layers: tuple[LayerRow, ...]
