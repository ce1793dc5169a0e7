"""Every example in README and docs is run: commands with a small budget, Python as it stands. The site has no warning."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from atoll import algorithms
from atoll.cli import main
from atoll.data.partition import SCENARIO_OF
from atoll.data.registry import DATASETS, known
from atoll.settings import BatchedTraining

HOME = Path(__file__).parents[1]
PAGES = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").rglob("*.md"))]
PAGES.remove(HOME / "docs" / "extending.md")  # an installed package: tests/test_extending.py
PAGES.remove(HOME / "docs" / "tutorial.md")  # commands that build on each other: tests/test_tutorial.py
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = {  # what a command is given beside what it says, so that it ends soon
    "run": ["--rounds", "2", "--quiet"],
    "compare": ["--rounds", "2", "--seeds", "1", "--quiet"],
    "tune": ["--rounds", "2", "--trials", "3", "--quiet"],
    "report": ["--embeddings", "pca"],
    "reproduce": ["--no-run"],
}
ALONE = (
    "data",
    "resume",
    "export",
    "evaluate",
    "partition",
    "predict",
    "algorithms",
    "models",
    "datasets",
    "--help",
    "--version",
)


class Block(NamedTuple):
    """A fenced block of a page: its language, the file it stands for, its text."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(*found) for found in FENCE.findall(page.read_text())]


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, or of one without a language that holds some; comments left out."""
    if block.language not in ("", "bash", "sh", "console"):
        return []
    lines = [line.removeprefix("$ ").strip() for line in block.text.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(("atoll ", "make ", "pip "))]


def shrunk(arguments: list[str]) -> list[str] | None:
    """A command that ends soon: fewer rounds, and a small generated graph for a real one; None where only real data will do.

    A device that it names is replaced by the best one here.
    """
    verb, *rest = arguments
    if "--dataset" in rest:
        place = rest.index("--dataset") + 1
        own_partition = "--partition" in rest and rest[rest.index("--partition") + 1] not in (*SCENARIO_OF, "files")
        if own_partition and not os.environ.get("ATOLL_DATA"):
            return None
        if rest[place].lower() in {each.name.lower() for each in known()} and not own_partition:
            rest[place] = "csbm"
        if rest[place] == "csbm" and not any(word.startswith("data.nodes=") for word in rest):
            rest += ["--set", "data.nodes=600"]
    if "--device" in rest:
        rest[rest.index("--device") + 1] = "auto"
    if "--tune" in rest:
        rest[rest.index("--tune") + 1] = "2"
    return [verb, *rest, *SMALL.get(verb, [])]


@pytest.mark.parametrize("algorithm", algorithms.names())
def test_every_algorithm_has_a_page(algorithm: str) -> None:
    """What it does, what it costs, how to run it."""
    page = (HOME / "docs" / "algorithms" / f"{algorithm}.md").read_text()
    assert re.search(r"[Bb]ytes", page)
    assert re.search(rf"atoll (run|compare) \S*{algorithm}", page)


def test_the_page_on_scale_names_who_trains_in_mini_batches() -> None:
    """And who cannot, and why."""
    text = (HOME / "docs" / "scale.md").read_text()
    listed, refusing = text.split("They are settings of ")[1].split("## Samplers")[0].split("Some cannot")
    modules = {name: algorithms.find(name) for name in algorithms.names()}
    whole = {name for name, module in modules.items() if module.Cohort.whole_graph}
    batched = {name for name, module in modules.items() if issubclass(module.Settings, BatchedTraining)} - whole
    assert set(re.findall(r"`(\w+)`", listed.split(", and of algorithms")[0])) == batched
    assert {name for row in re.findall(r"^\| (`.*?) \|", refusing, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)} == whole


def call(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["atoll", *arguments])
    try:
        main.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def check(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command; of those that set things up, check that what they name is there."""
    program, *arguments = words
    if program == "make":
        assert re.search(rf"^{arguments[0]}:", (HOME / "Makefile").read_text(), re.MULTILINE), words
    elif program == "pip":
        extras = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert all(name in extras for found in re.findall(r"\[([\w,]+)\]", " ".join(arguments)) for name in found.split(",")), (
            words
        )
    elif arguments[0] in SMALL or arguments[0] in ALONE:
        small = shrunk(arguments)
        if small is not None:
            assert call(small, monkeypatch) in ((0, 1) if small[0] == "reproduce" else (0,)), shlex.join(small)
    else:  # deployment has tests of its own
        known_verbs = {item.name or item.callback.__name__ for item in main.app.registered_commands if item.callback}
        assert arguments[0] in known_verbs, words


@pytest.mark.filterwarnings("ignore:The data is not the model")
@pytest.mark.filterwarnings("ignore:.*unseen or rare in training")  # the page on predictions shows one
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the page, in one folder with the files it shows (and those of the page on data); the rest is run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(DATASETS, "_registered", {})  # what a page registers is gone after it
    for block in blocks(HOME / "docs" / "data.md") + blocks(page):
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text)
    for block in blocks(page):
        if block.title:
            continue
        if block.language == "python":
            exec(compile(block.text, str(page), "exec"), {"__name__": "example"})
        for words in commands(block):
            check(words, monkeypatch)
    capsys.readouterr()


def test_the_own_algorithm_keeps_the_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together, apart and with amnesia the example gives the same numbers; it resumes; its bytes are as it says."""
    import torch

    import atoll
    from atoll.models.registry import build

    example = next(block for block in blocks(HOME / "docs" / "own-algorithm.md") if block.title == "fedmedian.py")
    path = tmp_path / "fedmedian.py"
    path.write_text(example.text)
    settings = {"dataset": "csbm", "nodes": 300, "partition": "random", "parties": 3, "rounds": 3}
    first = atoll.run(str(path), out=tmp_path / "run", **settings)
    for values in ({"placement": "apart"}, {"amnesia": True}):
        other = atoll.run(str(path), **settings, **values)
        assert other.metrics["accuracy"] == first.metrics["accuracy"]
        for name, value in first.state["model"].items():
            assert torch.allclose(value, other.state["model"][name], atol=1e-5)
    assert atoll.resume(tmp_path / "run", algorithm=path).metrics == first.metrics
    weights = sum(p.numel() for p in build("gcn", parties=1, features=64, classes=5).parameters())
    assert first.bytes["up"] == first.bytes["down"] == 3 * 3 * 4 * weights


@pytest.mark.parametrize(
    ("text", "sentence"), [(None, "no such file"), ("x = 1\n", "it has no Settings, Cohort, SCENARIOS, start, step, evaluate")]
)
def test_a_file_that_is_no_algorithm(
    text: str | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence says what is missing."""
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("own.py").write_text(text)
    assert call(["run", "own.py", "--out", "new"], monkeypatch) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert len(told.strip().splitlines()) == 1
    assert not Path("new").exists()


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Links, anchors and navigation hold; every algorithm has a page with its settings, every public name its entry."""
    pytest.importorskip("material", reason='mkdocs-material is not installed: pip install "atoll[docs]"')
    import atoll
    from atoll import algorithms

    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    pages = {path.parent.name.replace("-", "_") for path in (tmp_path / "algorithms").glob("*/index.html")}
    assert set(algorithms.names()) <= pages
    reference = "".join(path.read_text() for path in (tmp_path / "reference").glob("*/index.html"))
    assert [name for name in atoll.__all__ if reference.count(f'<h2 id="atoll.{name}"') != 1] == []
    assert "All settings" in (tmp_path / "algorithms" / "fedavg" / "index.html").read_text()
