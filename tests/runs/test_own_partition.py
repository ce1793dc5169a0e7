"""A partition that a script gave: the run's folder holds it, so that the run can be resumed, moved and reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.data.node_lists import read_node_lists
from atoll.reports.runs import gather, grouped
from atoll.runs.folder import Folder

LISTS = [list(range(40)), list(range(40, 80))]
SMALL = {"dataset": "csbm", "nodes": 80, "features": 8, "classes": 2}


def test_resume_finds_the_partition_in_the_folder(tmp_path: Path) -> None:
    """Longer, in another place, and as a run that had this partition and these rounds from the start."""
    rng = np.random.default_rng(0)
    atoll.run("fedavg", **SMALL, partition=lambda graph: rng.integers(0, 2, graph.num_nodes), rounds=2, out=tmp_path / "a")
    assert 'partition = "partition.npz"' in (tmp_path / "a" / "config.toml").read_text()
    (tmp_path / "a").rename(tmp_path / "b")
    longer = atoll.resume(tmp_path / "b", rounds=4)
    lists = read_node_lists(tmp_path / "b" / "partition.npz", 80)
    assert longer.metrics == atoll.run("fedavg", **SMALL, partition=lists, rounds=4).metrics
    assert longer.metrics != atoll.run("fedavg", **SMALL, partition=LISTS, rounds=4).metrics
    assert Folder.open(tmp_path / "b")[1].partition == str(tmp_path / "b" / "partition.npz")


def test_an_array_equals_its_file(tmp_path: Path) -> None:
    """The numbers are those of the same lists in a file."""
    np.savez(tmp_path / "lists.npz", party_0=LISTS[0], party_1=LISTS[1])
    named = atoll.run("fedavg", **SMALL, partition=tmp_path / "lists.npz", rounds=2)
    given = atoll.run("fedavg", **SMALL, partition=np.repeat([0, 1], 40), rounds=2)
    assert (named.metrics, named.bytes) == (given.metrics, given.bytes)


def test_overlapping_lists_are_overlapping_parties() -> None:
    """As in a file; a method for vertical parties refuses them."""
    shared = [list(range(50)), list(range(30, 80))]
    assert atoll.run("fedgl", **SMALL, partition=shared, rounds=1).scenario == "overlapping"
    with pytest.raises(atoll.AtollError, match="glasu is for vertical parties"):
        atoll.run("glasu", **SMALL, partition=shared)


def test_a_run_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    """No folder, no partition file."""
    with pytest.raises(atoll.AtollError, match="has 2 parties, not 3"):
        atoll.run("fedavg", **SMALL, partition=LISTS, parties=3, out=tmp_path / "a")
    with (
        pytest.raises(ValueError, match="stop"),
        Folder.begin(tmp_path / "b", atoll.run("local", **SMALL, rounds=1).config, [[1]]),
    ):
        raise ValueError("stop")
    assert not list(tmp_path.iterdir())


def test_comparisons_continue_and_report_one_row(tmp_path: Path) -> None:
    """All seeds have the same lists; runs already there are not run again; other lists are refused."""
    arguments = {**SMALL, "seeds": 2, "rounds": 2, "out": tmp_path / "all"}
    first = atoll.compare("local,fedavg", partition=LISTS, **arguments)
    again = atoll.compare("local,fedavg", partition=LISTS, **arguments)
    drop = ("seconds",)
    assert [{k: v for k, v in row.items() if k not in drop} for row in first.summary()] == [
        {k: v for k, v in row.items() if k not in drop} for row in again.summary()
    ]
    assert [row.label for row in grouped(gather([tmp_path / "all"]))] == ["fedavg", "local"]
    with pytest.raises(atoll.AtollError, match="does not fit"):
        atoll.compare("local,fedavg", partition=[LISTS[0][:30], LISTS[1] + LISTS[0][30:]], **arguments)


def test_resume_needs_the_objects_again(tmp_path: Path) -> None:
    """A list of graphs is given again; the partition is not."""
    parties = [atoll.load("csbm", nodes=nodes) for nodes in (40, 50)]
    result = atoll.run("fedavg", dataset=parties, rounds=2, out=tmp_path / "a")
    with pytest.raises(atoll.AtollError, match="was given as an object; give it again"):
        atoll.resume(tmp_path / "a", rounds=3)
    longer = atoll.resume(tmp_path / "a", rounds=3, dataset=parties)
    assert longer.rounds == 3
    assert result.rounds == 2
    with pytest.raises(atoll.AtollError, match="does not fit"):
        atoll.resume(tmp_path / "a", rounds=4, dataset=parties[::-1])
