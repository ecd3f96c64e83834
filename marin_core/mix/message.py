"""What a commit says when nobody says anything: tokens and shards that came or went, in words."""

from collections.abc import Iterable, Sequence
from decimal import Decimal

from marin_core.errors import ConfigError
from marin_core.mix.commit import Change

MOVING = ("tokens", "documents", "bytes", "shards", "missing_shards", "cache_digest", "record_digest", "epochs_at_planned")
"""Fields of a domain that change by themselves when shards arrive."""

DOMAINS_NAMED = 20


def message_of(diff: Sequence[Change], given: str | None, *, is_first: bool, weights_are_derived: bool) -> str:
    """The message of a commit: composed where only tokens moved, else what was given.

    Args:
        given: the curator's, of the mix file or of the git commit that changed it.
        weights_are_derived: from the tokens, so that they move with them.

    Raises:
        ConfigError: weights were changed by hand, or stand there for the first time, and no message was given.
    """
    if not is_first and all(_moved_by_itself(change.path, weights_are_derived=weights_are_derived) for change in diff):
        return composed(diff)
    if given and given.strip():
        return given
    if is_first or any(change.path.startswith("/phases/") for change in diff):
        paths = ", ".join(change.path for change in diff if change.path.startswith("/phases/"))
        raise ConfigError(
            f"field 'message': weights {f'changed by hand ({paths[:300]})' if paths else 'are published for the first time'} "
            "and nothing says why",
            advice="Set message= where the mix is declared, or commit the change to git with a message.",
        )
    return composed(diff)


def _moved_by_itself(path: str, *, weights_are_derived: bool) -> bool:
    parts = path.split("/")[1:]
    if parts[0] == "phases":
        return weights_are_derived and len(parts) == 4 and parts[2] == "weights"
    return parts[0] == "domains" and len(parts) >= 3 and parts[2] in MOVING


def composed(diff: Iterable[Change]) -> str:
    """`web +1.2 B tokens, 3 shards; code −12 tokens`, in the order of names; what isn't a count is named by its path."""
    counts: dict[str, dict[str, int]] = {}
    others: list[str] = []
    for change in diff:
        parts = change.path.split("/")[1:]
        if len(parts) == 3 and parts[0] == "domains" and parts[2] in ("tokens", "shards"):
            counts.setdefault(parts[1], {})[parts[2]] = (change.new or 0) - (change.old or 0)
        elif not _moved_by_itself(change.path, weights_are_derived=True):
            others.append(parts[0] if parts[0] != "domains" else "/".join(parts[1:3]))
    said = [_moved(name, moved) for name, moved in counts.items()]
    said += [f"{name} changed" for name in dict.fromkeys(others)]
    more = f"; and {len(said) - DOMAINS_NAMED} more" if len(said) > DOMAINS_NAMED else ""
    return "; ".join(said[:DOMAINS_NAMED]) + more if said else "the same tokens, from other files"


def _moved(name: str, moved: dict[str, int]) -> str:
    tokens, shards = moved.get("tokens", 0), moved.get("shards", 0)
    parts = [f"{_sign(tokens)}{rounded(abs(tokens))} tokens"] if tokens or not shards else []
    if shards:
        parts.append(f"{'' if shards > 0 and tokens > 0 else _sign(shards)}{abs(shards)} shard{'' if abs(shards) == 1 else 's'}")
    return f"{name} {', '.join(parts)}"


def _sign(number: int) -> str:
    return "−" if number < 0 else "+"


def rounded(number: int) -> str:
    """A count for people: 999, 1.2 k, 3.4 M, 1.2 B, 5.6 T."""
    if number < 1000:
        return str(number)
    value = Decimal(number)
    for unit in ("k", "M", "B"):
        value /= 1000
        if value < Decimal("999.95"):
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} T"
