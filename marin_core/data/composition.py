"""What a mixture comes to: weights by the tokens that there are, and how far each component lasts for a planned budget."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from marin_core.data.permutation import UNIT
from marin_core.report import Check, Scalar

if TYPE_CHECKING:
    from marin_core.data.mixture import Mixture

NEVER = -1
"""Stands in tables where something doesn't happen within the budget."""


def weights_by_tokens(tokens: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Weights ∝ tokens^(1/temperature) (arXiv 1907.05019), which sum to 1 up to rounding to 12 decimals.

    In decimal arithmetic, which rounds alike everywhere; the power of a C library may differ in its last bit, and the order of training
    with it.
    """
    with localcontext(prec=50):
        exponent = 1 / Decimal(str(temperature))
        powers = {name: Decimal(count) ** exponent if count else Decimal(0) for name, count in tokens.items()}
        total = sum(powers.values(), Decimal(0)) or Decimal(1)
        return {name: float(round(power / total, 12)) for name, power in powers.items()}


@dataclass(frozen=True)
class Budget:
    """How a run of so many tokens would read a mixture, by its weights: Σ over phases of budget · weight (spec: training §5.2).

    A run's own plan rounds phases down to mixture blocks and counts whole sequences; this is exact up to that.

    Attributes:
        mixture: whose phases all begin at shares of the run.
        tokens: of the run.
    """

    mixture: "Mixture"
    tokens: int

    def available(self, name: str) -> int:
        """Tokens of one epoch of a component; simulated epochs cut it to the share that this run is of the full one."""
        sequences, target = self.mixture.components[name].sequences, self.mixture.target_tokens
        if target is not None and self.tokens < target:
            sequences = sequences * self.tokens // target
        return sequences * self.mixture.sequence_length

    def read(self, name: str) -> Fraction:
        """Tokens that the run takes of a component."""
        return sum((length * share for length, share in self._phases(name)), Fraction(0))

    def epochs(self, name: str) -> Fraction:
        """How often a component is read; 0 for one without tokens, which no phase may weigh."""
        available = self.available(name)
        return self.read(name) / available if available else Fraction(0)

    def reaches(self, name: str, epochs: Fraction) -> int:
        """Tokens of the run after which a component has been read so often; −1 = not within the budget."""
        left, passed = epochs * self.available(name), Fraction(0)
        for length, share in self._phases(name):
            if share and length * share > left:
                return int(passed + left / share)
            left -= length * share
            passed += length
        return NEVER

    def _phases(self, name: str) -> list[tuple[Fraction, Fraction]]:
        """Length in tokens and share of the component, for each phase."""
        starts = [*(Fraction(phase.start) for phase in self.mixture.phases), Fraction(1)]
        shares = [Fraction(phase.integer_weights[name], UNIT) for phase in self.mixture.phases]
        return [((end - start) * self.tokens, share) for (start, end), share in zip(pairwise(starts), shares, strict=True)]

    def shortages(self) -> list[tuple[int, str]]:
        """(tokens, component) of everything that ends the data before the budget does, the first first.

        A component may be read `max_epochs` times. The data also ends with the first component that has been read whole, or with the
        last of them, where the mixture stops so.
        """
        used = [name for name in self.mixture.components if self.read(name)]
        found = [(self.reaches(name, Fraction(self.mixture.max_epochs)), name) for name in used]
        ends = [(self.reaches(name, Fraction(1)), name) for name in used]
        if self.mixture.stop == "first_exhausted":
            found += ends
        elif self.mixture.stop == "all_exhausted" and all(at != NEVER for at, _ in ends):
            found.append(max(ends))
        first: dict[str, int] = {}
        for at, name in sorted(found):
            if at != NEVER:
                first.setdefault(name, at)
        return sorted((at, name) for name, at in first.items())


def budget_rows(budgets: list[Budget]) -> list[dict[str, Scalar]]:
    """A row for each budget and component: tokens read, epochs, after how many tokens of the run it repeats and runs out."""
    rows: list[dict[str, Scalar]] = []
    for budget in budgets:
        ends = {name: at for at, name in budget.shortages()}
        for name in budget.mixture.components:
            rows.append(
                {
                    "planned_tokens": budget.tokens,
                    "component": name,
                    "tokens_available": budget.available(name),
                    "tokens_read": int(budget.read(name)),
                    "epochs": round(float(budget.epochs(name)), 4),
                    "repeats_after_tokens": budget.reaches(name, Fraction(1)),
                    "runs_out_after_tokens": ends.get(name, NEVER),
                }
            )
    return rows


def enough_data(budgets: list[Budget]) -> Check:
    """Whether the mixture lasts for all planned budgets; names what runs out first of each, and when."""
    short = [(budget.tokens, *shortage) for budget in budgets for shortage in budget.shortages()[:1]]
    described = "; ".join(f"of {tokens} tokens {name!r} runs out after {at}" for tokens, at, name in short)
    planned = ", ".join(str(budget.tokens) for budget in budgets)
    text = described or (f"every component lasts for {planned} tokens" if budgets else "no budget is planned")
    return Check("enough_data", not short, text, {f"{name}@{tokens}": at for tokens, at, name in short})
