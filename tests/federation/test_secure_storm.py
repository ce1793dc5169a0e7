"""Twenty kills of sites and server under secure totals, over real processes: the run ends with the same bits."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll.deploy import supervisor
from atoll.runs import runner
from sites import run_across
from small import small
from test_promises import assert_same, numbers

KILLS = 20


@pytest.mark.full
@pytest.mark.parametrize("secure", [False, True])
def test_a_storm_of_kills(secure: bool, tmp_path: Path) -> None:
    """SIGKILL to one of the three sites or to the server, twenty times: taken up again and again, the result is the same."""
    config = small("fedspray", rounds=130, checkpoint_every=2, on_missing="stop", secure=secure)
    whole = runner.run(config)
    killed: list[int] = []
    with supervisor.local_federation(3, tmp_path, tmp_path / "sites", print) as federation:

        def watch(row: dict[str, Any], rounds: int) -> None:
            if len(killed) < KILLS and row["round"] >= 5 + 6 * len(killed):
                child = [*federation.sites, federation.server][len(killed) % 4]
                killed.append(child.child.process.pid)
                os.kill(killed[-1], signal.SIGKILL)

        result = run_across(federation, config, tmp_path / "run", watch)
    assert len(killed) == KILLS
    assert_same(whole, result, 0.0)
    assert numbers(whole) == numbers(result)
