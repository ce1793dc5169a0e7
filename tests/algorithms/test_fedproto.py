"""FedProto against Local and a naive loop over parties."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import plain
from atoll.errors import AtollError
from atoll.runs import runner
from small import small


def hidden(weights: plain.Weights, party: plain.Party) -> Tensor:
    """The hidden layer of a GCN."""
    return (party.normalized_adjacency @ party.x @ weights["layers.0.weight"] + weights["layers.0.bias"]).relu()


def test_without_the_distance_it_is_local() -> None:
    """λ = 0: Local's models and metrics, bit for bit, with dropout too."""
    proto = runner.run(small("fedproto", dropout=0.3, prototype_weight=0.0))
    local = runner.run(small("local", dropout=0.3))
    plain.same(proto.memory["0"]["model"], local.memory["0"]["model"])
    assert plain.metrics(proto) == plain.metrics(local)


@pytest.mark.parametrize("variant", ["authors", "paper", "literal"])
def test_three_rounds_equal_a_loop_over_parties(variant: str) -> None:
    """Distances node by node and class by class, both means of prototypes, and classes with too few nodes left out."""
    literal = variant == "literal"
    values = {"variant": "paper", "prototype_weights": "literal"} if literal else {"variant": variant}
    config = small("fedproto", optimizer="sgd", lr=0.2, epochs=3, prototype_weight=0.7, min_count=2, **values)
    experiment, parties = plain.prepare(config)
    first = experiment.engine.state()["0"]["model"]
    models = [plain.leaves({name: value[p] for name, value in first.items()}) for p in range(3)]
    shared: dict[int, Tensor] = {}
    for _ in range(3):
        sent: dict[int, list[tuple[int, Tensor]]] = {}
        for own, party in zip(models, parties, strict=True):
            members = {c: (party.train & (party.y == c)).nonzero()[:, 0] for c in range(3)}
            for _ in range(3):
                loss, z = party.loss(plain.forward("gcn", own, party)), hidden(own, party)
                known = [c for c in members if c in shared and len(members[c])]
                if variant == "authors" and known:
                    loss = loss + 0.7 * torch.cat([(z[members[c]] - shared[c]).square().mean(1) for c in known]).mean()
                elif known:
                    loss = loss + 0.7 * sum((z[members[c]].mean(0) - shared[c]).square().mean() for c in known) / len(known)
                plain.descend(own, loss, 0.2)
            for c, rows in members.items():
                if len(rows) >= 2:
                    weight = 1 if variant == "authors" else len(rows)
                    sent.setdefault(c, []).append((weight, hidden(own, party)[rows].mean(0).detach()))
        for c, items in sent.items():
            shared[c] = sum(weight * value for weight, value in items) / sum(weight for weight, _ in items)
            shared[c] = shared[c] / (len(items) if literal else 1)
    result = runner.rounds(experiment)
    assert 0 < sum(map(len, sent.values())) < 9  # some party has too few nodes of some class
    assert result.state["known"].tolist() == [c in shared for c in range(3)]
    for c, value in shared.items():
        torch.testing.assert_close(result.state["prototypes"][c], value, atol=1e-5, rtol=1e-5)
    for p, own in enumerate(models):
        plain.close({name: value[p] for name, value in result.memory["0"]["model"].items()}, own)


def test_the_nearest_prototype_predicts(tmp_path: Path) -> None:
    """`predict=nearest`: the class of the nearest shared prototype; that is not a network to export."""
    config = small("fedproto", rounds=1, prototype_weights="counts", predict="nearest")
    experiment = runner.prepare(config)
    result = runner.rounds(experiment)
    prototypes, known = result.state["prototypes"], result.state["known"]
    (cohort,) = experiment.engine.cohorts
    with torch.no_grad():
        found = cohort.predict(prototypes, known)
        z = cohort.model.embed(cohort.graph)
    nearest = torch.cdist(z, prototypes[known]).argmin(1)
    assert torch.equal(found.argmax(1), known.nonzero()[:, 0][nearest])
    with pytest.raises(AtollError, match="predicts with prototypes, not with a network"):
        result.model().export("torchscript", tmp_path / "model", party=0)


def test_bytes() -> None:
    """4·C·h + C down; 4·C·h + 8·C up."""
    result = runner.run(small("fedproto", rounds=2))
    assert result.bytes["down"] == 2 * 3 * (4 * 3 * 64 + 3)
    assert result.bytes["up"] == 2 * 3 * (4 * 3 * 64 + 8 * 3)


def test_a_class_without_a_prototype_is_never_the_nearest() -> None:
    """However far away the others are."""
    experiment = runner.prepare(small("fedproto", rounds=1, predict="nearest"))
    (cohort,) = experiment.engine.cohorts
    prototypes = torch.zeros(experiment.federation.schema.classes, cohort.model.embed(cohort.graph).shape[1])
    known = torch.ones(len(prototypes), dtype=torch.bool)
    prototypes[1:] = 1e4
    known[0] = False
    assert bool((cohort.predict(prototypes, known).argmax(1) > 0).all())


def test_prototypes_collected_while_training() -> None:
    """Of the last epoch's passes: those of the model one step earlier; in mini-batches, of each batch."""
    values = {"optimizer": "sgd", "lr": 0.2, "rounds": 1, "min_count": 1, "start": "shared"}
    before, after = (
        runner.run(small("fedproto", epochs=1 + late, collect=word, **values)) for late, word in ((0, "after"), (1, "training"))
    )
    for one, other in zip(before.state.values(), after.state.values(), strict=True):
        torch.testing.assert_close(one.float(), other.float())
    batched = runner.run(small("fedproto", epochs=2, collect="training", batch_size=3, fan_out=0, **{**values, "lr": 0.0}))
    whole = runner.run(small("fedproto", epochs=2, **{**values, "lr": 0.0}))
    torch.testing.assert_close(batched.state["prototypes"], whole.state["prototypes"], atol=1e-5, rtol=1e-4)
    plain.same(  # what is collected does not train
        runner.run(small("fedproto", collect="training", prototype_weight=0.0)).memory["0"]["model"],
        runner.run(small("local")).memory["0"]["model"],
    )
