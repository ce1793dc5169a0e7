"""GFL-APPNP against one object a user in double precision, centralized APPNP, its degenerate cases and its bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from atoll.algorithms import fedmlp, gfl_appnp
from atoll.algorithms.gfl_appnp import compensation, propagation
from atoll.algorithms.gfl_appnp.compensation import Arriving
from atoll.algorithms.gfl_appnp.first_weights import FirstWeights
from atoll.data import csbm
from atoll.deferred import Deferred, dense
from atoll.errors import AtollError, AtollWarning
from atoll.federation.cohort import Message
from atoll.graphs.graph import Graph
from atoll.graphs.masks import random_batch
from atoll.models import optim
from atoll.models.parameters import get_parameters, set_parameters
from atoll.models.registry import build
from atoll.random import Draws
from atoll.runs import config, runner
from atoll.runs.runner import Experiment, Result
from atoll.tasks.node_classification import TASK
from small import Wrapper

NODES, FEATURES, HIDDEN = 12, 6, 5
TASKS: dict[str, dict[str, Any]] = {
    "dnc": {},
    "snc": {"samples": 4},
    "sc": {"samples": 7, "flip_probability": 0.3, "train": 0.5, "val": 0.2, "test": 0.3},
}


def graph_of(task: str) -> Graph:
    """A small graph for a task; nodes train, validate or test as a whole unless every vector has a label of its own."""
    shape = {name: value for name, value in TASKS[task].items() if name in ("samples", "flip")}
    graph = csbm(NODES, 4, 1.5, 4, FEATURES, seed=1, **shape)
    if task == "sc":
        return graph
    roles = torch.arange(NODES)[graph.ids] % 3
    return replace(graph, train=roles == 0, val=roles == 1, test=roles == 2)


def prepared(task: str = "dnc", engine: Any = None, **values: Any) -> Experiment:
    """An experiment on that graph."""
    shares = {name: value for name, value in TASKS[task].items() if name in ("train", "val", "test")}
    chosen = {"experiment": task, "hidden": HIDDEN, "lr": 0.3, "rounds": 20, "local_steps": 3, **shares, **values}
    chosen |= {"split": "random"} if task == "sc" else {}
    settings = config.resolve("gfl_appnp", dataset="given", partition="node", seed=5, values=chosen)
    return runner.prepare(settings, graph_of(task), engine=engine)


def run(task: str = "dnc", engine: Any = None, **values: Any) -> Result:
    """A run on that graph."""
    return runner.rounds(prepared(task, engine, **values))


def first_model(values: dict[str, Any] | None = None) -> dict[str, Tensor]:
    """The model a run starts with."""
    experiment = prepared(**(values or {}))
    model: dict[str, Tensor] = gfl_appnp.start(experiment.federation, experiment.config.settings)["model"]
    return model


def dense_propagation(graph: Graph, teleport: float = 0.1, steps: int = 10) -> Tensor:
    """Ã by its definition, in double precision."""
    nodes = graph.ids.unique()
    looped = torch.eye(len(nodes), dtype=torch.float64)
    looped[graph.ids[graph.edge_index[1]], graph.ids[graph.edge_index[0]]] = 1
    root = looped.sum(1) ** -0.5
    once = root[:, None] * looped * root
    power, result = torch.eye(len(nodes), dtype=torch.float64), torch.zeros_like(looped)
    for i in range(steps):
        result += teleport * (1 - teleport) ** i * power
        power = once @ power
    return result + (1 - teleport) ** steps * power


@dataclass
class User:
    """One user: vectors, labels, and a model as one long vector."""

    x: Tensor
    y: Tensor
    train: Tensor
    classes: int
    shared: Tensor  # the vectors that enter ĥ
    layers: int
    weights: Tensor = field(default_factory=lambda: torch.empty(0))

    def outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        """MLP(x; W) without biases."""
        sizes = [FEATURES, *[HIDDEN] * (self.layers - 1), self.classes]
        used = 0
        for layer in range(self.layers):
            width = sizes[layer] * sizes[layer + 1]
            x = (x.relu() if layer else x) @ weights[used : used + width].view(sizes[layer], sizes[layer + 1])
            used += width
        return x

    def represent(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """ĥ and its Jacobian, by autograd."""
        return self.outputs(weights, self.shared).mean(0), torch.autograd.functional.jacobian(
            lambda w: self.outputs(w, self.shared).mean(0), weights
        )

    def step(self, weight: Tensor, context: Tensor, gradient: Tensor, lr: float, batch: Tensor) -> None:
        """W ← W − η·mean_s (ŷ − y)·(Ã_kk·∇h + ∇C)."""
        weights = self.weights.detach().requires_grad_()
        hidden = self.outputs(weights, self.x[batch])
        errors = (weight * hidden + context).softmax(1).detach() - torch.nn.functional.one_hot(self.y[batch], self.classes)
        (own,) = torch.autograd.grad((errors * weight * hidden).sum() / len(batch), weights)
        self.weights = self.weights - lr * (own + errors.mean(0) @ gradient)


class Naive:
    """Algorithm 1 with one object a user, one after the other."""

    def __init__(self, experiment: Experiment, calls: dict[tuple[int, str], int]) -> None:
        self.calls = calls  # the numbers of the messages, which key the users' randomness
        self.settings, self.seed = experiment.config.settings, experiment.config.seed
        parts = experiment.party_data.parts
        x = parts.x if isinstance(parts.x, Tensor) else torch.from_numpy(parts.x.toarray())
        blocks = [slice(int(a), int(b)) for a, b in zip(parts.ptr[:-1], parts.ptr[1:], strict=True)]
        self.users = []
        for b in blocks:
            trains = self.settings.share == "train" and bool(parts.train[b].any())
            shared = x[b][parts.train[b]] if trains else x[b]
            self.users.append(
                User(x[b].double(), parts.y[b], parts.train[b], parts.num_classes, shared.double(), self.settings.layers)
            )
        self.matrix = dense_propagation(experiment.party_data.whole, self.settings.teleport, self.settings.steps)
        model = gfl_appnp.start(experiment.federation, self.settings)["model"]
        self.mean = torch.cat([value.flatten().double() for value in model.values()])

    def draws(self, user: int, verb: str, number: int) -> Draws:
        """The user's own randomness."""
        return Draws(self.seed, [user], verb, number, self.calls[number, verb])

    def round(self, number: int) -> None:
        """Upload, spread, download, I local steps, average."""
        s = self.settings
        said = [user.represent(self.mean) for user in self.users]
        if s.compensation == "noisy":
            drawn = [self.draws(j, "represent", number).normal(*jac.shape)[0] for j, (_, jac) in enumerate(said)]
            said = [(hidden, jac + noise) for (hidden, jac), noise in zip(said, drawn, strict=True)]
        trained = []
        for k, user in enumerate(self.users):
            if not user.train.any():
                continue
            others = [j for j in range(len(self.users)) if j != k]
            context = sum(self.matrix[k, j] * said[j][0] for j in others)
            gradient = sum(self.matrix[k, j] * said[j][1] for j in others)
            if s.compensation == "none":
                gradient = gradient * 0
            user.weights = self.mean
            rows = user.train.nonzero()[:, 0]
            keys = self.draws(k, "fit", number).uniform(len(rows), s.local_steps)[0]
            for step in range(s.local_steps):
                batch = rows if not s.batch_size else rows[keys[:, step].argsort()[: s.batch_size]]
                user.step(self.matrix[k, k], context, gradient, s.lr, batch)
            trained.append(user.weights)
        self.mean = torch.stack(trained).mean(0)


def flat(result: Result) -> Tensor:
    """The server's model as one vector."""
    return torch.cat([value.flatten().double() for value in result.state["model"].values()])


@pytest.mark.parametrize(
    ("task", "values"),
    [
        ("dnc", {}),
        ("dnc", {"encoding": "factored", "amnesia": "true"}),
        ("dnc", {"compensation": "none"}),
        ("dnc", {"compensation": "noisy", "joint_noise": "false", "lr": 0.05}),
        ("dnc", {"amnesia": "true"}),
        ("snc", {}),
        ("snc", {"share": "train"}),
        ("sc", {"batch_size": 2}),
        ("sc", {"batch_size": 2, "placement": "apart"}),
        ("sc", {"batch_size": 2, "share": "train"}),
        ("sc", {"share": "train", "amnesia": "true", "init": "torch"}),
        ("sc", {"share": "train", "compensation": "none"}),
        ("dnc", {"layers": 1, "teleport": 0, "steps": 2}),
        ("dnc", {"layers": 1, "amnesia": "true"}),
        ("dnc", {"layers": 3}),
        ("dnc", {"layers": 4, "amnesia": "true"}),
        ("dnc", {"layers": 3, "placement": "apart", "weight_decay": 0.0}),
        ("dnc", {"layers": 3, "compensation": "none"}),
        ("dnc", {"layers": 3, "compensation": "noisy", "lr": 0.05}),
        ("snc", {"layers": 3}),
        ("sc", {"layers": 1, "batch_size": 2, "share": "train"}),
        ("sc", {"layers": 3, "batch_size": 2, "share": "train"}),
    ],
)
def test_twenty_rounds_of_one_object_a_user(task: str, values: dict[str, Any]) -> None:
    """Parties together, apart or as bytes, in either encoding: the naive Algorithm 1 in double precision, to 1e-5."""
    calls: dict[tuple[int, str], int] = {}

    class Counted(Wrapper):
        """Notes the numbers of the messages."""

        def deliver(self, message: Message) -> Any:
            """Pass on."""
            if message.training:
                calls[message.round, message.verb] = message.call
            return self.engine.deliver(message)

    experiment = prepared(task, Counted, **values)
    result = runner.rounds(experiment)
    naive = Naive(experiment, calls)
    for number in range(1, 21):
        naive.round(number)
    torch.testing.assert_close(flat(result), naive.mean, atol=1e-5, rtol=1e-5)


def test_one_local_step_is_centralized_appnp() -> None:
    """I = 1 with full compensation takes the gradient steps of APPNP on the whole graph, mean over the training nodes."""
    experiment = prepared(local_steps=1)
    whole = experiment.party_data.whole
    model = build("appnp", parties=1, features=FEATURES, classes=2, hidden=HIDDEN, bias=False)
    set_parameters(model, first_model())
    optimizer = optim.SGD(model, 0.3)
    for _ in range(20):
        optim.descend(optimizer, TASK.loss(model(whole), whole, "train"))
    result = runner.rounds(experiment)
    for name, value in get_parameters(model).items():
        torch.testing.assert_close(result.state["model"][name], value[0], atol=1e-6, rtol=1e-6)
    logits = model(whole).detach()
    assert result.last["accuracy"] == pytest.approx(float((logits.argmax(1) == whole.y)[whole.test].float().mean()))
    expected = float(torch.nn.functional.cross_entropy(logits[whole.val], whole.y[whole.val]))
    assert result.last["val_loss"] == pytest.approx(expected, abs=1e-6)


def test_one_local_step_is_a_run_of_centralized_appnp() -> None:
    """With the same seed and `init=torch` both begin with the same weights, so their histories and metrics agree."""
    ours = run(local_steps=1, init="torch")
    values = {"model": "appnp", "hidden": HIDDEN, "lr": 0.3, "rounds": 20, "bias": "false", "optimizer": "sgd", "epochs": 1}
    values["evaluate_every"] = 1
    chosen = config.resolve("centralized", dataset="given", partition="node", seed=5, values=values)
    central = runner.rounds(runner.prepare(chosen, graph_of("dnc")))
    assert ours.best_round == central.best_round
    assert ours.metrics["accuracy"] == central.metrics["accuracy"]
    losses = [[row["val_loss"] for row in result.rows] for result in (ours, central)]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("model", "layers", "place"), [("sgc", 1, {"teleport": 0, "steps": 2}), ("appnp", 3, {})])
def test_one_local_step_is_a_run_of_other_central_models(model: str, layers: int, place: dict[str, Any]) -> None:
    """One linear layer under Â² is SGC; three layers under Ã are a deeper APPNP: with I = 1, weight decay too."""
    ours = run(local_steps=1, init="torch", layers=layers, weight_decay=0.1, **place)
    values = {"model": model, "hidden": HIDDEN, "layers": layers, "lr": 0.3, "rounds": 20, "bias": "false", "optimizer": "sgd"}
    values |= {"epochs": 1, "evaluate_every": 1, "weight_decay": 0.1}
    chosen = config.resolve("centralized", dataset="given", partition="node", seed=5, values=values)
    central = runner.rounds(runner.prepare(chosen, graph_of("dnc")))
    losses = [[row["val_loss"] for row in result.rows] for result in (ours, central)]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), atol=1e-6, rtol=1e-6)


def test_other_depths_pass_as_descriptions() -> None:
    """The bytes are those of Jacobians, which nobody writes out in one process; factors need two layers."""

    class Watching(Wrapper):
        """Looks at the gradients."""

        def deliver(self, message: Message) -> Any:
            """Look at both ways."""
            results = self.engine.deliver(message)
            if message.training:
                field = message.each["gradient"] if message.verb == "fit" else results[0].fields["gradient"]  # type: ignore[union-attr]
                assert isinstance(field, Deferred)
            return results

    result = run(engine=Watching, rounds=2, layers=3)
    classes, training = 2, int(graph_of("dnc").train.sum())
    size = FEATURES * HIDDEN + HIDDEN * HIDDEN + HIDDEN * classes
    model, gradient = 4 * size, 4 * classes * size
    up = NODES * (4 * classes + 2 + gradient) + training * (model + 8)
    down = NODES * model + training * (model + 4 * (classes + 1) + gradient)
    assert (result.bytes["up"], result.bytes["down"]) == (2 * up, 2 * down)
    with pytest.raises(AtollError, match="encoding=factored is for an MLP of two layers, not of 3"):
        prepared(layers=3, encoding="factored")


def test_test_vectors_stay_out_of_what_is_shared() -> None:
    """With `share=train` other values of test and validation vectors change no model; with `share=all` they do."""
    graph = graph_of("sc")
    settings = {kind: prepared("sc", share=kind, rounds=3).config for kind in ("train", "all")}
    before = {kind: flat(runner.rounds(runner.prepare(chosen, graph))) for kind, chosen in settings.items()}
    split = prepared("sc").party_data.parts.train
    assert isinstance(graph.x, Tensor)
    changed = replace(graph, x=torch.where(split[:, None], graph.x, graph.x + 1))
    after = {kind: flat(runner.rounds(runner.prepare(chosen, changed))) for kind, chosen in settings.items()}
    assert torch.equal(before["train"], after["train"])
    assert not torch.allclose(before["all"], after["all"], atol=1e-3)


@pytest.mark.parametrize("task", ["dnc", "sc"])
def test_large_graphs_give_the_same_model(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse rows for the diagonal and gradients spread feature by feature: the model and metrics of small graphs, to 1e-5."""
    usual = run(task)
    monkeypatch.setattr(propagation, "MAX_DENSE", 1)
    monkeypatch.setattr(compensation, "MAX_COUPLING", 1)
    monkeypatch.setattr(compensation, "SPREAD_COLUMNS", 2 * HIDDEN)
    large = run(task)
    torch.testing.assert_close(flat(usual), flat(large), atol=1e-5, rtol=1e-5)
    assert usual.last["val_loss"] == pytest.approx(large.last["val_loss"], abs=1e-6)


def test_large_graphs_have_one_vector_per_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation relies on it there, so `experiment=dnc` refuses nodes with several."""
    monkeypatch.setattr(gfl_appnp, "MAX_DENSE", 1)
    with pytest.raises(AtollError, match="one vector per node"):
        run("snc", experiment="dnc")


def test_a_single_step_needs_no_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """x·M_k is what later steps ask for: with I = 1 nobody computes it."""
    monkeypatch.setattr(compensation.Sources, "reach", None)
    run(local_steps=1, rounds=2)
    with pytest.raises(TypeError):
        run(local_steps=2, rounds=1)


def test_weight_decay_is_that_of_centralized_appnp() -> None:
    """The short cut shrinks what it does not form: I = 1 with weight decay equals SGD with weight decay."""
    experiment = prepared(local_steps=1, weight_decay=0.1)
    model = build("appnp", parties=1, features=FEATURES, classes=2, hidden=HIDDEN, bias=False)
    set_parameters(model, first_model())
    optimizer = optim.SGD(model, 0.3, weight_decay=0.1)
    for _ in range(20):
        optim.descend(optimizer, TASK.loss(model(experiment.party_data.whole), experiment.party_data.whole, "train"))
    result = runner.rounds(experiment)
    for name, value in get_parameters(model).items():
        torch.testing.assert_close(result.state["model"][name], value[0], atol=1e-6, rtol=1e-6)


def test_without_propagation_it_is_fedmlp() -> None:
    """M = 0 makes Ã the identity: FedAvg of the same MLP, whatever is sent for compensation (Remark 1)."""
    usual = run("sc", steps=0, rounds=6)
    model = build("mlp", parties=1, features=FEATURES, classes=2, hidden=HIDDEN, bias=False)
    parts = prepared("sc").party_data.parts
    mean = first_model()
    for _ in range(6):
        taken = []
        for party in range(NODES):
            graph = parts.select([party])
            set_parameters(model, mean)
            for _ in range(3):
                optim.descend(optim.SGD(model, 0.3), TASK.loss(model(graph), graph, "train"))
            taken.append(get_parameters(model, copy=True))
        mean = {name: torch.stack([own[name][0] for own in taken]).mean(0) for name in mean}
    for name, value in mean.items():
        torch.testing.assert_close(usual.state["model"][name], value, atol=1e-5, rtol=1e-5)
    without = run("sc", steps=0, rounds=6, compensation="none")
    torch.testing.assert_close(flat(usual), flat(without), atol=1e-6, rtol=1e-6)


def test_compensation_matters() -> None:
    """V1 and V2 end elsewhere than the full method."""
    models_of = [flat(run(compensation=kind)) for kind in ("full", "noisy", "none")]
    assert (models_of[0] - models_of[1]).abs().max() > 1e-3
    assert (models_of[0] - models_of[2]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("values", "gradient"),
    [
        ({"encoding": "jacobian"}, 4 * 2 * (FEATURES * HIDDEN + HIDDEN * 2)),
        ({"encoding": "factored"}, 4 * (FEATURES + 1) * HIDDEN),
        ({"compensation": "none"}, 0),
        ({"compensation": "noisy"}, 4 * 2 * (FEATURES * HIDDEN + HIDDEN * 2)),
    ],
)
def test_bytes(values: dict[str, Any], gradient: int) -> None:
    """The formula of the docstring, with every message a description that is never written out."""

    class RecordingGuard(Wrapper):
        """Nothing but descriptions passes."""

        def deliver(self, message: Message) -> Any:
            """Look at both ways."""
            results = self.engine.deliver(message)
            if message.training and gradient:
                field = message.each["gradient"] if message.verb == "fit" else results[0].fields["gradient"]  # type: ignore[union-attr]
                assert isinstance(field, Deferred)
            return results

    result = run(engine=RecordingGuard, rounds=4, **values)
    classes, training = 2, int(graph_of("dnc").train.sum())
    model = 4 * (FEATURES * HIDDEN + HIDDEN * classes)
    up = NODES * (4 * classes + 2 + gradient) + training * (model + 8)
    down = NODES * model + training * (model + 4 * (classes + 1) + gradient)
    assert (result.bytes["up"], result.bytes["down"]) == (4 * up, 4 * down)
    assert [(row["up"], row["down"]) for row in result.rows] == [(up, down)] * 4


def test_own_noise_is_the_same_wherever_parties_live() -> None:
    """With joint_noise off every party draws its own ε: one cohort, or a site each."""
    values = {"compensation": "noisy", "joint_noise": "false", "rounds": 5, "lr": 0.05}
    torch.testing.assert_close(flat(run(**values)), flat(run(placement="apart", **values)), atol=1e-5, rtol=1e-5)


def test_arriving_noise_has_the_moments_of_everybodys_own() -> None:
    """E_k = Σ_j A_kj·ε_j, drawn jointly: mean 0, covariance A·Aᵀ between parties, none between numbers; sums likewise."""
    mixing = torch.tensor([[0.5, 0.2, 0.0, 0.1], [0.1, 0.4, 0.3, 0.0], [0.0, 0.3, 0.2, 0.6]])
    wanted = mixing @ mixing.t()
    root, columns, steered = torch.linalg.cholesky(wanted), torch.tensor([0, 3]), torch.randn(3, 2)
    drawn = [Arriving(root, seed, (500, 4, 2)) for seed in range(40)]
    rows = torch.cat([noise.dense().flatten(1) for noise in drawn], 1)  # (3, 161,280)
    assert float(rows.mean().abs()) < 0.005
    torch.testing.assert_close(rows @ rows.t() / rows.shape[1], wanted, atol=0.01, rtol=0)
    whole = torch.stack([torch.einsum("kc,kcdh->dh", steered, noise.rest(columns)) for noise in drawn])
    summed = torch.stack([noise.summed_rest(steered, columns) for noise in drawn])
    expected = torch.einsum("kc,kl,lc->", steered, wanted, steered).sqrt()
    assert whole.shape == summed.shape == (40, 498, 4)
    torch.testing.assert_close(torch.stack([whole.std(), summed.std()]) / expected, torch.ones(2), atol=0.02, rtol=0)


def test_described_noise_is_one_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """With noise on sparse features, the sum of the models is that of the models, where it is drawn party by party."""
    checked = []
    total = FirstWeights.total

    def compared(self: FirstWeights) -> Tensor:
        summed, columns = total(self), self.models.trained.columns
        torch.testing.assert_close(summed[columns], self.dense().sum(0)[columns], atol=1e-4, rtol=1e-4)
        checked.append(len(self.models.trained.others))
        return summed

    monkeypatch.setattr(FirstWeights, "total", compared)
    graph = graph_of("dnc")
    assert isinstance(graph.x, Tensor)
    graph.x[:, 1::2] = 0
    settings = prepared(compensation="noisy", rounds=3, lr=0.05).config
    runner.rounds(runner.prepare(settings, graph))
    assert checked
    assert min(checked) > 0


V1 = {"dp.verb": "represent", "dp.fields": "gradient", "dp.clip": 0, "dp.noise": 1}


def test_v1_is_a_configuration_of_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the same stream of numbers, `compensation=noisy` with own noise ends with the same bits as noise on the channel."""

    def draws(self: gfl_appnp.Cohort) -> Draws:
        assert self.message is not None
        return Draws(self.seed, self.parties, "guard", self.message.verb, self.message.round, self.message.call)

    with monkeypatch.context() as patched:
        patched.setattr(gfl_appnp.Cohort, "draws", draws)
        own = run(compensation="noisy", joint_noise="false", rounds=5, lr=0.05)
    assert torch.equal(flat(own), flat(run(rounds=5, lr=0.05, **V1)))
    assert not torch.equal(flat(own), flat(run(rounds=5, lr=0.05)))


@pytest.mark.parametrize(
    "values", [V1, V1 | {"placement": "apart"}, {"compensation": "noisy"}, {"compensation": "noisy", "joint_noise": "false"}]
)
def test_v1_noise_arrives_as_independent_normal_noise_would(values: dict[str, Any]) -> None:
    """Σ_{j≠k} Ã_kj·ε_j with standard normal ε_j has mean 0 and covariance A·Aᵀ between the parties k, whoever draws it."""
    heard: list[Tensor] = []
    hidden: list[Tensor] = []

    class Listening(Wrapper):
        """Keeps the gradients that go to the parties that train; ĥ itself is never noised."""

        def deliver(self, message: Message) -> Any:
            """Look at both ways."""
            if message.verb == "fit":
                heard.append(dense(message.each["gradient"]).clone())
            results = self.engine.deliver(message)
            if message.verb == "represent":
                hidden.append(torch.cat([result.fields["hidden"] for result in results]))  # type: ignore[union-attr]
            return results

    rounds = 100
    experiment = prepared(
        engine=Listening, lr=0, rounds=rounds, evaluate_every=rounds, **values
    )  # nobody moves: noise alone varies
    runner.rounds(experiment)
    noisy = torch.stack(heard).flatten(2).transpose(0, 1).flatten(1).double()  # (K, rounds · C · w)
    heard.clear()
    runner.rounds(prepared(engine=Listening, lr=0, rounds=1))
    clean = heard[0].flatten(1).repeat(1, rounds).double()
    training = experiment.party_data.parts.train.nonzero()[:, 0]
    spread = dense_propagation(experiment.party_data.whole)[training]
    spread[range(len(training)), training] = 0
    noise = noisy - clean
    torch.testing.assert_close(noise.mean(1), torch.zeros(len(training)).double(), atol=0.03, rtol=0)
    torch.testing.assert_close(noise @ noise.t() / noise.shape[1], spread @ spread.t(), atol=0.03, rtol=0.05)
    assert all(torch.equal(each, hidden[0]) for each in hidden)


def test_noise_needs_jacobians() -> None:
    """A noisy Jacobian has no factors."""
    with pytest.raises(AtollError, match="encoding=jacobian"):
        prepared(compensation="noisy", encoding="factored")


def test_votes() -> None:
    """A node is given the class of most of its test vectors."""
    parties, labels, tested = torch.arange(0, 13, 3), torch.tensor([0, 1, 0, 1]), torch.tensor([True, True, False, True])
    graph = replace(csbm(4, 2, 1, 1, 3, samples=3), ptr=parties, y=labels.repeat_interleave(3), test=tested.repeat_interleave(3))
    guesses = torch.tensor([0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1])
    assert gfl_appnp.votes(torch.nn.functional.one_hot(guesses, 2).float(), graph).tolist() == [[1, 1], [1, 0], [0, 0], [1, 1]]
    result = run("snc")
    assert result.metrics["majority_accuracy"] * 4 in range(5)  # of four nodes that test
    assert "majority_accuracy" not in run(rounds=1).metrics


def test_nobody_trains_this_round() -> None:
    """A round whose participants have no training data leaves the model as it was."""

    class Idle(Wrapper):
        """Says that nobody trains."""

        def deliver(self, message: Message) -> Any:
            """Change the reply."""
            results = self.engine.deliver(message)
            if message.training and message.verb == "represent":
                results[0].fields["trains"] = torch.zeros(NODES, dtype=torch.bool)  # type: ignore[union-attr]
            return results

    result = run(engine=Idle, rounds=2)
    for name, value in first_model().items():
        assert torch.equal(result.state["model"][name], value)


def test_fedmlp_is_gfl_appnp_without_a_graph() -> None:
    """The same models from the same first one, with the same batches' size; MLPs share nothing and differ."""
    graph = graph_of("sc")
    shared = {
        "split": "random",
        "hidden": HIDDEN,
        "lr": 0.3,
        "rounds": 5,
        "train": 0.5,
        "val": 0.2,
        "test": 0.3,
        "local_steps": 3,
    }
    results = {}
    for name in ("fedmlp", "mlps"):
        chosen = config.resolve(name, dataset="given", partition="node", seed=5, values=shared)
        results[name] = runner.rounds(runner.prepare(chosen, graph))
    ours = prepared("sc", steps=0, rounds=5)
    first = fedmlp.start(ours.federation, config.resolve("fedmlp", dataset="given", values=shared).settings)["model"]
    state = gfl_appnp.start(ours.federation, ours.config.settings) | {"model": first}
    for number in range(1, 6):
        ours.federation.begin(number)
        state = gfl_appnp.step(ours.federation, state, ours.config.settings)
    for name, value in results["fedmlp"].state["model"].items():
        torch.testing.assert_close(state["model"][name], value, atol=1e-5, rtol=1e-5)
    model = 4 * (FEATURES * HIDDEN + HIDDEN * 2)
    assert results["fedmlp"].bytes["up"] == 5 * NODES * (model + 8)
    assert results["fedmlp"].bytes["down"] == 5 * NODES * model
    assert results["mlps"].bytes["up"] == results["mlps"].bytes["down"] == 0
    assert results["mlps"].metrics["accuracy"] != results["fedmlp"].metrics["accuracy"]


def test_batches() -> None:
    """A number of training nodes of each party, all of them sooner or later, the same wherever the party lives."""
    parts = prepared("sc").party_data.parts
    draws = Draws(0, list(range(NODES)), "x")
    seen = torch.zeros(parts.num_nodes, dtype=torch.bool)
    for _ in range(20):
        mask = random_batch(parts, 2, draws)
        assert isinstance(mask, Tensor)
        assert not (mask & ~parts.train).any()
        assert parts.blocks.sum(mask.long()).tolist() == [2] * NODES
        seen |= mask
    assert torch.equal(seen, parts.train)
    alone = random_batch(parts.select([4]), 2, Draws(0, [4], "x"))
    together = random_batch(parts, 2, Draws(0, list(range(NODES)), "x"))
    assert torch.equal(torch.as_tensor(alone), torch.as_tensor(together)[parts.ptr[4] : parts.ptr[5]])
    assert random_batch(parts, 0, draws) == random_batch(parts, 3, draws) == "train"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"rounds": 300, "lr": 0.5, "nodes": 200, "connected_train_share": 0.1}),
        ({"local_steps": 50}, {"rounds": 60, "lr": 0.5}),
        ({"experiment": "snc"}, {"rounds": 500, "lr": 0.2, "samples": 40, "redraw": "samples", "share": "all"}),
        ({"experiment": "snc", "compensation": "none"}, {"rounds": 800, "lr": 0.6}),
        ({"experiment": "sc", "local_steps": "1"}, {"rounds": 2000, "lr": 0.2, "batch_size": 5, "nodes": 50}),
        ({"experiment": "sc", "local_steps": 1, "rounds": 7}, {"rounds": 7}),
        ({"experiment": "sc"}, {"share": "train", "init": "glorot", "redraw": "samples"}),
    ],
)
def test_defaults_are_the_papers(values: dict[str, Any], expected: dict[str, Any]) -> None:
    """By task, local steps and compensation; what was asked for comes last."""
    chosen = config.resolve("gfl_appnp", dataset="csbm", values=values)
    known = {**vars(chosen.settings), **vars(chosen.run), **vars(chosen.data)}
    assert {name: known[name] for name in expected} == expected
    assert chosen.partition == "node"


def test_baselines_are_run_as_in_the_paper() -> None:
    """Centralized models on the node-level data, FedMLP on the task that was named."""
    central = config.resolve("centralized", dataset="csbm", partition="node", values={"model": "gat"})
    assert (central.settings.lr, central.run.rounds, central.settings.bias, central.data.nodes) == (0.02, 4000, False, 200)
    shared = config.resolve("fedmlp", dataset="csbm", values={"local_steps": 50})
    assert (shared.settings.lr, shared.run.rounds, shared.settings.batch_size, shared.data.samples) == (0.1, 40, 5, 120)
    other = config.resolve("centralized", dataset="csbm", partition="node", values={"model": "gcn", "experiment": "snc"})
    assert other.data.samples == 40


@pytest.mark.parametrize("algorithm", ["gfl_appnp", "fedmlp", "centralized"])
def test_the_experiment_by_its_earlier_name(algorithm: str) -> None:
    """Before 0.2 `task` named it; now that is what is predicted, and the two do not meet."""
    chosen = {"dataset": "csbm", "partition": "node"}
    with pytest.warns(AtollWarning, match="task is now experiment"):
        old = config.resolve(algorithm, **chosen, values={"task": "sc"})
    assert old == config.resolve(algorithm, **chosen, values={"experiment": "sc"})
    assert old.run.task == "node-classification"
    assert old == config.resolve(algorithm, **chosen, values={"experiment": "sc", "task": "node-classification"})
