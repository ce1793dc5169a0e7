"""Own data that is valid but may mean something else: each doubt is a warning, from tables, .npz and PyG; good data has none."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import atoll
from atoll.data import files, from_pyg, known, leaks, load
from atoll.data.csbm import csbm
from atoll.data.leaks import label_leaks
from atoll.data.lint import losing_digits, row_numbers
from atoll.data.partition import partition
from atoll.data.partition_settings import PartitionSettings
from atoll.data.registry import lookup
from atoll.errors import AtollWarning
from atoll.graphs.graph import Graph
from atoll.tasks import DEFAULT_TASK

N = 120
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, N)
X = RNG.normal(size=(N, 4))
RING = np.stack([np.arange(N), np.roll(np.arange(N), 1)])
KINDS = ("csv", "parquet", "npz", "sparse npz", "pyg")


def said(kind: str, folder: Path, x: Any = X, edges: Any = RING, y: Any = Y, names: Any = None, **more: Any) -> list[str]:
    """What is warned about when such a graph is read."""
    names = names or [f"f{column}" for column in range(x.shape[1])]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if kind == "pyg":
            tensors = {name: torch.as_tensor(value) for name, value in more.items()}
            from_pyg(SimpleNamespace(x=torch.as_tensor(x), edge_index=torch.as_tensor(edges), y=torch.as_tensor(y), **tensors))
        elif kind.endswith("npz"):
            x = sp.csr_array(x)
            parts = {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": np.array(x.shape)}
            parts = parts if kind == "sparse npz" else {"x": x.toarray()}
            np.savez(folder / "graph.npz", **parts, edge_index=edges, y=y, feature_names=np.array(names), **more)
            files.read(folder)
        else:
            tables(kind, folder, x, edges, y, names, more)
            files.read(folder)
    assert all(issubclass(warning.category, AtollWarning) for warning in caught)
    assert all("\n" not in str(warning.message) for warning in caught)
    return [str(warning.message) for warning in caught]


def tables(kind: str, folder: Path, x: Any, edges: Any, y: Any, names: Any, more: dict[str, Any]) -> None:
    """The graph as two tables."""
    import pandas as pd

    nodes = pd.DataFrame({"id": np.arange(len(y)), "label": y} | {name: x[:, column] for column, name in enumerate(names)})
    ends = pd.DataFrame({"source": edges[0], "target": edges[1]} | {name.removeprefix("edge_"): more[name] for name in more})
    for name, frame in (("nodes", nodes), ("edges", ends)):
        getattr(frame, f"to_{kind}")(folder / f"{name}.{kind}", index=False)


def column(values: Any) -> Any:
    """The features with one more column."""
    return np.concatenate([X, np.asarray(values, np.float64)[:, None]], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_good_data_is_read_in_silence(kind: str, tmp_path: Path) -> None:
    """Both directions of an edge are not a repeat; numbers up to 2²⁴ are exact."""
    both = np.concatenate([RING, RING[::-1]], 1)
    assert said(kind, tmp_path, column(np.full(N, 2**24 - 1) - RNG.integers(0, 9, N)), both) == []


@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_that_lose_digits(kind: str, tmp_path: Path) -> None:
    """An account number in a float32 is another account."""
    (told,) = said(kind, tmp_path, column(2.0**24 + 1 + 2 * RNG.integers(0, 99, N)))
    assert ("`f4`" if kind != "pyg" else "feature 4") in told
    assert "lose digits" in told


def test_digits_are_lost_where_float32_says_so() -> None:
    """Against number by number in exact arithmetic; fractions and what stays exact do not matter."""
    whole = np.array([2**24, 2**24 + 1, 2**24 + 2, 2**40, 2**40 + 1, -(2**24) - 1, 2**62 + 1, 5], np.int64)
    for value in whole.tolist():
        expected = int(np.float32(value)) != value
        assert losing_digits(np.array([[1], [value]], np.int64)) == ([0] if expected else [])
        assert losing_digits(sp.csr_array(np.array([[0], [value]], np.int64))) == ([0] if expected else [])
    assert losing_digits(np.array([[2.0**24 + 0.5]])) == []
    assert losing_digits(np.array([[2.0**24 + 1]])) == [0]
    assert losing_digits(np.array([[2.0**24 + 1]], np.float32)) == []


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("name", ["Label", "y", "target", "CLASS", "Ground truth"])
def test_a_column_named_like_the_label(kind: str, name: str, tmp_path: Path) -> None:
    """Whatever it holds; where it is a copy too, it is told once."""
    (told,) = said(kind, tmp_path, column(RNG.normal(size=N)), names=["a", "b", "c", "d", name])
    assert f"`{name}` is named like a label" in told
    (tmp_path / "copy").mkdir()
    (told,) = said(kind, tmp_path / "copy", column(Y), names=["a", "b", "c", "d", name])
    assert "named like a label" in told


LEAKS: dict[str, Any] = {
    "a copy": Y,
    "other numbers": np.array([7.5, -1, 3])[Y],
    "a finer code": Y * 10 + RNG.integers(0, 4, N),
    "a score": Y + RNG.random(N) * 0.9,
    "the other way round": -Y - RNG.random(N) * 0.9,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("leak", LEAKS)
def test_a_column_that_tells_the_label(kind: str, leak: str, tmp_path: Path) -> None:
    """A copy, a renamed one, a finer code, a score with thresholds."""
    (told,) = said(kind, tmp_path, column(LEAKS[leak]))
    assert ("column `f4` reveals the label" if kind != "pyg" else "feature 4 reveals the label") in told


@pytest.mark.parametrize("kind", KINDS)
def test_one_mark_per_class(kind: str, tmp_path: Path) -> None:
    """A one-hot group reveals the label though no column of it does alone."""
    (told,) = said(kind, tmp_path, np.concatenate([X, np.eye(3)[Y]], 1))
    listed = "`f4`, `f5`, `f6`" if kind != "pyg" else "4, 5, 6"
    assert listed in told


def test_a_few_exceptions_do_not_hide_a_copy() -> None:
    """One node in two thousand differs; ten in two thousand are not a copy."""
    y = RNG.integers(0, 2, 2000)
    for changed, found in ((1, [0]), (10, [])):
        copy = y.copy()
        copy[:changed] = 1 - copy[:changed]
        for x in (copy[:, None].astype(float), sp.csr_array(copy[:, None].astype(float))):
            assert label_leaks(x, y) == found


def test_unlabeled_nodes_do_not_count() -> None:
    """What the column says of them tells nothing."""
    y = np.where(np.arange(N) % 3 == 0, -1, Y)
    x = np.where(y < 0, RNG.integers(0, 3, N), Y)[:, None].astype(float)
    assert label_leaks(x, y) == [0]


def naive(column: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    """Without exceptions and chance: each value has one class, or classes are intervals."""
    classes: dict[float, set[int]] = {}
    for value, label in zip(column.tolist(), y.tolist(), strict=True):
        classes.setdefault(value, set()).add(label)
    pure = all(len(labels) == 1 for labels in classes.values())
    runs = [label for label, _ in itertools.groupby(next(iter(classes[value])) for value in sorted(classes))]
    return pure and (len(classes) <= len(y) // 4 or len(runs) == len(set(y.tolist())))


@pytest.mark.parametrize("seed", range(30))
def test_the_sample_and_the_sorting_against_a_naive_search(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random columns of few and many values, some of them telling; dense and sparse agree with the loop."""
    monkeypatch.setattr(leaks, "SAMPLE_ROWS", 40)
    monkeypatch.setattr(leaks, "CHUNK_COLUMNS", 3)
    monkeypatch.setattr(leaks, "MIN_CLASS_SIZE", 10**6)
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2 + seed % 3, 150)
    made = [y * 1.0, y + rng.random(150) / 2, y * 3 + rng.integers(0, 3, 150), rng.normal(size=150), rng.integers(0, 2, 150)]
    made += [np.zeros(150), rng.permutation(y), np.where(rng.random(150) < 0.9, y, 0), rng.integers(0, 9, 150), np.arange(150.0)]
    x = np.stack([made[place] for place in rng.permutation(len(made))], 1)
    expected = [place for place in range(x.shape[1]) if naive(x[:, place], y)]
    assert len(expected) == 3
    assert label_leaks(x, y) == label_leaks(sp.csr_array(x), y) == expected


def test_chance_is_no_leak() -> None:
    """Few nodes and thousands of columns: some fit by accident, and none is told."""
    rng = np.random.default_rng(1)
    for nodes in (50, 60, 100):
        y = (np.arange(nodes) < 8).astype(int)
        assert label_leaks(rng.integers(0, 2, (nodes, 3000)).astype(float), y) == []
        assert label_leaks((rng.random((nodes, 3000)) < 0.05).astype(float), y) == []
        assert label_leaks(rng.normal(size=(nodes, 3000)), y) == []
    assert label_leaks(np.ones((50, 1)), np.arange(50) % 2) == []


def test_the_bound_of_chance() -> None:
    """The logarithms are those of the counts they stand for."""
    assert leaks._log_choose(9, 4) == pytest.approx(math.log(math.comb(9, 4)))
    assert leaks._log_multinomial(np.array([2, 3, 4])) == pytest.approx(math.log(math.factorial(9) / (2 * 6 * 24)))


@pytest.mark.parametrize("kind", KINDS)
def test_dropped_and_added_edges(kind: str, tmp_path: Path) -> None:
    """Self loops and repeats, each in a sentence of its own; the weights of repeats are added."""
    edges = np.concatenate([RING, [[3, 4], [3, 4]], RING[:, :5]], 1)
    for weights, repeats in (
        ({}, "5 repeated edges are dropped; each edge counts once."),
        ({"edge_weight": np.ones(edges.shape[1])}, "5 repeated edges: the weights of parallel edges are added."),
    ):
        told = said(kind, tmp_path, edges=edges, **weights)
        assert any("2 edges from a node to itself are dropped." in each for each in told)
        assert any(repeats in each for each in told)
        assert len(told) == 2


@pytest.mark.parametrize("kind", ["csv", "npz", "pyg"])
def test_a_column_that_numbers_the_rows(kind: str, tmp_path: Path) -> None:
    """An id that got among the features."""
    (told,) = said(kind, tmp_path, column(np.arange(N) + 1))
    assert "numbers the rows" in told
    assert row_numbers(np.arange(5.0)[:, None]) == []


def test_nothing_is_warned_about_where_something_is_wrong(tmp_path: Path) -> None:
    """An error comes alone."""
    with pytest.raises(atoll.AtollError):
        said("csv", tmp_path, column(Y), edges=RING + N)


def test_warnings_from_python() -> None:
    """`atoll.run` with a PyG object: features and masks; `split=auto` uses the masks."""
    masks = {f"{name}_mask": torch.arange(N) % 3 == place for place, name in enumerate(("train", "val", "test"))}
    data = SimpleNamespace(x=torch.tensor(column(Y)), edge_index=torch.tensor(RING), y=torch.tensor(Y), **masks)
    for split, replaced in (("random", True), ("auto", False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            atoll.run("local", dataset=data, partition="random", parties=2, rounds=1, split=split)
        told = [str(warning.message) for warning in caught]
        assert sum("reveals the label" in each for each in told) == 1
        assert ("The graph has a split of its own, which split='random' replaces; to use it, set split=auto." in told) == replaced


def test_known_graphs_cause_no_doubt(tmp_path: Path) -> None:
    """Every known graph that is here, saved as an own one, and its parts: nothing to warn about."""
    for dataset in known():
        one_graph = getattr(lookup(dataset.name), "task", DEFAULT_TASK) == DEFAULT_TASK
        if one_graph and dataset.available and dataset.name not in ("physics", "cs", "reddit", "flickr"):
            graph = load(dataset.name)
            quiet(graph, tmp_path / dataset.name)
    for seed in range(3):
        parts = partition(csbm(400, 12, 2, 2, 4, classes=3, seed=seed), "random", 4, PartitionSettings(), seed)
        for party in range(4):
            quiet(parts.select([party]), tmp_path / f"csbm-{seed}-{party}")


def quiet(graph: Graph, folder: Path) -> None:
    """Save and read; a warning is an error in tests."""
    files.save(replace(graph, class_names=None), folder)
    files.read(folder)
