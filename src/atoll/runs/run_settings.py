"""The settings of a run, whatever the algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.federation.robust import RULES
from atoll.settings import setting
from atoll.tasks import DEFAULT_TASK


@dataclass(frozen=True)
class RunSettings:
    """How a run goes, whatever the algorithm."""

    task: str = setting(DEFAULT_TASK, "What is predicted and how it is judged.", since="0.2")
    rounds: int = setting(100, "Rounds at the most.", low=1, high=10**9)
    evaluate_every: int = setting(1, "Evaluate after every so many rounds.", low=1, high=10**9)
    patience: int = setting(
        0, "Stop after so many rounds without a better validation score; 0 never stops early.", low=0, high=10**9
    )
    target_accuracy: float = setting(
        0.0, "Stop once the validation accuracy is this high; 0 never does.", low=0, high=1, was="target"
    )
    select_by: str = setting(
        "loss", "The validation score that names the best round.", choices=("loss", "accuracy"), was="select"
    )
    checkpoint_every: int = setting(0, "Checkpoint after every so many rounds; 0 means every few seconds.", low=0, high=10**9)
    participation: float = setting(1.0, "Share of the parties that take part in a round, chosen by seed.", low=0, high=1)
    on_missing: str = setting(
        "continue", "What a party that does not answer does to the round.", choices=("continue", "stop"), was="missing"
    )
    allow_partial_best: bool = setting(
        False, "Whether a round in which a party was missing may be the best round.", since="0.1", was="count_missing"
    )
    secure: bool = setting(False, "Secure aggregation: the server sees sums only, and may ask private verbs for nothing else.")
    secure_min: int = setting(
        0, "Fewest parties of a secure total; 0 means 3, or all where there are fewer.", low=0, high=10**7, since="0.1"
    )
    robust: str = setting(
        "none", "How models are averaged where some parties may lie; none is the plain mean.", choices=RULES, since="0.1"
    )
    byzantine: int = setting(1, "Robust averages: how many parties may lie, f.", low=0, high=10**7, since="0.1")
    robust_norm: float = setting(
        0.0, "robust=clipped: the longest update; 0 takes the median of their lengths.", low=0, since="0.1"
    )
    latency: tuple[float, ...] = setting((), "Link model: seconds a message takes one way, one number or one a party.")
    bandwidth: tuple[float, ...] = setting((), "Link model: megabytes a second, one number or one a party; 0 has no limit.")
    evaluate_at_server: bool = setting(
        True,
        "Whether the server gets each party's evaluation counts; without, only their sums, and sites keep their own metrics.",
        since="0.1",
    )
    placement: str = setting("together", "Parties in one cohort, or each at a site of its own.", choices=("together", "apart"))
    amnesia: bool = setting(False, "Rebuild every party from its declared memory before each message (a check for authors).")
    timeout: float = setting(600.0, "Engine nvflare: seconds to wait for a site's answer.", low=1)
    max_weight: int = setting(10**8, "The largest weight (training nodes) a party may claim.", low=1, high=10**12, since="0.1")
    max_share: float = setting(
        1.0, "The largest share of all weights of a party; who has more is cut to it.", low=0, high=1, since="0.1"
    )
    max_nodes: int = setting(
        10**6, "The most nodes a party, or where parties overlap all of them, may have.", low=1, high=10**9, since="0.1"
    )
    sites: int = setting(0, "Engine nvflare: processes on this machine; 0 means one a party, at most 8.", low=0, high=10**5)
