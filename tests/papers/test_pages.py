"""Pages of results: claims are judged seed by seed, numbers in prose come from the record, and the pages are up to date."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest
from scipy.stats import t, ttest_rel

from atoll import papers
from atoll.errors import AtollError
from atoll.papers import Cell, Exhibit, Line, claims, matrices, pages, pictures, prose, references, sections
from atoll.papers.claims import Claim
from atoll.papers.execute import folder_of
from atoll.papers.results import Results
from atoll.runs.paired import Difference

DOCS = Path(__file__).parents[2] / "docs" / "results"
BOOK = """
paper = "A paper"

[[claims]]
text = "ours exceeds theirs"
table = "table"
columns = ["Cora", "Wiki"]
method = "ours"
against = ["theirs"]

[table]
title = "Table 1: a table"
columns = ["Cora", "Wiki"]
percent = true
seeds = 5
note = "Ours has {{± table | Cora ours}} (the paper {{paper table | Cora ours}}): {{table | Cora ours − Cora theirs}}."
run = { dataset = "csbm", nodes = 60 }
cells = [
    { row = "Cora ours", run = { algorithm = "fedavg", lr = 0.01 }, paper = { accuracy = [81.0, 1.0] } },
    { row = "Cora theirs", run = { algorithm = "fedavg", lr = 0.02 } },
    { row = "Wiki ours", run = { algorithm = "fedavg", lr = 0.03 } },
    { row = "Wiki theirs", run = { algorithm = "fedavg", lr = 0.04 }, paper = { accuracy = 40.0 } },
    { row = "Other ours", missing = "the graph is not here" },
]
"""
VALUES = {
    "Cora ours": [0.80, 0.82, 0.81, 0.83, 0.80, 0.84],
    "Cora theirs": [0.78, 0.79, 0.80, 0.80, 0.78],
    "Wiki ours": [0.50, 0.52, 0.49],
    "Wiki theirs": [0.51, 0.50, 0.50],
}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The results of a paper whose runs are recorded with the accuracies of VALUES."""
    (tmp_path / "book.toml").write_text(BOOK)
    monkeypatch.setattr(papers, "HOME", tmp_path)
    monkeypatch.setattr(papers, "MEASURED", tmp_path / "measured")
    (tmp_path / "measured").mkdir()
    lines = []
    for cell in papers.exhibits("book")[0].runnable:
        configs = cell.configs(len(VALUES[cell.row]), {})
        for config, value in zip(configs, VALUES[cell.row], strict=True):
            lines.append(json.dumps({"run": folder_of(config, Path()).name, "metrics": {"accuracy": value}}))
    (tmp_path / "measured" / "book.jsonl").write_text("\n".join(lines) + "\n")
    return Results.recorded("book")


def test_claims_are_judged_by_paired_differences(results: Results) -> None:
    """As scipy's paired t-test over the seeds that both lines have, corrected for the number of pairs."""
    (claim,) = claims.claims("book")
    verdict = claims.judge(claim, results)
    cora, wiki = verdict.findings
    pairs = {row: VALUES[f"{row} ours"][: len(VALUES[f"{row} theirs"])] for row in ("Cora", "Wiki")}
    tests = {row: ttest_rel(values, VALUES[f"{row} theirs"]).pvalue for row, values in pairs.items()}
    assert cora.difference is not None
    assert wiki.difference is not None
    assert cora.difference.p == pytest.approx(2 * tests["Cora"])
    assert wiki.difference.p == pytest.approx(max(tests["Wiki"], 2 * tests["Cora"]))
    assert [cora.verdict, wiki.verdict] == [claims.HOLDS, claims.OPEN]
    assert (cora.label, verdict.runs) == ("Cora: ours − theirs", 2 * 5 + 2 * 3)
    assert verdict.words == "holds in 1 of 2, undecided in 1"


@pytest.mark.parametrize(("margin", "verdict"), [(0.0, "holds"), (1.0, "holds"), (2.2, "undecided"), (4.0, "does not hold")])
def test_a_margin_is_part_of_the_claim(results: Results, margin: float, verdict: str) -> None:
    """More than the margin, significantly; the difference that is shown is without it."""
    found = claims.judge(Claim("more", "table", "accuracy", [["Cora ours", "Cora theirs"]], margin), results)
    assert found.words == verdict
    assert found.findings[0].difference is not None
    assert found.findings[0].difference.mean == pytest.approx(2.2)


def test_means_alone_decide_nothing(results: Results) -> None:
    """Without common seeds the difference of the means is shown, without an interval."""
    results.runs.clear()
    results.seeds.clear()
    found = claims.judge(Claim("more", "table", "accuracy", [["Cora ours", "Cora theirs"]]), results)
    assert found.words == "undecided: means only"
    assert found.findings[0].difference is not None
    assert claims.interval(found.findings[0].difference) == "+2.2"


def test_a_cell_that_states_its_first_seed_has_its_own_seeds_only(results: Results) -> None:
    """Its settings may have been chosen with others, which are recorded too."""
    exhibit = papers.exhibits("book")[0]
    cell = exhibit.cells[0]
    assert list(results.by_seed(exhibit, cell, "accuracy")) == [0, 1, 2, 3, 4, 5]
    assert list(results.by_seed(exhibit, replace(cell, run={**cell.run, "seed": 2}), "accuracy")) == [2, 3, 4, 5]


def test_values_are_judged_by_their_ranges(results: Results) -> None:
    """Within the range of the printed value or not; nothing printed is undecided."""
    rows = ["Cora ours", "Wiki theirs", "Wiki ours"]
    found = claims.judge(Claim("as printed", "table", "accuracy", rows=rows), results)
    assert [finding.verdict for finding in found.findings] == [claims.HOLDS, claims.FAILS, claims.OPEN]
    assert found.words == "holds in 1 of 3, contradicted in 1, undecided in 1"


def test_numbers_in_prose_are_the_records(results: Results) -> None:
    """Mean, spread, paper, seeds, difference and wins, recomputed by hand."""
    ours, theirs = ([100 * value for value in VALUES[row][:5]] for row in ("Cora ours", "Cora theirs"))
    differences = [first - second for first, second in zip(ours, theirs, strict=True)]
    half = t.ppf(0.975, 4) * stdev(differences) / 5**0.5
    middle = mean(differences)
    expected = {
        "{{table | Cora ours}}": f"{mean(ours):.1f}",
        "{{table | Cora ours | accuracy}}": f"{mean(ours):.1f}",
        "{{± table | Cora ours}}": f"{mean(ours):.1f} ± {stdev(ours):.1f}",
        "{{paper table | Cora ours}}": "81.0",
        "{{seeds table | Cora ours}}": "5",
        "{{table | Cora ours − Cora theirs}}": f"+{middle:.1f} [{middle - half:.1f}, {middle + half:.1f}]",
        "{{wins table | Wiki ours − Wiki theirs}}": "1 of 3",
    }
    for reference, text in expected.items():
        assert references.resolve(f"a {reference} b", results) == f"a {text} b"


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("{{tabel | Cora ours}}", "book has no table 'tabel'; did you mean 'table'?"),
        ("{{table | Cora our}}", "book/table has no line 'Cora our'; did you mean 'Cora ours'?"),
        ("{{Cora ours}}", "'{{Cora ours}}' is not a reference to a result of book, such as {{table1 | Cora FedGL}}."),
        (
            "{{table | Cora ours − Other ours}}",
            "book has no recorded result for '{{table | Cora ours − Other ours}}'; remove the reference or record it.",
        ),
        (
            "{{paper table | Cora theirs}}",
            "book has no recorded result for '{{paper table | Cora theirs}}'; remove the reference or record it.",
        ),
    ],
)
def test_wrong_references_get_one_sentence(results: Results, reference: str, sentence: str) -> None:
    """What is wrong, and where."""
    with pytest.raises(AtollError) as caught:
        references.resolve(reference, results)
    assert str(caught.value) == sentence


def test_a_page_begins_with_its_claims(results: Results) -> None:
    """Claims, what is missing, then methods × datasets, ours and the paper's."""
    page = pages.markdown(results, {"claims": "img/x.svg"}, claims.claims("book"), [{"method": "ours", "grid": "0.1, 1"}])
    first = page.index("ours exceeds theirs | **holds in 1 of 2, undecided in 1** |")
    assert first < page.index("Not run: Other (the graph is not here).") < page.index("![Differences that the claims are about]")
    assert "| ours | – | – | 0.1, 1 | – | – | – |" in page
    assert "|  | Cora | Wiki |" in page
    assert "| theirs | 79.00 ± 1.00 | 50.33 ± 0.58 ‼ (40) |" in page
    assert "Ours has 81.2 ± 1.3 (the paper 81.0): +2.2 [" in page
    assert "`atoll reproduce book/table`" in page


def test_a_matrix_leaves_out_columns_without_results() -> None:
    """Datasets that were not run are one line of the page, not a column."""
    cells = (Cell("A x"), Cell("B x", paper={"accuracy": 1.0}), Cell("A y"))
    exhibit = Exhibit("p/t", "A paper", "A table", cells, columns=["A", "B"])
    lines = [Line(cell, {"accuracy": (0.5, 0.1)} if cell.row[0] == "A" else {}, 2) for cell in cells]
    assert matrices.matrices(exhibit, lines)[0] == "|  | A |"


def test_differences_of_claims_are_drawn(results: Results, tmp_path: Path) -> None:
    """Every pair that has runs; nothing is written without any."""
    verdict = claims.judge(claims.claims("book")[0], results)
    assert pictures.claims([verdict], tmp_path / "img" / "claims.svg")
    assert "Cora: ours − theirs" in (tmp_path / "img" / "claims.svg").read_text()
    alone = Difference("a", "b", 0, 1.0, 0.0, 0.0, 0)
    nothing = claims.Verdict(verdict.claim, [claims.Finding("a", claims.MEANS, alone)])
    assert not pictures.claims([nothing], tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


@pytest.fixture(scope="module")
def everything() -> dict[str, Results]:
    """The recorded results of all papers."""
    return {each.paper: each for each in pages.everything()}


STALE = "the page is not what the record gives; run `atoll reproduce --page docs/results` and commit docs/results"


@pytest.mark.parametrize("paper", papers.papers())
def test_the_page_is_what_the_record_gives(paper: str, everything: dict[str, Results]) -> None:
    """Every number of docs/results is recomputed from the record."""
    stems = {"claims": f"{paper}-claims", **{each.name: each.name.replace("/", "-") for each, _ in everything[paper].shown}}
    drawn = {
        name: f"img/{stem}.{form}"
        for name, stem in stems.items()
        for form in ("png", "svg")
        if (DOCS / f"img/{stem}.{form}").exists()
    }
    made = pages.markdown(everything[paper], drawn, claims.claims(paper), claims.tuning(paper))
    assert made == (DOCS / f"{paper}.md").read_text(), STALE


def test_the_index_is_what_the_record_gives(everything: dict[str, Results]) -> None:
    """The summary of the summaries."""
    assert pages.index(list(everything.values())) == (DOCS / "index.md").read_text(), STALE


@pytest.mark.parametrize(
    ("paper", "section"),
    [(paper, each) for paper in papers.papers() for each in sections.sections(paper)],
    ids=lambda each: getattr(each, "page", each),
)
def test_a_section_is_what_the_record_gives(paper: str, section: sections.Section, everything: dict[str, Results]) -> None:
    """What an algorithm's page shows of the record."""
    page = (DOCS.parent / "algorithms" / f"{section.page}.md").read_text()
    assert sections.MADE.findall(page) == [sections.markdown(section, everything[paper])], STALE


def test_a_section_is_written_once_in_its_place(results: Results, tmp_path: Path) -> None:
    """At the end of the page at first; then it is replaced where it stands."""
    (tmp_path / "book.toml").write_text(
        BOOK + '[[sections]]\npage = "ours"\ntext = "It has {{table | Cora ours}}."\n'
        'tables = [{ table = "table", rows = ["Cora ours", "Wiki ours", "Other ours"], title = "here" }]\n'
    )
    (section,) = sections.sections("book")
    page = tmp_path / "ours.md"
    page.write_text("# Ours\n")
    sections.write(tmp_path, [results])
    first = page.read_text()
    assert "It has 81.2.\n\n| here | accuracy | printed | seeds |" in first
    assert "| Cora ours | 81.20 ± 1.30 | 81.00 ± 1.00 | 5 |\n| Wiki ours | 50.33 ± 1.53 | – | 3 |\n\n" in first
    page.write_text(first + "Below.\n")
    sections.write(tmp_path, [results])
    assert page.read_text() == first + "Below.\n"
    assert sections.inserted("# Ours\n", sections.markdown(section, results)) == first


def test_every_link_of_the_pages_is_there() -> None:
    """Pictures that a page shows exist."""
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
            assert (DOCS / target).exists(), f"{page.name}: {target}"


MARKED = [page for page in sorted((DOCS.parent / "algorithms").glob("*.md")) if prose.BEGINNING in page.read_text()]


@pytest.mark.parametrize("page", MARKED, ids=[page.name for page in MARKED])
def test_marked_numbers_of_other_pages_are_the_records(page: Path, everything: dict[str, Results]) -> None:
    """What stands after a comment with references is what they become."""
    text = page.read_text()
    assert prose.renewed(text, everything) == text, STALE


def test_a_comment_says_what_stands_after_it(results: Results, tmp_path: Path) -> None:
    """A changed number is set right, whatever stood there; the rest of the page is left as it is, and twice is once."""
    before = "# Ours\n\n<!-- record book\nOurs: {{table | Cora ours}}.\n-->\nOurs: 99.9.\n<!-- end -->\n\nNot {{marked}}.\n"
    after = before.replace("-->\nOurs: 99.9.\n", "-->\n\nOurs: 81.2.\n\n")
    page = tmp_path / "page.md"
    page.write_text(before)
    prose.write(tmp_path, [results])
    assert page.read_text() == after == prose.renewed(after, {"book": results})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("<!-- record book\nOurs\n-->\nOurs\n", "A comment that begins with <!-- record PAPER is not followed by --> and"),
        ("<!-- record boo\nOurs\n-->\n<!-- end -->", "There is no paper 'boo'; did you mean 'book'?"),
        (
            "<!-- record book\n{{table | Cora our}}\n-->\n<!-- end -->",
            "book/table has no line 'Cora our'; did you mean 'Cora ours'?",
        ),
    ],
)
def test_a_wrong_comment_gets_one_sentence(results: Results, tmp_path: Path, text: str, sentence: str) -> None:
    """With the page's name; nothing is written."""
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AtollError) as caught:
        prose.write(tmp_path, [results])
    assert str(caught.value).startswith(f"{page}: {sentence}")
    assert page.read_text() == text


NOTES = [
    (f"{exhibit.name}{f', {cell.row}' if cell else ''}", text)
    for exhibit in papers.all_exhibits()
    for cell, text in [(None, exhibit.note), *((cell, cell.note) for cell in exhibit.cells)]
    if text
] + [(f"{paper}, section {each.page}", each.text) for paper in papers.papers() for each in sections.sections(paper)]
BARE = re.compile(r"(?<![\d.,])\d{2}\.\d+")  # a percentage such as 87.65; settings such as 0.003 are written with one digit
RANKING = re.compile(r"\b(ahead|highest|beats?|outperforms?|stronger|leads)\b", re.IGNORECASE)


@pytest.mark.parametrize(("where", "note"), NOTES, ids=[where for where, _ in NOTES])
def test_notes_refer_to_the_record(where: str, note: str) -> None:
    """No result is typed into prose, and nobody is called ahead or highest without the paired difference in the same sentence."""
    plain = references.ANY.sub("", note)
    assert not BARE.findall(plain), f"{where}: write a reference such as {{{{table1 | ROW}}}} instead"
    for sentence in re.split(r"(?<=[.;:])\s", note):
        assert not RANKING.search(sentence) or references.MINUS in sentence, f"{where}: {sentence}"
