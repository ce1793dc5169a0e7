"""Text for messages: untrusted text is escaped and cut, and unknown names get a suggestion."""

from __future__ import annotations

import pytest

from atoll.errors import closest, short, shown, suggest


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain ß 漢", "plain ß 漢"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb", "a\\u202eb"),  # reverses the reading direction
        ("two\nlines", "two\\nlines"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, safe: str) -> None:
    """Printable text stays as it is."""
    assert shown(text) == safe


def test_line_breaks_are_kept_on_request() -> None:
    """And nothing else is."""
    assert shown("a\nb\tc", lines=True) == "a\nb\\tc"


def test_short_is_one_line_of_limited_length() -> None:
    """Spaces are folded; what is cut ends with an ellipsis."""
    assert short("a\n  b") == "a b"
    assert short(None) == ""
    assert short("x" * 1000, 10) == "x" * 9 + "…"
    assert short("x" * 10, 10) == "x" * 10


def test_suggestions() -> None:
    """The most similar name, else all of them; `closest` says nothing where none is similar."""
    names = ["louvain", "metis", "random"]
    assert suggest("luovain", names) == "; did you mean 'louvain'?"
    assert suggest("zzz", names) == "; there is louvain, metis, random."
    assert closest("zzz", names) == ""
