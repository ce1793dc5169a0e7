"""Vertical sites hold the same nodes: they are matched by keyed digests of their ids, in whatever order each site lists them.

1. A site describes its nodes by digests under the key of the sites' kits, which the server does not have.
2. The server intersects them. The nodes that all sites hold, in the first site's order, are the rows of the run.
3. Every site takes these rows of its own graph. What is left out it names in its own log; the server only counts.

The first site's list is in its own order, which the server therefore learns; all others are sorted by digest, which says nothing.
Without ids nodes are matched by their rows, as in one process (`data.vertical_files`), whose bits a federation has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from atoll.deploy.digests import digests
from atoll.errors import AtollError
from atoll.federation.cohort import Fields
from atoll.graphs.graph import Graph

MIN_COMMON_NODES = 10  # that a site trains on, where it holds as many: a server that names fewer asks about single nodes
NOT_HERE = "the nodes that the server names are not all among this site's; join again if the data has changed."


def describe_nodes(graph: Graph, key: bytes, *, in_order: bool) -> Fields:
    """What the server matches a site's nodes by: their number, whether they have ids, and digests; sorted unless `in_order`."""
    ids = node_digests(graph, key)
    named = graph.node_names is not None
    return {"nodes": graph.num_nodes, "named": named, "ids": ids if in_order else ids.sort().values}


def node_digests(graph: Graph, key: bytes) -> Tensor:
    """(N,) int64: a keyed digest of each node's id, or of its row where nodes have no ids."""
    names = map(str, range(graph.num_nodes)) if graph.node_names is None else map(str, graph.node_names)
    return digests(names, "node", key)


def invalid_nodes(described: Fields) -> str:
    """What is wrong with a site's description of its nodes, after `it`; empty if nothing is."""
    ids = described.get("ids")
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.shape != (described["nodes"],):
        return "does not list its nodes as a digest each"
    if type(described.get("named")) is not bool:
        return "does not say whether its nodes have ids"
    return "lists a node twice" if len(torch.unique(ids)) < len(ids) else ""


def common_nodes(known: Mapping[str, Fields]) -> tuple[Tensor, list[str]]:
    """The digests of the nodes that all sites hold, in the first site's order, and a note per site with nodes left out."""
    (first, reference), *others = known.items()
    if not any(described["named"] for described in known.values()):
        for site, described in others:
            if described["nodes"] != reference["nodes"]:
                sentence = f"{first} has {reference['nodes']} nodes and {site} has {described['nodes']}"
                raise AtollError(f"The sites' graphs do not fit together: {sentence}; give ids by which they can be matched.")
    ids: Tensor = reference["ids"]
    shared = torch.ones(len(ids), dtype=torch.bool)
    for _, described in others:
        shared &= torch.isin(ids, described["ids"])
    common = ids[shared]
    if not len(common):
        raise AtollError(f"{', '.join(known)} hold no node in common; their ids must be the same for the same nodes.")
    return common, [
        f"{site}: {len(described['ids']) - len(common)} of {len(described['ids'])} nodes are not held by every site and left out."
        for site, described in known.items()
        if len(described["ids"]) > len(common)
    ]


def with_common_nodes(graph: Graph, nodes: object, key: bytes, notify: Callable[[str], None]) -> Graph:
    """A site's graph with the rows that the server's digests name, in their order; only nodes with a label have a role."""
    from atoll.data.vertical_files import matched, with_roles  # pandas takes a while to import

    if not isinstance(nodes, Tensor) or nodes.dtype != torch.int64 or nodes.dim() != 1:
        raise AtollError("the server does not say which nodes all sites hold.")
    if len(nodes) < min(MIN_COMMON_NODES, graph.num_nodes):
        raise AtollError(f"the server names {len(nodes)} nodes, too few to train on: single nodes could be recognized.")
    local, order = node_digests(graph, key).sort()
    index = torch.searchsorted(local, nodes).clamp(max=len(local) - 1)
    if not torch.equal(local[index], nodes) or len(torch.unique(nodes)) < len(nodes):
        raise AtollError(NOT_HERE)
    rows = order[index]
    if len(rows) < graph.num_nodes:
        _name_left_out(graph, rows, notify)
    return with_roles([matched(graph, rows)])[0]


def _name_left_out(graph: Graph, rows: Tensor, notify: Callable[[str], None]) -> None:
    left = torch.ones(graph.num_nodes, dtype=torch.bool)
    left[rows] = False
    unmatched = left.nonzero()[:, 0]
    names = unmatched.tolist() if graph.node_names is None else graph.node_names[unmatched.numpy()].tolist()
    listed = ", ".join(map(str, names[:3])) + (", …" if len(names) > 3 else "")
    notify(f"{len(names)} of {graph.num_nodes} nodes are not held by every site and left out ({listed})")
