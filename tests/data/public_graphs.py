"""The public graphs whose files the tests use, and torch_geometric, which they are compared with."""

import warnings

HERE = [
    "cora",
    "citeseer",
    "pubmed",
    "physics",
    "cs",
    "photo",
    "computers",
    "chameleon",
    "squirrel",
    "wiki",
    "acm",
    "herigraph-venice",
]


def pyg(what: str) -> object:
    """Something of torch_geometric, whose import warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch_geometric.datasets
        import torch_geometric.io

        return getattr(torch_geometric.io if what.startswith("read") else torch_geometric.datasets, what)
