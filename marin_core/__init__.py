"""The library of the lab: artifacts, experiments, data, model, training, evaluation. Useful without Dagster."""
