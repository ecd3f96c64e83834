"""Optimizers. `config` says what they are and imports no JAX, `groups` which parameters go where, `build` makes them."""
