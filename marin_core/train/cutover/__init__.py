"""Cut-over: a change in mid-run, tried in a fork beside the run that goes on (`spec/training.md` §11). Imports no JAX."""
