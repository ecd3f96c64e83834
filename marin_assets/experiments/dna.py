"""Beyond text: two genomes, single bases as tokens, and the same steps as for prose. See docs/tutorials/dna.md."""

from pathlib import Path

from marin_core import experiment as lab
from marin_core.artifact import ArtifactStep

V = "v1"
GENOMES = Path(__file__).parent / "data" / "dna"
BASES_A_DOCUMENT = 1_024


def genome(name: str, files: str) -> ArtifactStep:
    """The documents of one organism: windows of its sequences."""
    source = lab.LocalFiles(root=str(GENOMES), pattern=files, domain="genome")
    raw = lab.raw_source(f"raw/dna/{name}", V, source, license="LicenseRef-GenBank", description=f"FASTA from GenBank: {name}.")
    return lab.documents(f"documents/dna/{name}", V, raw, format=lab.Fasta(window=BASES_A_DOCUMENT, uppercase=True), shards=1)


coli = genome("escherichia_coli", "escherichia_coli.fa.gz")
phage = genome("lambda_phage", "lambda_phage.fa.gz")

bases = lab.kmer_tokenizer("tokenizer/dna_bases", V, k=1)
coli_tokens = lab.tokenized("tokenized/dna/escherichia_coli", V, coli, bases)
phage_tokens = lab.tokenized("tokenized/dna/lambda_phage", V, phage, bases)
held_out = {"coli": lab.tokenized("tokenized/dna/escherichia_coli_held_out", V, coli, bases, split="held_out")}
data = lab.mixture("mixtures/dna", V, [coli_tokens, phage_tokens], temperature=2.0, planned_tokens=[614_400], sequence_length=128)

run = lab.train_lm(
    "checkpoints/dna/moe_tiny",
    V,
    data,
    model=lab.moe_tiny(vocab_size=259),
    optimizer=lab.AdamW(learning_rate=3e-3, schedule=lab.Wsd(warmup_steps=30)),
    num_steps=300,
    global_batch_size=16,
    checkpoints=lab.CheckpointPolicy(permanent_every_steps=150, temporary_every_steps=50),
)
baseline = lab.ngram_baseline("baselines/dna_trigram", V, data, held_out=held_out)

EXPERIMENT = lab.experiment(
    "dna",
    run,
    baseline,
    question="Does the lab's path from raw files to a trained model hold for something that isn't text?",
    hypothesis="A loss below that of a guess among four bases, 1.386 nats a token (2 bits a base), after 300 steps.",
)
