"""The large mixture of experts, planned: whether its step fits a fleet, what it sends where, and how long it takes at least."""

from marin_core import experiment as lab

V = "v1"
SEQUENCES_PER_DEVICE = 16


def run(preset: str, devices: int, *, micro_batches: int, num_steps: int) -> lab.TrainConfig:
    """A run of 65,536 tokens a device and step.

    Like the real run it doesn't clip gradients. Adam's first moment is bfloat16, and attention works on 128 queries at a time.
    """
    return lab.TrainConfig(
        model=lab.preset(preset).changed(attention_block=128),
        optimizer=lab.AdamW(first_moment_dtype="bfloat16", gradient_clip=None),
        num_steps=num_steps,
        global_batch_size=SEQUENCES_PER_DEVICE * devices,
        sequence_length=4096,
        micro_batches=micro_batches,
        checkpoints=lab.CheckpointPolicy(permanent_every_steps=6_000),
    )


eleven_racks = lab.plan(
    "plans/marin_535b/eleven_racks",
    V,
    run("marin_535b_a23b", 11 * 64, micro_batches=16, num_steps=390_251),
    mesh="11x64",
    device="gb200",
    description="The run of 18 trillion tokens: 64 GPUs in each of 11 racks.",
)
one_rack = lab.plan(
    "plans/marin_535b/one_rack",
    V,
    run("marin_535b_a23b", 64, micro_batches=16, num_steps=10_000),
    mesh="1x64",
    device="gb200",
    description="The same step on one rack, as for a rehearsal.",
)
tpu_slice = lab.plan(
    "plans/ladder_d2048/tpu_slice",
    V,
    run("ladder_d2048", 64, micro_batches=8, num_steps=220_000),
    mesh="1x64",
    device="tpu_v5p",
    description="The ladder's largest rung on a slice of 64 chips.",
)

EXPERIMENT = lab.experiment(
    "large_model",
    eleven_racks,
    one_rack,
    tpu_slice,
    question="Can the whole training step of the 535-billion-parameter mixture of experts run on 704 GPUs, before one is touched?",
    hypothesis="It fits 180 GiB a device, no expert's rows leave their rack, and only gradients, counts and scalars cross racks.",
)
