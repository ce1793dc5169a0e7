"""The outputs of a trained model: for the data it was trained on, and for new nodes in every scenario."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atoll.data import new_nodes
from atoll.data.new_nodes import read_new
from atoll.data.partition import partition
from atoll.data.party_graphs import PartyGraph
from atoll.data.splits import split
from atoll.errors import AtollError, AtollWarning, listed
from atoll.graphs.graph import Graph
from atoll.parties import Parties
from atoll.runs import joining
from atoll.runs.data_task import level_of
from atoll.runs.experiment import extent_of, schema_of
from atoll.runs.given_pairs import read_pairs, with_given_pairs
from atoll.runs.inference import Nodes, infer, require_shared_model
from atoll.runs.known_nodes import own_party, party_name, site_context, training_context
from atoll.runs.outputs import Outputs, joined
from atoll.runs.predicted_graphs import of_new_graphs
from atoll.tasks import LINK_TASK

if TYPE_CHECKING:
    from atoll.runs.trained import TrainedModel


def of_training_data(model: TrainedModel, party: str | int | None) -> Outputs:
    """The outputs for every node that it was trained on."""
    number = None if party is None else model.party_number(party)
    data = model.training_data
    same = _is_unchanged(model, data.parts)
    parties = Parties(range(data.parts.parties))
    nodes = Nodes(data.parts, parties, data.scenario, schema_of(data), data.public, trained_on=same)
    predicted = infer(model.files, model.config, nodes)
    return _of_party(Outputs(data.parts, predicted.logits, parties, model.names).rows(predicted.asked), model, number)


def of_pairs(model: TrainedModel, source: Any, party: str | int | None) -> Outputs:
    """The outputs for given pairs of nodes that it was trained on, party by party."""
    if model.task.name != LINK_TASK:
        raise AtollError(f"--pairs is for {LINK_TASK}, and this model is for {model.task.name}; leave it out.")
    number, data = None if party is None else model.party_number(party), model.training_data
    if number is None and data.scenario == "vertical":  # all parties hold all nodes, and one predicts pairs
        number = int(model.config.settings.label_holder)
    same, parties = _is_unchanged(model, data.parts), Parties(range(data.parts.parties))
    graph = with_given_pairs(data.parts, read_pairs(source), number)[0]
    predicted = infer(
        model.files, model.config, Nodes(graph, parties, data.scenario, schema_of(data), data.public, trained_on=same)
    )
    return _of_party(Outputs(graph, predicted.logits, parties, model.names).rows(predicted.asked), model, number)


def _of_party(outputs: Outputs, model: TrainedModel, number: int | None) -> Outputs:
    """The rows of one party; of all where there is no number."""
    if number is None:
        return outputs
    if number not in outputs.parties:
        holders = listed(outputs.party_names, 5) or "another party"
        raise AtollError(f"The party {party_name(model, number)} does not predict: {holders} holds the labels.")
    return outputs.rows(outputs.graph.owner == outputs.parties.index(number))


def _is_unchanged(model: TrainedModel, parts: Graph) -> bool:
    """Whether the data is that of training; other data of the same form is predicted all the same, with a warning."""
    before = model.description.get("data") or {}
    now = extent_of(parts) if before else {}
    if now == {name: before.get(name) for name in now}:
        return True
    for name in ("parties", "features", "classes"):
        if now[name] != before.get(name):
            raise AtollError(
                f"The data has {now[name]} {name}, but the model was trained with {before.get(name)}; give it as --data NEW."
            )
    sentence = (
        f"{model.config.dataset} has changed since the model was trained ({before.get('nodes')} nodes and {before.get('edges')} "
        f"edges then, {now['nodes']} and {now['edges']} now); the reported metrics are not those of these predictions."
    )
    warnings.warn(sentence, AtollWarning, stacklevel=5)
    return False


def of_new_data(model: TrainedModel, data: Any, party: str | int | None, known: Any = None, join: str | None = None) -> Outputs:
    """The outputs for nodes that arrived later; `known`: at a site, the graph of before; `join`: what new users begin with."""
    if model.task.name == LINK_TASK:
        raise AtollError("A model of link prediction scores pairs of nodes that it was trained on; give these: --pairs FILE.")
    if level_of(model.task.name) == "graph":
        if known is not None or join is not None:
            raise AtollError("New graphs are predicted by themselves; leave --known and --join out.")
        return of_new_graphs(model, data, party)
    scenario, sources = model.description["scenario"], new_nodes.party_sources(data)
    if model.own_numbers is not None:
        if join is not None:
            raise AtollError("Users join where the whole federation is known: predict with a run's folder, or leave --join out.")
        return _at_site(model, data if sources is None else _only(model, sources, party), party, known)
    if known is not None:
        raise AtollError("The training data, which a run loads again, is known already; leave --known out: it is for sites.")
    if scenario == "node":
        return _one_node_per_party(model, data, party, join)
    if join is not None:
        raise AtollError("--join is for users who have weights of their own (nfedgnn, cnfgnn); leave it out.")
    if scenario == "vertical":
        return _vertical(model, data, sources, party)
    if scenario == "whole" and model.description.get("party_columns"):
        return _of_joined_columns(model, data, sources)
    if sources is not None:
        if party is not None:
            return _of_one(model, _only(model, sources, party), model.party_number(party), str(party))
        return joined([_of_one(model, each, _number(model, name), name) for name, each in sources.items()])
    number = None if party is None else model.party_number(party)
    return _of_one(model, data, number, "" if number is None else party_name(model, number))


def _of_one(model: TrainedModel, source: Any, number: int | None, name: str) -> Outputs:
    """One graph, predicted by the model of a party; by any where they are the same."""
    count = model.description["parties"]
    if number is None and model.files.memory and count > 1:
        raise _needs_party(model)
    new = read_new(source, model.form(), training_context(model, number))
    parties = Parties([number or 0])
    predicted = infer(model.files, model.config, Nodes(new.graph, parties, model.description["scenario"], model.schema))
    if number is None and predicted.personal and count > 1:
        raise _needs_party(model)
    names = () if number is not None and not model.names else (name,)
    return _new_rows(Outputs(new.graph, predicted.logits, parties, names), new.count)


def _new_rows(outputs: Outputs, count: int) -> Outputs:
    """The outputs without the nodes that are only context, which come last."""
    return outputs.rows(torch.arange(len(outputs.graph.y)) < count)


def _at_site(model: TrainedModel, source: Any, party: str | int | None, known: Any) -> Outputs:
    """At a site: its own party's model; the training data is recognized and has its split."""
    about, number = model.description, own_party(model, party)
    vertical = about["scenario"] == "vertical"
    if vertical and model.files.arguments:
        raise AtollError(
            f"{about['algorithm']} predicts with the columns of all parties together: no site can do it alone; predict with the "
            "parties' folders where they may be put in one place, or train standalone."
        )
    if vertical and known is not None:
        raise AtollError("Vertical parties give the new nodes and their edges in one folder; leave --known out.")
    width = len(about["columns"]) if vertical and about.get("columns") else about["features"]
    new = read_new(source, model.form(features=width), None if vertical else site_context(model, known))
    graph = _padded(new.graph, about["features"]) if vertical else new.graph
    candidate = split(graph, model.config.split, model.config.seed, [number])
    same = bool(about.get("data")) and candidate.digest == about["data"].get("digest")
    graph = candidate if same else graph
    parties = Parties([number])
    predicted = infer(model.files, model.config, Nodes(graph, parties, about["scenario"], model.schema, trained_on=same))
    return _new_rows(Outputs(graph, predicted.logits, parties, (party_name(model, number),) if model.names else ()), new.count)


def _one_node_per_party(model: TrainedModel, data: Any, party: str | int | None, join: str | None) -> Outputs:
    """New users of a federation with one node per party."""
    if party is not None:
        raise AtollError("Every new node is a party of its own; leave --party out.")
    if joining.can_join(model):
        return joining.of_joining_users(model, data, join)
    require_shared_model(model.files, model.config)
    if join is not None:
        raise AtollError(f"{model.config.algorithm} has one model for all users, also for new ones; leave --join out.")
    new = read_new(data, model.form(), training_context(model, None))
    users = partition(new.graph, "node", None, model.config.partition_settings, model.config.seed)
    public = {"edge_index": users.party[new.graph.edge_index], "y_train": torch.full((users.parties,), -1)}
    schema, parties = replace(model.schema, parties=users.parties), Parties(range(users.parties))
    predicted = infer(model.files, model.config, Nodes(users, parties, "node", schema, public))
    return _new_rows(Outputs(new.graph, predicted.logits, Parties([0]), ("",)), new.count)


def _vertical(model: TrainedModel, data: Any, sources: dict[str, Any] | None, party: str | int | None) -> Outputs:
    """Nodes of which every party has its own columns: one folder per party, or one graph that is cut as in training."""
    about = model.description
    if sources is None and party is not None and model.config.partition != "vertical":
        sources = {party_name(model, model.party_number(party)): data}
    if sources is None:
        if model.config.partition != "vertical":
            raise AtollError(
                f"Every party has columns of its own: give a folder with one folder per party ({listed(model.names, 5)})."
            )
        graph = read_new(data, model.form(features=sum(about["widths"]))).graph
        settings = model.config.partition_settings
        seed = model.config.seed if settings.partition_seed < 0 else settings.partition_seed
        parts, parties = partition(graph, "vertical", about["parties"], settings, seed), Parties(range(about["parties"]))
    else:
        numbers = {model.party_number(name): each for name, each in sources.items()}
        parties = Parties(sorted(numbers))
        parts = _matched(model, [numbers[number] for number in parties], parties)
    schema = replace(model.schema, nodes=parts.sizes[0])
    predicted = infer(model.files, model.config, Nodes(_padded(parts, about["features"]), parties, "vertical", schema))
    names = tuple(party_name(model, number) for number in parties) if model.names else ()
    outputs = Outputs(parts, predicted.logits, parties, names).rows(predicted.asked)
    return _of_party(outputs, model, None if party is None else model.party_number(party))


def _matched(model: TrainedModel, sources: Sequence[Any], parties: Sequence[int]) -> Graph:
    """The parties' graphs, row i of each the same node."""
    from atoll.data import vertical_files

    about, encodings = model.description, model.encodings[1]
    columns, widths = about.get("party_columns") or (), about.get("widths") or ()
    graphs = []
    for number, source in zip(parties, sources, strict=True):
        names = columns[number] if columns else None
        width = len(names) if names else widths[number]
        form = model.form(
            features=width, columns=names and tuple(names), encoding=encodings[number] if encodings else model.encodings[0]
        )
        graph = read_new(source, form).graph
        ids = None if graph.node_names is None else tuple(graph.node_names)
        graphs.append(PartyGraph(party_name(model, number), f"the data of {party_name(model, number)}", graph, node_ids=ids))
    return vertical_files.match(graphs, about["num_classes"])


def _of_joined_columns(model: TrainedModel, data: Any, sources: dict[str, Any] | None) -> Outputs:
    """All columns in one place, from one folder per party."""
    from atoll.data import vertical_files

    columns = model.description["party_columns"]
    if sources is None or len(sources) != len(columns):
        raise AtollError(
            f"The model was trained on the columns of {len(columns)} parties; give a folder with one folder for each."
        )
    graph = vertical_files.joined(_matched(model, list(sources.values()), range(len(columns))))
    predicted = infer(model.files, model.config, Nodes(graph, Parties([0]), "whole", model.schema))
    return Outputs(graph, predicted.logits, Parties([0]), ("",))


def _padded(graph: Graph, features: int) -> Graph:
    """The graph with zero columns up to the widest party's."""
    from atoll.data.vertical_files import padded

    if graph.num_features == features:
        return graph if graph.widths is not None else replace(graph, widths=(features,) * graph.parties)
    widths = graph.widths or (graph.num_features,) * graph.parties
    return replace(graph, x=padded(graph.x, features, sparse=not isinstance(graph.x, Tensor)), widths=widths)


def _only(model: TrainedModel, sources: dict[str, Any], party: str | int | None) -> Any:
    """The source of one party among those of several."""
    numbers = model.own_numbers
    number = model.party_number(party) if party is not None else numbers[0] if numbers else 0
    for name in (str(party), party_name(model, number), str(number)):
        if name in sources:
            return sources[name]
    raise AtollError(f"The data has no folder for the party {party_name(model, number)}; it has {listed(sources, 5)}.")


def _number(model: TrainedModel, name: str) -> int | None:
    """The party that a folder is named after; None where any model will do."""
    try:
        return model.party_number(name)
    except AtollError:
        if model.files.memory and model.description["parties"] > 1:
            raise
        return None


def _needs_party(model: TrainedModel) -> AtollError:
    known = listed(model.names, 5) if model.names else f"0 to {model.description['parties'] - 1}"
    return AtollError(
        f"Every party of {model.config.algorithm} has a model of its own; say whose the new nodes are: --party NAME ({known})."
    )
