"""Users who join after training: until then as if they were not there; then by the rule; predicted as a grown federation is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from test_nfedgnn import go, prepared
from users import some_users

from atoll.algorithms.nfedgnn import first_weight
from atoll.algorithms.nfedgnn.joining import pulled
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.runs import config, runner

LATE = {"hidden": 8, "late": 0.25}
RULES = ("mean", "initial", "neighbors")


def run(graph: Graph, algorithm: str, **values: Any) -> Any:
    """One round of a run on a graph given as an object."""
    values = {"rounds": 1, **values}
    return runner.run(config.resolve(algorithm, dataset="given", partition="node", seed=5, values=values), graph)


@pytest.mark.parametrize(
    ("algorithm", "values"),
    [("nfedgnn", {}), ("nfedgnn", {"model": "gat", "heads": 2}), ("cnfgnn", {}), ("cnfgnn", {"averaging": "after"})],
    ids=["nfedgnn", "gat", "cnfgnn", "cnfgnn, after"],
)
def test_until_they_join_training_is_that_of_the_others(algorithm: str, values: dict[str, Any]) -> None:
    """The same numbers as on the graph without them; nobody with a training label is late."""
    graph = some_users()
    federation, state = go(prepared(graph, algorithm, **LATE, **values), 5)
    early = (~state["late"]).nonzero()[:, 0]
    assert int(state["late"].sum()) == 6
    assert not bool((state["late"] & graph.train).any())
    _, alone = go(prepared(graph.rows(early), algorithm, hidden=8, **values), 5)
    assert torch.equal(state["latent"][early], alone["latent"])
    assert all(torch.equal(value, alone["model"][name]) for name, value in state["model"].items())
    assert federation.ledger.total()["messages"] == (3 if values.get("averaging") else 2) * 5 * len(early)


@pytest.mark.parametrize("algorithm", ["nfedgnn", "cnfgnn"])
@pytest.mark.parametrize("placement", ["together", "apart"])
def test_the_three_rules(algorithm: str, placement: str) -> None:
    """Latent vectors of those who join, against whole matrices and a dense solution."""
    graph = some_users()
    x, said = torch.from_numpy(graph.nonzero_features.toarray()), {}
    for rule in RULES:
        experiment = prepared(graph, algorithm, placement=placement, join=rule, **LATE)
        federation, state = go(experiment, 4)
        said[rule] = latents(experiment, state)
    late, early = state["late"], ~state["late"]
    weights = torch.cat([whole(cohort) for cohort in federation.engine.cohorts])
    everybody = torch.einsum("nf,nfh->nh", x, weights)
    first = first_weight(experiment.config.settings, federation.schema, 5)
    held = ((x != 0) if algorithm == "nfedgnn" else torch.ones_like(x)).float() * early[:, None]
    mean = torch.einsum("nf,nfh->fh", held, weights) / held.sum(0).clamp(min=1)[:, None]
    mean = torch.where(held.sum(0)[:, None] > 0, mean, first)
    expected = {"mean": x @ mean, "initial": x @ first, "neighbors": solved(everybody, x @ first, late, graph)}
    for rule in RULES:
        torch.testing.assert_close(said[rule][early], everybody[early], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(said[rule][late], expected[rule][late], atol=1e-4, rtol=1e-4)


def latents(experiment: runner.Experiment, state: dict[str, Any]) -> torch.Tensor:
    """The latent vectors that an evaluation uses."""
    seen: list[torch.Tensor] = []
    server = experiment.algorithm.evaluate.__globals__["Server"]
    forward = server.forward
    server.forward = lambda self, latent, graph, draws=None: (seen.append(latent), forward(self, latent, graph, draws))[1]
    try:
        with experiment.federation.evaluating():
            found = experiment.algorithm.evaluate(experiment.federation, state, experiment.config.settings)
    finally:
        server.forward = forward
    assert 0 <= found["late_accuracy"] <= 1
    return seen[0].detach()


def whole(cohort: Any) -> torch.Tensor:
    """(P, d, h) all weights of a cohort's users."""
    if hasattr(cohort, "upload"):
        dense: torch.Tensor = cohort.upload()["weight"].dense()
        return dense
    weights = torch.zeros(cohort.graph.parties, cohort.schema.features, cohort.settings.width)
    weights[cohort.features.user, cohort.features.feature] = cohort.weights.rows.detach()
    return weights


def solved(everybody: torch.Tensor, first: torch.Tensor, late: torch.Tensor, graph: Graph) -> torch.Tensor:
    """The minimum of Eq. 6 over the rows in `late`, by a dense solver; users without neighbors keep x·W₀."""
    edges = torch.zeros(len(late), len(late), dtype=torch.float64)
    edges[graph.edge_index[0], graph.edge_index[1]] = 1
    laplacian = torch.diag((edges + edges.T).sum(1)) - edges - edges.T
    free = late & (laplacian.diag() > 0)
    out = torch.where(late[:, None], first, everybody).double()
    right = -laplacian[free][:, ~free] @ out[~free]
    out[free] = torch.linalg.solve(laplacian[free][:, free], right)
    return out.float()


def test_two_who_know_only_each_other_meet_in_the_middle() -> None:
    """The iteration ends where nobody who was there before is near."""
    graph = replace(some_users(), edge_index=torch.tensor([[0, 1], [1, 0]]))
    latent, late = torch.arange(24.0)[:, None], torch.arange(24) < 3
    found = pulled(latent, late, graph)
    torch.testing.assert_close(found[:3, 0], torch.tensor([0.5, 0.5, 2.0]), atol=1e-4, rtol=0)
    assert torch.equal(found[3:], latent[3:])


@pytest.mark.parametrize("algorithm", ["nfedgnn", "cnfgnn"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.filterwarnings("ignore:.*names of its columns")
def test_predict_admits_new_users_as_a_run_does(algorithm: str, rule: str) -> None:
    """A model of the graph without some users, who then join with their edges, predicts what a run with late users does."""
    graph = some_users()
    graph = replace(graph, node_names=np.array([f"n{row}" for row in range(graph.num_nodes)], dtype=object))
    both = run(graph, algorithm, join=rule, **LATE)
    late = both.trained.state["late"]
    alone = run(graph.rows((~late).nonzero()[:, 0]), algorithm, hidden=8).model()
    new = late.nonzero()[:, 0].tolist()
    nodes = pd.DataFrame(torch.from_numpy(graph.nonzero_features.toarray())[new].numpy()).add_prefix("f")
    nodes.insert(0, "id", [f"n{row}" for row in new])
    ends = graph.edge_index[:, late[graph.edge_index].any(0)].t().tolist()
    edges = pd.DataFrame([(f"n{i}", f"n{j}") for i, j in ends], columns=["source", "target"])
    found = alone.outputs((nodes, edges), join=rule)
    torch.testing.assert_close(found.logits, both.model().outputs().logits[late], atol=1e-5, rtol=1e-5)
    assert list(alone.predict((nodes, edges), join=rule)["id"]) == list(nodes["id"])


def test_what_cannot_be_is_refused() -> None:
    """One sentence each: a share that nobody fills, an unknown rule, a rule without new users."""
    graph = some_users()
    with pytest.raises(AtollError, match=r"late=0\.9 is 22 of 24 users, but 1 to 16 of them can join late"):
        run(graph, "nfedgnn", hidden=8, late=0.9)
    model = run(graph, "nfedgnn", hidden=8).model()
    with pytest.raises(AtollError, match="--join is 'start' but must be one of mean, initial, neighbors"):
        model.outputs(graph, join="start")
    with pytest.raises(AtollError, match="give them: --data"):
        model.outputs(join="mean")
    assert model.outputs(graph).logits.shape == (24, 3)  # strangers without an edge to anybody
