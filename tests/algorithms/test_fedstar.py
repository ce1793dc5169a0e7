"""FedStar's training against a naive loop over parties."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import plain
from atoll.algorithms import fedstar
from atoll.errors import AtollError
from atoll.runs import runner
from atoll.tasks.node_classification import TASK
from small import small

MODELS = ["gcn", "sgc", "sage"]


@pytest.mark.parametrize("head", ["linear", "authors"])
@pytest.mark.parametrize("model", [*MODELS, "gin"])
def test_two_rounds_equal_a_loop_over_parties(model: str, head: str) -> None:
    """Both encoders train at every party; the structure encoder is averaged, the feature encoder stays."""
    config = small("fedstar", model=model, rounds=2, optimizer="sgd", lr=0.05, epochs=3, walk_steps=4, max_degree=3, head=head)
    experiment, parties = plain.prepare(config)
    memory = experiment.engine.state()["0"]
    embeddings = memory["embedding"].split(experiment.party_data.parts.sizes)
    personal = [{name: value[p].clone() for name, value in memory["features"].items()} for p in range(3)]
    server = fedstar.start(experiment.federation, config.settings)["structure"]
    for _ in range(2):
        trained = []
        for p, party in enumerate(parties):
            own = plain.leaves({**personal[p], **{f"s.{name}": value for name, value in server.items()}})
            for _ in range(3):
                plain.descend(own, party.loss(forward(model, own, party, embeddings[p])), 0.05)
            personal[p] = {name: own[name].detach() for name in personal[p]}
            trained.append({name.removeprefix("s."): value for name, value in own.items() if name.startswith("s.")})
        server = plain.average(trained, [party.n for party in parties])
    result = runner.rounds(experiment)
    plain.close(result.state["structure"], server)
    for p in range(3):
        plain.close({name: value[p] for name, value in result.memory["0"]["features"].items()}, personal[p])


def forward(model: str, w: plain.Weights, party: plain.Party, embedding: Tensor) -> Tensor:
    """h⁺ = relu(conv([h ‖ s])), s⁺ = tanh(Â·s·W + b), logits from [h ‖ s]."""
    h = party.x @ w["input.weight"] + w["input.bias"]
    s = embedding @ w["s.embedding.weight"] + w["s.embedding.bias"]
    for layer in range(1 if model == "sgc" else 2):
        both = torch.cat([h, s], 1)
        at = f"layers.{layer}.layers.0"
        if model == "gcn":
            h = (party.normalized_adjacency @ both @ w[f"{at}.weight"] + w[f"{at}.bias"]).relu()
        elif model == "sgc":
            h = party.normalized_adjacency @ party.normalized_adjacency @ both @ w[f"{at}.weight"] + w[f"{at}.bias"]
        elif model == "gin":
            summed = (party.adjacency @ both + both) @ w[f"{at}.first.weight"] + w[f"{at}.first.bias"]
            h = (summed.relu() @ w[f"{at}.second.weight"] + w[f"{at}.second.bias"]).relu()
        else:
            h = (party.mean @ both @ w[f"{at}.near.weight"] + w[f"{at}.near.bias"] + both @ w[f"{at}.own.weight"]).relu()
        s = torch.tanh(party.normalized_adjacency @ s @ w[f"s.layers.{layer}.weight"] + w[f"s.layers.{layer}.bias"])
    both = torch.cat([h, s], 1)
    if "inner.0.weight" in w:
        both = both @ w["inner.0.weight"] + w["inner.0.bias"]  # W_hp
        both = (both @ w["inner.1.weight"] + w["inner.1.bias"]).relu()  # post
    return both @ w["output.weight"] + w["output.bias"]


@pytest.mark.parametrize("model", [*MODELS, "gat", "appnp", "mlp"])
def test_every_backbone_of_layers_works(model: str) -> None:
    """The parties fit their training nodes better and better."""
    experiment = runner.prepare(small("fedstar", model=model, rounds=8, dropout=0.2))
    cohort = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    with torch.no_grad():
        before = TASK.loss(cohort.output(cohort.graph), cohort.graph, "train")
        runner.rounds(experiment)
        after = TASK.loss(cohort.output(cohort.graph), cohort.graph, "train")
    assert after < 0.7 * before


def test_a_backbone_without_such_layers_is_refused() -> None:
    """GCNII's layers are tied to its first one."""
    with pytest.raises(AtollError, match="gcnii has no place for"):
        runner.run(small("fedstar", model="gcnii"))


def test_only_structure_is_shared() -> None:
    """Parties draw their own feature encoders and all hold the server's structure encoder."""
    result = runner.run(small("fedstar", epochs=0))
    first = result.memory["0"]["features"]["input.weight"]
    assert not torch.equal(first[0], first[1])
    structure = result.memory["0"]["structure"]
    for name, value in result.state["structure"].items():
        for p in range(3):
            torch.testing.assert_close(structure[name][p], value, atol=1e-6, rtol=1e-5)


def test_bytes() -> None:
    """4·w_S down; 4·w_S + 8 up: nothing that depends on the features' width."""
    result = runner.run(small("fedstar", rounds=2))
    parameters = (16 + 16) * 64 + 64 + 2 * (64 * 64 + 64)
    assert plain.size(result.state["structure"]) == parameters
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8)
