"""The settings of a run, whatever the algorithm."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atoll.errors import AtollError
from atoll.federation.averages import AVERAGES
from atoll.federation.federation import PARTICIPANTS
from atoll.federation.metrics import EVALUATIONS
from atoll.federation.robust import RULES
from atoll.settings import setting
from atoll.tasks import DEFAULT_TASK


@dataclass(frozen=True)
class RunSettings:
    """How a run goes, whatever the algorithm."""

    task: str = setting(DEFAULT_TASK, "What is predicted and how it is evaluated.", since="0.2")
    rounds: int = setting(100, "Maximum number of rounds.", low=1, high=10**9)
    evaluate_every: int = setting(1, "Evaluate every N rounds.", low=1, high=10**9)
    patience: int = setting(
        0, "Stop after this many rounds without a better validation score; 0 never stops early.", low=0, high=10**9
    )
    target_accuracy: float = setting(
        0.0,
        "Stop once the validation metric of select_by (for the loss: the accuracy) is this good; 0 never does.",
        low=0,
        high=1,
        was="target",
    )
    select_by: str = setting(
        "loss",
        "The validation metric that names the best round: loss, score (the task's own), accuracy, macro_f1, weighted_f1, auc, "
        "average_precision, brier, calibration_error, minority_accuracy, or of one class, as in recall[CLASS]; or last.",
        was="select",
    )
    track: tuple[str, ...] = setting(
        (),
        "Further metrics of validation nodes to count and to record, of those that select_by can name: minority_accuracy or auc.",
        since="0.2",
    )
    evaluation: str = setting(
        "auto",
        "Which models are judged: auto (the algorithm's own: global or personal), trained (each party's after local training, "
        "before aggregation), finetuned (the server's after local training that nothing else uses), or union (the server's on "
        "all parties' graphs with the edges between them).",
        choices=("auto", *EVALUATIONS),
        since="0.2",
    )
    average: str = setting(
        "pooled",
        "How the parties' metrics become one, for selection and in tables: pooled over all nodes, their mean, their mean "
        "weighted by nodes, or the worst party's.",
        choices=AVERAGES,
        since="0.2",
    )
    class_weight: str = setting(
        "none",
        "What a class weighs in the loss: none, balanced (n / (C·n_c) from the federation's class counts), a number per class "
        "(0.2,0.8), or CLASS:NUMBER pairs; metrics are not weighted.",
        since="0.2",
    )
    threshold: str = setting(
        "none",
        "Two classes: from which probability on the rarer one is predicted: f1, youden or accuracy to choose it on validation "
        "nodes (f1[CLASS] for that class), or a number, as in 0.3[CLASS]; none predicts the likeliest.",
        since="0.2",
    )
    value_loss: str = setting(
        "squared",
        "Values: the loss of a prediction, the squared error, or Huber's, which is linear for errors above 1 (in deviations).",
        choices=("squared", "huber"),
        since="0.2",
    )
    value_scale: str = setting(
        "federation",
        "Values: mean and standard deviation by which they are fitted: those of all parties' training items (federation), given "
        "as MEAN:DEVIATION, one pair or one per value, or none.",
        since="0.2",
    )
    checkpoint_every: int = setting(0, "Save a checkpoint every N rounds; 0 means every few seconds.", low=0, high=10**9)
    participation: float = setting(
        1.0, "Share of the parties that take part in each round, drawn from the seed.", above=0, high=1
    )
    evaluated: str = setting(
        "all",
        "Which parties evaluate: all, participants (those of the round), or a share such as 0.1, drawn once from the seed.",
        since="0.2",
    )
    on_missing: str = setting(
        "continue",
        "What to do when a party does not answer: continue without it, or stop the run.",
        choices=("continue", "stop"),
        was="missing",
    )
    allow_partial_best: bool = setting(
        False, "Whether a round in which a party was missing may be the best round.", since="0.1", was="count_missing"
    )
    secure: bool = setting(False, "Secure aggregation: the server sees only sums, and private verbs answer nothing else.")
    secure_min: int = setting(
        0,
        "Minimum number of parties in a secure total; 0 means 3, or all parties if there are fewer.",
        low=0,
        high=10**7,
        since="0.1",
    )
    robust: str = setting(
        "none", "How models are averaged when some parties may be dishonest; none is the plain mean.", choices=RULES, since="0.1"
    )
    byzantine: int = setting(
        1, "Robust averages: f, the number of parties that may be dishonest.", low=0, high=10**7, since="0.1"
    )
    robust_norm: float = setting(0.0, "robust=clipped: maximum norm of an update; 0 takes the median norm.", low=0, since="0.1")
    latency: tuple[float, ...] = setting((), "Network model: seconds per message, one way; one number, or one per party.")
    bandwidth: tuple[float, ...] = setting(
        (), "Network model: megabytes per second; one number, or one per party; 0 is unlimited."
    )
    evaluate_at_server: bool = setting(
        True,
        "Whether the server gets each party's evaluation counts; if false, only their sums, and sites keep their own metrics.",
        since="0.1",
    )
    placement: str = setting(
        "together", "Whether all parties share one cohort or each has its own.", choices=("together", "apart")
    )
    amnesia: bool = setting(False, "Rebuild every party from its declared memory before each message (a check for authors).")
    timeout: float = setting(
        600.0,
        "Engine nvflare: seconds to wait for a site's answer; ray: for a site to find room in the cluster and begin.",
        low=1,
    )
    max_weight: int = setting(
        10**8, "The largest weight (number of training nodes) a party may claim.", low=1, high=10**12, since="0.1"
    )
    max_share: float = setting(
        1.0, "The largest share of the total weight for one party; larger weights are reduced to it.", low=0, high=1, since="0.1"
    )
    max_nodes: int = setting(
        10**6,
        "Maximum number of nodes of a party, or of all parties together where they overlap.",
        low=1,
        high=10**9,
        since="0.1",
    )
    sites: int = setting(
        0,
        "Engines nvflare and ray: processes that the parties are divided over; 0 means one per party, at most 8 (ray: as many as "
        "the cluster has room for).",
        low=0,
        high=10**5,
    )
    address: str = setting(
        "",
        "Engine ray: the cluster, as HOST:PORT, or auto for the one that this machine belongs to; empty takes RAY_ADDRESS or, "
        "without it, a cluster on this machine alone that ends with the run.",
        since="0.2",
    )
    cpus_per_site: float = setting(
        1.0,
        "Engine ray: CPUs that each site reserves, and threads of torch there (at least one).",
        above=0,
        high=10**4,
        since="0.2",
    )
    gpus_per_site: float = setting(
        0.0, "Engine ray: GPUs that each site reserves; its parties compute on the run's device.", low=0, high=10**3, since="0.2"
    )
    answer_timeout: float = setting(
        0.0,
        "Engine ray: seconds that a site may take to answer a message; one that takes longer is lost and started again. 0: any.",
        low=0,
        high=10**6,
        since="0.2",
    )


def evaluated_share(text: str) -> float:
    """The share of the parties that evaluate; `PARTICIPANTS` for those of the round."""
    words = {"all": 1.0, "participants": PARTICIPANTS}
    if text in words:
        return words[text]
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise AtollError(
            f"evaluated is {text!r}; give all, participants, or a share of the parties above 0 and up to 1, such as 0.1."
        )
    return share
