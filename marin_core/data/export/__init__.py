"""Token caches in the layouts of other training programs."""
