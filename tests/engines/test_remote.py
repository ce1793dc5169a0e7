"""The remote engine and the sites that answer it, without processes: the same numbers; bad answers fail by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll import wire
from atoll.deploy import site
from atoll.deploy.site import Site
from atoll.engines import remote
from atoll.engines.remote import invalid_fields, read_answer
from atoll.errors import AtollError
from atoll.federation.federation import Answer, Failure
from atoll.runs import runner
from atoll.runs.folder import Folder
from sites import (
    DirectCarrier,
    first_model,
    fit_message,
    ok_answer,
    remote_engine,
    run_over,
    simulated_sites,
)
from small import small
from test_promises import assert_same, numbers


def test_the_two_ends_agree_with_one_process(tmp_path: Path) -> None:
    """Messages through bytes and back: the same bits as in one process, with memory at the sites."""
    config = small("fedspray")
    assert_same(runner.run(config), run_over(config, DirectCarrier(simulated_sites(tmp_path))), 0.0)


BAD: dict[str, tuple[Callable[[bytes], bytes | str], str]] = {
    "garbage": (lambda data: b"\x00garbage", "could not be read"),
    "empty": (lambda data: b"", "could not be read"),
    "version": (lambda data: wire.encode({"atoll": "9.9", "status": "ok"}), "runs atoll 9.9"),
    "silence": (lambda data: "timed out after 5 seconds", "timed out"),
    "scalar": (lambda data: ok_answer({"model": 3}), "'model'"),
    "rows": (lambda data: ok_answer({"model": torch.zeros(2, 4)}), "a row for each of its 1 parties"),
    "ragged": (lambda data: ok_answer({"model": [torch.zeros(4), torch.zeros(4)]}), "a tensor for each of its 1 parties"),
    "clash": (lambda data: wire.encode({"a": torch.zeros(1), "a/b": torch.zeros(1)}), "could not be read"),
    "long reason": (lambda data: wire.encode({"atoll": remote.__version__, "status": "x", "reason": "no\n" * 999}), "no no"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_answer_is_a_failure_of_its_party(kind: str, tmp_path: Path) -> None:
    """Whatever one site sends, it fails alone, by name, and the others are heard."""
    config = small("fedavg")
    carrier = DirectCarrier(simulated_sites(tmp_path))
    server = remote_engine(config, carrier)
    first = first_model(config)
    server.deliver(fit_message(model=first))
    bad, reason = BAD[kind]
    carrier.instead["site-1"] = bad
    results = server.deliver(fit_message(model=first))
    assert sorted(party for result in results if isinstance(result, Answer) for party in result.parties) == [0, 2]
    (failure,) = [result for result in results if isinstance(result, Failure)]
    assert failure.party == 1
    assert failure.reason.startswith("site-1 ")
    assert reason in failure.reason
    assert len(failure.reason) < 400
    assert "\n" not in failure.reason


def test_an_oversize_message_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A message beyond the limit is not even opened, at either end."""
    monkeypatch.setattr(remote, "MAX_MESSAGE_BYTES", 10)
    assert "more than the 10 that are accepted" in str(read_answer(ok_answer({})))
    monkeypatch.undo()
    monkeypatch.setattr(site, "MAX_MESSAGE_BYTES", 10)
    assert "refused: the message has 11 bytes, more than the 10" in str(read_answer(Site(tmp_path).handle(b"x" * 11)))


def test_a_field_of_the_right_form_fits() -> None:
    """Nested fields, rows and ragged lists of one tensor a party are fine."""
    assert invalid_fields({"a": {"b": torch.zeros(2, 3)}, "c": [torch.zeros(1), torch.zeros(2)]}, 2) == ""
    assert invalid_fields({"a": torch.tensor(3.0)}, 1)


def test_not_a_number_is_refused_by_name(tmp_path: Path) -> None:
    """NaN from a site: the federation names party and field, the round goes on without it."""
    config = small("fedavg", rounds=2)
    carrier = DirectCarrier(simulated_sites(tmp_path))

    def poison(data: bytes) -> bytes:
        request = wire.decode(data)
        reply = wire.decode(carrier.sites["site-1"].handle(data))
        if request["kind"] == "ask" and request["round"] == 2 and request["training"]:
            next(iter(reply["fields"]["model"].values()))[:] = float("nan")
        return wire.encode(reply)

    carrier.instead["site-1"] = poison
    result = run_over(config, carrier)
    assert "missing" not in result.rows[0]
    assert "is not finite" in result.rows[1]["missing"]["1"]


def test_a_restarted_site_goes_on_from_its_own_save(tmp_path: Path) -> None:
    """A site that forgot the run is told of it again, loads its save of the last checkpoint, and answers."""
    config = small("fedspray", rounds=6, checkpoint_every=2)
    whole = run_over(config, DirectCarrier(simulated_sites(tmp_path / "whole")))
    carrier = DirectCarrier(simulated_sites(tmp_path / "sites"))
    handle = carrier.sites["site-1"].handle
    said: list[str] = []

    def restart(data: bytes) -> bytes:
        request = wire.decode(data)
        if request["kind"] == "ask" and request["round"] == 3 and not said:  # after the save of round 2, before anything of 3
            carrier.sites["site-1"] = Site(tmp_path / "sites" / "site-1", None, said.append)
        return carrier.sites["site-1"].handle(data)

    carrier.instead["site-1"] = restart
    result = run_over(config, carrier, Folder.create(tmp_path / "run", config))
    assert handle is not carrier.sites["site-1"].handle
    assert any("continuing from round 2" in text for text in said)
    assert_same(whole, result, 0.0)


def test_a_lost_site_and_exact_resume(tmp_path: Path) -> None:
    """With on_missing=stop a lost site stops the run; resumed from the checkpoint with everybody back, the bits are the same."""
    config = small("fedspray", rounds=5, checkpoint_every=1, on_missing="stop")
    whole = run_over(config, DirectCarrier(simulated_sites(tmp_path / "whole")))
    carrier = DirectCarrier(simulated_sites(tmp_path / "sites"))

    def vanish(data: bytes) -> bytes | str:
        request = wire.decode(data)
        return "lost the connection" if request.get("round") == 4 else carrier.sites["site-2"].handle(data)

    carrier.instead["site-2"] = vanish
    folder = Folder.create(tmp_path / "run", config)
    with pytest.raises(AtollError, match="party 2: site-2 lost the connection"):
        run_over(config, carrier, folder)
    again = DirectCarrier(simulated_sites(tmp_path / "sites"))
    resumed = run_over(config, again, folder, folder.load())
    assert_same(whole, resumed, 0.0)
    assert numbers(whole) == numbers(resumed)
    kept = sorted(path.name for path in (tmp_path / "sites" / "site-0").glob("*/*.safetensors"))
    assert kept == ["3.safetensors", "4.safetensors", "5.safetensors"]


def test_a_site_without_its_save(tmp_path: Path) -> None:
    """Where a site's saves are gone, an exact resume is refused by name; otherwise the site begins again and says so."""
    config = small("fedspray", rounds=2, checkpoint_every=1)
    folder = Folder.create(tmp_path / "run", config)
    run_over(config, DirectCarrier(simulated_sites(tmp_path / "sites")), folder)
    checkpoint = folder.load()
    assert checkpoint is not None
    said: list[str] = []
    fresh = simulated_sites(tmp_path / "sites") | {"site-1": Site(tmp_path / "elsewhere", None, said.append)}
    with pytest.raises(AtollError, match="site-1 refused: the save of round 2 is not here"):
        remote_engine(config, DirectCarrier(fresh), exact=True).restore(checkpoint["memory"])
    remote_engine(config, DirectCarrier(fresh)).restore(checkpoint["memory"])
    assert any("the beginning" in text for text in said)
