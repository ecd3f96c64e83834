"""Updates of every optimizer in float64 NumPy, written from their papers, on flat trees {path: array}; and a tree to try them on."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from marin_core.train.optimizers.config import AdamW, Lion, Muon, MuonH, Sophia

Array = npt.NDArray[np.float64]
Flat = dict[str, Array]

SHAPES = {
    "embedding": (6, 4),
    "output": (4, 6),
    "final_norm/norm/gain": (4,),
    "final_norm/w_down": (4, 2),
    "blocks/attention/w_q": (2, 4, 6),
    "blocks/attention/w_o": (2, 6, 4),
    "blocks/attention/head_gate": (2, 4, 2),
    "blocks/feed_forward/router/weight": (2, 4, 3),
    "blocks/feed_forward/experts/w_up": (2, 3, 4, 6),
}
"""A parameter of every kind; tall and wide matrices, a stack, a stack of stacks, one without a layer axis."""

MUON = ("final_norm/w_down", "blocks/attention/w_q", "blocks/attention/w_o", "blocks/feed_forward/experts/w_up")
GATES = ("blocks/attention/head_gate", "blocks/feed_forward/router/weight")
DECAYED = (*MUON, *GATES, "output")


def random_tree(seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES, scale: float = 1.0) -> Any:
    """float32 normals in the nested dict that these paths name."""
    rng = np.random.default_rng(seed)
    return nested({path: jnp.asarray((scale * rng.normal(size=shape)).astype(np.float32)) for path, shape in shapes.items()})


def nested(flat: dict[str, Any]) -> Any:
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = leaf
    return tree


def flat(tree: Any) -> Flat:
    """{path: float64 array} of a tree of arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(keys, simple=True, separator="/"): np.asarray(leaf, np.float64) for keys, leaf in leaves}


def clipped(gradient: Flat, largest: float | None) -> Flat:
    norm = np.sqrt(sum(np.sum(g**2) for g in gradient.values()))
    factor = 1.0 if largest is None else min(1.0, largest / norm)
    return {path: g * factor for path, g in gradient.items()}


def adam_directions(gradients: list[Flat], b1: float, b2: float, eps: float) -> list[Flat]:
    m = {path: np.zeros_like(g) for path, g in gradients[0].items()}
    v, found = dict(m), []
    for t, gradient in enumerate(gradients, 1):
        m = {path: b1 * m[path] + (1 - b1) * g for path, g in gradient.items()}
        v = {path: b2 * v[path] + (1 - b2) * g**2 for path, g in gradient.items()}
        found.append({path: m[path] / (1 - b1**t) / (np.sqrt(v[path] / (1 - b2**t)) + eps) for path in gradient})
    return found


def orthogonal(x: Array) -> Array:
    """Newton–Schulz on the last two axes."""
    if x.ndim > 2:
        return np.stack([orthogonal(part) for part in x])
    a, b, c = 3.4445, -4.7750, 2.0315
    y = x / (np.sqrt(np.sum(x**2)) + 1e-8)
    y = y.T if x.shape[0] > x.shape[1] else y
    for _ in range(5):
        gram = y @ y.T
        y = a * y + (b * gram + c * gram @ gram) @ y
    return np.asarray(y.T if x.shape[0] > x.shape[1] else y)


def on_sphere(p: Array, u: Array, rate: float, axes: tuple[int, ...], radius: Array | None = None) -> Array:
    def norm(x: Array) -> Array:
        return np.asarray(np.sqrt(np.sum(x**2, axis=axes, keepdims=True)))

    wanted = norm(p) if radius is None else radius
    v = p - rate * u * wanted / norm(u)
    return np.asarray(v * wanted / norm(v))


def run(config: Any, params: Flat, gradients: list[Flat], ratio: Any, num_steps: int, hessians: dict[int, Flat] | None = None) -> Flat:
    """Parameters after one update with each gradient; `ratio(step)` is the schedule."""
    gradients = [clipped(g, config.gradient_clip) for g in gradients]
    match config:
        case AdamW():
            directions = adam_directions(gradients, config.b1, config.b2, config.eps)
        case Lion():
            directions = lion_directions(config, gradients)
        case Sophia():
            assert hessians is not None
            directions = sophia_directions(config, gradients, hessians)
        case Muon():
            adam, muon = adam_directions(gradients, config.b1, config.b2, config.eps), muon_directions(config, gradients)
            directions = [{**a, **m} for a, m in zip(adam, muon, strict=True)]
        case MuonH():
            return run_muonh(config, params, gradients, ratio, num_steps)
    for step, direction in enumerate(directions):
        rate = config.learning_rate * ratio(step)
        params = {path: p - rate * (direction[path] + (config.weight_decay * p if path in DECAYED else 0)) for path, p in params.items()}
    return params


def lion_directions(config: Lion, gradients: list[Flat]) -> list[Flat]:
    m = {path: np.zeros_like(g) for path, g in gradients[0].items()}
    found = []
    for gradient in gradients:
        found.append({path: np.sign(config.b1 * m[path] + (1 - config.b1) * g) for path, g in gradient.items()})
        m = {path: config.b2 * m[path] + (1 - config.b2) * g for path, g in gradient.items()}
    return found


def sophia_directions(config: Sophia, gradients: list[Flat], hessians: dict[int, Flat]) -> list[Flat]:
    """A step uses the estimate of the steps before it; `hessians` has one for each step that makes an estimate."""
    m = {path: np.zeros_like(g) for path, g in gradients[0].items()}
    h, found = dict(m), []
    for t, gradient in enumerate(gradients):
        m = {path: config.b1 * m[path] + (1 - config.b1) * g for path, g in gradient.items()}
        corrected = {path: value / (1 - config.b1 ** (t + 1)) for path, value in m.items()}
        found.append({path: np.clip(corrected[path] / np.maximum(config.gamma * h[path], config.eps), -1, 1) for path in m})
        if t % config.update_interval == 0:
            h = {path: config.b2 * h[path] + (1 - config.b2) * hessians[t][path] for path in h}
    return found


def muon_directions(config: Muon, gradients: list[Flat]) -> list[Flat]:
    """Nesterov's look-ahead over a bias-corrected average, as Optax has it."""
    mu = config.momentum
    m = {path: np.zeros_like(gradients[0][path]) for path in MUON}
    found = []
    for t, gradient in enumerate(gradients, 1):
        m = {path: mu * m[path] + (1 - mu) * gradient[path] for path in MUON}
        ahead = {path: mu * m[path] / (1 - mu ** (t + 1)) + (1 - mu) * gradient[path] / (1 - mu**t) for path in MUON}
        found.append({path: config.update_rms * max(u.shape[-2:]) ** 0.5 * orthogonal(u) for path, u in ahead.items()})
    return found


def run_muonh(config: MuonH, params: Flat, gradients: list[Flat], ratio: Any, num_steps: int) -> Flat:
    directions = adam_directions(gradients, config.b1, config.b2, config.eps)
    m = {path: np.zeros_like(params[path]) for path in MUON}
    start = dict(params)
    adam_peak = config.adam_learning_rate or config.learning_rate * 3 / 13
    for step, gradient in enumerate(gradients):
        m = {path: config.momentum * m[path] + gradient[path] for path in MUON}
        after = {}
        for path, p in params.items():
            rate = config.learning_rate * ratio(step)
            axes = tuple(range(1 if path.startswith("blocks/") else 0, p.ndim))
            if "experts" in path and config.sphere == "per_expert":
                axes = axes[1:]
            radius = np.sqrt(np.sum(start[path] ** 2, axis=axes, keepdims=True)) if config.radius == "init" else None
            if path in MUON:
                after[path] = on_sphere(p, orthogonal(gradient[path] + config.momentum * m[path]), rate, axes, radius)
            elif path == "output":
                after[path] = on_sphere(p, directions[step][path], rate, axes, radius)
            else:
                decay = config.gate_decay * max(1 - step / num_steps, 0) if path in GATES else 0
                after[path] = p - adam_peak * ratio(step) * (directions[step][path] + decay * p)
        params = after
    return params
