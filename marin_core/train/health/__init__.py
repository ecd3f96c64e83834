"""Whether a run is well: rules with named causes over two hours of its rows, and a record of every alert. Imports no JAX."""
