"""What a training step would need on hardware that isn't here: it is compiled ahead of time for that many devices, and its program read."""
