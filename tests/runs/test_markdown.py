"""Names that somebody chose stay text in the files that people read."""

from __future__ import annotations

import pytest

from atoll.runs.export_texts import readme
from atoll.runs.markdown import cell


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ward=icu", "ward=icu"),
        ("a|b\n# c", "a\\|b \\# c"),
        ("<script>", "\\<script\\>"),
        ("\x1b[31mred\x07", "�\\[31mred�"),
        ("\u202egnp.exe", "�gnp.exe"),
        (7, "7"),
    ],
)
def test_cells(text: object, shown: str) -> None:
    """Markup is escaped, controls and reversals of direction are marked."""
    assert cell(text) == shown


def test_an_exports_readme_is_escaped() -> None:
    """Columns, classes and parties, wherever they are named."""
    bad = "x\x1b[2J`\n| <b>"
    about = {
        "model": "gcn", "party": bad, "columns": [bad], "classes": [bad, "b"], "inputs": {"x": [None, 1]},
        "outputs": {"logits": ["nodes", 2]},
        "versions": {"torch": "2"}, "threshold": {"class": bad, "value": 0.5},
    }  # fmt: skip
    text = readme("pyg", ["model.py"], about)
    assert "\x1b" not in text
    assert "<b>" not in text.replace("\\<b", "")
    assert text.count(cell(bad)) == 4
