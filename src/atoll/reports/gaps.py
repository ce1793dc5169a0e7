"""What a report cannot show, and why: one sentence per reason, whatever it is missing and for how many rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll.reports.runs import listed

MAX_ROWS = 6  # that a sentence lists


@dataclass
class Gaps:
    """Parts of rows that are left out, by reason."""

    parts: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # reason → row → parts
    others: list[str] = field(default_factory=list)  # whole sentences

    def add(self, row: str, part: str, reason: str) -> None:
        """Leave a part of a row out."""
        self.parts.setdefault(reason, {}).setdefault(row, []).append(part)

    def sentences(self) -> list[str]:
        """For instance `Not shown of fedavg: embeddings and partition; the data is not here.`"""
        sentences = []
        for reason, by_row in self.parts.items():
            groups: dict[tuple[str, ...], list[str]] = {}
            for row, parts in by_row.items():
                groups.setdefault(tuple(parts), []).append(row)
            for missing, rows in groups.items():
                more = [f"{len(rows) - MAX_ROWS} more"] if len(rows) > MAX_ROWS else []
                sentences.append(f"Not shown of {listed([*rows[:MAX_ROWS], *more])}: {listed(missing)}; {reason}.")
        return sentences + self.others
