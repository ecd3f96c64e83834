"""A real control plane on one machine, for tests: see `cluster.Bed`."""
