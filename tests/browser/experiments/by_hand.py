"""What a person builds with the buttons of the UI."""

from marin_core import experiment as lab
from tests.browser.experiments.curated import raw

documents = lab.documents("documents/by_hand", "v1", raw, shards=2)
whole = lab.manifest("manifests/by_hand", "v1", documents)

EXPERIMENT = lab.experiment("by_hand", whole, question="Can a person build it without a terminal?", hypothesis="Yes.")
