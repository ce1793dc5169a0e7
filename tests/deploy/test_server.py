"""The server's side of a run: what it logs, and which sites it needs to go on."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll.deploy import launch, server
from atoll.deploy.server import ServerRun
from atoll.errors import AtollError
from atoll.runs.config import Config
from sites import DirectCarrier, sites_with_data
from small import small


def server_run(config: Config, folder: Path, carrier: Any = None, *, simulated: bool = True, resume: bool = False) -> ServerRun:
    """The server's side of a run of three sites."""
    order = {"config": config.to_dict(), "roster": {f"site-{index}": (index, index + 1) for index in range(3)}}
    return ServerRun(carrier, order | {"simulated": simulated, "patience": 1.0, "out": str(folder), "resume": resume})


def test_the_log_tells_who_was_left_out_and_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a site sent and the server would not take stands in its log, once; the round is passed on."""
    bad = {"1": "field 'model/w' is not finite", "2": "site-2 timed out after 5 seconds"}
    server_run(small("fedavg"), tmp_path)._report_round({"round": 4, "missing": bad}, 9)
    assert [record.getMessage() for record in caplog.records] == ["round 4: left out site-1: field 'model/w' is not finite"]


def test_a_run_can_be_asked_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request arrives while a run goes on, not after it: the next round is its last. Other commands wait for their turn."""
    orders: list[dict[str, Any]] = [{"stop_run": True, "number": 1}, {"echo": [], "number": 2}]
    monkeypatch.setattr(server, "commands", lambda: iter(orders))
    loop, pending = server.CommandLoop(None), queue.Queue()  # type: ignore[arg-type, var-annotated]
    run = server_run(small("fedavg"), tmp_path)
    run.stopping = loop.stopping
    assert run._report_round({"round": 1}, 9) is True
    loop._listen(pending)
    assert run._report_round({"round": 2}, 9) is False
    assert [pending.get_nowait()] == orders[1:]


def test_a_run_that_is_taken_up_goes_on_without_a_site_that_hangs(tmp_path: Path) -> None:
    """With on_missing=continue a site that is connected but silent is not needed to know the form of the data; at first it is."""

    class Silent(DirectCarrier):
        """All are connected; one does not answer."""

        def session(self, site: str) -> str:
            """A connection."""
            return site

    config = small("fedavg")
    carrier = Silent(sites_with_data(tmp_path, config))
    carrier.instead["site-2"] = lambda data: "timed out after 5 seconds"
    deployed = launch.deployment_config({"algorithm": "fedavg"}, "run.toml", ["a", "b", "c"])
    form = server_run(deployed, tmp_path, carrier, simulated=False, resume=True)._common_form()
    assert (form.features, form.classes) == (12, 3)
    with pytest.raises(AtollError, match="The site site-2 cannot take part: it timed out"):
        server_run(deployed, tmp_path, carrier, simulated=False)._common_form()
