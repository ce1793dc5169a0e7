"""The data of a run from shards: a partition that was cut, split and written before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.data.damage import require_divided_nodes
from atoll.data.data_config import DataConfig
from atoll.data.encoding import Encoding
from atoll.data.federated_data import FederatedData, always, check_scenario, public_edges
from atoll.data.shards import Shards
from atoll.data.training_nodes import check_training
from atoll.errors import AtollError
from atoll.graphs.graph import Graph

SHARDS = "shards"  # the partition


def sharded(config: DataConfig, scenarios: Sequence[str], *, unlabeled: bool, held: Sequence[int] | None) -> FederatedData:
    """The data of the shards that the configuration names; `held` as for `federate`."""
    shards = Shards(Path(config.dataset), getattr(config.data, "memory_budget", 0.0))
    manifest = shards.manifest
    check_scenario(config, scenarios, config.algorithm, manifest.scenario)
    require_divided_nodes(config.noise, manifest.scenario)
    if config.parties not in (None, manifest.parties):
        raise AtollError(f"{config.dataset} holds {manifest.parties} parties, not {config.parties}; leave --parties out.")
    encodings = [None if each is None else Encoding.from_dict(each) for each in (manifest.encoding, *manifest.party_encodings)]
    extra: dict[str, Any] = {
        "encoding": encodings[0],
        "party_encodings": tuple(encodings[1:]),
        "party_columns": manifest.party_columns,
    }
    if scenarios == ("whole",):
        whole = shards.whole()
        whole = whole if whole.graph_ptr is None else whole.merged
        return FederatedData("whole", whole, always(whole), lambda: shards.source(whole), **extra)
    outlined = held is not None and not held and not shards.has_table and shards.of_nodes
    parts = shards.outline() if outlined else shards.graph(held or None)
    if config.borders and not outlined and parts.borders is None:
        raise AtollError(
            f"The shards in {config.dataset} do not hold the edges between parties, which {config.algorithm} exchanges; cut them "
            f"with `atoll partition --algorithm {config.algorithm}`, or set hops=0."
        )
    if not (outlined and unlabeled):
        names = [manifest.names[party] for party in held or range(manifest.parties)] if manifest.names else ()
        parts = check_training(parts, manifest.scenario, config.split, names, unlabeled=unlabeled)
    everything = parts if parts.parties == manifest.parties and not outlined else None
    data = FederatedData(
        manifest.scenario,
        parts,
        lambda: shards.whole(everything),
        lambda: shards.source(data.whole),
        _public(shards, parts) if manifest.scenario == "node" and (everything is not None or outlined) else {},
        manifest.names,
        extent=None if everything is not None else manifest.extent,
        **extra,
    )
    return data


def _public(shards: Shards, parts: Graph) -> dict[str, Any]:
    return public_edges(parts, replace(shards.topology(), ptr=parts.ptr[[0, -1]]))
