"""The order of the training data: a pure function of mixture, batches and step. It is known before a run, and no token is read for it."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

import numpy as np

from marin_core.data.blocks import MixtureBlocks
from marin_core.data.component_order import IO_BLOCK, ComponentOrder, CutOrder, Order
from marin_core.data.mixture import Component, Mixture
from marin_core.data.permutation import UNIT, Int64
from marin_core.data.run_steps import RunSteps, Stage
from marin_core.errors import ConfigError
from marin_core.report import Scalar

FOREVER = 1 << 62
"""Sequences after which nothing is looked for."""


class Places(NamedTuple):
    """Where the sequences of a batch come from: component (index in name order), epoch and sequence number, int64 [B] each."""

    component: Int64
    epoch: Int64
    sequence: Int64


class DataOrder:
    """Which sequence stands where in every batch of a run.

    Mixture blocks, and with them the phases, lie on the sequences of the run in their order, whatever batches these are cut into: another
    batch size keeps the order. Where the sequence length changes, each component goes on with its next shuffle window, so that no token is
    seen again before its epoch ends (`prior_context_phases` of `spec/training.md` §5.2). Any step is found in constant time.

    Args:
        mixture: what is mixed.
        stages: batches of the run in order, the first from step 0. A run that continues another one's data gives that one's stages too,
            and asks for the steps after them.
        num_steps: steps of the run. Without it the mixture can have one phase only and whole components, and no end is checked.
        seed: replaces the mixture's seed.

    Attributes:
        first_steps: completed updates at which each phase begins.
        end_step: steps after which the data ends by the mixture's stop rule; None = never.

    Raises:
        ConfigError: batches or phases that don't fit the mixture; a run that exceeds its epochs, its data or the target of its simulated
            epochs. Names the nearest value that is allowed.
    """

    def __init__(self, mixture: Mixture, stages: Sequence[Stage], num_steps: int | None = None, seed: int | None = None) -> None:
        self.mixture = mixture
        self.names = tuple(mixture.components)
        self._seed = mixture.seed if seed is None else seed
        self._steps = RunSteps(stages)
        self._weights = [[phase.integer_weights[name] for name in self.names] for phase in mixture.phases]
        self._check_lengths()
        self.first_steps = _first_steps(mixture, self._steps, num_steps)
        first_blocks = [self._steps.sequences_before(step) // mixture.block_sequences for step in self.first_steps]
        self._blocks = MixtureBlocks(mixture.block_sequences, list(zip(first_blocks, self._weights, strict=True)), self._seed)
        share = _share_of_target(mixture, self._steps, num_steps)
        self._contexts: list[_Context] = []
        for first_step, length in self._steps.lengths():
            self._contexts.append(self._make_context(first_step, length, share))
        self.end_step = self._find_end()
        if num_steps is not None:
            self._check_run(num_steps)

    # What a step is made of ----------------------------------------------------------------------------------------

    def stage(self, step: int) -> Stage:
        """Size and sequence length of the batch of a step."""
        return self._steps.stage(step)

    def places(self, step: int, host: int = 0, hosts: int = 1) -> Places:
        """Where the rows [host·B/hosts, (host + 1)·B/hosts) of the batch of a step come from.

        Raises:
            ConfigError: if hosts don't divide B, or the data ends before the step.
        """
        size = self.stage(step).global_batch_size
        if hosts < 1 or size % hosts or not 0 <= host < hosts:
            raise ConfigError(
                f"host {host} of {hosts} can't take an equal share of global_batch_size {size}",
                advice="Choose a batch that the number of hosts divides.",
            )
        if self.end_step is not None and step >= self.end_step:
            raise ConfigError(
                f"step is {step}, the data ends after {self.end_step} steps by the rule {self.mixture.stop!r}",
                advice=f"Train for at most {self.end_step} steps, or mix with stop = 'restart'.",
            )
        rows = size // hosts
        component, rank = self._blocks.ranks(self._steps.sequences_before(step) + host * rows, rows)
        context = self._context(step)
        epoch, sequence = np.zeros_like(rank), np.zeros_like(rank)
        for index in np.unique(component).tolist():
            chosen = np.flatnonzero(component == index)
            order = context.orders[index]
            assert order is not None, "a component without sequences has weight 0"  # noqa: S101
            epochs, positions = np.divmod(rank[chosen] + (context.numbers[index] - context.counts[index]), order.n)
            epoch[chosen] = epochs
            for number in range(int(epochs[0]), int(epochs[-1]) + 1):  # ranks of a component rise with the rows
                inside = epochs == number
                sequence[chosen[inside]] = order.sequences(number, positions[inside])
        return Places(component, epoch, sequence)

    # What came before a step ---------------------------------------------------------------------------------------

    def consumed(self, step: int) -> dict[str, int]:
        """Sequences of each component in all steps before `step`, of whatever length they were."""
        return dict(zip(self.names, self._counts(step), strict=True))

    def epochs(self, step: int) -> dict[str, Fraction]:
        """How often each component has been read before `step`. What a change of the sequence length skips counts as read."""
        progress = self._progress(self._context(max(step - 1, 0)), step)
        return {name: Fraction(done, max(n, 1)) for name, (done, n) in zip(self.names, progress, strict=True)}

    def composition(self, step: int) -> list[dict[str, Scalar]]:
        """What the steps before `step` were made of: a row for each phase and each component that has a weight in it.

        Columns: phase, first_step, component, expected_tokens (by weight), realised_tokens, epochs (of the component by the end of the
        phase, or by `step`).
        """
        rows: list[dict[str, Scalar]] = []
        for phase, (first, end) in enumerate(pairwise((*self.first_steps, step))):
            first, end = min(first, step), min(end, step)
            tokens = self._steps.tokens_before(end) - self._steps.tokens_before(first)
            realised = [0] * len(self.names)
            for low, high in pairwise(sorted({first, end, *(s for s in self._steps.firsts if first < s < end)})):
                length = self.stage(low).sequence_length
                for index, (before, after) in enumerate(zip(self._counts(low), self._counts(high), strict=True)):
                    realised[index] += (after - before) * length
            epochs = self.epochs(end) if tokens else {}
            rows += [
                {
                    "phase": phase,
                    "first_step": first,
                    "component": name,
                    "expected_tokens": round(Fraction(tokens * weight, UNIT)),
                    "realised_tokens": realised[index],
                    "epochs": round(float(epochs[name]), 6),
                }
                for index, (name, weight) in enumerate(zip(self.names, self._weights[phase], strict=True))
                if weight and tokens
            ]
        return rows

    def _counts(self, step: int) -> list[int]:
        return self._blocks.counts_before(self._steps.sequences_before(step))

    # Sequence lengths ----------------------------------------------------------------------------------------------

    def _check_lengths(self) -> None:
        """Sequences of every length must fill io-blocks, which are the same tokens at all lengths."""
        block_tokens = IO_BLOCK * self.mixture.sequence_length
        for _, length in self._steps.lengths():
            if self.mixture.pack == "documents" and length != self.mixture.sequence_length:
                raise ConfigError(
                    f"sequence_length is {length}, the mixture's documents are packed into sequences of {self.mixture.sequence_length}",
                    advice="Train at that length, or mix with another.",
                )
            if block_tokens % length:
                divisors = {d for low in range(1, isqrt(block_tokens) + 1) if block_tokens % low == 0 for d in (low, block_tokens // low)}
                nearest = min(divisors, key=lambda divisor: (abs(divisor - length), divisor))
                raise ConfigError(
                    f"sequence_length {length} doesn't divide the {block_tokens} tokens of {IO_BLOCK} sequences of the mixture",
                    advice=f"The nearest length that does is {nearest}; powers of two usually do.",
                )

    def _make_context(self, first_step: int, length: int, share: Fraction | None) -> "_Context":
        """The orders of all components at a sequence length, and where each goes on after the context before."""
        counts = self._counts(first_step)
        orders: list[Order | None] = []
        windows, numbers = [], []
        for index, (name, component) in enumerate(self.mixture.components.items()):
            order = self._order(name, component, length, share)
            if order is None and self._has_weight(index, first_step):
                raise ConfigError(
                    f"component {name!r} has {component.tokens} tokens{' before it is cut' if share else ''}, fewer than one sequence of"
                    f" {length}, and a weight from step {first_step} on",
                    advice="Shorten the sequences, or leave the component out.",
                )
            window = self._contexts[-1].next_window(index, counts[index]) if self._contexts else (0, 0)
            orders.append(order)
            windows.append(window)
            numbers.append(0 if order is None else window[0] * order.n + order.window_start(*window))
        return _Context(first_step, counts, orders, windows, numbers)

    def _order(self, name: str, component: Component, length: int, share: Fraction | None) -> Order | None:
        block_tokens = IO_BLOCK * self.mixture.sequence_length
        tokens = component.tokens if component.packing is None else component.packing.rows * length
        whole = ComponentOrder.of_length(name, tokens, length, block_tokens, self.mixture.window_blocks, self._seed)
        if whole is None or share is None:
            return whole
        cut = int(whole.n * share)
        return CutOrder(whole, name, cut, self.mixture.window_blocks, self._seed) if cut else None

    def _has_weight(self, component: int, first_step: int) -> bool:
        """Whether a component has one at any step of the context that begins there."""
        last = next((step for step, _ in self._steps.lengths() if step > first_step), None)
        phases = enumerate(pairwise((*self.first_steps, None)))
        return any(
            self._weights[phase][component] > 0 and (last is None or begin < last) and (end is None or end > first_step)
            for phase, (begin, end) in phases
            if begin is not None
        )

    def _context(self, step: int) -> "_Context":
        return self._contexts[bisect_right([context.first_step for context in self._contexts], step) - 1]

    def _progress(self, context: "_Context", step: int) -> list[tuple[int, int]]:
        """Sequences of each component that lie behind a step within a context, repeats included, and those of an epoch."""
        return [
            (number + count - begin, order.n) if order is not None else (0, 0)
            for number, begin, order, count in zip(context.numbers, context.counts, context.orders, self._counts(step), strict=True)
        ]

    # The end of the data -------------------------------------------------------------------------------------------

    def _find_end(self) -> int | None:
        if self.mixture.stop == "first_exhausted":
            return self._last_step_within(Fraction(1))
        if self.mixture.stop == "all_exhausted":
            used = [any(weights[index] for weights in self._weights) for index in range(len(self.names))]
            return self._first_step_where(lambda progress: all(done >= n for (done, n), use in zip(progress, used, strict=True) if use))
        return None

    def _last_step_within(self, epochs: Fraction) -> int | None:
        """The most steps in which no component is read more often."""
        beyond = self._first_step_where(lambda progress: any(done > epochs * n for done, n in progress))
        return None if beyond is None else beyond - 1

    def _first_step_where(self, reached: Callable[[list[tuple[int, int]]], bool]) -> int | None:
        """The fewest steps after which `reached(progress)` holds; within a context it holds for good. None if it never does."""
        ends: list[int | None] = [context.first_step for context in self._contexts[1:]]
        for context, end in zip(self._contexts, [*ends, None], strict=True):

            def holds(step: int, context: _Context = context) -> bool:
                return reached(self._progress(context, step))

            last = context.first_step + 1 if end is None else end
            while end is None and not holds(last) and self._steps.sequences_before(last) < FOREVER:
                last *= 2
            if holds(last):
                return bisect_left(range(last), True, lo=context.first_step + 1, key=holds)
        return None

    def _check_run(self, num_steps: int) -> None:
        mixture = self.mixture
        if self.end_step is not None and num_steps > self.end_step:
            raise ConfigError(
                f"num_steps is {num_steps}, the data ends after {self.end_step} steps by the rule {mixture.stop!r}",
                advice=f"Set num_steps to at most {self.end_step}, or mix with stop = 'restart'.",
            )
        epochs = self.epochs(num_steps)
        worst = max(self.names, key=lambda name: epochs[name])
        if epochs[worst] > Fraction(mixture.max_epochs):
            allowed = self._last_step_within(Fraction(mixture.max_epochs))
            raise ConfigError(
                f"component {worst!r} would be read {float(epochs[worst]):.2f} times in {num_steps} steps, the mixture's max_epochs is"
                f" {mixture.max_epochs:g}",
                advice=f"End this order after at most {allowed} steps, lower the weight of {worst!r}, or raise max_epochs.",
            )


def check_order(mixture: Mixture, num_steps: int, stages: Sequence[Stage]) -> dict[str, float]:
    """Epochs of each component over a run, before it begins.

    Raises:
        ConfigError: as `DataOrder`; the component that is read most often is named if that is too often.
    """
    epochs = DataOrder(mixture, stages, num_steps).epochs(num_steps)
    return {name: float(times) for name, times in epochs.items()}


class _Context(NamedTuple):
    """The steps from one change of the sequence length to the next. All lists are by component.

    Attributes:
        first_step: where it begins.
        counts: sequences in the steps before it.
        orders: None where no sequence of this length is there.
        windows: epoch and shuffle window with which it begins.
        numbers: sequences of this length that lie behind those windows.
    """

    first_step: int
    counts: list[int]
    orders: list[Order | None]
    windows: list[tuple[int, int]]
    numbers: list[int]

    def next_window(self, index: int, count: int) -> tuple[int, int]:
        """Epoch and window with which a component goes on in the context after this one, before which it had `count` sequences."""
        order, used = self.orders[index], count - self.counts[index]
        if order is None or used == 0:
            return self.windows[index]
        epoch, position = divmod(self.numbers[index] + used - 1, order.n)
        return order.window_after(epoch, position)


def _first_steps(mixture: Mixture, steps: RunSteps, num_steps: int | None) -> tuple[int, ...]:
    """Where the phases begin: always with a mixture block."""
    firsts = [0]
    size = mixture.block_sequences
    for phase in mixture.phases[1:]:
        if num_steps is None:
            raise ConfigError("num_steps is not given, and the mixture has several phases", advice="Give the steps of the run.")
        exact = isinstance(phase.start, int)
        wanted = int(phase.start) if exact else int(num_steps * Fraction(phase.start))
        first = steps.block_start(size, wanted)
        if first is None or max(first, wanted) >= num_steps:
            where = "no step does" if first is None else f"the nearest step that does is {first}"
            raise ConfigError(
                f"the phase from {phase.start} on must begin before the run of {num_steps} steps ends, and with a mixture block of {size}"
                f" sequences; {where}",
                advice="Train longer, or choose block_sequences and batch sizes that share more factors.",
            )
        if exact and first != wanted:
            raise ConfigError(
                f"the phase from step {wanted} on doesn't begin with a mixture block of {size} sequences",
                advice=f"The nearest step that does is {first}.",
            )
        if first <= firsts[-1]:
            raise ConfigError(
                f"the phase from {phase.start} on would begin at step {first}, the one before it at {firsts[-1]}",
                advice=f"Choose starts farther apart: a phase has at least one mixture block of {size} sequences.",
            )
        firsts.append(first)
    return tuple(firsts)


def _share_of_target(mixture: Mixture, steps: RunSteps, num_steps: int | None) -> Fraction | None:
    """What share of each component takes part: that of the run in its target (simulated epoching); None = components are whole."""
    if mixture.target_tokens is None:
        return None
    if num_steps is None:
        raise ConfigError("num_steps is not given, and the mixture has target_tokens", advice="Give the steps of the run.")
    if len(steps.lengths()) > 1:
        raise ConfigError(
            "the run changes its sequence length, and the mixture has target_tokens", advice="Simulate epochs at one sequence length."
        )
    tokens = steps.tokens_before(num_steps)
    if tokens > mixture.target_tokens:
        raise ConfigError(
            f"the run has {tokens} tokens, more than the mixture's target_tokens = {mixture.target_tokens}",
            advice=f"Set num_steps to at most {steps.steps_within(mixture.target_tokens)}, or leave target_tokens out.",
        )
    return Fraction(tokens, mixture.target_tokens)
