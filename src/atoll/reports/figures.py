"""Figures as plain data: what is drawn, not with what. The page draws them with plotly.js, `paper` with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from atoll.reports.recompute import Embedding, Partition, partition_of
from atoll.reports.runs import AXES, Row
from atoll.runs.metrics import metric_format

MOST_POINTS = 400  # of a curve
MOST_PARTIES = 100  # drawn one by one

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
KINDS = 7  # from here on the colors of things that are not rows of the comparison
CURVES = ("accuracy", "local_accuracy")  # metrics drawn over the rounds


@dataclass(frozen=True)
class Series:
    """One line, cloud of points or set of bars."""

    name: str
    x: Sequence[float | str]
    y: Sequence[float | None]
    color: int  # a place in the palette, taken in circles
    spread: Sequence[float] | None = None  # a band around a line, whiskers on bars


@dataclass(frozen=True)
class Heat:
    """A table of shares drawn as colors; `told` is what each cell says."""

    x: Sequence[str]
    y: Sequence[str]
    share: Sequence[Sequence[float]]
    told: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """One figure: `kind` is lines, points, bars, stack, heat or map (points without axes); `paper` also knows dots and boxes."""

    name: str  # also its file's
    section: str
    title: str
    kind: str
    x: str = ""
    y: str = ""
    series: Sequence[Series] = field(default_factory=list)
    heat: Heat | None = None
    caption: str = ""
    percent: bool = False  # y is a share, shown as per cent
    log: bool = False  # x by logarithm, of lines for a paper


def learning(rows: Sequence[Row]) -> list[Figure]:
    """Accuracy against rounds, megabytes, seconds and simulated seconds."""
    figures = []
    for metric in CURVES:
        title = metric_format(metric).words
        for axis, words in AXES.items():
            series = []
            for place, row in enumerate(rows):
                points = thin(row.curve(metric, axis))
                if points and (axis != "megabytes" or points[-1][0] > 0):  # who sends nothing has no place there
                    x, y, spread = zip(*points, strict=True)
                    series.append(Series(row.label, x, y, place, spread if len(row.runs) > 1 else None))
            if series:
                name = f"{metric}-{axis}".replace("_", "-")
                caption = (
                    "Test nodes; the band is one standard deviation over the seeds."
                    if any(s.spread for s in series)
                    else "Test nodes."
                )
                if axis == "megabytes":
                    caption += " Payload of training, all parties together."
                told = f"{title.capitalize()} against {words.removesuffix(' up and down')}{'s' if axis == 'round' else ''}"
                figures.append(Figure(name, "Learning", told, "lines", words, title, series, caption=caption, percent=True))
    return figures


def thin(
    points: Sequence[tuple[float, float, float]], most: int = MOST_POINTS, log: bool = False
) -> list[tuple[float, float, float]]:
    """At most so many points of a curve, evenly on its axis, with the first and the last."""
    if len(points) <= most:
        return list(points)
    places = np.geomspace(1, len(points), most) - 1 if log else np.linspace(0, len(points) - 1, most)
    return [points[place] for place in np.unique(places.round().astype(int))]


def parties(rows: Sequence[Row]) -> list[Figure]:
    """Accuracy of each party as bars (first seed), against its size and against its homophily (all seeds)."""
    bars, sizes, likeness = [], [], []
    for place, row in enumerate(rows):
        first = row.runs[0].metrics.get("party_accuracy") or []
        if 1 < len(first) <= MOST_PARTIES:
            bars.append(Series(row.label, called(row.runs[0].result.names, len(first)), first, place))
        x: list[float] = []
        h: list[float] = []
        y: list[float] = []
        for run in row.runs:
            told, found = partition_of(run.config), run.metrics.get("party_accuracy") or []
            if isinstance(told, str) or len(found) != len(told.facts.parties) or len(found) < 2:
                continue
            for facts, same, accuracy in zip(told.facts.parties, told.homophily, found, strict=True):
                if accuracy is not None and same is not None:
                    x, h, y = [*x, facts.nodes], [*h, same], [*y, accuracy]
        if y:
            sizes.append(Series(row.label, x, y, place))
            likeness.append(Series(row.label, h, y, place))
    figures = []
    if bars:
        seed = rows[0].runs[0].config.seed
        caption = (
            f"Test nodes of each party, seed {seed}." if any(len(row.runs) > 1 for row in rows) else "Test nodes of each party."
        )
        figures.append(
            Figure("party-accuracy", "Parties", "Accuracy of each party", "bars", "party", "accuracy", bars, None, caption, True)
        )
    if sizes:
        caption = "A point a party and seed."
        told = f"{caption} Homophily is the share of a node's neighbors that have its class, in the mean over the party."
        figures.append(
            Figure(
                "party-size", "Parties", "Accuracy against party size", "points", "nodes", "accuracy", sizes, None, caption, True
            )
        )
        figures.append(
            Figure(
                "party-homophily",
                "Parties",
                "Accuracy against homophily",
                "points",
                "homophily",
                "accuracy",
                likeness,
                None,
                told,
                True,
            )
        )
    return figures


def called(names: Sequence[str], parties: int) -> list[str]:
    """What the parties are called: by their names where each has one, else by their numbers."""
    return list(names) if len(names) == parties else [str(party) for party in range(parties)]


def groups(rows: Sequence[Row], majority: Sequence[tuple[float, float | None] | None]) -> list[Figure]:
    """Accuracy on majority and minority nodes."""
    minority = [row.mean("minority_accuracy") for row in rows]
    series = []
    for place, (name, found) in enumerate({"majority nodes": majority, "minority nodes": minority}.items()):
        pairs = [(row.label, pair) for row, pair in zip(rows, found, strict=True) if pair is not None]
        if pairs:
            labels, values, spread = (
                [label for label, _ in pairs],
                [pair[0] for _, pair in pairs],
                [pair[1] or 0.0 for _, pair in pairs],
            )
            series.append(Series(name, labels, values, KINDS + 1 + place, spread if any(spread) else None))
    caption = "Majority nodes are of the class most frequent among their party's training nodes, minority nodes are the others."
    figure = Figure("minority", "Parties", "Majority and minority", "bars", "", "accuracy", series, None, caption, True)
    return [figure] if series else []


def traffic(rows: Sequence[Row]) -> list[Figure]:
    """Megabytes by verb and direction."""
    verbs = list(dict.fromkeys(verb for row in rows for run in row.runs for verb in run.by_verb))
    talking = [row for row in rows if any(run.megabytes(way) for run in row.runs for way in ("up", "down"))]
    silent = [row.label for row in rows if row not in talking]
    places = [(row, way, f"{row.label} {arrow}") for row in talking for way, arrow in (("up", "↑"), ("down", "↓"))]
    series = []
    for number, verb in enumerate(verbs):
        sums = [sum(run.by_verb.get(verb, {}).get(way, 0) for run in row.runs) / len(row.runs) / 1e6 for row, way, _ in places]
        if any(sums):
            series.append(Series(verb, [label for _, _, label in places], sums, KINDS + number))
    caption = "↑ from the parties, ↓ to the parties; payload of training, mean over the seeds. Evaluation is not counted."
    if silent:
        caption += f" Nothing is sent by {', '.join(silent)}."
    return (
        [Figure("bytes", "Traffic", "Megabytes by verb and direction", "stack", "", "megabytes", series, None, caption)]
        if series
        else []
    )


def partition(told: Partition, title: str, suffix: str) -> list[Figure]:
    """Party sizes, classes and cut edges."""
    listed = told.facts.parties
    if len(listed) > MOST_PARTIES:
        ranked = sorted((one.nodes for one in listed), reverse=True)
        series = [Series("nodes", list(range(1, len(ranked) + 1)), ranked, 0)]
        caption = f"{len(listed)} parties. {lost(told)}"
        return [
            Figure(
                f"party-sizes{suffix}",
                "Partition",
                f"Party sizes{title}",
                "lines",
                "party, largest first",
                "nodes",
                series,
                None,
                caption,
            )
        ]
    names = told.names
    roles = {
        "training": [one.train for one in listed],
        "validation": [one.val for one in listed],
        "test": [one.test for one in listed],
        "other": [one.nodes - one.train - one.val - one.test for one in listed],
    }
    stacks = [Series(role, names, counts, KINDS + place) for place, (role, counts) in enumerate(roles.items()) if any(counts)]
    figures = [
        Figure(f"party-sizes{suffix}", "Partition", f"Party sizes{title}", "stack", "party", "nodes", stacks, None, lost(told))
    ]
    labels = np.array([one.labels for one in listed], dtype=np.float64)
    share = labels / np.maximum(labels.sum(1, keepdims=True), 1)
    counts = [[f"{int(count)} nodes" for count in line] for line in labels]
    heat = Heat(told.class_names, names, share.tolist(), counts)
    figures.append(Figure(f"labels{suffix}", "Partition", f"Classes of each party{title}", "heat", "class", "party", heat=heat))
    if told.flows is not None and len(listed) > 1:
        flows = told.flows if told.flows[:, -1].any() else told.flows[:, :-1]
        share = flows / np.maximum(flows.sum(1, keepdims=True), 1)
        counts = [[f"{int(count)} edges" for count in line] for line in flows]
        heat = Heat([*names, "none"][: flows.shape[1]], names, share.tolist(), counts)
        caption = "Of the edges at a party's nodes, where the other end lies. Only the diagonal is kept; the rest is cut."
        figures.append(
            Figure(
                f"edges{suffix}", "Partition", f"Cut edges{title}", "heat", "to party", "from party", heat=heat, caption=caption
            )
        )
    elif told.flows is None:
        series = [Series("edges", names, [one.edges for one in listed], 0)]
        figures.append(Figure(f"edges{suffix}", "Partition", f"Edges of each party{title}", "bars", "party", "edges", series))
    return figures


def lost(told: Partition) -> str:
    """What became of the graph, in a sentence."""
    facts = told.facts
    sentence = f"{facts.nodes:,} nodes and {facts.edges_kept:,} edges at the parties"
    if facts.nodes_lost is not None and facts.edges_lost is not None:
        sentence += f"; {facts.nodes_lost:,} nodes and {facts.edges_lost:,} edges at none"
    return sentence + "."


def embeddings(row: Row, found: Embedding, method: str, class_names: Sequence[str], suffix: str) -> list[Figure]:
    """The nodes in two dimensions, colored by class and by party."""
    nodes = len(found.points)
    caption = f"{'t-SNE' if method == 'tsne' else 'PCA'} of {found.what}, seed {row.runs[0].config.seed}; "
    caption += f"{nodes:,} of {found.of:,} nodes." if nodes < found.of else f"{nodes:,} nodes."
    figures = []
    for what, values in (("class", found.label), ("party", found.party)):
        if what == "party" and not 1 < len(np.unique(values)) <= 2 * len(PALETTE):  # nothing to tell apart, or too much
            continue
        order = np.argsort(values, kind="stable")
        series = []
        for value, members in groupby(order.tolist(), key=lambda node: int(values[node])):
            points = found.points[list(members)]
            name = (
                row.runs[0].result.names[value]
                if what == "party" and value < len(row.runs[0].result.names)
                else f"party {value}"
                if what == "party"
                else "no label"
                if value < 0
                else class_names[value]
                if value < len(class_names)
                else str(value)
            )
            series.append(Series(name, points[:, 0].tolist(), points[:, 1].tolist(), value if value >= 0 else 6))
        figures.append(
            Figure(f"embedding-{what}{suffix}", "Embeddings", f"{row.label}, by {what}", "map", series=series, caption=caption)
        )
    return figures
