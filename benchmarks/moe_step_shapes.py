"""Shapes of `benchmarks.moe_step`, as plain numbers that ours and every peer read the same way; imports the standard library alone."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """One model and batch, in float32, with an untied head and random tokens; `experts` = 0 is a dense model.

    Attributes:
        width: hidden width of an expert's, or of a dense block's, SwiGLU network.
        batch, sequence: sequences a step, and tokens of each.
    """

    d_model: int
    layers: int
    heads: int
    vocabulary: int
    width: int
    experts: int
    experts_per_token: int
    batch: int
    sequence: int

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    @property
    def parameters(self) -> int:
        d, networks = self.d_model, max(self.experts, 1)
        layer = 4 * d * d + d * self.experts + networks * 3 * d * self.width + 2 * d
        return self.layers * layer + 2 * self.vocabulary * d + d

    @property
    def matmul_flops(self) -> int:
        """FLOPs of a step's useful matrix products, forward and backward, causal attention counted in full."""
        d, used = self.d_model, max(self.experts_per_token, 1)
        layer = 8 * d * d + 2 * d * self.experts + used * 6 * d * self.width + 4 * d * self.sequence
        return 3 * self.tokens * (self.layers * layer + 2 * d * self.vocabulary)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


SHAPES = {
    "MoE": Shape(256, 4, 8, 8192, 512, 16, 2, 8, 256),
    "dense": Shape(256, 4, 8, 8192, 1024, 0, 0, 8, 256),
    "larger MoE": Shape(512, 6, 8, 8192, 1024, 16, 2, 8, 256),
    "larger dense": Shape(512, 6, 8, 8192, 2048, 0, 0, 8, 256),
}
