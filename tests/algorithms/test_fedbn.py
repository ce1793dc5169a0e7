"""FedBN against FedAvg and a naive loop over parties; batch norm in the algorithms that train with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import plain
from atoll import algorithms
from atoll.errors import AtollError
from atoll.federation.cohort import first_model
from atoll.runs import runner
from atoll.settings import known
from small import ALGORITHMS, small
from test_promises import assert_resume_is_exact, assert_same, run

NORMED = [
    name
    for name in ALGORITHMS
    if "norm" in known(algorithms.find(name).Settings) and not getattr(algorithms.find(name), "NO_NORM", "")
]
STATISTICS = ("mean", "variance")


def test_who_keeps_nothing_is_fedavg() -> None:
    """keep=none: FedAvg of a network with batch norm, bit for bit, with dropout."""
    bn = runner.run(small("fedbn", dropout=0.3, keep="none"))
    avg = runner.run(small("fedavg", dropout=0.3, norm="batch"))
    plain.same(bn.state["model"], avg.state["model"])
    assert plain.metrics(bn) == plain.metrics(avg)


@pytest.mark.parametrize("keep", ["all", "statistics"])
def test_two_rounds_equal_a_loop_over_parties(keep: str) -> None:
    """Each party's torch.nn.BatchNorm1d in a GCN; the server averages the rest."""
    config = small("fedbn", rounds=2, optimizer="sgd", lr=0.3, epochs=3, keep=keep)
    experiment, parties = plain.prepare(config)
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    kept = [f"layers.0.norm.{name}" for name in (("scale", "shift", *STATISTICS) if keep == "all" else STATISTICS)]
    own = [{name: server[name].clone() for name in kept} for _ in parties]
    for _ in range(2):
        models = []
        for p, party in enumerate(parties):
            weights = server | own[p]
            moving = {name: weights[name].clone() for name in weights if name.endswith(STATISTICS)}
            trained = plain.leaves({name: value for name, value in weights.items() if name not in moving})
            for _ in range(3):
                hidden = party.normalized_adjacency @ party.x @ trained["layers.0.weight"]
                hidden = F.batch_norm(
                    hidden,
                    moving["layers.0.norm.mean"],
                    moving["layers.0.norm.variance"],
                    trained["layers.0.norm.scale"],
                    trained["layers.0.norm.shift"],
                    training=True,
                )
                out = party.normalized_adjacency @ hidden.relu() @ trained["layers.1.weight"] + trained["layers.1.bias"]
                plain.descend(trained, party.loss(out), 0.3)
            models.append({name: value.detach() for name, value in {**trained, **moving}.items()})
            own[p] = {name: models[p][name] for name in kept}
        server = plain.average(models, [party.n for party in parties])
    result = runner.rounds(experiment)
    plain.close(result.state["model"], {name: value for name, value in server.items() if name not in kept})
    for name in kept:
        found = result.memory["0"]["norms"][f"0.{name.rpartition('.')[2]}"]
        torch.testing.assert_close(found, torch.stack([each[name] for each in own]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("keep", "shares"), [("all", 0), ("statistics", 2), ("none", 4)])
def test_bytes(keep: str, shares: int) -> None:
    """4·(w − w_bn) down and, with 8 more, up: what is kept is not in the message; a batch norm has four numbers per unit."""
    result = runner.run(small("fedbn", rounds=2, hidden=8, keep=keep))
    names = result.state["model"]
    assert sum(".norm." in name for name in names) == shares
    whole = 12 * 8 + 4 * 8 + 8 * 3 + 3
    travels = 4 * (whole - (4 - shares) * 8)
    assert result.bytes["down"] == 2 * 3 * travels
    assert result.bytes["up"] == 2 * 3 * (travels + 8)


@pytest.mark.parametrize("algorithm", NORMED)
def test_the_promises_hold_with_batch_norm(algorithm: str, tmp_path: Any) -> None:
    """Wherever parties live and whatever they forget, half of them in a round: the same numbers; resume is exact."""
    values = {"norm": "batch", "layers": 2, "hidden": 8, "dropout": 0.3, "epochs": 2, "participation": 0.5}
    if algorithm not in ("fedmlp", "mlps", "feddep"):  # which have a model of their own
        values["model"] = "gcn"
    if algorithm == "centralized":
        del values["participation"]
    usual = run(small(algorithm, **values))
    assert_same(usual, run(small(algorithm, **values, placement="apart")), 1e-5)
    assert_same(usual, run(small(algorithm, **values, amnesia="true")), 1e-6)
    assert_resume_is_exact(small(algorithm, **values, rounds=3, checkpoint_every=1), 2, tmp_path)
    plainly = run(small(algorithm, **{**values, "norm": "none"})) if algorithm != "fedbn" else None
    assert plainly is None or plainly.last["val_loss"] != usual.last["val_loss"]


@pytest.mark.parametrize("values", [{"evaluation": "trained"}, {"batch_size": 4}, {"secure": "true"}], ids=str)
def test_it_runs_as_the_others_do(values: dict[str, Any]) -> None:
    """The parties' models judged, mini-batches, secure totals: wherever the parties live."""
    result = run(small("fedbn", **values))
    if "secure" not in values:
        assert_same(result, run(small("fedbn", **values, placement="apart")), 1e-5)


@pytest.mark.parametrize(
    ("algorithm", "values", "sentence"),
    [
        ("fedbn", {"norm": "none"}, "with norm=none there are none"),
        ("feddyn", {"norm": "batch"}, "a running variance may be negative"),
        ("feddc", {"norm": "batch"}, "a running variance may be negative"),
        ("scaffold", {"norm": "batch"}, "controls are gradients"),
        ("fedavg", {"norm": "batch", "evaluation_dropout": True}, "leave one out"),
        ("fedbn", {"model": "sgc"}, "sgc cannot have batch norm"),
        ("fedbn", {"layers": 1, "model": "gcn"}, "layers=1 has none"),
    ],
)
def test_what_batch_norm_is_not_for_is_said(algorithm: str, values: dict[str, Any], sentence: str) -> None:
    """In one sentence, before anything runs."""
    with pytest.raises(AtollError, match=sentence):
        small(algorithm, **values)


def test_graph_tasks_have_none() -> None:
    """Said when the network is made."""
    from atoll.federation.cohort import Schema, backbone

    with pytest.raises(AtollError, match="graph tasks have no batch norm"):
        backbone(small("fedbn").settings, Schema(2, 2, 1, level="graph"), 1, None)
