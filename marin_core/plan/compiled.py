"""What is kept of a compiled step. Imports no JAX."""

from dataclasses import dataclass

from marin_core.config import Config
from marin_core.plan.hlo import Collective


class MemoryUse(Config):
    """Bytes of one device that a step needs, as the compiler lays them out."""

    argument_bytes: int
    output_bytes: int
    aliased_bytes: int
    """Outputs that take over the memory of arguments."""
    temporary_bytes: int
    host_bytes: int
    """Of the host's memory: what the step keeps offloaded."""

    @property
    def peak_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes - self.aliased_bytes + self.temporary_bytes


@dataclass(frozen=True)
class CompiledStep:
    """What is kept of a compiled step, and what it took to compile it."""

    memory: MemoryUse
    collectives: tuple[Collective, ...]
    program_bytes: int
    lower_seconds: float
    compile_seconds: float
