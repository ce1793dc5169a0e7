"""Our recorded results in other pages: a comment holds a text with references, and after it stands what they become.

    <!-- record fedspray
    FedSpray has {{± table2 | PubMed GCN FedSpray}} %.
    -->

    FedSpray has 87.6 ± 1.1 %.

    <!-- end -->

`atoll reproduce --page docs/results` rewrites the text between the comments in docs/algorithms, as the record has it now.
References are those of notes (`references`); a comment's text may be a sentence or a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from atoll import storage
from atoll.errors import AtollError, suggest
from atoll.papers.references import resolve
from atoll.papers.results import Results

BLOCK = re.compile(r"<!-- record (?P<paper>\S+)\n(?P<text>.*?)\n-->\n(?P<shown>.*?)<!-- end -->", re.DOTALL)
BEGINNING = "<!-- record "


def renewed(page: str, recorded: Mapping[str, Results]) -> str:
    """The page with the record's numbers of today after every comment."""
    if page.count(BEGINNING) != len(BLOCK.findall(page)):
        raise AtollError("A comment that begins with <!-- record PAPER is not followed by --> and, after the text, <!-- end -->.")
    return BLOCK.sub(lambda match: _block(match, recorded), page)


def _block(match: re.Match[str], recorded: Mapping[str, Results]) -> str:
    paper, text = match["paper"], match["text"]
    if paper not in recorded:
        raise AtollError(f"There is no paper {paper!r}{suggest(paper, recorded)}")
    return f"{BEGINNING}{paper}\n{text}\n-->\n\n{resolve(text, recorded[paper])}\n\n<!-- end -->"


def write(folder: Path, every: Sequence[Results]) -> None:
    """Renew the marked numbers of the pages in a folder."""
    recorded = {results.paper: results for results in every}
    for file in sorted(folder.glob("*.md")):
        page = file.read_text(encoding="utf-8")
        try:
            new = renewed(page, recorded)
        except AtollError as error:
            raise AtollError(f"{file}: {error}") from error
        if new != page:
            storage.write_whole(file, new.encode())
