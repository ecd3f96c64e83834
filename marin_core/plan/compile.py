"""Compile a training step for devices that aren't here, and keep what its program says."""

import time
from collections.abc import Callable, Mapping

import jax

from marin_core.errors import ConfigError, InfrastructureError
from marin_core.plan.compiled import CompiledStep, MemoryUse
from marin_core.plan.hlo import read_collectives

COMPILER_OPTIONS = {
    # Nobody runs the machine code, so it isn't optimised; what the program does and where its data lies is decided before that.
    "xla_backend_optimization_level": 0,
    # It turns bfloat16 that is moved between devices, and much that isn't, into float32, which CPUs want and accelerators don't.
    "xla_disable_hlo_passes": "float-normalization-bf16",
}


def use_cpu_devices(count: int) -> None:
    """Make this process one of `count` virtual CPU devices; must come before whatever else uses JAX.

    Raises:
        ConfigError: JAX has begun already, with fewer.
    """
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX has begun; it may have enough of them
        pass
    backend, found = jax.default_backend(), len(jax.devices())
    if backend != "cpu" or found < count:
        raise ConfigError(
            f"A plan of {count} devices needs as many virtual CPU devices; this process has {found} of the backend {backend}",
            advice="Plan in a process of its own: `python -m marin_core.plan`, or the job `plan`.",
        )


def compile_step(
    lower: Callable[[], jax.stages.Lowered], mesh: Mapping[str, int], log: Callable[[str], None] = lambda message: None
) -> CompiledStep:
    """Lower and compile a step, and read its program.

    Args:
        lower: brings the lowered step.
        mesh: sizes of the mesh axes by name, the outer first.
        log: gets a line before each of the stages.
    """
    log("tracing the step")
    begun = time.perf_counter()
    lowered = lower()
    lower_seconds = time.perf_counter() - begun
    log("compiling the step")
    begun = time.perf_counter()
    compiled = lowered.compile(compiler_options=COMPILER_OPTIONS)
    compile_seconds = time.perf_counter() - begun
    log("reading the program")
    found, text = compiled.memory_analysis(), compiled.as_text()
    if found is None or text is None:
        raise InfrastructureError("XLA says nothing of the compiled program", advice="Use the version of JAX that this project pins.")
    memory = MemoryUse(
        argument_bytes=found.argument_size_in_bytes,
        output_bytes=found.output_size_in_bytes,
        aliased_bytes=found.alias_size_in_bytes,
        temporary_bytes=found.temp_size_in_bytes,
        host_bytes=found.host_argument_size_in_bytes + found.host_temp_size_in_bytes,
    )
    return CompiledStep(memory, read_collectives(text, mesh), len(text), lower_seconds, compile_seconds)
