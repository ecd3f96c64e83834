"""The mixture-of-experts transformer in Flax NNX."""
