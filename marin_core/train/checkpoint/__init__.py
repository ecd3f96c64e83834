"""Checkpoints: what makes a run continue after anything.

`config` says when to save and for how long to keep; `store` saves and restores; `saving` keeps a slow store from hanging a run;
`metadata` is the file that commits a checkpoint; `digest` tells damaged arrays. Only `config` and `metadata` import no JAX.
"""
