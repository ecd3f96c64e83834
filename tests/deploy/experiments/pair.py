"""Two sources that need nothing: one is made while services are killed, the other while everything is."""

from marin_core import experiment as lab

topics = lab.raw_source("raw/topics", "v1", lab.PythonStdlib(domains=("topics",), unit_bytes=100_000), license="PSF-2.0")
docstrings = lab.raw_source("raw/docstrings", "v1", lab.PythonStdlib(domains=("docstrings",), unit_bytes=100_000), license="PSF-2.0")

EXPERIMENT = lab.experiment("pair", topics, docstrings, question="Is each made once?", hypothesis="Yes, whatever is killed meanwhile.")
