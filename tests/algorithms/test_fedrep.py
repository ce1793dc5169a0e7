"""FedRep against FedAvg, Local and a naive loop over parties."""

from __future__ import annotations

from pathlib import Path

import plain
from atoll.federation.cohort import first_model
from atoll.runs import runner
from small import small
from test_promises import assert_resume_is_exact, assert_same, run


def test_without_personal_layers_it_is_fedavg() -> None:
    """Nothing personal: `epochs` of the shared layers are FedAvg's, bit for bit, with dropout too."""
    rep = runner.run(small("fedrep", dropout=0.3, personal_layers=0, epochs=4))
    avg = runner.run(small("fedavg", dropout=0.3, epochs=4))
    plain.same(rep.state["base"], avg.state["model"])
    assert plain.metrics(rep) == plain.metrics(avg)


def test_with_personal_layers_only_it_is_local() -> None:
    """Everything personal: `head_epochs` are Local's epochs, bit for bit."""
    rep = runner.run(small("fedrep", dropout=0.3, personal_layers=2, head_epochs=4))
    local = runner.run(small("local", dropout=0.3, epochs=4))
    plain.same(rep.memory["0"]["model"], local.memory["0"]["model"])
    assert plain.metrics(rep) == plain.metrics(local)


def test_two_rounds_equal_a_loop_over_parties() -> None:
    """First the last layer alone, then the first layer alone; weight decay and momentum move only what trains."""
    config = small("fedrep", rounds=2, optimizer="sgd", lr=0.2, weight_decay=0.1, head_epochs=3, epochs=2)
    experiment, parties = plain.prepare(config)
    first = experiment.engine.state()["0"]["model"]
    heads = [{name: value[p].clone() for name, value in first.items() if name.startswith("layers.1")} for p in range(3)]
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    for _ in range(2):
        bases = []
        for p, party in enumerate(parties):
            own = plain.leaves({**server, **heads[p]})
            for part, epochs in (("layers.1", 3), ("layers.0", 2)):
                trained = {name: value for name, value in own.items() if name.startswith(part)}
                for _ in range(epochs):
                    decay = 0.05 * sum(value.square().sum() for value in trained.values())
                    plain.descend(trained, party.loss(plain.forward("gcn", own, party)) + decay, 0.2)
            heads[p] = {name: own[name].detach() for name in heads[p]}
            bases.append(own)
        server = plain.average(bases, [party.n for party in parties])
    result = runner.rounds(experiment)
    plain.close(result.state["base"], {name: value for name, value in server.items() if name.startswith("layers.0")})
    for p, head in enumerate(heads):
        plain.close({name: result.memory["0"]["model"][name][p] for name in head}, head)


def test_bytes() -> None:
    """4·w_B down; 4·w_B + 8 up."""
    result = runner.run(small("fedrep", rounds=2))
    parameters = 12 * 64 + 64
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8)


def test_fine_tuned_heads_are_judged_and_forgotten() -> None:
    """evaluation=finetuned: `head_epochs` more of the heads on the server's base, by a loop; training goes on without them."""
    values = {"rounds": 2, "optimizer": "sgd", "lr": 0.3, "head_epochs": 3, "epochs": 2}
    usual = runner.run(small("fedrep", **values))
    experiment, parties = plain.prepare(small("fedrep", evaluation="finetuned", **values))
    tuned = runner.rounds(experiment)
    plain.same(tuned.state["base"], usual.state["base"])
    assert tuned.rows[-1]["val_loss"] != usual.rows[-1]["val_loss"]
    for p, party in enumerate(parties):
        own = plain.leaves({name: usual.state["base"].get(name, value[p]) for name, value in usual.memory["0"]["model"].items()})
        heads = {name: value for name, value in own.items() if name.startswith("layers.1")}
        for _ in range(3):
            plain.descend(heads, party.loss(plain.forward("gcn", own, party)), 0.3)
        plain.close({name: value[p] for name, value in tuned.memory["0"]["model"].items()}, own)


def test_promises_of_fine_tuned_heads(tmp_path: Path) -> None:
    """Wherever parties live and whatever they forget; resume is exact; what is saved predicts what was judged."""
    values = {"evaluation": "finetuned", "participation": 0.7, "dropout": 0.3}
    usual = run(small("fedrep", **values))
    assert_same(usual, run(small("fedrep", **values, placement="apart")), 1e-5)
    assert_same(usual, run(small("fedrep", **values, amnesia="true")), 1e-6)
    assert_resume_is_exact(small("fedrep", **values, checkpoint_every=1), 2, tmp_path)
