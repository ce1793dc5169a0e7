"""Figures in the terms of plotly.js."""

from __future__ import annotations

import pytest

from atoll.reports.figures import Figure, Heat, Series
from atoll.reports.plotly import plot, ticks


def test_a_line_has_a_band_and_a_mark() -> None:
    """The band is one standard deviation around it; the best round is a dot; all belong to one entry of the legend."""
    line = Series("a", [1, 2], [0.1, 0.3], 0, std=[0.1, 0.1], mark=(2, 0.3))
    drawn = plot(Figure("n", "Learning", "t", "lines", "x", "y", [line], percent=True))
    band, middle, mark = drawn["data"]
    assert (band["mode"], middle["mode"], mark["mode"]) == ("lines", "lines", "markers")
    assert band["y"] == pytest.approx([0.2, 0.4, 0.2, 0.0])
    assert (mark["x"], mark["y"]) == ([2], [0.3])
    assert {trace["legendgroup"] for trace in drawn["data"]} == {"a"}
    assert drawn["legend"] == [{"name": "a", "text": "a", "color": "#4477aa", "shape": "line", "dash": "solid"}]
    assert drawn["layout"]["showlegend"] is False
    assert drawn["layout"]["yaxis"]["tickformat"] == ".0%"


def test_a_band_on_a_log_scale_stays_above_zero() -> None:
    """A mean of 1 ± 2 has no logarithm at its lower end."""
    line = Series("a", [1, 2], [1.0, 1.0], 0, std=[2.0, 0.5])
    drawn = plot(Figure("n", "Learning", "t", "lines", "x", "y", [line], log_y=True))
    assert drawn["layout"]["yaxis"]["type"] == "log"
    assert min(drawn["data"][0]["y"]) > 0


def test_bars_with_long_names_are_horizontal() -> None:
    """With their whiskers along them; bars of parties or classes are upright while their names fit."""
    bars = Series("b", ["a rather long name of a row"], [0.5], 0, std=[0.1])
    (bar,) = plot(Figure("n", "Parties", "t", "bars", "", "y", [bars]))["data"]
    assert (bar["orientation"], bar["x"], bar["y"]) == ("h", [0.5], ["a rather long name<br>of a row"])
    assert "error_x" in bar
    (bar,) = plot(Figure("n", "Parties", "t", "bars", "party", "y", [bars]))["data"]
    assert bar["x"] == ["a rather long name<br>of a row"]
    assert "error_y" in bar
    hospitals = Series("b", ["Saint Mary University Hospital", "General Hospital of the North", "Klinik"], [0.5, 0.4, 0.3], 0)
    (bar,) = plot(Figure("n", "Parties", "t", "bars", "party", "y", [hospitals]))["data"]
    assert bar["orientation"] == "h"


def test_a_heat_map_shows_percentages_and_counts() -> None:
    """Colors mean the same in every map: from 0 to 100 %."""
    heat = Heat(["x", "y"], ["x", "y"], [[0.25, 0.75], [0.0, 1.0]], [["1 node", "3 nodes"], ["0 nodes", "4 nodes"]])
    (trace,) = plot(Figure("n", "Classes", "t", "heat", "predicted class", "true class", heat=heat))["data"]
    assert (trace["zmin"], trace["zmax"], trace["z"][0]) == (0, 1, [0.25, 0.75])
    assert trace["text"][1] == ["0 nodes", "4 nodes"]
    assert "texttemplate" in trace


def test_reliability_has_a_diagonal() -> None:
    """Where confidence equals accuracy; more nodes are larger points."""
    curve = Series("a", [0.5, 0.9], [0.4, 0.9], 0, size=[0.25, 1.0], texts=["5 nodes", "20 nodes"])
    diagonal, points = plot(Figure("n", "Classes", "t", "reliability", "confidence", "accuracy", [curve]))["data"]
    assert diagonal["x"] == diagonal["y"] == [0, 1]
    assert points["marker"]["size"] == [8.0, 16.0]


def test_names_are_text() -> None:
    """Tags in a name are shown; what is long is wrapped."""
    assert ticks("<b>x</b>") == "&lt;b&gt;x&lt;/b&gt;"
    assert ticks("Saint Mary Hospital of the North") == "Saint Mary<br>Hospital of the<br>North"
