"""FGSSL against FedAvg and against loops over nodes; its views."""

from __future__ import annotations

from typing import Any

import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

import plain
from atoll.federation.cohort import first_model
from atoll.graphs.views import view
from atoll.random import Draws
from atoll.runs import runner
from small import small

UNCHANGED = {"weak_edges": 0.0, "weak_columns": 0.0, "strong_edges": 0.0, "strong_columns": 0.0}


@pytest.mark.parametrize(
    "values", [{"contrast_weight": 0.0, "structure_weight": 0.0}, {"contrast": "none", "structure": "none"}], ids=str
)
def test_without_both_terms_it_is_fedavg(values: dict[str, Any]) -> None:
    """λ_C = λ_D = 0: no view is drawn; FedAvg's model and metrics, bit for bit, with dropout."""
    ssl, avg = runner.run(small("fgssl", dropout=0.3, **values)), runner.run(small("fedavg", dropout=0.3))
    plain.same(ssl.state["model"], avg.state["model"])
    assert plain.metrics(ssl) == plain.metrics(avg)


def cosine(one: Tensor, other: Tensor) -> Tensor:
    """Of two vectors."""
    return (one @ other) / (one.norm() * other.norm())


def semantics(anchors: Tensor, samples: Tensor, party: plain.Party) -> Tensor:
    """The contrast, node by node."""
    rows, losses = party.train.nonzero()[:, 0].tolist(), []
    for i in rows:
        total = torch.stack([(cosine(anchors[i], samples[j]) / 0.3).exp() for j in rows]).sum()
        logs = [(cosine(anchors[i], samples[j]) / 0.3) - total.log() for j in rows if party.y[j] == party.y[i]]
        losses.append(-torch.stack(logs).mean())
    return torch.stack(losses).mean()


def neighbors(student: Tensor, teacher: Tensor, party: plain.Party) -> Tensor:
    """The structure's distillation, node by node."""
    losses = []
    for i in range(len(party.x)):
        near = [*party.adjacency[i].nonzero()[:, 0].tolist(), i]
        given, wanted = (
            torch.stack([cosine(rows[i], rows[j]) / 0.4 for j in near]).log_softmax(0) for rows in (student, teacher)
        )
        losses.append((wanted.exp() * (wanted - given)).sum())
    return torch.stack(losses).mean()


def edges(student: Tensor, teacher: Tensor, party: plain.Party) -> Tensor:
    """The differences along edges, edge by edge."""
    losses = []
    for i, j in party.adjacency.nonzero().tolist():
        given, wanted = (((rows[i] - rows[j]).abs() / 0.4).log_softmax(0) for rows in (student, teacher))
        losses.append((wanted.exp() * (wanted - given)).sum())
    return torch.stack(losses).mean()


def hidden(weights: plain.Weights, party: plain.Party) -> Tensor:
    """The hidden layer of a GCN."""
    return (party.normalized_adjacency @ party.x @ weights["layers.0.weight"] + weights["layers.0.bias"]).relu()


@pytest.mark.parametrize(
    ("contrast", "structure"), [("global", "neighbors"), ("self", "none"), ("none", "edges"), ("both", "none")]
)
def test_two_rounds_equal_a_loop_over_parties_and_nodes(contrast: str, structure: str) -> None:
    """All terms written out, on views that leave nothing out, so that they differ in the models alone."""
    values = {**UNCHANGED, "contrast": contrast, "structure": structure, "contrast_weight": 0.5, "structure_weight": 0.7}
    values |= {"contrast_temperature": 0.3, "structure_temperature": 0.4}
    config = small("fgssl", optimizer="sgd", lr=0.2, epochs=2, rounds=2, **values)
    experiment, parties = plain.prepare(config)
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    for _ in range(2):
        models = []
        for party in parties:
            own = plain.leaves(server)
            for _ in range(2):
                h, y = hidden(own, party), plain.forward("gcn", own, party)
                taught, said = hidden(server, party), plain.forward("gcn", server, party)
                loss = party.loss(y)
                if contrast in ("global", "both"):
                    loss = loss + 0.5 * semantics(h, taught, party)
                if contrast in ("self", "both"):
                    loss = loss + 0.5 * semantics(h, h, party)
                if structure == "neighbors":
                    loss = loss + 0.7 * neighbors(y, said, party)
                elif structure == "edges":
                    loss = loss + 0.7 * edges(h, taught, party)
                plain.descend(own, loss, 0.2)
            models.append(own)
        server = plain.average(models, [party.n for party in parties])
    plain.close(runner.rounds(experiment).state["model"], server, 1e-4)


def test_at_the_first_step_the_student_is_its_teacher() -> None:
    """With views that leave nothing out and no dropout the distillation of structure is 0 at first."""
    (cohort,) = runner.prepare(small("fgssl", **UNCHANGED)).engine.cohorts  # type: ignore[attr-defined]
    model = first_model(cohort.settings, cohort.schema, 0)
    cohort.load(model)
    cohort.teacher.load_state_dict(cohort.model.state_dict())
    said = cohort.output(cohort.graph).detach()
    hidden_rows, taught = cohort.taught(cohort.graph)
    assert abs(float(cohort.neighbors(said, taught, cohort.graph))) < 1e-6
    assert abs(float(cohort.edges(hidden_rows, hidden_rows, cohort.graph))) < 1e-6


@pytest.mark.parametrize("sparse", [True, False])
def test_a_view_leaves_out_edges_and_columns(sparse: bool) -> None:
    """Both directions of an edge together, columns in all of a party's rows, in about the wanted shares."""
    graph = runner.prepare(small("fgssl", **{"data.nodes": 300, "data.features": 40})).party_data.parts
    dense = graph.x if isinstance(graph.x, Tensor) else torch.from_numpy(graph.x.toarray())
    if sparse:
        graph = graph.__class__(**{**{n: getattr(graph, n) for n in graph.__dataclass_fields__}, "x": sp.csr_array(dense)})
    made = view(graph, 0.3, 0.5, Draws(1, range(3)))
    kept = set(map(tuple, made.edge_index.t().tolist()))
    assert kept < set(map(tuple, graph.edge_index.t().tolist()))
    assert kept == {(j, i) for i, j in kept}
    assert 0.6 < len(kept) / graph.edge_index.shape[1] < 0.8
    x = made.x if isinstance(made.x, Tensor) else torch.from_numpy(made.x.toarray())
    for party, (first, last) in enumerate(graph.blocks.ranges):
        columns = (x[first:last] != 0).any(0)
        assert 8 < int(columns.sum()) < 32
        torch.testing.assert_close(x[first:last], dense[first:last] * columns)
        alone = view(graph.select([party]), 0.3, 0.5, Draws(1, [party]))
        assert alone.edge_index.shape[1] == int((made.party[made.edge_index[0]] == party).sum())
    weight = torch.randn(3, 40, 4, generator=torch.Generator().manual_seed(0))
    wanted = torch.cat([part @ w for part, w in zip(torch.split(x, graph.sizes), weight, strict=True)])
    torch.testing.assert_close(made.features @ weight, wanted, atol=1e-5, rtol=1e-4)


def test_a_view_of_everything_is_the_graph() -> None:
    """Shares 0: the very same graph, and no draw is used."""
    graph = runner.prepare(small("fgssl")).party_data.parts
    draws, fresh = Draws(1, range(3)), Draws(1, range(3))
    assert view(graph, 0.0, 0.0, draws) is graph
    assert torch.equal(draws.uniform(4), fresh.uniform(4))


def test_bytes() -> None:
    """4·w down; 4·w + 8 up."""
    result = runner.run(small("fgssl", rounds=2))
    parameters = plain.size(result.state["model"])
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8)


@pytest.mark.parametrize("contrast", ["self", "none"])
@pytest.mark.parametrize("structure", ["neighbors", "edges", "none"])
def test_one_batch_with_all_neighbors_is_the_whole_graph(contrast: str, structure: str) -> None:
    """Every loss, on views that leave edges and columns out."""
    values = {"contrast": contrast, "structure": structure, "dropout": 0.0, "rounds": 2}
    whole = runner.run(small("fgssl", **values))
    batched = runner.run(small("fgssl", batch_size=1000, fan_out="0", **values))
    for name, value in whole.state["model"].items():
        torch.testing.assert_close(batched.state["model"][name], value, atol=1e-5, rtol=1e-5)
