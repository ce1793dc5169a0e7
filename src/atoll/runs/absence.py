"""Which parties were missing how often: counted from the history, put into words for summary and report.

Metrics of a round in which a party was missing leave out that party's nodes, so they cannot be compared with those of other
rounds: a model may look better only because the party it is worst for was missing. Such a round is marked `partial`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

MAX_LISTED = 5  # parties that a sentence lists one by one


def rounds_missed(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Party → number of rounds of the history in which it was missing, in party order; the others are left out."""
    counts = Counter(party for row in rows for party in row.get("missing") or ())
    return {party: counts[party] for party in sorted(counts, key=int)}


def summary(missing: Mapping[str, int], rounds: int, names: Sequence[str] = ()) -> str:
    """For instance `party 1 in 4 of 10 rounds, party 3 in 1`; `names` are the parties' names, if known."""
    if not missing:
        return ""
    often = sorted(missing.items(), key=lambda item: (-item[1], int(item[0])))
    called = {str(party): name for party, name in enumerate(names)}
    words = [f"{called.get(party, f'party {party}')} in {count}" for party, count in islice(often, MAX_LISTED)]
    words[0] += f" of {rounds} round{'s' if rounds != 1 else ''}"
    return ", ".join(words) + (f" and {len(often) - MAX_LISTED} more parties" if len(often) > MAX_LISTED else "")


def verdict(missing: Mapping[str, int], partial: bool, count_missing: bool) -> str:
    """What that means for the best round."""
    if not missing:
        return ""
    if not partial:
        return "rounds without a party may be the best" if count_missing else "no such round is the best"
    if count_missing:
        return "the best round is one of them: its metrics leave parties out"
    return "every evaluated round lacked a party: the best is one of them, and its metrics leave parties out"
