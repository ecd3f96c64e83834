"""A corpus curated in the open: pages, help texts and docstrings of Python's library, measured once and decided on as often as wanted.

Nothing is fetched: it runs on any machine with Python. Change a threshold below, look at `marin preview filtered/python_pages`, and
materialize again: only the last stage is built anew.
"""

from marin_assets.experiments import tutorial
from marin_core import experiment as lab

V = "v1"

library = lab.raw_source("raw/python_library", V, lab.PythonStdlib(domains=("code", "docstrings", "topics", "html")), license="PSF-2.0")
page_format = lab.Jsonl(html_field="html", html=lab.FromHtml(to="markdown"))
prose = lab.documents("documents/python_prose", V, library, domains=["docstrings", "topics"], shards=2)
pages = lab.documents("documents/python_pages", V, library, domains=["html"], format=page_format, shards=4)
code = lab.documents("documents/python_code", V, library, domains=["code"], shards=4)

# What is known about each document. No threshold stands here.
is_prose = lab.quality_classifier("classifiers/python_prose", V, {"prose": prose, "code": code}, positive="prose")
measures: list[lab.MeasureConfig] = [
    lab.LengthMeasure(),
    lab.GopherQualityMeasure(),
    lab.GopherRepetitionMeasure(),
    lab.LanguageMeasure(),
    lab.PersonalDataMeasure(),
    lab.QualityMeasure(),
    lab.TokenCountMeasure(),
]
resources = {"classifier": is_prose, "tokenizer": tutorial.bpe}
page_values = lab.attributes("attributes/python_pages", V, pages, measures, resources=resources)
prose_values = lab.attributes("attributes/python_prose", V, prose, measures, resources=resources)

# Pages repeat docstrings, and may hold the questions that models are asked. Prose comes first, so it stays where both say the same.
near = lab.near_duplicates(
    "duplicates/python_near",
    V,
    {
        prose: lab.signatures("signatures/python_prose", V, prose),
        pages: lab.signatures("signatures/python_pages", V, pages),
    },
)
asked = lab.contamination_index("contamination/python_tasks", V, {"python_tasks": tutorial.tasks})
prose_leaks = lab.contamination("contamination/python_prose", V, prose, asked)
page_leaks = lab.contamination("contamination/python_pages", V, pages, asked)

# What is done about it. Help pages list the same names and phrases again and again, so Gopher's limits are wide.
rules: list[lab.FilterRule] = [
    lab.MinCharacters(characters=200),
    lab.KeepLanguages(languages=("en",), min_letters=2_000),
    lab.GopherRepetition(
        max_duplicate_lines=0.6,
        max_duplicate_line_characters=0.6,
        max_top_n_grams=((2, 0.3), (3, 0.4)),
        max_duplicate_n_grams=((10, 0.5),),
    ),
    lab.MinQuality(threshold=0.2),
    lab.DropNearDuplicates(),
    lab.DropContaminated(),
    lab.MaskPersonalData(),
]
filtered_prose = lab.consolidated("filtered/curated_prose", V, prose, attributes=[prose_values, near, prose_leaks], rules=rules)
filtered_pages = lab.consolidated("filtered/curated_pages", V, pages, attributes=[page_values, near, page_leaks], rules=rules)
summaries = [
    lab.manifest("manifests/curated_prose", V, filtered_prose),
    lab.manifest("manifests/curated_pages", V, filtered_pages),
]

prose_tokens = lab.tokenized("tokenized/curated_prose", V, filtered_prose, tutorial.bpe)
page_tokens = lab.tokenized("tokenized/curated_pages", V, filtered_pages, tutorial.bpe)
corpus = lab.mixture("mixtures/curated", V, {prose_tokens: 0.3, page_tokens: 0.7}, sequence_length=128)
mix = lab.published_mix("published/curated", corpus, author="curator", message="First weights, by hand.")

EXPERIMENT = lab.experiment(
    "curation",
    corpus,
    mix,
    *summaries,
    question="How much of Python's generated help pages is left once what docstrings already say and what models are asked is gone?",
    hypothesis="Less than half of the bytes, and every page that holds a question of the tutorial's tasks is named.",
)
