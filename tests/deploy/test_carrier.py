"""NVFlare's requests as a carrier: one site's failure does not touch the others."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from nvflare.fuel.f3.endpoint import EndpointState

from atoll.deploy.carrier import NVFlareCarrier


def test_an_answer_that_breaks_nvflare_is_a_failure_of_its_site(caplog: pytest.LogCaptureFixture) -> None:
    """NVFlare raising while it takes one site's answer apart does not end the others' round."""

    def send_request(**anything: Any) -> Any:
        raise ValueError("bad blob")

    ready = SimpleNamespace(
        endpoint=SimpleNamespace(state=EndpointState.READY), connections=[SimpleNamespace(get_name=lambda: "CN1")]
    )
    manager = SimpleNamespace(sfm_endpoints={"site-0": ready})
    cell = SimpleNamespace(
        send_request=send_request,
        requests_dict={},
        core_cell=SimpleNamespace(communicator=SimpleNamespace(conn_manager=manager)),
    )
    assert NVFlareCarrier(cell).send({"site-0": b"", "site-1": b""}, 1.0) == {
        "site-0": "could not be reached (ValueError)",
        "site-1": "is not connected",
    }
    assert "site-0 could not be asked" in caplog.text


def test_answers_come_in_the_order_of_asking() -> None:
    """The first site's columns are everybody's order: who answers first must not decide who is first."""
    last = threading.Event()

    def send_request(target: str, **anything: Any) -> Any:
        last.wait(10) if target == "site-0" else last.set()
        return SimpleNamespace(get_header=lambda name: None, payload=target.encode())

    ready = SimpleNamespace(
        endpoint=SimpleNamespace(state=EndpointState.READY), connections=[SimpleNamespace(get_name=lambda: "CN1")]
    )
    manager = SimpleNamespace(sfm_endpoints={"site-0": ready, "site-2": ready})
    cell = SimpleNamespace(
        send_request=send_request,
        requests_dict={},
        core_cell=SimpleNamespace(communicator=SimpleNamespace(conn_manager=manager)),
    )
    replies = NVFlareCarrier(cell).send({"site-0": b"", "site-1": b"", "site-2": b""}, 1.0)
    assert list(replies.items()) == [("site-0", b"site-0"), ("site-1", "is not connected"), ("site-2", b"site-2")]
