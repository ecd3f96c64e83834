"""Documents that rules keep and drop, one of which would be a script in a page that doesn't escape."""

import os

from marin_core import experiment as lab

raw = lab.raw_source("raw/curated", "v1", lab.LocalFiles(root=os.environ.get("MARIN_TEST_DOCUMENTS") or "nowhere"), license="CC0-1.0")
documents = lab.documents("documents/curated", "v1", raw, shards=2)
values = lab.attributes("attributes/curated", "v1", documents, [lab.LengthMeasure(), lab.GopherQualityMeasure()])
filtered = lab.consolidated(
    "filtered/curated",
    "v1",
    documents,
    attributes=[values],
    rules=[lab.MinCharacters(characters=120), lab.GopherQuality(min_words=25)],
)

EXPERIMENT = lab.experiment(
    "curated", lab.manifest("manifests/curated", "v1", filtered), question="Can a person see what was dropped?", hypothesis="Yes."
)
