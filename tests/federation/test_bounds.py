"""One member cannot stop or spoil a run: whatever a party replies that it did not declare, it alone is named and left out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll import algorithms, wire
from atoll.errors import AtollError, short
from atoll.federation.cohort import Cohort, Message
from atoll.federation.declarations import WEIGHT, real
from atoll.federation.federation import Answer, Engine, Failure, Federation
from atoll.runs import runner
from atoll.runs.config import groups_of, resolve
from atoll.settings import _hints, known
from invalid import at, invalid_messages, put
from small import ALGORITHMS, GRAPH, Wrapper, parties_of, small
from test_promises import numbers, partial, tensors
from test_threat_model import Settings, variants

TOGETHER = ("theory", "1")  # takes all parties in one process, where none can lie alone
MANY = [pair for pair in variants() if parties_of(pair[0]) > 1 and TOGETHER not in pair[1]]


def changed(results: list[Answer | Failure], party: int, fields: dict[str, Any]) -> list[Answer | Failure]:
    """The results with another reply of one party, who lives alone."""
    alone = [party]
    return [Answer(alone, fields) if isinstance(result, Answer) and result.parties == alone else result for result in results]


def reply_of(results: list[Answer | Failure], party: int) -> dict[str, Any]:
    """A party's reply."""
    return next(dict(result.fields) for result in results if isinstance(result, Answer) and result.parties == [party])


class Interrogator(Wrapper):
    """Of every kind of message, has the second party tell every lie there is, and looks at what the server makes of it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.federation: Federation | None = None
        self.seen: set[tuple[str, bool, frozenset[str]]] = set()
        self.told = 0
        self.wrong: list[str] = []

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Pass on, the first time of each kind after the lies."""
        results = self.engine.deliver(message)
        fields = frozenset(name for result in results if isinstance(result, Answer) for name in result.fields)
        kind = (message.verb, message.training, fields)
        if len(message.parties) > 1 and kind not in self.seen and self.federation is not None:
            self.seen.add(kind)
            self.lie(self.federation, message, results)
        return results

    def lie(self, federation: Federation, message: Message, results: list[Answer | Failure]) -> None:
        """Every field in turn, every lie."""
        liar = message.parties[1]
        kept = federation.missing, federation.refused, federation.dominant
        for word, path, fields in invalid_messages(reply_of(results, liar)):
            federation.missing, federation.refused, federation.dominant = {}, set(), {}
            self.told += 1
            what = f"{message.verb} {path} {word}"
            try:
                replies = federation._gather(message, changed(results, liar, fields))
            except Exception as error:
                self.wrong.append(f"{what}: {type(error).__name__} {error}")
                continue
            if word == "missing" and (federation.limits.reply(message) or {})[path].optional:
                if federation.missing or path in dict(wire.leaves(replies.fields)):
                    self.wrong.append(f"{what}: left out {federation.missing}, and an optional field of some parties is used")
            elif list(replies.parties) != [party for party in message.parties if party != liar] or set(federation.missing) != {
                liar
            }:
                self.wrong.append(f"{what}: left out {federation.missing}")
            elif path.rsplit("/", 1)[0] not in federation.missing[liar]:
                self.wrong.append(f"{what}: {federation.missing[liar]} does not name the field")
        federation.missing, federation.refused, federation.dominant = kept


def interrogated(algorithm: str, **values: Any) -> tuple[Interrogator, runner.Result]:
    """A run whose second party lies in every way without harm."""
    wrapped: list[Interrogator] = []

    def wrap(engine: Engine) -> Interrogator:
        wrapped.append(Interrogator(engine))
        return wrapped[0]

    experiment = runner.prepare(small(algorithm, rounds=2, placement="apart", **values), engine=wrap)
    wrapped[0].federation = experiment.federation
    return wrapped[0], runner.rounds(experiment)


@pytest.mark.parametrize(("algorithm", "settings"), MANY)
def test_whoever_replies_what_it_did_not_declare_is_named_alone(algorithm: str, settings: Settings) -> None:
    """Every field of every reply of every algorithm: more, missing, of another type or shape, negative, huge, not a number."""
    engine, _ = interrogated(algorithm, **dict(settings))
    assert engine.seen
    assert engine.told >= len(engine.seen)
    assert engine.wrong == []


@pytest.mark.parametrize("algorithm", ["fedavg", "fedspray", "fedgl", "glasu"])
def test_masked_replies_are_checked_for_name_type_and_shape(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under secure totals the ranges of masked numbers are nobody's to see; everything else holds, for the steps too."""
    monkeypatch.setattr("invalid.numbers", lambda value, name: iter(()))
    engine, _ = interrogated(algorithm, secure=True)
    assert {"secure_keys", "secure_shares", "secure_open", "secure_confirm", "secure_reveal"} <= {kind[0] for kind in engine.seen}
    assert engine.wrong == []


def test_a_party_checks_its_own_ranges_before_it_masks() -> None:
    """What the server cannot see any more the party refuses itself, by field."""
    config = small("fedavg", secure=True, placement="apart", max_weight=3)
    with pytest.raises(AtollError, match="field 'n' is not finite, or beyond its bounds"):
        runner.rounds(runner.prepare(config))


class Liar(Wrapper):
    """One party lies in its first reply of one round's training."""

    def __init__(self, engine: Engine, path: str, value: Any, round: int = 2, party: int = 1) -> None:
        super().__init__(engine)
        self.path, self.value, self.round, self.party = path, value, round, party
        self.done = False

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Lie once."""
        results = self.engine.deliver(message)
        if self.done or message.round != self.round or not message.training or self.party not in message.parties:
            return results
        fields = reply_of(results, self.party)
        if self.path and self.path.split("/")[0] not in fields:
            return results
        self.done = True
        lie = put(fields, self.path or "extra", self.value(at(fields, self.path)) if self.path else torch.zeros(1))
        return changed(results, self.party, lie)


class Silent(Wrapper):
    """One party's answers of one round are lost; it has computed them all the same."""

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Lose them."""
        results = self.engine.deliver(message)
        lost = message.round == 2
        return [Failure(1, "timed out") if lost and isinstance(own, Answer) and own.parties == [1] else own for own in results]


def same_as_missing(algorithm: str, path: str, value: Any, **values: Any) -> None:
    """The lie, told in round 2, gives the numbers of a run in which the party was silent in that round."""
    config = small(algorithm, placement="apart", **values)
    lied = runner.rounds(runner.prepare(config, engine=lambda engine: Liar(engine, path, value)))
    silent = runner.rounds(runner.prepare(config, engine=Silent))
    reason = lied.rows[1]["missing"]["1"]
    assert repr(path or "extra") in reason
    lied.rows[1]["missing"] = silent.rows[1]["missing"]
    assert numbers(lied) == numbers(silent)
    assert tensors(lied).keys() == tensors(silent).keys()
    assert all(torch.equal(value, tensors(silent)[name]) for name, value in tensors(lied).items())


WEIGHTS = {"fedavg": "n", "fedspray": "n", "fedgl": "n", "fedper": "n", "fedstar": "n", "gcfl": "nodes", "fedlit_deep": "nodes"}


@pytest.mark.parametrize("number", [10**12, -5])
@pytest.mark.parametrize("algorithm", WEIGHTS)
def test_a_weight_that_cannot_be_takes_nothing_over(algorithm: str, number: int) -> None:
    """n = 10¹² and n = −5: the party is left out of the round, and the others' numbers are those of a run without it."""
    same_as_missing(algorithm, WEIGHTS[algorithm], lambda value: torch.full_like(value, number))


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if partial(name)])
def test_one_extra_field_evicts_nobody_else(algorithm: str) -> None:
    """Who sends a field too many is left out, alone."""
    same_as_missing(algorithm, "", None)


def test_the_first_party_that_answers_does_not_decide() -> None:
    """Two parties, and the first one lies: today's majority would be the first one's."""
    config = small("fedavg", placement="apart")
    federation = runner.prepare(config).federation
    message = Message("evaluate", 1, 0, False, (0, 1), runner.prepare(config).algorithm.start(federation, config.settings), {})
    honest = federation.engine.deliver(message)
    for liar in (0, 1):
        federation.begin(1)
        replies = federation._gather(message, changed(honest, liar, {**reply_of(honest, liar), "extra": torch.zeros(1)}))
        assert list(replies.parties) == [1 - liar]
        assert federation.missing == {liar: "field 'extra' is not one of its fields (validation, test, confusion, training)"}


@pytest.mark.parametrize("liar", [0, 1, 2])
@pytest.mark.parametrize("secure", [False, True])
def test_who_leaves_out_an_optional_field_evicts_nobody(liar: int, secure: bool) -> None:
    """Without one party's training counts there is no training loss in that round; nothing else changes."""

    class Silent(Wrapper):
        """One party does not count its training nodes in round 2."""

        def deliver(self, message: Message) -> list[Answer | Failure]:
            results = self.engine.deliver(message)
            if message.verb != "evaluate" or message.round != 2:
                return results
            fields = dict(wire.leaves(reply_of(results, liar)))
            kept = {name: value for name, value in fields.items() if not name.endswith("training")}
            assert len(kept) == len(fields) - 1
            return changed(results, liar, wire.nest(kept))

    config = small("fedavg", placement="apart", secure=secure)
    usual, silent = runner.rounds(runner.prepare(config)), runner.rounds(runner.prepare(config, engine=Silent))
    del usual.rows[1]["train_loss"]
    assert numbers(usual) == numbers(silent)


def test_an_absurd_number_of_nodes_exhausts_nobody() -> None:
    """FedGL: who says that its nodes go up to 10¹² is left out of the count, and the run goes on without that."""
    config = small("fedgl", placement="apart")

    class Absurd(Wrapper):
        """Party 1 has 10¹² nodes, at the start."""

        def deliver(self, message: Message) -> list[Answer | Failure]:
            results = self.engine.deliver(message)
            return changed(results, 1, {"nodes": torch.tensor([10**12])}) if message.verb == "count" else results

    result = runner.rounds(runner.prepare(config, engine=Absurd))
    assert int(result.state["nodes"]) <= 60
    assert len(result.rows) == config.run.rounds


def test_nodes_beyond_those_the_server_knows_fail_their_party_alone() -> None:
    """A party whose numbers go further than all that were counted cannot be placed: it fails by name, not the server."""
    experiment = runner.prepare(small("fedgl", placement="apart"))
    state = experiment.algorithm.start(experiment.federation, experiment.config.settings)
    experiment.federation.begin(1)
    state["nodes"] = torch.tensor(1)
    with pytest.raises(AtollError, match="holds nodes beyond the 1 that the server knows of"):
        experiment.algorithm.step(experiment.federation, state, experiment.config.settings)


def test_a_share_of_the_weights_is_cut() -> None:
    """`max_share`: the heaviest party is cut to its share, its model with it; compared with the same said in plain numbers."""
    federation = runner.prepare(small("fedavg", max_share=0.5)).federation
    message = Message("fit", 1, 0, True, (0, 1, 2), {}, {})
    names = {name: leaf.shape for name, leaf in federation.limits.reply(message).items()}  # type: ignore[union-attr]
    n = torch.tensor([10, 20, 5000])
    model = {
        name.partition("/")[2]: torch.ones(3, *shape) * n.view(3, *[1] * len(shape))
        for name, shape in names.items()
        if "/" in name
    }
    federation.begin(1)
    fields = federation._gather(message, [Answer((0, 1, 2), {"model": model, "n": n})]).fields
    assert fields["n"].tolist() == [10, 20, 30]  # 30 of 60
    for value in fields["model"].values():
        assert torch.allclose(value.flatten(1)[:, 0], torch.tensor([10.0, 20.0, 30.0]))


@pytest.mark.parametrize("share", [0.34, 0.4, 0.5, 0.8])
def test_cutting_is_the_largest_that_fits(share: float) -> None:
    """Naive: lower the cap by one until nobody has more than the share."""
    from atoll.federation.bounds import _level

    for seed in range(20):
        weights = torch.randint(1, 60, (5,), generator=torch.Generator().manual_seed(seed)) ** 2
        cap = int(weights.max())
        while float(weights.clamp(max=cap).max() / weights.clamp(max=cap).sum()) > share and cap > 0:
            cap -= 1
        found = min(int(_level(weights, share)), int(weights.max()))
        assert abs(found - cap) <= 1, (weights, share)


def test_who_has_nearly_all_the_weight_is_noted() -> None:
    """The history says when one party is more than nine tenths of the mean; otherwise it says nothing of it."""

    class Heavy(Wrapper):
        """Party 1 says that it has ten million nodes; nobody can tell."""

        def deliver(self, message: Message) -> list[Answer | Failure]:
            results = self.engine.deliver(message)
            if message.verb != "fit" or message.round != 2:
                return results
            own = reply_of(results, 1)
            factor = 10**7 / int(own["n"])
            model = {name: value * factor for name, value in own["model"].items()}
            return changed(results, 1, {"model": model, "n": torch.tensor([10**7])})

    result = runner.rounds(runner.prepare(small("fedavg", placement="apart"), engine=Heavy))
    assert [sorted(row.get("dominant", {})) for row in result.rows] == [[], ["1"], []]
    assert result.rows[1]["dominant"]["1"] > 0.99


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_verb_declares_what_it_takes_and_gives(algorithm: str) -> None:
    """Nothing of an algorithm that comes with atoll goes unchecked."""
    cohort = algorithms.find(algorithm).Cohort
    for name in cohort.verbs():
        method = cohort.verb_named(name)
        assert method.__dict__["gives"] is not None, name
        assert method.__dict__["takes"] is not None or name in Cohort.verbs(), name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_whole_number_of_a_configuration_has_an_upper_bound(algorithm: str) -> None:
    """But for seeds, from which nothing is allocated."""
    for group in groups_of(algorithm, "csbm").values():
        for name, field in known(group).items():
            if _hints(group)[name] is int and "seed" not in name:
                assert field.metadata["high"] is not None, name


def test_an_algorithm_of_ones_own_may_declare_or_not() -> None:
    """Without declarations the general checks hold; with them the verb's own."""
    from atoll.federation.bounds import Limits
    from atoll.federation.cohort import Schema, verb

    class Own(Cohort):
        """One verb of each kind."""

        @verb
        def loose(self) -> dict[str, torch.Tensor]:
            """Anything."""
            return {}

        @verb(gives={"x": real(2, low=0, high=1), "n": WEIGHT})
        def strict(self) -> dict[str, torch.Tensor]:
            """Two numbers and a weight."""
            return {}

    limits = Limits(Own, None, Schema(1, 1, 2))
    assert limits.reply(Message("loose", 1, 0, True, (0, 1), {}, {})) is None
    leaves = limits.reply(Message("strict", 1, 0, True, (0, 1), {}, {}))
    assert leaves is not None
    good = {"x": torch.rand(2, 2), "n": torch.ones(2, dtype=torch.int64)}
    assert limits.misfit(leaves, good, 2) == ""
    assert limits.outliers(leaves, good, 2) == {}
    assert limits.outliers(leaves, {**good, "x": good["x"] + torch.tensor([[0.0], [2.0]])}, 2).keys() == {1}


def test_the_documented_algorithm_runs_with_and_without_declarations(tmp_path: Path) -> None:
    """The file of docs/own-algorithm.md, and the same with bare verbs: the same numbers."""
    page = (Path(__file__).parents[2] / "docs" / "own-algorithm.md").read_text()
    code = page.split('```python title="fedmedian.py"\n')[1].split("```")[0]
    bare = re.sub(r"@verb\(.*\)", "@verb", code)
    assert bare != code
    results = []
    for name, text in (("declared", code), ("bare", bare)):
        (tmp_path / f"{name}.py").write_text(text)
        chosen = {**GRAPH, "rounds": 2}
        config = resolve(str(tmp_path / f"{name}.py"), dataset="csbm", partition="random", parties=3, values=chosen)
        results.append(runner.rounds(runner.prepare(config)))
    assert numbers(results[0]) == numbers(results[1])


def test_a_strangers_text_is_shown_as_text() -> None:
    """Reasons and names from elsewhere are short, on one line, and move no cursor."""
    assert short("a\nb\x1b[31mred") == "a b\\x1b[31mred"
    assert len(short("x" * 10**6)) == 300
    assert short(None) == ""
    assert short("ß é 漢") == "ß é 漢"


@pytest.mark.full
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if partial(name)])
def test_every_lie_gives_the_numbers_of_a_run_without_the_liar(algorithm: str) -> None:
    """The wide sweep: whole runs, every field of the first reply of a round, every lie."""
    first: list[dict[str, Any]] = []

    class Look(Wrapper):
        def deliver(self, message: Message) -> list[Answer | Failure]:
            results = self.engine.deliver(message)
            if message.training and message.round == 2 and 1 in message.parties:
                first.append(reply_of(results, 1))
            return results

    runner.rounds(runner.prepare(small(algorithm, placement="apart"), engine=Look))
    for word, path, fields in invalid_messages(first[0]):
        if word not in ("missing", "extra"):
            lie = at(fields, path)
            same_as_missing(algorithm, path, lambda value, lie=lie: lie)
