"""The outputs of a trained model for small graphs that arrived later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.data.new_graphs import read_new_graphs
from atoll.errors import AtollError, listed
from atoll.parties import Parties
from atoll.runs.inference import Nodes, infer
from atoll.runs.known_nodes import party_name
from atoll.runs.outputs import Outputs

if TYPE_CHECKING:
    from atoll.runs.trained import TrainedModel


def of_new_graphs(model: TrainedModel, data: Any, party: str | int | None) -> Outputs:
    """Small graphs, predicted by the model of a party; by any where they are the same."""
    about, own = model.description, model.own_numbers
    if own is not None and len(own) != 1:
        raise AtollError(f"This is the model of a simulated site with {len(own)} parties; predict with the folder of the run.")
    if about.get("widths"):
        raise AtollError("The parties have different columns and classes; graphs that arrive later cannot be predicted here yet.")
    number = None if party is None else model.party_number(party)
    if own is not None:
        if number not in (None, own[0]):
            mine = party_name(model, own[0])
            raise AtollError(f"This is the model of the party {mine}, not of {party}; predict at its own site.")
        number = own[0]
    if number is None and model.files.memory and about["parties"] > 1:
        raise _needs_party(model)
    graph = read_new_graphs(data, model.form())
    parties = Parties([number or 0])
    predicted = infer(model.files, model.config, Nodes(graph, parties, about["scenario"], model.schema))
    if number is None and predicted.personal and about["parties"] > 1:
        raise _needs_party(model)
    names = () if number is not None and not model.names else ("" if number is None else party_name(model, number),)
    return Outputs(graph, predicted.logits, parties, names)


def _needs_party(model: TrainedModel) -> AtollError:
    known = listed(model.names, 5) if model.names else f"0 to {model.description['parties'] - 1}"
    return AtollError(
        f"Every party of {model.config.algorithm} has a model of its own; say whose the new graphs are: --party NAME ({known})."
    )
