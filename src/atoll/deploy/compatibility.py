"""Whether the sites' graphs fit together, judged by their descriptions (`description.describe`); if not, who differs in what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.deploy import requests
from atoll.deploy.description import SCALINGS
from atoll.deploy.node_matching import common_nodes, invalid_nodes
from atoll.deploy.table_forms import read_columns
from atoll.errors import AtollError
from atoll.federation.cohort import Fields
from atoll.graphs.table import Column, ColumnMismatch, common_columns

Descriptions = dict[str, Fields]  # site → the description of its graph, checked


class IncompatibleSites(AtollError):
    """Two sites do not fit together; their own logs can list the differences in `field`, if it is not empty.

    `column` is the digest of the one column that differs, where both have it."""

    def __init__(self, sentence: str, sites: tuple[str, str], field: str = "", column: str = "") -> None:
        advice = "" if field == "table" else "; agree on a common form of the data"
        super().__init__(f"The sites' graphs do not fit together: {sentence}{advice}.")
        self.sites = sites
        self.field = field
        self.column = column


@dataclass(frozen=True)
class CommonForm:
    """The form that all sites' graphs have, if necessary after reordering."""

    features: int
    classes: int
    order: Fields = field(default_factory=dict)  # digests of `columns`, classes (`names`) and vertical sites' `nodes`, in order
    notes: list[str] = field(default_factory=list)  # for the user: what was reordered or left out, or could not be compared
    nodes: int = 0  # if all sites hold the same ones
    columns: tuple[Column, ...] = ()  # of the sites' tables, where they need an encoding; names are digests


def check_compatible(descriptions: Mapping[str, Fields | str], scenario: str) -> CommonForm:
    """The common form of the sites' graphs; if they do not fit together, an error that says who differs in what.

    Columns and classes with the same names in different orders are put in the order of the first site that has names.
    """
    known: Descriptions = {}
    for site, described in descriptions.items():
        if isinstance(described, str):
            raise AtollError(f"The site {site} cannot take part: it {described.removesuffix('.')}.")
        if reason := requests.invalid_description(described):
            raise AtollError(f"The site {site} cannot take part: it {reason}.")
        known[site] = _checked(site, described, scenario)
    notes: list[str] = []
    _require_equal(known, "classes", "names")
    order = {"names": _common_order(known, "names", notes)}
    columns: tuple[Column, ...] = ()
    if scenario == "vertical":
        order["nodes"], left_out = common_nodes(known)
        notes += left_out
    elif any("table" in described for described in known.values()):
        columns = _common_columns(known, notes)
    else:
        _require_equal(known, "features", "columns")
        order["columns"] = _common_order(known, "columns", notes)
        _compare_scaling(known, notes)
    if scenario == "overlapping":
        _require_same_roles(known)
    features = max(described["features"] for described in known.values())
    classes = next(iter(known.values()))["classes"]
    nodes = len(order.get("nodes", ()))
    return CommonForm(features, classes, {name: value for name, value in order.items() if len(value)}, notes, nodes, columns)


def _checked(site: str, described: Fields, scenario: str) -> Fields:
    """A site's description, after checking the type of every part."""
    numbers = ["features", "classes", *(["nodes"] if scenario == "vertical" else [])]
    tensors = {"names": torch.int64}
    if scenario != "vertical":
        tensors["columns"] = torch.int64
    if scenario == "overlapping":
        tensors |= {"shared": torch.int64, "roles": torch.int8}
    fits = all(type(described.get(name)) is int and described[name] >= 0 for name in numbers)
    fits = fits and all(_is_list(described.get(name), dtype) for name, dtype in tensors.items())
    fits = fits and len(described["names"]) in (0, described["classes"])
    if fits and scenario == "vertical" and (reason := invalid_nodes(described)):
        raise AtollError(f"The site {site} cannot take part: it {reason}.")
    if scenario != "vertical":
        fits = fits and len(described["columns"]) in (0, described["features"]) and described.get("scaling") in SCALINGS
    if scenario == "overlapping":
        fits = fits and len(described["shared"]) == len(described["roles"])
    if "table" in described:
        fits = fits and scenario != "vertical" and _is_list(described.get("ignored"), torch.int64)
        fits = fits and isinstance(described["table"], list) and len(described["table"]) == described["features"]
    if not fits:
        raise AtollError(f"The site {site} cannot take part: its description of its graph could not be read.")
    return described


def _is_list(value: Any, dtype: torch.dtype) -> bool:
    return isinstance(value, Tensor) and value.dtype == dtype and value.dim() == 1


def _require_equal(known: Descriptions, name: str, named: str = "") -> None:
    (first, reference), *others = known.items()
    for site, described in others:
        if described[name] != reference[name]:
            sentence = f"{first} has {reference[name]} {name} and {site} has {described[name]}"
            both = bool(named) and len(reference[named]) > 0 and len(described[named]) > 0
            raise IncompatibleSites(sentence + (SEE_LOGS if both else ""), (first, site), named if both else "")


SEE_LOGS = " (the sites' own logs list those that differ)"


def _common_order(known: Descriptions, name: str, notes: list[str]) -> Tensor:
    """The digests of columns or classes, in the order of the first site that names them."""
    noun = "features" if name == "columns" else "classes"
    naming: dict[str, Tensor] = {site: described[name] for site, described in known.items() if len(described[name])}
    unnamed = [site for site in known if site not in naming]
    if not naming:
        return torch.empty(0, dtype=torch.int64)
    first, reference = next(iter(naming.items()))
    if unnamed and name == "names":
        raise IncompatibleSites(f"{first} names its classes and {unnamed[0]} does not", (first, unnamed[0]))
    if unnamed:
        notes.append(f"{_and(unnamed)} does not name its features, so their order could not be compared with {first}'s.")
    reordered = []
    for site, digests in naming.items():
        unknown = (~torch.isin(digests, reference)).nonzero()[:, 0]
        if len(unknown):
            sentence = f"{noun[:-1] if noun == 'features' else 'class'} {int(unknown[0]) + 1} of {site} (counted from 1)"
            raise IncompatibleSites(f"{sentence} is not among the {noun} of {first}{SEE_LOGS}", (first, site), name)
        if not torch.equal(digests.sort().values, reference.sort().values):  # one of them has a name twice
            raise IncompatibleSites(f"the {noun} of {first} and {site} differ", (first, site), name)
        if not torch.equal(digests, reference):
            reordered.append(site)
    if reordered:
        notes.append(f"{_and(reordered)} has the {noun} of {first} in another order; they are put in {first}'s order.")
    return reference


def _common_columns(known: Descriptions, notes: list[str]) -> tuple[Column, ...]:
    """The columns of the sites' tables, in the first site's order."""
    encoded = [site for site, described in known.items() if "table" in described]
    for site in known.keys() - set(encoded):
        sentence = f"the columns of {encoded[0]} are encoded, and {site} has numbers without a table (an .npz)"
        raise IncompatibleSites(sentence, (encoded[0], site))
    tables = {site: _columns_of(site, described) for site, described in known.items()}
    first = {site: {column.name: number for number, column in enumerate(columns, 1)} for site, columns in tables.items()}

    def label(name: str) -> str:
        site = next(site for site in first if name in first[site])
        return f"column {first[site][name]} of {site} (counted from 1; the sites' own logs name it)"

    ignored = [list(map(str, described["ignored"].tolist())) for described in known.values()]
    try:
        columns = common_columns(list(tables.values()), list(tables), ignored, label)
    except ColumnMismatch as error:
        one, other = error.owners
        both = error.column in first[one] and error.column in first[other]
        sentence = str(error)[0].lower() + str(error)[1:].removesuffix(".") if both else str(error).removesuffix(".")
        raise IncompatibleSites(sentence, error.owners, "table" if both else "columns", error.column) from None
    names = [column.name for column in columns]
    if reordered := [site for site, table in tables.items() if [column.name for column in table] != names]:
        notes.append(f"{_and(reordered)} has the columns of {encoded[0]} in another order; they are put in {encoded[0]}'s order.")
    return columns


def _columns_of(site: str, described: Fields) -> tuple[Column, ...]:
    try:
        columns = read_columns(described["table"])
    except AtollError as error:
        raise AtollError(f"The site {site} cannot take part: {error}") from error
    if [column.name for column in columns] != list(map(str, described["columns"].tolist())):
        raise AtollError(f"The site {site} cannot take part: its description of its graph could not be read.")
    return columns


def _compare_scaling(known: Descriptions, notes: list[str]) -> None:
    (first, reference), *others = known.items()
    for site, described in others:
        if described["scaling"] != reference["scaling"]:
            one, other = SCALINGS[reference["scaling"]], SCALINGS[described["scaling"]]
            notes.append(f"The features of {first} {one}, those of {site} {other}; scale them alike unless this is intended.")
            return


def _require_same_roles(known: Descriptions) -> None:
    """Refuse nodes that train at one site and validate or test at another."""
    digests = np.concatenate([described["shared"].numpy() for described in known.values()])
    roles = np.concatenate([described["roles"].numpy() for described in known.values()])
    owner = np.repeat(np.arange(len(known)), [len(described["shared"]) for described in known.values()])
    order = np.argsort(digests, kind="stable")
    digests, roles, owner = digests[order], roles[order], owner[order]
    odd = np.flatnonzero((digests[1:] == digests[:-1]) & (roles[1:] != roles[:-1]) & (owner[1:] != owner[:-1]))
    if len(odd):
        pairs, counts = np.unique(np.stack([owner[odd], owner[odd + 1]]), axis=1, return_counts=True)
        one, other = (list(known)[index] for index in pairs[:, 0])
        count = f"{counts[0]} node{'s' if counts[0] > 1 else ''}"
        sentence = f"{count} that {one} and {other} share have different roles (train, val or test) there"
        raise IncompatibleSites(sentence, (one, other))


def _and(sites: list[str]) -> str:
    return sites[0] if len(sites) == 1 else f"each of {', '.join(sites)}"
