"""Messages across processes: `ask` to three sites on loopback with mutual TLS, and what of its time is NVFlare's own.

Bytes go to three sites at once and come back. "ours" is encoding, decoding and checking at the server; the rest is NVFlare, TLS
and the sites' own decoding. Then GLASU on PubMed, one seed, in one process and over three.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

SITES = 3
SIZES = {"1 kB": (1_000, 200), "100 kB": (100_000, 100), "10 MB": (10_000_000, 20)}


def glasu(federation: Any, folder: Path) -> list[dict[str, Any]]:
    """Twenty rounds of GLASU on PubMed, in one process and across processes."""
    from atoll.runs import config, runner
    from atoll.runs.folder import Folder

    chosen = config.resolve("glasu", dataset="pubmed", parties=SITES, values={"rounds": 20, "evaluate_every": 20})
    here = runner.run(chosen)
    across = dataclasses.replace(chosen, engine="nvflare")
    Folder.create(folder, across)
    there = federation.run(across, folder, SITES)
    rows = []
    for place, result in (("one process", here), ("three sites", there)):
        rows.append(
            {
                "what": f"glasu on pubmed, {place}",
                "median ms": 1000 * result.seconds["per_round"],
                "MB/s": "",
                "ours %": "",
                "note": f"a round; accuracy {result.last['accuracy']:.4f}, up {result.bytes['up']}, down {result.bytes['down']}",
            }
        )
    return rows


def main() -> list[dict[str, Any]]:
    from atoll.deploy import supervisor
    from atoll.runs import config
    from atoll.runs.folder import Folder

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with supervisor.local_federation(SITES, folder, folder / "sites", print) as federation:
            first = config.resolve(
                "local", dataset="csbm", partition="random", parties=SITES, engine="nvflare", values={"rounds": 1}
            )
            Folder.create(folder / "first", first)
            federation.run(first, folder / "first", SITES)  # everybody is there
            for label, (size, times) in SIZES.items():
                seconds = federation.server.echo([guest.kit.site for guest in federation.sites], size, times)
                whole = statistics.median(each[0] for each in seconds)
                own = statistics.median(each[1] for each in seconds)
                rows.append(
                    {
                        "what": f"{label} to {SITES} sites and back",
                        "median ms": 1000 * whole,
                        "MB/s": 2 * SITES * size / whole / 1e6,
                        "ours %": 100 * own / whole,
                        "note": f"p95 {1000 * sorted(each[0] for each in seconds)[int(0.95 * times)]:.0f} ms",
                    }
                )
            if os.environ.get("ATOLL_DATA"):
                rows += glasu(federation, folder / "glasu")
    return rows
