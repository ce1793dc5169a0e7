"""The types of figures, and what all figures share: the palette and the thinning of curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from atoll.reports.page_table import PageTable

MAX_POINTS = 400  # of a curve
PALETTE = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#999999",
    "#ee7733",
    "#7766cc",
    "#44aa99",
    "#bb5588",
    "#ddcc77",
)
KINDS = 7  # rows of the comparison have the colors from 0 on, what is not a row (splits, verbs, precision …) those from here on
Point = TypeVar("Point")


@dataclass(frozen=True)
class Series:
    """One line, cloud of points or set of bars."""

    name: str
    x: Sequence[float | str]
    y: Sequence[float | None]
    color: int  # an index into the palette, which is repeated
    std: Sequence[float] | None = None  # a band around a line, whiskers on bars: one standard deviation
    mark: tuple[float, float] | None = None  # a point of a line that stands out: the best round
    size: Sequence[float] | None = None  # areas of the points of a reliability curve, at most 1
    texts: Sequence[str] | None = None  # what each point or bar is, for the reader who points at it


@dataclass(frozen=True)
class Heat:
    """A table of shares drawn as colors; `texts` has what each cell counts."""

    x: Sequence[str]
    y: Sequence[str]
    share: Sequence[Sequence[float]]
    texts: Sequence[Sequence[str]]


@dataclass(frozen=True)
class SketchLine:
    """A straight line of a sketch."""

    x: float
    y: float
    to_x: float
    to_y: float
    wide: bool = False


@dataclass(frozen=True)
class Text:
    """A text of a sketch; `side` is where it stands to its point: left means that it begins there."""

    x: float
    y: float
    text: str
    side: str


@dataclass(frozen=True)
class Sketch:
    """A drawing of lines and texts, without axes."""

    lines: Sequence[SketchLine]
    texts: Sequence[Text]


@dataclass(frozen=True)
class Figure:
    """One figure.

    `kind` is lines, points, bars, stack, heat, map (points without axes), reliability (joined points and the diagonal) or
    sketch (lines and texts without axes); matplotlib also draws dots and boxes.
    """

    name: str  # also its file's
    section: str
    title: str
    kind: str
    x: str = ""
    y: str = ""
    series: Sequence[Series] = field(default_factory=list)
    heat: Heat | None = None
    caption: str = ""
    percent: bool = False  # y is a share, shown in %
    log: bool = False  # logarithmic x, of lines for a paper
    log_y: bool = False  # logarithmic y
    table: PageTable | None = None  # beside the figure on the page
    sketch: Sketch | None = None


def thin(points: Sequence[Point], most: int = MAX_POINTS, log: bool = False) -> list[Point]:
    """At most `most` points of a curve, evenly on its axis, with the first and the last."""
    if len(points) <= most:
        return list(points)
    index = np.geomspace(1, len(points), most) - 1 if log else np.linspace(0, len(points) - 1, most)
    return [points[i] for i in np.unique(index.round().astype(int))]
