"""Figures as plain data: what is drawn, not with what. `plotly` draws them on the page, `matplotlib` for a paper."""

from atoll.reports.figures.figure import KINDS, PALETTE, Figure, Heat, Series, thin

__all__ = ["KINDS", "PALETTE", "Figure", "Heat", "Series", "thin"]
