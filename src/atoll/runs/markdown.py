"""Text of others (names of columns, classes, parties) in Markdown files that people read."""

from __future__ import annotations

from typing import Any

MARKUP = "\\`*_{}[]<>#|!"


def cell(text: Any) -> str:
    """Text that cannot break out of a line or a table, become markup, or control a terminal."""
    plain = "".join(letter if letter.isprintable() else "�" for letter in " ".join(str(text).split()))
    return "".join(f"\\{letter}" if letter in MARKUP else letter for letter in plain)
