"""What `make docs` adds to the written pages: a list of algorithms, algorithms' settings, the API reference."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import atoll
from atoll import algorithms
from atoll.runs import config

REFERENCE = {  # page of the API reference → its title and the names of the façade on it; names that are not here go to the last
    "running.md": ("Run and compare", ("run", "resume", "compare", "read", "load", "Result", "Comparison", "Graph")),
    "using.md": ("Use a trained model", ("load_model", "TrainedModel", "judge", "Evaluation", "export_model")),
    "errors.md": ("Errors", ("AtollError", "AtollWarning")),
    "extending.md": (
        "Extend atoll",
        ("ALGORITHMS", "MODELS", "DATASETS", "TASKS", "ENGINES", "LOGGERS", "Backbone", "Task", "Engine", "Logger"),
    ),
    "algorithms.md": ("Write an algorithm", ()),
}


def on_config(site: MkDocsConfig) -> MkDocsConfig:
    """Folders in `nav` become their pages; pages that do not exist are left out."""
    docs = Path(site.docs_dir)
    nav: list[Any] = []
    for entry in site.nav or []:
        ((title, place),) = entry.items()
        if place.endswith("/"):
            made = {} if place == "results/" else _generated(docs, place)
            pages = sorted({path.name for path in (docs / place).glob("*.md")} | set(made))
            pages.sort(key=lambda name: name != "index.md")
            nav.append({title: [f"{place}{name}" for name in pages]})
        elif (docs / place).exists():
            nav.append(entry)
    site.nav = nav
    return site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    docs = Path(config.docs_dir)
    for folder in ("algorithms/", "reference/"):
        for name, text in _generated(docs, folder).items():
            files.append(File.generated(config, f"{folder}{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """An algorithm's page ends with all its settings, the page on benchmarks with what each of them measures."""
    if page.file.src_uri == "benchmarks.md":
        files_there = sorted((Path(config.config_file_path).parent / "benchmarks").glob("[a-z]*.py"))
        told = {path.stem: (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0] for path in files_there}
        return markdown + "\n" + "\n".join(f"- `{name}`: {' '.join(text.split())}" for name, text in told.items()) + "\n"
    folder, _, name = page.file.src_uri.removesuffix(".md").rpartition("/")
    known = name.replace("-", "_")
    return markdown + _settings(known) if folder == "algorithms" and known in algorithms.names() else markdown


def _generated(docs: Path, folder: str) -> dict[str, str]:
    """The index of a folder, and a page from its docstring for every algorithm without one."""
    written = {path.stem: path.read_text() for path in sorted((docs / folder).glob("*.md")) if path.stem != "index"}
    if folder == "reference/":
        return _reference()
    pages = {}
    table = ["| algorithm | scenarios | |", "|---|---|---|"]
    for name in algorithms.names():
        document = (algorithms.find(name).__doc__ or "").strip()
        stem = next((stem for stem in written if stem.replace("-", "_") == name), name)
        if stem not in written:
            first, _, rest = document.partition("\n")
            pages[f"{name}.md"] = f"# {name}\n\n{first}\n\n{rest.strip()}\n"
        summary = document.splitlines()[0].split(": ", 1)[-1]
        table.append(f"| [{name}]({stem}.md) | {', '.join(algorithms.find(name).SCENARIOS)} | {summary} |")
    intro = "# Algorithms\n\nSettings that you leave out have the values of the algorithm's own paper.\n\n"
    return {"index.md": intro + "\n".join(table) + "\n"} | pages


def _reference() -> dict[str, str]:
    """A page for each group of names that `import atoll` offers, from their docstrings, and an index of all of them."""
    listed = {name for _, names in REFERENCE.values() for name in names}
    rest = tuple(sorted((name for name in atoll.__all__ if name not in listed), key=lambda name: (name.isupper(), name)))
    pages = {}
    index = "# API reference\n\nWhat `import atoll` offers; everything else is internal ([what that means](../policy.md)).\n"
    for page, (title, names) in REFERENCE.items():
        there = [name for name in names or rest if name in atoll.__all__]
        pages[page] = f"# {title}\n\n" + "\n\n".join(f"::: atoll.{name}" for name in there) + "\n"
        index += f"\n- [{title}]({page}): " + ", ".join(f"[`{name}`]({page}#atoll.{name})" for name in there)
    return {"index.md": index + "\n"} | pages


def _settings(name: str) -> str:
    """A table of the algorithm's own settings with its defaults and one sentence each."""
    chosen = config.resolve(name)
    lines = ["", "", "## All settings", "", "| setting | default | |", "|---|---|---|"]
    for field in config.known(type(chosen.settings)).values():
        choices = field.metadata["choices"]
        told = field.metadata["help"] + (f" One of {', '.join(choices)}." if choices else "")
        lines.append(f"| `{field.name}` | {getattr(chosen.settings, field.name)} | {told.replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, "", f"Settings of runs, partitions, splits and data: `atoll algorithms {name}`.", ""])
