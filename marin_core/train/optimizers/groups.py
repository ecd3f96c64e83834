"""Which optimizer moves which parameter: an explicit table of paths, so that a new parameter has to decide."""

from enum import StrEnum
from typing import Any, NamedTuple

import jax

from marin_core.errors import MarinError
from marin_core.train.optimizers.config import MuonH, Optimizer


class Kind(StrEnum):
    """What a parameter is to an optimizer."""

    MATRIX = "matrix"
    """Multiplies activations: attention, experts, shared experts, latent projections, gates of norms."""
    EXPERTS = "experts"
    """Matrices with an expert axis."""
    HEAD = "head"
    """Projects to the vocabulary."""
    GATE = "gate"
    """Decides about tokens: head gates and routers."""
    EMBEDDING = "embedding"
    GAIN = "gain"
    TAPS = "taps"
    """Depthwise convolutions."""


def _kinds() -> dict[str, Kind]:
    attention, feed_forward = "blocks/attention", "blocks/feed_forward"
    gated_norms = ("embedding_norm", "final_norm", "blocks/attention_norm", "blocks/feed_forward_norm")
    plain_norms = ("blocks/attention_post_norm", "blocks/feed_forward_post_norm", f"{feed_forward}/latent_norm")
    head_norms = (f"{attention}/query_norm", f"{attention}/key_norm")
    swiglu = ("w_gate", "w_up", "w_down")
    return {
        "embedding": Kind.EMBEDDING,
        "output": Kind.HEAD,
        **{f"{norm}/norm/gain": Kind.GAIN for norm in gated_norms},
        **{f"{norm}/gain": Kind.GAIN for norm in (*plain_norms, *head_norms)},
        **{f"{norm}/{name}": Kind.MATRIX for norm in gated_norms for name in ("w_down", "w_up")},
        **{f"{attention}/{name}": Kind.MATRIX for name in ("w_q", "w_k", "w_v", "w_o")},
        f"{attention}/head_gate": Kind.GATE,
        **dict.fromkeys((f"{attention}/key_taps", "blocks/attention_taps", "blocks/feed_forward_taps"), Kind.TAPS),
        **{f"{feed_forward}/{name}": Kind.MATRIX for name in (*swiglu, "latent_down", "latent_up")},
        **{f"{feed_forward}/shared/{name}": Kind.MATRIX for name in swiglu},
        **{f"{feed_forward}/experts/{name}": Kind.EXPERTS for name in swiglu},
        f"{feed_forward}/router/weight": Kind.GATE,
    }


KINDS = _kinds()
"""Path of a parameter → its kind: all parameters that a `TransformerConfig` can have."""

LAYERS = "blocks/"
"""Parameters below it are stacks with a leading layer axis."""

DECAYED = {Kind.MATRIX, Kind.EXPERTS, Kind.HEAD, Kind.GATE}
"""Kinds that weight decay acts on; MuonH has its own rule."""

GROUPS: dict[str, dict[Kind, str]] = {
    **{name: dict.fromkeys(Kind, name) for name in ("adamw", "lion", "sophia")},
    "muon": dict.fromkeys(Kind, "adam") | dict.fromkeys((Kind.MATRIX, Kind.EXPERTS), "muon"),
    "muonh": dict.fromkeys(Kind, "adam") | dict.fromkeys((Kind.MATRIX, Kind.EXPERTS), "muonh") | {Kind.HEAD: "adamh"},
}
"""Name of an optimizer → the group of every kind."""


class GroupRow(NamedTuple):
    """Where a parameter belongs, for the record of a run."""

    path: str
    shape: tuple[int, ...]
    group: str
    decayed: bool


def path_of(keys: tuple[Any, ...]) -> str:
    """A parameter's path as the table and the checkpoints spell it: `blocks/attention/w_q`."""
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def kind_of(keys: tuple[Any, ...]) -> Kind:
    """The kind of a parameter.

    Raises:
        MarinError: the table doesn't know it.
    """
    path = path_of(keys)
    if path not in KINDS:
        raise MarinError(f"No optimizer group for parameter {path!r}", advice="Give its path a kind in optimizers/groups.py.")
    return KINDS[path]


def group_of(config: Optimizer, keys: tuple[Any, ...]) -> str:
    """The group that moves a parameter: a key of `learning_rates`."""
    return GROUPS[config.name][kind_of(keys)]


def is_decayed(config: Optimizer, keys: tuple[Any, ...]) -> bool:
    """Whether weight decay acts on a parameter."""
    kind = kind_of(keys)
    if isinstance(config, MuonH):
        return config.gate_decay > 0 and kind is Kind.GATE
    return config.weight_decay > 0 and kind in DECAYED


def group_table(config: Optimizer, abstract_params: Any) -> list[GroupRow]:
    """Path, shape, group and decay of every parameter, in the order of the tree.

    Raises:
        MarinError: the table doesn't know one.
    """
    leaves = jax.tree_util.tree_leaves_with_path(abstract_params)
    return [GroupRow(path_of(keys), tuple(leaf.shape), group_of(config, keys), is_decayed(config, keys)) for keys, leaf in leaves]
