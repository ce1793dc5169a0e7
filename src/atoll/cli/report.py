"""The command `atoll report`. Heavy imports wait until needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import prepare_torch


def report(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Folders that --out named, or folders of such.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="One page with everything, to open anywhere; report.html by default.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="DIR", help="Every figure as PNG, for a paper.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="DIR", help="Every figure as SVG, for a paper.")] = None,
    latex: Annotated[Path | None, typer.Option(metavar="FILE", help="The comparison as a LaTeX table.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="The comparison as a Markdown table.")] = None,
    embeddings: Annotated[str, typer.Option(help="How nodes are drawn in two dimensions: tsne, pca or none.")] = "tsne",
    watch: Annotated[bool, typer.Option(help="Rewrite the page every few seconds until all runs are finished.")] = False,
) -> None:
    """Show the results of runs: a page, figures and tables. Runs that differ only in their seed are shown as mean ± std."""
    prepare_torch(None)
    from atoll import reports
    from atoll.cli.console import err
    from atoll.cli.console import out as console

    if watch or not (html or png or svg or latex or markdown):
        html = html or Path("report.html")
    if watch and html is not None:
        made = reports.follow(folders or [], html, embeddings=embeddings)
    else:
        with err.status("Reading the runs") as status:
            made = reports.make(folders or [], embeddings=embeddings, progress=lambda text: status.update(err.render_str(text)))
    written = reports.write(made, html=html, png=png, svg=svg, latex=latex, markdown=markdown)
    for path in dict.fromkeys(path.parent if path.suffix[1:] in ("png", "svg") else path for path in written):
        console.print(f"Written to {path}", soft_wrap=True)
