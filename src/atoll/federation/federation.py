"""The server's only door to the parties: `ask` sees each reply, `total` their sum, `tell` nothing. Every byte is counted here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch

from atoll import deferred
from atoll.device import CPU
from atoll.errors import AtollError
from atoll.federation import secure
from atoll.federation.bounds import Limits
from atoll.federation.declarations import Leaf
from atoll.federation.fields import Fields, concatenate, pick
from atoll.federation.ledger import Ledger, message_sizes
from atoll.federation.messages import Answer, Engine, Failure, Message, Schema
from atoll.federation.network import NetworkModel
from atoll.federation.replies import Replies, advice, answering, fitting, outliers
from atoll.federation.robust import Robust
from atoll.graphs.graph import Graph
from atoll.parties import Parties
from atoll.privacy.identities import Identities
from atoll.random import generator
from atoll.tasks import DEFAULT_TASK, TASKS, Task

__all__ = ["Answer", "Engine", "Failure", "Federation", "Replies"]
log = logging.getLogger("atoll.federation.federation")
PARTICIPANTS = 0.0  # the value of `evaluated` for those who take part in the round
MAX_REASONS = 5  # reasons for missing parties that one error lists


class Federation:
    """The parties as the server sees them: what `start`, `step` and `evaluate` of an algorithm are given.

    `ask(verb, ...)` returns each party's reply, `total(verb, ...)` only their sum, which is what secure aggregation protects,
    and `tell(verb, ...)` nothing. Keyword arguments are the message; with `each`, they differ by party.

    Attributes:
        schema: The numbers of features, classes and parties.
        seed: The run's seed.
        round: The current round.
        missing: Party → why it did not answer in this round.
        ledger: Bytes by round, verb, direction and party.
        public: What the scenario lets the server know.

    Examples:
        >>> def step(federation, state, settings):  # FedAvg's whole server side
        ...     total = federation.total("fit", model=state["model"])
        ...     return {"model": {name: value / total["n"] for name, value in total["model"].items()}}
    """

    def __init__(
        self,
        engine: Engine,
        schema: Schema,
        *,
        verbs: Mapping[str, str],
        seed: int = 0,
        participation: float = 1.0,
        evaluated: float = 1.0,
        missing_is_fatal: bool = False,
        secure: bool = False,
        secure_min: int = 2,
        identities: Identities | None = None,
        robust: Robust | None = None,
        evaluate_at_server: bool = True,
        public: Mapping[str, Any] | None = None,
        whole: Callable[[], Graph] | None = None,
        scenario: str = "horizontal",
        network: NetworkModel | None = None,
        names: Sequence[str] = (),
        limits: Limits | None = None,
        task: Task | None = None,
        evaluation: str = "auto",
        average: str = "pooled",
        device: torch.device = CPU,
    ) -> None:
        """`verbs`: name → public or private. `robust`: how replies are averaged where parties may lie.
        `public`: what the scenario lets the server know (the node scenario's edges).
        `whole`: loads the union of the parties' graphs; only a simulation has it, and only `evaluate` may look at it.
        `secure_min`: the fewest parties of a secure total. `identities`: the parties' signing keys, where the server knows them.
        `scenario`: how the graph is spread over the parties. `network`: for the seconds that messages would take.
        `names`: the parties' names, where they have any; messages address them by number all the same.
        `evaluated`: the share of the parties that evaluate, drawn once; `PARTICIPANTS` for those of the round.
        `limits`: what the verbs declare of their replies. `task`: what is predicted and how it is judged.
        `evaluation`: which models are judged, where the algorithm offers several. `average`: how parties' metrics become one.
        `device`: where the server may calculate what takes long; the state, messages and replies are tensors of the CPU.
        """
        self.engine = engine
        self.schema = schema
        self.verbs = verbs
        self.seed = seed
        self.participation, self.evaluated = participation, evaluated
        self.missing_is_fatal = missing_is_fatal
        self.secure = secure
        self.secure_min = secure_min
        self.identities = identities
        self.robust = robust
        self.evaluate_at_server = evaluate_at_server
        self.public = public or {}
        self.load_whole = whole
        self.scenario = scenario
        self.network = network
        self.names = tuple(names)
        self.limits = limits
        self.evaluation, self.average, self.device = evaluation, average, device
        self.task = task or TASKS.find(DEFAULT_TASK)
        self.derived: dict[str, Any] = {}  # what the server makes once of what it knows, by name
        self.counted: Fields = {}  # the counts of the last evaluation (`metrics.keep_counts`)
        self.ledger = Ledger(schema.parties)
        self.round = 0
        self.calls = 0
        self.training = True
        self.missing: dict[int, str] = {}
        self.refused: set[int] = set()  # missing parties that answered, but not as declared
        self.dominant: dict[int, float] = {}  # parties that have nearly all the weight in this round, and their share

    @cached_property
    def parties(self) -> Parties:
        """All parties there are."""
        return Parties(range(self.schema.parties))

    @property
    def topology(self) -> Graph:
        """Node scenario: what the server knows, as a graph without features on its device; only training nodes have labels."""
        if "topology" not in self.derived:
            y = self.public["y_train"]
            none = torch.zeros(len(y), dtype=torch.bool)
            ids, ptr = torch.arange(len(y)), torch.tensor([0, len(y)])
            known = (torch.empty(len(y), 0), self.public["edge_index"], y, y >= 0, none, none)
            self.derived["topology"] = Graph(*known, self.schema.classes, ids, ptr).to(self.device)
        graph: Graph = self.derived["topology"]
        return graph

    def name_of(self, party: int) -> str:
        """A party's name, or its number where it has none."""
        return self.names[party] if party < len(self.names) else str(party)

    def reasons(self, missing: Mapping[int, str]) -> str:
        """Why parties are missing, by name, in one line; the first `MAX_REASONS` of them."""
        listed = [
            f"party {self.name_of(party)}: {reason.removeprefix(f'{self.name_of(party)} ')}"
            for party, reason in islice(missing.items(), MAX_REASONS)
        ]
        return "; ".join([*listed, *([f"and {len(missing) - MAX_REASONS} more"] if len(missing) > MAX_REASONS else [])])

    def begin(self, round: int) -> None:
        """Begin a round; missing parties may answer again."""
        self.round = round
        self.calls = 0
        self.missing, self.refused, self.dominant = {}, set(), {}

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Messages inside are evaluation: they go to all parties, or those that the run names, and are counted apart."""
        self.training = False
        try:
            yield
        finally:
            self.training = True

    def participants(self) -> Parties:
        """The parties of this round: all, or a fraction of them chosen by seed and round; of an evaluation, its own fraction."""
        share = self.participation if self.training or self.evaluated == PARTICIPANTS else self.evaluated
        if share >= 1 or self.round == 0:
            return self.parties
        words = ("participants", self.round) if self.training or self.evaluated == PARTICIPANTS else ("evaluated",)
        order = torch.randperm(len(self.parties), generator=generator(self.seed, *words))
        return Parties(order[: max(1, round(share * len(self.parties)))].sort().values.numpy())

    def ask(self, verb: str, *, to: Sequence[int] | None = None, each: Mapping[str, Any] | None = None, **common: Any) -> Replies:
        """Call a verb at the parties and see each one's reply.

        `common` goes to every party; the first axis of each tensor in `each` is the party: one row for each in `to`,
        or, without `to`, for each of all parties. Without `to`, this round's participants are asked.
        """
        if self.secure and self.verbs.get(verb) != "public":
            raise AtollError(
                f"Secure aggregation is on and the verb {verb!r} is private: the server may only ask for its total; "
                "choose an algorithm that needs no more, or leave secure out."
            )
        parties, rows = self._address(verb, to, each)
        return self.exchange(verb, parties, rows, common)

    def total(
        self, verb: str, *, to: Sequence[int] | None = None, each: Mapping[str, Any] | None = None, **common: Any
    ) -> Fields:
        """Call a verb at the parties and see only the sum of their replies, added in party order.

        Under secure aggregation this holds for the whole machine: each reply is masked before it leaves its party.
        With a robust rule the declared averages are the rule's, with weight 1 (`atoll.federation.robust`).
        """
        parties, rows = self._address(verb, to, each)
        if self.secure:
            return secure.total(self, verb, parties, rows, common)
        if self.robust is not None and verb in self.robust.averaged:
            return self.robust.total(verb, deferred.dense(self.exchange(verb, parties, rows, common).fields), common)
        return self.exchange(verb, parties, rows, common).total()

    def tell(self, verb: str, *, to: Sequence[int] | None = None, each: Mapping[str, Any] | None = None, **common: Any) -> None:
        """Call a verb at the parties; nothing comes back.

        No reply means that there is nothing to mask: under secure aggregation a private verb may be called, without a session.
        """
        parties, rows = self._address(verb, to, each)
        if fields := self.exchange(verb, parties, rows, common).fields:
            raise AtollError(
                f"Round {self.round}: {verb!r} was called with `tell`, but it replies {next(iter(fields))!r}; "
                "call it with `ask` or `total`, or let it return nothing."
            )

    def _address(self, verb: str, to: Sequence[int] | None, each: Mapping[str, Any] | None) -> tuple[Parties, Mapping[str, Any]]:
        """A new call: the addressed parties that are not missing, and their rows of `each`."""
        self.calls += 1
        addressed = self.participants() if to is None else Parties(to)
        present = addressed.without(self.missing)
        if not present:
            raise AtollError(f"Round {self.round}: no party is left to answer {verb!r} ({self.reasons(self.missing)}).")
        listed = self.parties if to is None else addressed
        each = each or {}
        return present, each if present == listed else pick(each, listed.indices(present))

    def exchange(
        self,
        verb: str,
        parties: Sequence[int],
        each: Mapping[str, Any],
        common: Mapping[str, Any],
        secure: Mapping[str, Any] | None = None,
    ) -> Replies:
        """Send one message to these parties; check and bill their replies. `ask`, `total` and `tell` are made of this."""
        message = Message(verb, self.round, self.calls, self.training, Parties(parties), common, each, secure)
        down = self._bill_down(message)
        replies = self._gather(message, self.engine.deliver(message))
        up = self._bill_up(message, replies)
        if self.network is not None and self.training:
            self.ledger.wait(self.round, self.network.exchange(message.parties, down, replies.parties, up))
        return replies

    def _gather(self, message: Message, results: Sequence[Answer | Failure]) -> Replies:
        """Check what arrived, note who is missing, and put the others in party order."""
        failed = {result.party: result.reason for result in results if isinstance(result, Failure)}
        answers = [result for result in results if isinstance(result, Answer)]
        declared = self.limits.reply(message) if self.limits is not None else None
        answers, odd = fitting(self.limits, answers, declared)
        parties = answering(answers)
        fields = concatenate([answer.fields for answer in answers])
        odd |= {parties[index]: reason for index, reason in outliers(self.limits, fields, len(parties), declared).items()}
        failed |= odd
        self._refuse(message, odd)
        kept = parties.without(failed).ascending()
        if kept is not parties:
            fields = pick(fields, parties.indices(kept))
        self.note(message.verb, failed)
        if not kept:
            raise AtollError(
                f"Round {self.round}: no party answered {message.verb!r} ({self.reasons(self.missing)}){advice(failed)}."
            )
        return Replies(kept, self._weighed(kept, fields, declared))

    def _refuse(self, message: Message, odd: Mapping[int, str]) -> None:
        self.refused |= odd.keys()
        if odd and message.round == 0:  # before the first round, which has no line in the history
            log.warning("before the first round, %r: left out %s", message.verb, self.reasons(odd))

    def _weighed(self, parties: Parties, fields: Fields, declared: Mapping[str, Leaf] | None) -> Fields:
        """The fields with every weight within `max_share`; a party with nearly all the weight is noted."""
        if declared is None or self.limits is None or not self.training:
            return fields
        if self.limits.rules.max_share < 1:
            fields = self.limits.cut(declared, fields)
        if (dominant := self.limits.dominant(declared, fields)) is not None:
            row, share = dominant
            self.dominant[parties[row]] = round(share, 6)
        return fields

    def note(self, verb: str, failed: Mapping[int, str]) -> None:
        """Leave these parties out of the rest of this round, for these reasons; or stop the run."""
        if failed and self.missing_is_fatal:
            raise AtollError(f"Round {self.round}: {verb!r} stopped the run ({self.reasons(failed)}).")
        self.missing |= dict(sorted(failed.items()))

    def _bill_down(self, message: Message) -> int | np.ndarray:
        envelope = {"verb": message.verb, "round": message.round, "call": message.call, "training": message.training}
        common = message.common if message.secure is None else {**message.common, "secure": message.secure}
        payload, size = message_sizes(common, message.each, envelope)
        self.ledger.record(self.round, message.verb, self.training, message.parties, down=payload, wire_down=size, messages=1)
        return size

    def _bill_up(self, message: Message, replies: Replies) -> int | np.ndarray:
        payload, size = message_sizes({}, replies.fields, {})
        self.ledger.record(self.round, message.verb, self.training, replies.parties, up=payload, wire_up=size)
        return size
