"""Link prediction at a site: the pairs of its own party, or given ones, scored by the model in its kit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from atoll.data.links import split_links
from atoll.data.new_nodes import read_new
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.parties import Parties
from atoll.runs.given_pairs import read_pairs, with_given_pairs
from atoll.runs.inference import Nodes, infer
from atoll.runs.known_nodes import own_party, party_name
from atoll.runs.outputs import Outputs

if TYPE_CHECKING:
    from atoll.runs.trained import TrainedModel


def at_site(model: TrainedModel, data: Any, party: str | int | None, known: Any, pairs: Any) -> Outputs:
    """The outputs for the pairs of the training data, which the site's folder is recognized to be, or for given pairs."""
    if known is not None:
        raise AtollError("Pairs are of nodes in one folder; leave --known out.")
    numbers = [own_party(model, party)]
    about = model.description
    if about["scenario"] == "vertical":
        raise AtollError(f"{about['algorithm']} scores pairs with the columns of all parties together: no site can do it alone.")
    graph = read_new(data, model.form()).graph
    candidate = split_links(graph, model.config.split, model.config.seed, numbers)
    same = candidate.digest == (about.get("data") or {}).get("digest")
    if not same and pairs is None:
        raise AtollError(
            "The folder is not the data of training, so which of its edges were held out is not known; name pairs: --pairs FILE."
        )
    judged = candidate if same else _with_all_edges(graph)
    if pairs is not None:
        judged = with_given_pairs(judged, read_pairs(pairs), None)[0]
    parties = Parties(numbers)
    predicted = infer(model.files, model.config, Nodes(judged, parties, about["scenario"], model.schema, trained_on=same))
    return Outputs(judged, predicted.logits, parties, (party_name(model, numbers[0]),) if model.names else ())


def _with_all_edges(graph: Graph) -> Graph:
    """A graph that is not the one of training: messages pass along all of its edges."""
    return replace(graph, edge_split=None, y=torch.full_like(graph.ids, -1))
