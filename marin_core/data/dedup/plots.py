"""Pictures of what was found."""

from pathlib import Path

import numpy as np

from marin_core.data.dedup.word_hashes import Int64


def plot_sizes(sizes: Int64, path: Path) -> None:
    """Draw how many documents are in clusters of which size, both in powers of two.

    Args:
        sizes: documents of each cluster, at least 2.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    edges = 2 ** np.arange(1, max(2, int(sizes.max(initial=2))).bit_length() + 1)
    counts = np.histogram(sizes, edges)[0]
    places = np.arange(len(counts))
    axes.bar(places, counts)
    axes.set_xticks(places, [str(low) if low == 2 else f"{low}+" for low in edges[:-1].tolist()])
    if counts.max(initial=0) > 0:
        axes.set_yscale("log")
    axes.set_xlabel("documents in the cluster, at least")
    axes.set_ylabel("clusters")
    figure.savefig(path, metadata={"Software": None})
