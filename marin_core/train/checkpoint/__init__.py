"""Checkpoints: what makes a run continue after anything.

`config` says when to save and for how long to keep; `store` saves and restores; `snapshot` is what it saves from; `saving` keeps a slow
store from hanging a run; `metadata` is the file that commits a checkpoint; `digest` tells damaged arrays; `mirror` keeps a run's folder in
a bucket too. Only `config`, `metadata` and `mirror` import no JAX.
"""
