"""GFL-APPNP with learned propagation weights: against one object a user, central gradient descent, and its degenerate case."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.test_gfl_appnp import Naive, first_model, flat, prepared, run
from atoll.algorithms.gfl_appnp.learned_propagation import Learned
from atoll.algorithms.gfl_appnp.propagation import Propagation, coefficients
from atoll.errors import AtollError
from atoll.federation.cohort import Message
from atoll.graphs.graph import Graph
from atoll.runs import runner
from small import Wrapper

GPR = {"propagation": "gpr", "steps": 4, "propagation_lr": 0.5}


def powers(graph: Graph, steps: int) -> Tensor:
    """(M + 1, N, N) Âᵗ by definition."""
    nodes = graph.ids.unique()
    looped = torch.eye(len(nodes), dtype=torch.float64)
    looped[graph.ids[graph.edge_index[1]], graph.ids[graph.edge_index[0]]] = 1
    root = looped.sum(1) ** -0.5
    once = root[:, None] * looped * root
    return torch.stack([torch.linalg.matrix_power(once, t) for t in range(steps + 1)])


class NaiveLearned(Naive):
    """Algorithm 1 and a step of γ, one object a user."""

    def __init__(self, experiment: Any, calls: dict[tuple[int, str], int]) -> None:
        super().__init__(experiment, calls)
        self.walks = powers(experiment.party_data.whole, self.settings.steps)
        self.gamma = coefficients(self.settings.teleport, self.settings.steps)

    def round(self, number: int) -> None:
        """The slopes of the first step at W̄, then the round with γ as it was."""
        self.matrix = torch.einsum("t,tij->ij", self.gamma, self.walks)
        hidden = torch.stack([user.represent(self.mean)[0] for user in self.users])
        slopes = []
        for k, user in enumerate(self.users):
            rows = user.train.nonzero()[:, 0]
            if not len(rows):
                continue
            if self.settings.batch_size:
                keys = self.draws(k, "fit", number).uniform(len(rows), self.settings.local_steps)[0]
                rows = rows[keys[:, 0].argsort()[: self.settings.batch_size]]
            gamma = self.gamma.clone().requires_grad_()
            own = user.outputs(self.mean, user.x[rows])
            others = hidden.clone()
            others[k] = 0
            logits = sum(g * (walk[k, k] * own + walk[k] @ others) for g, walk in zip(gamma, self.walks, strict=True))
            slopes.append(torch.autograd.grad(torch.nn.functional.cross_entropy(logits, user.y[rows]), gamma)[0])
        super().round(number)
        self.gamma = self.gamma - self.settings.propagation_lr * torch.stack(slopes).mean(0)


@pytest.mark.parametrize(
    ("task", "values"),
    [
        ("dnc", {}),
        ("dnc", {"amnesia": "true"}),
        ("dnc", {"layers": 3}),
        ("dnc", {"compensation": "none", "encoding": "factored"}),
        ("snc", {"placement": "apart"}),
        ("sc", {"batch_size": 2, "share": "train"}),
    ],
)
def test_ten_rounds_of_one_object_a_user(task: str, values: dict[str, Any]) -> None:
    """W̄ and γ, parties together, apart or as bytes."""
    calls: dict[tuple[int, str], int] = {}

    class Counted(Wrapper):
        """Notes the numbers of the messages."""

        def deliver(self, message: Message) -> Any:
            """Pass on."""
            if message.training:
                calls[message.round, message.verb] = message.call
            return self.engine.deliver(message)

    experiment = prepared(task, Counted, **{**GPR, "rounds": 10, **values})
    result = runner.rounds(experiment)
    naive = NaiveLearned(experiment, calls)
    for number in range(1, 11):
        naive.round(number)
    torch.testing.assert_close(flat(result), naive.mean, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result.state["gamma"].double(), naive.gamma, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(naive.gamma, coefficients(0.1, 4), atol=1e-2)


def test_one_local_step_is_central_gradient_descent_on_both() -> None:
    """I = 1: W and γ descend the loss of GPR-GNN on the whole graph together."""
    experiment = prepared(**GPR, local_steps=1, rounds=15)
    whole = experiment.party_data.whole
    walks = powers(whole, 4)
    model = [value.double().requires_grad_() for value in first_model().values()]
    gamma = coefficients(0.1, 4).requires_grad_()
    x = torch.as_tensor(whole.x if isinstance(whole.x, Tensor) else whole.x.toarray()).double()
    for _ in range(15):
        hidden = (x @ model[0]).relu() @ model[1]
        logits = torch.einsum("t,tij,jc->ic", gamma, walks, hidden)
        loss = torch.nn.functional.cross_entropy(logits[whole.train], whole.y[whole.train])
        first, second, of_gamma = torch.autograd.grad(loss, [*model, gamma])
        model = [(w - 0.3 * g).detach().requires_grad_() for w, g in zip(model, (first, second), strict=True)]
        gamma = (gamma - 0.5 * of_gamma).detach().requires_grad_()
    result = runner.rounds(experiment)
    torch.testing.assert_close(flat(result), torch.cat([w.flatten() for w in model]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result.state["gamma"].double(), gamma.detach(), atol=1e-5, rtol=1e-5)


def test_a_rate_of_zero_is_personalized_pagerank() -> None:
    """γ stays where it began."""
    fixed, learned = run(rounds=5), run(propagation="gpr", propagation_lr=0.0, rounds=5)
    torch.testing.assert_close(flat(learned), flat(fixed), atol=1e-5, rtol=1e-5)
    assert "gamma" not in fixed.state


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("directed", [False, True])
def test_the_weighted_matrix(large: bool, directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products, rows, closed walks and what arrives, against matrices; on graphs that are too large for dense columns, too."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 2, 3, 4, 5, 3, 5]])
    edges = edges if directed else torch.cat([edges, edges.flip(0)], 1)
    monkeypatch.setattr("atoll.algorithms.gfl_appnp.propagation.MAX_DENSE", 3 if large else 100)
    base, gamma = Propagation(edges, 6, steps=5), torch.tensor([0.3, -0.2, 0.5, 0.1, 0.7, -0.4])
    learned, nodes = Learned(base, gamma), torch.tensor([4, 1])
    once = torch.stack([base.normalized @ column for column in torch.eye(6)[:, :, None]])[:, :, 0].t()
    walks = torch.stack([torch.linalg.matrix_power(once, t) for t in range(6)])
    matrix, values = torch.einsum("t,tij->ij", gamma, walks), torch.randn(6, 3)
    torch.testing.assert_close(learned @ values, matrix @ values)
    torch.testing.assert_close(learned.columns(nodes).t(), matrix[nodes])
    torch.testing.assert_close(learned.loops(nodes), torch.stack([walks[:, k, k] for k in nodes]))
    torch.testing.assert_close(learned.diagonal(nodes), matrix.diagonal()[nodes])
    hollow = walks * (1 - torch.eye(6))
    torch.testing.assert_close(learned.arrived(values, nodes), torch.einsum("tij,jc->itc", hollow, values)[nodes])
    assert Learned(base, gamma * 2).loops(nodes) is not None
    assert base.walks is not None


def test_bytes() -> None:
    """4·(M + 1)·(C + 1) down and 4·(M + 1) up more, per training party and round."""
    plainly, learned = (run(rounds=2, steps=4, propagation=kind) for kind in ("ppr", "gpr"))
    training = int(prepared().party_data.parts.train.sum())
    assert learned.bytes["up"] - plainly.bytes["up"] == 2 * training * 4 * 5
    assert learned.bytes["down"] - plainly.bytes["down"] == 2 * training * 4 * 5 * 3


def test_what_is_refused() -> None:
    """One sentence each."""
    result = run(**GPR, rounds=2)
    with pytest.raises(AtollError, match="propagation=gpr cannot be exported"):
        prepared(**GPR).engine.cohorts[0].party_models(result.state["model"])  # type: ignore[attr-defined]
