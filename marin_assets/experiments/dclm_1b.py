"""DCLM 1B/1x (arXiv 2406.11794): the 1.4-billion-parameter baseline of DataComp-LM, 28.8 billion tokens, once through its web text.

Data and tokenizer are declared with the commits that they had; the first materialization fetches them. The run wants a slice of
accelerators; its plan needs none: `marin materialize plans/dclm_1b/slice`.

Marin's tutorial also mixes in Proof-Pile-2, 1.3 % of the tokens. It joins here as StarCoderData does, with the commit that
`marin resolve hf:EleutherAI/proof-pile-2@main` prints.
"""

from marin_assets.catalog import DCLM_MIX, dclm_baseline, starcoderdata
from marin_core import experiment as lab
from marin_core.data.config import Specials
from marin_core.data.sources.config import HubFiles

V = "v1"
TOKENS = 28_800_000_000
SEQUENCE = 2_048
BATCH = 256

# One of the hundred parts of DCLM-baseline holds about 40 billion tokens in about 278 files.
web_source = dclm_baseline(
    V, revision="a3b142c183aebe5af344955ae20836eb34dcf69b", patterns=["global-shard_01_of_10/local-shard_0_of_10/*.jsonl.zst"]
)
code_source = starcoderdata(V, revision="9fc30b578cedaec69e47302df72cf00feed7c8c4", languages=["python"])
web = lab.filtered("filtered/dclm_baseline", V, web_source.raw, format=web_source.format, shards=278)
code = lab.filtered("filtered/starcoderdata_python", V, code_source.raw, format=code_source.format, shards=59)

llama3 = lab.tokenizer_from(
    "tokenizer/llama3",
    V,
    lab.raw_source(
        "raw/llama3_tokenizer",
        V,
        HubFiles(
            repository="meta-llama/Llama-3.1-8B",
            repository_type="model",
            revision="d04e592bb4f6aa9cfee91e2e20afa771667e1d4b",
            patterns=("tokenizer.json",),
        ),
        license="Llama-3.1-Community",
    ),
    specials=Specials(bos="<|begin_of_text|>", eos="<|end_of_text|>", pad="<|finetune_right_pad_id|>"),
)
web_tokens = lab.tokenized("tokenized/dclm_baseline", V, web, llama3, engine="gigatoken")
code_tokens = lab.tokenized("tokenized/starcoderdata_python", V, code, llama3, engine="gigatoken")
data = lab.mixture(
    "mixtures/dclm_1b",
    V,
    {web_tokens: DCLM_MIX["dclm_baseline"], code_tokens: DCLM_MIX["starcoderdata"]},
    planned_tokens=[TOKENS],
    sequence_length=SEQUENCE,
)

# The hyperparameters of the paper's table for 1B-1x.
run = lab.train_lm(
    "checkpoints/dclm_1b/llama_1b",
    V,
    data,
    model=lab.preset("llama_8b").changed(
        d_model=2_048,
        layers=24,
        heads=16,
        head_dim=128,
        local_kv_heads=16,
        global_kv_heads=16,
        feed_forward_width=8_192,
        max_sequence_length=SEQUENCE,
        window=SEQUENCE,
        z_loss=1e-4,
    ),
    optimizer=lab.AdamW(learning_rate=3e-3, weight_decay=0.033, schedule=lab.Cosine(warmup_steps=5_000)),
    num_steps=TOKENS // (SEQUENCE * BATCH),
    global_batch_size=BATCH,
    checkpoints=lab.CheckpointPolicy(permanent_every_steps=5_000),
)
slice_plan = lab.plan("plans/dclm_1b/slice", V, run, mesh="1x64", device="tpu_v5p", total_tokens=TOKENS)

EXPERIMENT = lab.experiment(
    "dclm_1b",
    run,
    slice_plan,
    question="Does the lab reproduce the DCLM 1B/1x baseline?",
    hypothesis="The loss on held-out web text that Marin's reproduction has, within the spread of seeds.",
)
