"""A family of six shards, one for each file of a folder that the test fills."""

import os

from marin_core import experiment as lab

DOCUMENTS_VARIABLE = "MARIN_TEST_DOCUMENTS"
SHARDS = 6

source = lab.LocalFiles(root=os.environ.get(DOCUMENTS_VARIABLE, "/nonexistent"))
raw = lab.raw_source("raw/words", "dev", source, license="CC0-1.0")
shards = lab.filtered("filtered/words", "dev", raw, shards=SHARDS, filters=[lab.MinCharacters(characters=40)])

EXPERIMENT = lab.experiment("words", shards, question="Is every shard built once?", hypothesis="Yes, whatever is killed meanwhile.")
