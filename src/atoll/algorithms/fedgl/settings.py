"""FedGL's settings. Where the default departs from the paper there is a setting; `variant=paper` sets all of them."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import fedavg
from atoll.errors import AtollError
from atoll.graphs import knn
from atoll.models.registry import find_model
from atoll.models.user import short_name
from atoll.settings import BatchedTraining, setting


@dataclass(frozen=True)
class Settings(fedavg.Averaging, BatchedTraining):
    """FedAvg's settings, mini-batches and those of the global self-supervision.

    `variant=paper` follows all of the text at once. It sets, each of them still to be set alone: `pseudo_graph=literal` (Eqs. 9
    and 14), `neighbors=100` (Section 5.3.2), `fusion=literal` (Eqs. 11 and 13), `loss=sum` (Eqs. 4, 7 and 8), `outputs=before`
    (Algorithm 1, lines 6 to 8), `upload=rows` (line 8) and `decay_layers=first` (Section 5.3.2: the parameters of Kipf and
    Welling). As in the default, s counts the node itself (Eq. 14: a row's largest elements) and the model is evaluated without
    the pseudo graph (Section 5.3.1: on the parties' merged structure).
    """

    pseudo_label_weight: float = setting(0.2, "α, the weight of the loss on pseudo labels; 0 turns them off.", low=0, was="alpha")
    pseudo_graph_weight: float = setting(1.0, "β, the weight of the pseudo graph; 0 turns it off.", low=0, was="beta")
    balance_classes: bool = setting(
        False,
        "Weight all classes of pseudo labels equally instead of all pseudo labels (the paper); for few labels per class.",
        was="balance",
    )
    pseudo_label_threshold: float = setting(
        0.5, "λ, the confidence above which a fused prediction becomes a pseudo label.", low=0, high=1, was="threshold"
    )
    neighbors: int = setting(
        10, "s, neighbors per node in the pseudo graph; the paper uses 100.", low=1, high=10**5, was="neighbours"
    )
    pseudo_graph: str = setting("joint", "How the pseudo graph is weighted.", choices=knn.FORMS)
    fusion: str = setting(
        "holders",
        "How a node's predictions and embeddings are averaged: over the parties that hold it, or divided by all parties' nodes.",
        choices=("holders", "literal"),
    )
    upload: str = setting(
        "sum", "Whether the server sees the parties' predictions and embeddings summed or row by row.", choices=("sum", "rows")
    )
    neighbor_search: str = setting(
        "exact",
        "How neighbors are found: exactly, by comparing all pairs block by block, or approximately, with faiss.",
        choices=("exact", "approximate"),
        was="search",
    )
    variant: str = setting(
        "default",
        "Which recipe: the one with the lowest validation loss, or the paper's text to the letter.",
        choices=("default", "paper"),
        since="0.2",
    )
    count_itself: bool = setting(
        True, "Whether s counts the node itself, which is among its own nearest; if not, s others are found.", since="0.2"
    )
    loss: str = setting(
        "mean",
        "Whether each of the two terms of the loss is a mean over its nodes or, as the paper writes, a sum.",
        choices=("mean", "sum"),
        since="0.2",
    )
    outputs: str = setting(
        "after",
        "Whether predictions and embeddings are those after the last local step or, as in Algorithm 1, before it.",
        choices=("after", "before"),
        since="0.2",
    )
    evaluate_pseudo_graph: bool = setting(
        False, "Evaluate the model over the pseudo graph, too, as the parties train it.", since="0.2"
    )


def check(settings: Settings) -> None:
    """Refuse settings that contradict each other."""
    kind = find_model(settings.model)
    if settings.pseudo_graph_weight and not (kind.weighted_edges or kind.attends):
        name = short_name(settings.model)
        raise AtollError(
            f"A pseudo graph has weights that {name} does not use; choose another model, or --set pseudo_graph_weight=0."
        )
    if settings.pseudo_graph_weight and kind.attends and settings.batch_size and settings.sampler != "clusters":
        raise AtollError(
            f"fedgl: {short_name(settings.model)} attends over a pseudo graph, which cannot be sampled; set sampler=clusters, "
            "batch_size=0, or --set pseudo_graph_weight=0."
        )
    if settings.loss == "sum" and settings.balance_classes:
        raise AtollError("fedgl: balance_classes weights the classes of a mean; set loss=mean, or leave it out.")
