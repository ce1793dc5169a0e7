"""`make bench`: every benchmark in this folder, one table. Run it when nothing else runs; ratios are measured in one process."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "100000")
LONG = (
    "candidates",
    "compare",
    "growth",
    "large",
    "peers",
    "roofline",
    "soak",
)  # only when asked for by name


def main(names: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    known = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    for name in names or [name for name in known if name not in LONG]:
        if name not in known:
            sys.exit(f"There is no benchmark {name!r}; there is {', '.join(known)}.")
        print(f"{name} …", file=sys.stderr, flush=True)
        rows = importlib.import_module(f"benchmarks.{name}").main()
        if not rows:
            continue  # it has printed a table of its own
        table = Table(*rows[0].keys(), title=name, title_justify="left")
        for row in rows:
            table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
        Console(width=140).print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
