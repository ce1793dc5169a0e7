"""GLASU against a naive loop over parties, its special cases, its bill and who sees what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import plain_vertical as naive
from atoll import wire
from atoll.algorithms import find
from atoll.algorithms.glasu.settings import Settings, shared
from atoll.errors import AtollError
from atoll.federation.federation import Answer
from atoll.graphs.sampling import Level, below
from atoll.random import Draws, generator
from atoll.runs import runner
from atoll.runs.comparison import Comparison
from atoll.runs.runner import Experiment
from plain import dense
from small import Recorded, small

MODELS = ["gcnii", "gcn", "gat", "residual", "mlp"]
PLAIN = {"hidden": 8, "heads": 2, "dropout": 0.0, "momentum": 0.0, "weight_decay": 0.0, "lr": 0.2, "evaluate_every": 1}
WHOLE = {**PLAIN, "batch_size": 0}
RATE = {"residual": 0.01}  # batch norm enlarges what single precision rounds off


def stood_up(algorithm: str = "glasu", **values: Any) -> Experiment:
    """A small experiment without chance: no dropout, plain gradient descent."""
    return runner.prepare(small(algorithm, **{**PLAIN, **values}))


def memory(experiment: Experiment) -> dict[str, Any]:
    """What the parties remember, all in one cohort."""
    return experiment.engine.state()["0"]


def steps(experiment: Experiment, rounds: int = 1) -> None:
    """Some rounds without evaluation."""
    experiment.algorithm.start(experiment.federation, experiment.config.settings)
    for number in range(1, rounds + 1):
        experiment.federation.begin(number)
        experiment.algorithm.step(experiment.federation, {}, experiment.config.settings)


def parties(experiment: Experiment) -> list[naive.Party]:
    """Each block, dense."""
    parts = experiment.party_data.parts
    return [dense(parts.select([p])) for p in range(parts.parties)]


def assert_weights(experiment: Experiment, expected: list[naive.Weights], tolerance: float = 1e-5) -> None:
    """Every party has these weights."""
    for name, value in memory(experiment)["model"].items():
        for p, w in enumerate(expected):
            torch.testing.assert_close(
                value[p], w[name].detach(), atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


def naive_rounds(experiment: Experiment, ws: list[naive.Weights], levels: list[naive.Levels], rounds: int) -> None:
    """Algorithms 3 and 4, party by party."""
    s = experiment.config.settings
    concatenate = s.aggregation == "concatenation"
    for _ in range(rounds):
        _, sent = naive.joint(s.model, ws, levels, s.layers, shared(s), concatenate)
        frozen = {place: [h.detach() for h in local] for place, local in sent.items()}
        for p, w in enumerate(ws):
            for _ in range(s.local_steps):
                top = naive.local_step(s.model, w, p, levels[p], s.layers, frozen, concatenate)
                naive.descend(w, naive.loss(w, top, levels[p]), s.lr)


@pytest.mark.parametrize("aggregation", ["mean", "concatenation"])
@pytest.mark.parametrize("model", MODELS)
def test_rounds_on_the_whole_graph_equal_a_loop_over_parties(model: str, aggregation: str) -> None:
    """Two rounds of three stale steps, K = 2 of 4 layers, every backbone and both aggregations."""
    values = {"batch_size": 0, "local_steps": 3, "lr": RATE.get(model, 0.2), "data.nodes": 30}
    experiment = stood_up(model=model, aggregation=aggregation, **values)
    ws = [naive.weights(memory(experiment), p) for p in range(3)]
    steps(experiment, 2)
    naive_rounds(experiment, ws, [naive.everything(party, 4) for party in parties(experiment)], 2)
    assert_weights(experiment, ws)


def test_features_of_length_one() -> None:
    """`unit_features` is GLASU on what each party has of a node divided by its length, and off by default."""
    values = {"batch_size": 0, "local_steps": 2, "data.nodes": 30}
    experiment, plainly = stood_up(unit_features=True, **values), stood_up(**values)
    ws = [naive.weights(memory(experiment), p) for p in range(3)]
    lengths = [party.x.norm(dim=1).clamp(min=1e-12) for party in parties(experiment)]
    scaled = [replace(party, x=party.x / of[:, None]) for party, of in zip(parties(experiment), lengths, strict=True)]
    steps(experiment, 2)
    steps(plainly, 2)
    naive_rounds(experiment, ws, [naive.everything(party, 4) for party in scaled], 2)
    assert_weights(experiment, ws)
    assert not torch.equal(memory(plainly)["model"]["encoder.weight"], memory(experiment)["model"]["encoder.weight"])


@pytest.mark.parametrize("model", ["gcnii", "gat", "residual"])
def test_a_sampled_round_equals_a_loop_over_parties(model: str) -> None:
    """The index sets united at the middle level, each party's own in between, then Algorithms 3 and 4 on them."""
    recorded: list[Recorded] = []
    config = small("glasu", **PLAIN, model=model, batch_size=4, fan_out=1, local_steps=2)
    experiment = runner.prepare(config, engine=lambda engine: recorded.append(Recorded(engine)) or recorded[0])
    ws = [naive.weights(memory(experiment), p) for p in range(3)]
    steps(experiment)
    levels = [drawn(experiment, recorded[0], p) for p in range(3)]
    assert len(levels[0].nodes[4]) == 4
    assert torch.equal(levels[0].nodes[2], levels[1].nodes[2])
    assert not torch.equal(levels[0].nodes[3], levels[1].nodes[3])
    naive_rounds(experiment, ws, levels, 1)
    assert_weights(experiment, ws)


def drawn(experiment: Experiment, recorded: Recorded, party: int) -> naive.Levels:
    """A party's levels of round 1: the batch from the seed, the union from the message, the rest drawn by the party."""
    graph, seed = experiment.party_data.parts.select([party]), experiment.config.seed
    train = experiment.party_data.parts.train[: graph.num_nodes].nonzero()[:, 0]
    batch = train[torch.randperm(len(train), generator=generator(seed, "batch", 1))[:4]].sort().values
    union = next(message.common["nodes"] for message, _ in recorded.delivered if "nodes" in message.common)
    nodes: list[torch.Tensor] = [batch]
    for level in (3, 2, 1, 0):
        if level == 2:
            nodes.insert(0, union.long())
            continue
        upper = Level.from_nodes(graph, [nodes[0]])
        lower = below(graph, upper, 1, Draws(seed, [party], "sample", 1, 1, level).generators)
        nodes.insert(0, lower.nodes(graph)[0])
    return naive.Levels(dense(graph), nodes)


def test_the_united_set_is_the_union_of_what_the_parties_said() -> None:
    """Algorithm 2, line 6 of the server."""
    recorded: list[Recorded] = []
    config = small("glasu", **PLAIN, batch_size=4, fan_out=1, shared_layers=4)
    experiment = runner.prepare(config, engine=lambda engine: recorded.append(Recorded(engine)) or recorded[0])
    steps(experiment)
    said: list[set[int]] = []
    for message, results in recorded[0].delivered:
        if said and "nodes" in message.common:
            assert set(message.common["nodes"].tolist()) == said[-1]
        if message.verb == "sample":
            fields = [own for result in results if isinstance(result, Answer) for own in result.fields["nodes"]]
            said.append({node for own in fields for node in own.tolist()})
    assert len(said) == 3
    assert said[0] < said[1] <= said[2]


@pytest.mark.parametrize("model", MODELS)
def test_one_party_that_shares_all_layers_is_an_ordinary_network(model: str) -> None:
    """M = 1, K = L: five steps equal those of a network written as one, to 1e-6."""
    lr = RATE.get(model, 0.2)
    values = {**WHOLE, "model": model, "lr": lr, "shared_layers": 4, "local_steps": 1, "edge_fraction": 1.0, "data.nodes": 30}
    chosen = small("glasu", **values)
    experiment = runner.prepare(replace(chosen, parties=1))
    w = naive.weights(memory(experiment), 0)
    levels = naive.everything(parties(experiment)[0], 4)
    for number in range(1, 6):
        experiment.federation.begin(number)
        experiment.algorithm.step(experiment.federation, {}, experiment.config.settings)
        hidden = [naive.encode(w, levels)]
        for place in range(4):
            hidden.append(naive.layer(model, place, w, hidden, levels, 4))
        naive.descend(w, naive.loss(w, hidden[-1], levels), lr)
        assert_weights(experiment, [w], 1e-6)


def test_one_party_is_centralized() -> None:
    """M = 1, K = L, sampled and with dropout: the yardstick's numbers, step for step."""
    values = {**PLAIN, "dropout": 0.4, "momentum": 0.9, "edge_fraction": 1.0}
    single = runner.run(replace(small("glasu", **values, shared_layers=4, local_steps=1), parties=1))
    yardstick = runner.run(replace(small("centralized_vertical", **values), partition="vertical"))
    assert yardstick.bytes["up"] == yardstick.bytes["down"] == 0
    for row, same in zip(single.rows, yardstick.rows, strict=True):
        for name in ("loss", "val_loss", "accuracy"):
            assert row[name] == pytest.approx(same[name], abs=1e-6)


def test_standalone_is_every_party_alone() -> None:
    """No aggregation: each party's weights are those of its own network, and nothing is sent."""
    experiment = stood_up("standalone", batch_size=0)
    ws = [naive.weights(memory(experiment), p) for p in range(3)]
    steps(experiment, 2)
    for w, party in zip(ws, parties(experiment), strict=True):
        levels = naive.everything(party, 4)
        for _ in range(2):
            naive.descend(w, naive.loss(w, naive.local_step("gcnii", w, 0, levels, 4, {}), levels), 0.2)
    assert_weights(experiment, ws)
    assert experiment.federation.ledger.total()["up"] == experiment.federation.ledger.total()["down"] == 0


def test_simulated_shares_every_layer_and_every_edge() -> None:
    """K = L whatever the number of layers, and by default the whole graph at each party."""
    experiment = stood_up("simulated", layers=3)
    assert shared(experiment.config.settings) == [0, 1, 2]
    parts = experiment.party_data.parts
    blocks = [parts.select([p]).edge_index for p in range(3)]
    assert blocks[0].shape == experiment.party_data.whole.edge_index.shape
    assert torch.equal(blocks[0], blocks[1])


def test_layers_are_shared_evenly() -> None:
    """K = 1 the last, K = 2 middle and last, K = L all."""
    assert [shared(Settings(shared_layers=k)) for k in (0, 1, 2, 3, 4)] == [[], [3], [1, 3], [1, 2, 3], [0, 1, 2, 3]]


@pytest.mark.parametrize("aggregation", ["mean", "concatenation"])
@pytest.mark.parametrize("holder", [-1, 1])
def test_gradients_through_the_server_are_those_of_the_joint_network(aggregation: str, holder: int) -> None:
    """`backward=server`: autograd through the aggregation itself, of the sum of the losses or of the label holder's."""
    experiment = stood_up(aggregation=aggregation, batch_size=0, local_steps=1, backward="server", label_holder=holder)
    ws = [naive.weights(memory(experiment), p) for p in range(3)]
    levels = [naive.everything(party, 4) for party in parties(experiment)]
    steps(experiment, 2)
    for _ in range(2):
        tops, _ = naive.joint("gcnii", ws, levels, 4, [1, 3], aggregation == "concatenation")
        losses = [naive.loss(w, top, own) for w, top, own in zip(ws, tops, levels, strict=True)]
        everything = {(p, name): value for p, w in enumerate(ws) for name, value in w.items()}
        naive.descend(everything, sum(losses) if holder < 0 else losses[holder], 0.2)
    assert_weights(experiment, ws)


@pytest.mark.parametrize("aggregation", ["mean", "concatenation"])
def test_one_label_holder_gives_the_gradients_of_all(aggregation: str) -> None:
    """Q = 1: the parties' networks after three sampled rounds are the same whether all hold labels or one does.

    The classifiers start alike and see the same H[L], so all parties' losses are one; only the holder trains its classifier.
    """
    values = {"aggregation": aggregation, "local_steps": 1, "batch_size": 5}
    everybody, one = stood_up(**values), stood_up(**values, label_holder=1)
    steps(everybody, 3)
    steps(one, 3)
    for name, value in memory(everybody)["model"].items():
        chosen = slice(1, 2) if name.startswith("classifier") else slice(None)
        torch.testing.assert_close(memory(one)["model"][name][chosen], value[chosen], atol=1e-6, rtol=1e-5)


def test_other_parties_neither_receive_nor_use_a_label() -> None:
    """Every message to them holds node numbers, representations and gradients only; wrong labels of theirs change nothing."""
    recorded: list[Recorded] = []
    config = small("glasu", **PLAIN, local_steps=2, batch_size=5, label_holder=1, placement="apart")
    experiment = runner.prepare(config, engine=lambda engine: recorded.append(Recorded(engine)) or recorded[0])
    result = runner.rounds(experiment)
    for message, _ in recorded[0].delivered:
        if set(message.parties) == {1}:
            continue
        for name, value in wire.leaves({**message.common, **message.each}):
            assert name in ("nodes", "aggregate", "gradient", "level", "layer")
            if isinstance(value, torch.Tensor):
                assert value.is_floating_point() == (name != "nodes")
            if name == "nodes":
                assert bool((value.diff() > 0).all()) or message.verb == "sample"  # a set of nodes, no list of classes
    parts = experiment.party_data.parts
    wrong = replace(parts, y=torch.where(parts.party == 1, parts.y, (parts.y + 1) % parts.num_classes))
    cohort = find("glasu").Cohort
    cohorts = [cohort(graph, config.settings, experiment.federation.schema, config.seed, [0, 1, 2]) for graph in (parts, wrong)]
    assert torch.equal(cohorts[0].targets, cohorts[1].targets)
    asked = {message.verb for message, _ in recorded[0].delivered if 0 in message.parties}
    assert asked == {"sample", "embed", "infer", "train"}
    assert result.rounds == 3


def test_conventional_vertical_learning_needs_no_index_sets() -> None:
    """A = I: one representation of the batch a shared layer, nothing else."""
    experiment = stood_up(model="mlp", batch_size=5, shared_layers=1)
    steps(experiment)
    total = experiment.federation.ledger.total()
    assert total["up"] == total["down"] == 3 * 5 * 8 * 4
    assert set(experiment.federation.ledger.summary()["by_verb"]) == {"embed", "train"}


@pytest.mark.parametrize(("aggregation", "backward"), [("mean", "local"), ("concatenation", "local"), ("mean", "server")])
def test_the_bill_of_a_sampled_round(aggregation: str, backward: str) -> None:
    """The docstring's formula: representations both ways, index sets of the middle level, gradients where they are sent."""
    recorded: list[Recorded] = []
    config = small("glasu", **PLAIN, batch_size=4, fan_out=1, aggregation=aggregation, backward=backward, local_steps=1)
    experiment = runner.prepare(config, engine=lambda engine: recorded.append(Recorded(engine)) or recorded[0])
    steps(experiment)
    own = [
        len(nodes)
        for message, results in recorded[0].delivered
        if message.verb == "sample"
        for nodes in results[0].fields["nodes"]
    ]
    union = next(len(message.common["nodes"]) for message, _ in recorded[0].delivered if "nodes" in message.common)
    rows, ways, wide = union + 4, 2 if backward == "server" else 1, 3 if aggregation == "concatenation" else 1
    total = experiment.federation.ledger.total()
    assert total["up"] == ways * 3 * 4 * 8 * rows + 4 * sum(own)
    assert total["down"] == 3 * (ways * wide * 4 * 8 * rows + 4 * union)


def test_the_bill_of_one_label_holder() -> None:
    """The batch from the holder to all, the gradient of the last aggregate from the holder to the others."""
    experiment = stood_up(batch_size=4, shared_layers=1, label_holder=2, local_steps=2)
    steps(experiment)
    row = experiment.federation.ledger.by_party
    hidden, batch = 4 * 4 * 8, 4 * 4
    assert row[:, 0].tolist() == [hidden, hidden, hidden + batch + hidden]
    assert row[:, 1].tolist() == [batch + hidden + hidden, batch + hidden + hidden, batch + hidden]


@pytest.mark.parametrize(("count", "local_steps"), [(4, 1), (2, 1), (2, 4), (1, 4), (1, 8)])
def test_the_saving_factor_is_exact(count: int, local_steps: int) -> None:
    """Exchanges and bytes of representations for a step: QL/K times fewer than with K = L, Q = 1."""
    totals = []
    for k, q in ((4, 1), (count, local_steps)):
        experiment = stood_up(batch_size=0, shared_layers=k, local_steps=q)
        steps(experiment, 2)
        ledger = experiment.federation.ledger
        totals.append({name: ledger.total()[name] / (2 * q) for name in ("up", "down")})
        totals[-1]["exchanges"] = sum(ledger.total(verb=verb)["messages"] for verb in ("embed", "infer")) / (2 * q)
    for name in ("up", "down", "exchanges"):
        assert totals[0][name] / totals[1][name] == local_steps * 4 / count


OPTIONS: list[dict[str, Any]] = [
    {"aggregation": "concatenation", "model": "gcn"},
    {"backward": "server", "local_steps": 1, "model": "gat"},
    {"backward": "server", "local_steps": 1, "aggregation": "concatenation", "shared_layers": 3},
    {"label_holder": 1, "local_steps": 2, "model": "residual"},
    {"label_holder": 2, "backward": "server", "local_steps": 1},
    {"evaluation_neighbors": "sampled", "shared_layers": 4, "model": "mlp"},
    {"evaluation_neighbors": "sampled", "fan_out": 2, "lr_decay": 0.5, "lr_every": 1, "optimizer": "adam", "lr": 0.01},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_options_keep_the_promises(options: dict[str, Any]) -> None:
    """PlacementSettings and amnesia change nothing, whatever is chosen."""
    values = {"hidden": 8, "heads": 2, "batch_size": 6, "dropout": 0.3, "rounds": 2, "evaluate_every": 1, **options}
    usual = runner.run(small("glasu", **values))
    for other in ({"placement": "apart"}, {"amnesia": "true"}, {"placement": "apart", "amnesia": "true"}):
        same = runner.run(small("glasu", **values, **other))
        assert usual.bytes == same.bytes
        for row, again in zip(usual.rows, same.rows, strict=True):
            for name in ("loss", "val_loss"):
                assert row[name] == pytest.approx(again[name], abs=1e-5)


def test_a_sampled_evaluation_with_all_neighbors_is_the_full_one() -> None:
    """Fan-out 0: the judged nodes see everything they would on the whole graph."""
    values = {**PLAIN, "fan_out": 0, "batch_size": 6, "local_steps": 2}
    full, sampled = (runner.run(small("glasu", **values, evaluation_neighbors=kind)) for kind in ("full", "sampled"))
    for row, same in zip(full.rows, sampled.rows, strict=True):
        assert row["loss"] == pytest.approx(same["loss"], abs=1e-5)
        assert row["accuracy"] == same["accuracy"]


def test_a_comparison_knows_what_centralized_means_here() -> None:
    """Beside GLASU it is the same network on all columns and edges, on the same split; a row keeps the name it was asked by."""
    values = {
        "data.nodes": 40,
        "data.features": 8,
        "hidden": 8,
        "batch_size": 4,
        "rounds": 2,
        "shared_layers": 4,
        "split": "random",
    }
    asked = ["centralized", "standalone", "simulated", "glasu"]
    comparison = Comparison(asked, dataset="csbm", partition="vertical", parties=2, seeds=[1], values=values)
    comparison.run(lambda trial, folder: trial.run(folder, None, None))
    assert list(comparison.results) == asked
    meant = [results[0].config.algorithm for results in comparison.results.values()]
    assert meant == ["centralized_vertical", "standalone", "simulated", "glasu"]
    assert [results[0].parties for results in comparison.results.values()] == [1, 2, 2, 2]
    assert Comparison(["centralized", "local"], dataset="csbm", seeds=[0]).trials()[0].config.algorithm == "centralized"


def test_secure_sums_are_a_matter_of_the_channel() -> None:
    """Appendix C: the mean works under secure aggregation; concatenation is refused."""
    values = {"hidden": 8, "dropout": 0.0, "evaluate_every": 1}
    usual = runner.run(small("glasu", **values))
    secure = runner.run(small("glasu", **values, secure="true"))
    assert usual.rows[-1]["loss"] == pytest.approx(secure.rows[-1]["loss"], abs=1e-4)
    assert "secure_keys" not in usual.bytes["by_verb"]
    totals = secure.bytes["by_verb"]["secure_keys"]["messages"] // 3
    assert totals == 3 * 2  # `embed` and `infer` in each round; nothing is masked for `train`, which replies nothing
    with pytest.raises(AtollError, match="private"):
        runner.run(small("glasu", **values, secure="true", aggregation="concatenation"))


@pytest.mark.parametrize("secure", [False, True])
def test_noise_on_the_first_shared_layer_is_a_matter_of_the_channel(secure: bool) -> None:
    """Appendix C: H[l+1] = Agg(H⁺_1[l] + w_1, …) with w_m ~ N(0, σ²·I) at the smallest shared l, by secure sums or not."""

    def first_sum(**values: Any) -> torch.Tensor:
        """(nodes, hidden) Σ_m of what the parties send of the smallest shared layer in the first round."""
        experiment = runner.prepare(small("glasu", rounds=1, hidden=64, batch_size=0, secure=secure, **values))
        federation, heard = experiment.federation, []
        total = federation.total

        def listen(verb: str, **fields: Any) -> Any:
            heard.append((verb, total(verb, **fields)))
            return heard[-1][1]

        federation.total = listen  # type: ignore[method-assign]
        runner.rounds(experiment)
        verb, reply = heard[0]
        assert verb == "embed"
        return reply["hidden"]

    noise = first_sum(**{"dp.verb": "embed", "dp.protected_unit": "row", "dp.clip": 0, "dp.noise": 0.5}) - first_sum()  # Σ_m w_m
    assert float(noise.mean()) == pytest.approx(0, abs=0.06)
    assert float(noise.std()) == pytest.approx(0.5 * 3**0.5, rel=0.05)
    cut = first_sum(**{"dp.verb": "embed", "dp.protected_unit": "row", "dp.clip": 0.1, "dp.noise": 0})
    assert float(cut.norm(dim=1).max()) <= 0.3 + 1e-5  # three rows of norm 0.1 at the most


def test_the_learning_rate_decays() -> None:
    """After every `lr_every` rounds it is multiplied."""
    experiment = stood_up(lr=0.8, lr_decay=0.25, lr_every=2)
    rates = []
    for number in range(1, 6):
        experiment.federation.begin(number)
        experiment.algorithm.step(experiment.federation, {}, experiment.config.settings)
        rates.append(experiment.engine.cohorts[0].optimizer.lr)  # type: ignore[attr-defined]
    assert rates == pytest.approx([0.8, 0.8, 0.2, 0.2, 0.05])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"shared_layers": 5}, "only 4 layers"),
        ({"backward": "server"}, "local_steps=1"),
        ({"label_holder": 3}, "0 to 2"),
        ({"label_holder": 0, "shared_layers": 0}, "shared"),
        ({"participation": 0.5}, "participation"),
        ({"model": "gat", "hidden": 9}, "multiple of heads"),
    ],
)
def test_what_cannot_be_is_said(values: dict[str, Any], sentence: str) -> None:
    """One sentence before the first round."""
    with pytest.raises(AtollError, match=sentence):
        runner.run(small("glasu", **{**PLAIN, **values}))


def test_the_memory_of_an_older_checkpoint_is_taken() -> None:
    """Until 0.1 a checkpoint held an empty notebook, `heard`, beside model and optimizer."""
    before, after = stood_up(), stood_up()
    steps(before)
    old = {name: value for name, value in memory(before).items() if name in ("model", "optimizer")}
    after.engine.restore({"0": {**old, "heard": {"page": torch.full((3,), -1)}}})
    for name, value in memory(before)["model"].items():
        assert torch.equal(memory(after)["model"][name], value)
