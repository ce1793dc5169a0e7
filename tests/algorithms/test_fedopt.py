"""FedOpt against FedAvg and the paper's formulas written out."""

from __future__ import annotations

import pytest

import plain
from atoll.federation.cohort import first_model
from atoll.runs import runner
from small import small


def test_full_plain_steps_of_the_server_are_fedavg() -> None:
    """`server_optimizer=sgd`, η = 1: FedAvg's model and metrics, bit for bit, with dropout too."""
    opt = runner.run(small("fedopt", dropout=0.3, server_optimizer="sgd"))
    avg = runner.run(small("fedavg", dropout=0.3))
    plain.same(opt.state["model"], avg.state["model"])
    assert plain.metrics(opt) == plain.metrics(avg)


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad", "sgd"])
def test_three_rounds_equal_the_formulas(name: str) -> None:
    """Δ by a loop over parties; m, v and θ entry by entry, in double precision."""
    values = {"server_lr": 0.1, "server_momentum": 0.8, "server_decay": 0.7, "adaptivity": 0.02}
    config = small("fedopt", optimizer="sgd", lr=0.2, epochs=3, server_optimizer=name, **values)
    experiment, parties = plain.prepare(config)
    server = {
        key: value.double() for key, value in first_model(config.settings, experiment.federation.schema, config.seed).items()
    }
    m = {key: 0 * value for key, value in server.items()}
    v = {key: 0 * value + 0.02**2 for key, value in server.items()}
    for _ in range(3):
        models = []
        for party in parties:
            own = plain.leaves({key: value.float() for key, value in server.items()})
            for _ in range(3):
                plain.descend(own, party.loss(plain.forward("gcn", own, party)), 0.2)
            models.append(own)
        mean = plain.average(models, [party.n for party in parties])
        for key, value in server.items():
            delta = mean[key].double() - value
            if name == "sgd":
                m[key] = 0.8 * m[key] + delta
                server[key] = value + 0.1 * m[key]
                continue
            m[key] = 0.8 * m[key] + 0.2 * delta
            if name == "adagrad":
                v[key] = v[key] + delta**2
            elif name == "adam":
                v[key] = 0.7 * v[key] + 0.3 * delta**2
            else:
                v[key] = v[key] - 0.3 * delta**2 * (v[key] - delta**2).sign()
            server[key] = value + 0.1 * m[key] / (v[key] ** 0.5 + 0.02)
    plain.close(runner.rounds(experiment).state["model"], {key: value.float() for key, value in server.items()})


def test_bytes() -> None:
    """4·w down; 4·w + 8 up: moments stay at the server."""
    result = runner.run(small("fedopt", rounds=2))
    parameters = plain.size(result.state["model"])
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8)
