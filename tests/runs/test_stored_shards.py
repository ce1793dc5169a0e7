"""Runs on shards: the same numbers, only what a process holds, and one sentence for shards that are not as they were written."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import atoll
import clinics
from atoll.cli import main
from atoll.data import DataSettings, files, npz, partition_statistics, shard_writer
from atoll.data.federated import SCENARIOS, federate
from atoll.data.federated_data import FederatedData, always
from atoll.data.manifest import MANIFEST
from atoll.data.shards import Shards
from atoll.errors import AtollError
from atoll.graphs import selection
from atoll.graphs.graph import Graph
from atoll.runs import config as configuration
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.stored_shards import cut
from sites import DirectCarrier, run_over, simulated_sites
from small import on_shards, small
from small_graphs import graph_data, small_graphs

__all__ = ["graph_data"]
TINY = 1e-9  # gigabytes


def run(config: Config) -> Any:
    """A run without files."""
    return runner.rounds(runner.prepare(config))


def rows(result: Any) -> list[dict[str, Any]]:
    """The history without the clock."""
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in result.rows]


def same_graph(one: Graph, other: Graph) -> bool:
    """Whether two graphs are equal to the bit."""
    names = ("class_names", "feature_names", "widths", "num_classes")
    return one.digest == other.digest and all(getattr(one, name) == getattr(other, name) for name in names)


def federated(config: Config) -> FederatedData:
    """All parties' data."""
    return federate(config, None, SCENARIOS)


@pytest.fixture
def stored(tmp_path: Path) -> Config:
    """FedAvg of three parties on shards."""
    return on_shards(small("fedavg"), tmp_path / "shards")


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("scenario", ["horizontal", "overlapping", "vertical", "node"])
def test_the_data_is_what_was_cut(scenario: str, sparse: bool, tmp_path: Path) -> None:
    """Parts, whole graph, source and what the server sees, with dense and with sparse features."""
    algorithm = {"vertical": "glasu", "node": "nfedgnn"}.get(scenario, "fedavg")
    before = federated(small(algorithm, scenario=scenario))
    if sparse:
        whole = always(sparsified(before.whole))
        before = replace(before, parts=sparsified(before.parts), load_whole=whole, load_source=whole)
    shard_writer.write_shards(before, tmp_path / "shards", {"dataset": "csbm"})
    after = federated(replace(small(algorithm), dataset=str(tmp_path / "shards"), partition="shards", parties=None))
    assert same_graph(before.parts, after.parts)
    assert same_graph(before.whole, after.whole)
    assert torch.equal(before.source.edge_index, after.source.edge_index)
    assert before.scenario == after.scenario
    assert before.public.keys() == after.public.keys()
    assert all(torch.equal(value, after.public[name]) for name, value in before.public.items())


def sparsified(graph: Graph) -> Graph:
    """The graph with only its positive features, as CSR."""
    x = graph.x.numpy()  # type: ignore[union-attr]
    return replace(graph, x=sp.csr_array(np.where(x > 0, x, 0)))


def test_large_features_stay_on_disk(tmp_path: Path) -> None:
    """A budget that they exceed leaves them in a file: the shard's of one party, else one that nobody else sees."""
    config = on_shards(small("fedavg"), tmp_path / "shards")
    assert mapping(federated(config).parts.x) == ""
    config = replace(config, data=replace(config.data, memory_budget=TINY))
    assert mapping(federated(config).parts.x).endswith("(deleted)")
    alone = federate(config, None, SCENARIOS, held=[1]).parts.x
    assert mapping(alone).endswith("party-1/x.npy")
    alone[0] = 7  # type: ignore[index]
    assert float(federate(config, None, SCENARIOS, held=[1]).parts.x[0, 0]) != 7  # the file is not written to


TASKS: dict[str, dict[str, Any]] = {
    "node-multilabel": {"data.targets": 3},
    "node-regression": {"data.targets": 2},
    "link-prediction": {},
}


@pytest.mark.parametrize("algorithm", ["fedavg", "centralized"])
@pytest.mark.parametrize("task", TASKS)
def test_items_that_are_not_classes_of_nodes(task: str, algorithm: str, tmp_path: Path) -> None:
    """Labels, values and pairs of nodes are in the shards as they were split: the same bits and bytes."""
    config = small(algorithm, task=task, rounds=2, **TASKS[task])
    stored = on_shards(config, tmp_path / "shards")
    one, other = run(config), run(stored)
    assert rows(one) == rows(other)
    assert one.bytes == other.bytes
    parts = federated(small("fedavg", task=task, **TASKS[task])).parts
    assert same_graph(federate(stored, None, SCENARIOS, held=[1]).parts, parts.select([1]))


@pytest.mark.parametrize("algorithm", ["fedavg", "centralized"])
@pytest.mark.parametrize("dataset", ["mutag", "chem"])
def test_shards_of_small_graphs(dataset: str, algorithm: str, graph_data: Path, tmp_path: Path) -> None:
    """Parties of many graphs, also with columns and classes of their own."""
    if dataset == "chem":  # whose parties share layers only, and cannot be one
        algorithm = "local"
    config = small_graphs(algorithm, dataset, rounds=2)
    data = federated(replace(config, algorithm="fedavg"))
    cut(config, data, tmp_path / "shards")
    stored = replace(config, dataset=str(tmp_path / "shards"), partition="shards", parties=None, data=DataSettings())
    one, other = run(config), run(stored)
    assert rows(one) == rows(other)
    assert one.bytes == other.bytes
    alone = federate(stored, None, SCENARIOS, held=[1]).parts
    assert same_graph(alone, data.parts.select([1]))
    assert alone.classes == data.parts.select([1]).classes
    with pytest.raises(AtollError, match="party-1 is a shard of small graphs, which is not read alone"):
        atoll.load(str(tmp_path / "shards" / "party-1"))


def test_the_task_is_that_of_the_cut(tmp_path: Path) -> None:
    """It is the default, and another one is refused in one sentence."""
    config = small("fedavg", task="link-prediction")
    cut(config, federated(config), tmp_path / "shards")
    stored = configuration.resolve("fedavg", dataset=str(tmp_path / "shards"), values={"rounds": 1})
    assert stored.run.task == "link-prediction"
    assert rows(run(stored))
    parts = federated(stored).parts  # what `atoll partition` shows of them
    shown = partition_statistics(parts, federated(stored).source)
    assert [one.train for one in shown.parties] == parts.num_train.tolist()
    assert [one.majority_homophily for one in shown.parties] == [None] * 3
    with pytest.raises(AtollError, match=r"but .* holds shards for link-prediction; leave it out"):
        configuration.resolve("fedavg", dataset=str(tmp_path / "shards"), values={"task": "node-classification"})
    with pytest.raises(AtollError, match="party-1 is a shard of pairs of nodes, which is not read alone"):
        atoll.load(str(tmp_path / "shards" / "party-1"))


def test_pairs_of_nodes_that_are_not_there_are_refused(tmp_path: Path) -> None:
    """Digests of somebody else's shards may fit; pairs must be of the party's nodes."""
    config = on_shards(small("fedavg", task="link-prediction"), tmp_path / "shards")
    path, manifest = tmp_path / "shards" / "party-0" / "pairs.npy", Shards(tmp_path / "shards").manifest
    np.save(path, np.load(path) + 1000)
    files_of = manifest.files | {"party-0/pairs.npy": shard_writer._digested(path)}
    replace(manifest, files=files_of).write(tmp_path / "shards")
    with pytest.raises(AtollError, match="do not fit together"):
        federated(config)


def test_cutting_from_the_disk_gives_the_same_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget features and edges go from file to file in pieces: the same files, and of the features little in memory."""
    monkeypatch.setattr(npz, "MAPPED", 1)
    monkeypatch.setattr(selection, "EDGES_AT_ONCE", 1000)
    folder, size = tmp_path / "graph", 4000 * 2000 * 4
    folder.mkdir()
    graph = atoll.load("csbm", nodes=4000, features=2000, degree=4)
    for name, array in files.arrays(graph).items():
        np.save(folder / f"{name}.npy", array)
    written, peaks = [], []
    for budget in (0.0, TINY):
        values = {"memory_budget": budget, "split": "random"}
        config = configuration.resolve("fedavg", dataset=str(folder), partition="random", parties=10, values=values)
        tracemalloc.start()
        manifest = cut(config, federated(config), tmp_path / f"shards{budget}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        written.append(manifest.files)
    assert written[0] == written[1]
    assert peaks[1] < 0.6 * size


def test_a_process_owns_only_what_it_holds(tmp_path: Path) -> None:
    """One of ten parties with a budget: its files alone are read, its features mapped, and next to nothing is allocated."""
    config = small("fedavg", **{"data.nodes": 2000, "data.features": 1000})
    config = on_shards(replace(config, parties=10), tmp_path / "shards", budget=TINY)
    opened: list[str] = []

    def checked(shards: Shards, name: str, check: Any = Shards._checked) -> Path:
        opened.append(name)
        path: Path = check(shards, name)
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shards, "_checked", checked)
        tracemalloc.start()
        graph = federate(config, None, SCENARIOS, held=[3]).parts
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert opened
    assert {name.split("/")[0] for name in opened} == {"party-3"}
    assert mapping(graph.x).endswith("party-3/x.npy")
    assert peak < graph.num_nodes * 1000 * 4  # of all parties' features a tenth


def mapping(x: Any) -> str:
    """The file that a tensor's memory is mapped to; empty where it is plain memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        if start <= x.data_ptr() < end:
            return " ".join(line.split()[5:]) if len(line.split()) > 5 and line.split()[5].startswith("/") else ""
    raise AssertionError("the tensor is nowhere")


def test_a_process_reads_only_what_it_holds(stored: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """One party: its own shard. The server: no party's graph."""
    read: list[str] = []
    checked = Shards._checked
    monkeypatch.setattr(Shards, "_checked", lambda self, name: read.append(name) or checked(self, name))
    part = federate(stored, None, SCENARIOS, held=[2]).parts
    assert {name.split("/")[0] for name in read} == {"party-2"}
    read.clear()
    outline = federate(stored, None, SCENARIOS, held=[])
    assert all(name in ("sizes.npy", "train.npy") or name.endswith("_names.npy") for name in read)
    everything = federated(stored).parts
    assert same_graph(part, everything.select([2]))
    facts = ("parties", "num_nodes", "num_features", "num_classes", "sizes", "class_names", "feature_names")
    assert all(getattr(outline.parts, name) == getattr(everything, name) for name in facts)
    assert torch.equal(outline.parts.num_train, everything.num_train)
    assert outline.extent == runner.prepare(stored).extent


def test_sites_read_their_own_shards(stored: Config, tmp_path: Path) -> None:
    """Sites in their own processes, each with its own shard, give the numbers of one process."""
    across = run_over(stored, DirectCarrier(simulated_sites(tmp_path / "sites")))
    for row, same in zip(rows(across), rows(run(stored)), strict=True):
        assert row["accuracy"] == same["accuracy"]
        assert row["loss"] == pytest.approx(same["loss"], abs=1e-6)


def test_many_parties_share_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parties in one folder and one in another: the same data, and any selection of them."""
    monkeypatch.setattr(shard_writer, "MAX_SHARDS", 2)
    config = small("fedavg")
    stored = on_shards(config, tmp_path / "shards")
    assert {path.name for path in (tmp_path / "shards").iterdir() if path.is_dir()} == {"parties-0-1", "party-2"}
    parts, shards = federated(config).parts, Shards(tmp_path / "shards")
    for chosen in ([0, 1, 2], [2, 0], [1], [2]):
        assert same_graph(shards.graph(chosen), parts.select(chosen))
    assert rows(run(config)) == rows(run(stored))
    with pytest.raises(AtollError, match="shard of 2 parties, not the graph of one"):
        files.read(tmp_path / "shards" / "parties-0-1")
    with pytest.raises(AtollError, match="holds the parties 0 to 2"):
        shards.graph([3])


def test_nodes_that_no_party_holds_are_still_counted(tmp_path: Path) -> None:
    """What a partition lost is known from its shards."""
    config = small("fedavg", **{"data.nodes": 200})
    config = replace(config, partition="louvain_largest", parties=2)
    before, after = federated(config), federated(on_shards(config, tmp_path / "shards"))
    facts = partition_statistics(before.parts, before.source)
    assert facts.nodes_lost
    assert partition_statistics(after.parts, after.source) == facts


@pytest.mark.filterwarnings("ignore:.*the columns are encoded as inferred")
def test_tables_are_encoded_as_before(tmp_path: Path) -> None:
    """Columns that are not numbers are in the shards as they are: the encoding is fitted again, with the same bytes."""
    folder = str(clinics.write(tmp_path / "clinics"))
    values = {"rounds": 2, "normalize_features": True, "split": "random"}
    config = configuration.resolve("fedavg", dataset=folder, partition="files", values=values)
    cut(config, federated(config), tmp_path / "shards", "files")
    stored = configuration.resolve("fedavg", dataset=str(tmp_path / "shards"), values={"rounds": 2})
    assert stored.data.normalize_features
    one, other = run(config), run(stored)
    assert rows(one) == rows(other)
    assert one.bytes == other.bytes
    assert runner.prepare(stored).party_data.names == clinics.CLINICS


def test_defaults_are_those_of_what_was_cut(tmp_path: Path) -> None:
    """The paper's settings for a dataset hold for its shards, too; those of the split and the partition are done."""
    config = small("fedavg")
    cut(replace(config, dataset="wiki"), federated(config), tmp_path / "shards")
    usual, stored = (configuration.resolve("fedgl", dataset=name) for name in ("wiki", str(tmp_path / "shards")))
    other = configuration.resolve("fedgl", dataset="csbm")
    assert stored.settings == usual.settings != other.settings
    assert stored.run == usual.run
    assert (stored.partition, stored.parties, stored.split.split) == ("shards", None, "auto")
    assert configuration.from_dict(stored.to_dict(), "config.toml") == stored


def test_runs_on_shards_resume_and_predict(stored: Config, tmp_path: Path) -> None:
    """A run's folder is complete: it is resumed, and its model predicts its training data as reported."""
    result = runner.run(stored, out=tmp_path / "run")
    assert rows(runner.resume(tmp_path / "run")) == rows(result)
    assert atoll.load_model(tmp_path / "run").evaluate().overall["accuracy"] == result.metrics["accuracy"]


def test_shards_are_also_folders_of_the_parties(stored: Config) -> None:
    """A shard is a graph that `atoll join` and `--partition files` take, without the others."""
    folder, parts = Path(stored.dataset), federated(stored).parts
    assert same_graph(files.read(folder / "party-1"), replace(parts.select([1]), widths=None))
    config = configuration.resolve("fedavg", dataset=str(folder), partition="files")
    assert torch.equal(federated(config).parts.train, parts.train)


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a file."""
    path.write_bytes(change(path.read_bytes()))


def edited(folder: Path, **changes: Any) -> None:
    """Change a manifest as a person does, who leaves its checksum."""
    document = json.loads((folder / MANIFEST).read_text()) | changes
    (folder / MANIFEST).write_text(json.dumps(document))


def flipped(data: bytes) -> bytes:
    """The last bit changed."""
    return data[:-1] + bytes([data[-1] ^ 1])


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a bit of the features": (lambda f: damage(f / "party-1/x.npy", flipped), r"party-1/x\.npy is not the file that was written"),
    "a bit of the edges": (lambda f: damage(f / "party-2/edge_index.npy", flipped), r"edge_index\.npy is not the file"),
    "cut short": (lambda f: damage(f / "party-0/y.npy", lambda data: data[:-8]), r"y\.npy has \d+ bytes, but \d+ were written"),
    "empty": (lambda f: damage(f / "party-0/y.npy", lambda data: b""), r"y\.npy has 0 bytes"),
    "a missing file": (lambda f: (f / "party-1/ids.npy").unlink(), r"ids\.npy cannot be read \(No such file"),
    "a missing shard": (lambda f: shutil.rmtree(f / "party-1"), r"party-1/\w+\.npy cannot be read \(No such file"),
    "another party's": (lambda f: shutil.copytree(f / "party-0", f / "party-1", dirs_exist_ok=True), "party-1/.* (is not|has) "),
    "an edited manifest": (lambda f: edited(f, parties=2), r"manifest\.json is damaged \(its checksum does not match"),
    "a manifest cut short": (lambda f: damage(f / MANIFEST, lambda data: data[:100]), r"manifest\.json is damaged"),
    "a manifest of lists": (lambda f: (f / MANIFEST).write_text("[]"), "is not a manifest that this version"),
    "a later version": (
        lambda f: edited(f, format="atoll shards 9"),
        r"this version of atoll can read \(format 'atoll shards 9'\)",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_shards_that_are_not_as_written_are_refused(
    what: str, stored: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One sentence and exit code 2; nothing is written."""
    change, sentence = WRONG[what]
    change(Path(stored.dataset))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["atoll", "run", "fedavg", "--dataset", stored.dataset, "--rounds", "1", "--out", "new"])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert re.search(sentence, error)
    assert len(error.strip().splitlines()) == 1
    assert not Path("new").exists()


def test_consistent_digests_do_not_hide_nonsense(stored: Config) -> None:
    """Shards that somebody else made are checked, too: edges, classes, boundaries and features must fit together."""
    folder = Path(stored.dataset)
    manifest = Shards(folder).manifest
    for name, change in (
        ("edge_index", lambda array: array + 1000),
        ("y", lambda array: array + 3),
        ("ptr", lambda array: array + 1),
        ("train", lambda array: array[:-1]),
        ("x", lambda array: array.astype(np.float64)),
        ("num_classes", lambda array: array + 1),
    ):
        path = folder / "party-0" / f"{name}.npy"
        before = path.read_bytes()
        np.save(path, change(np.load(path)))
        replace(manifest, files=manifest.files | {f"party-0/{name}.npy": shard_writer._digested(path)}).write(folder)
        with pytest.raises(AtollError, match="do not fit together"):
            federated(stored)
        path.write_bytes(before)
        manifest.write(folder)
    assert federated(stored).parts.parties == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"values": {"split": "random"}}, "split is 'random', but .* holds shards, which are cut and split already"),
        ({"values": {"normalize_features": True}}, "normalize_features is True, but .* holds shards"),
        ({"values": {"resolution": 2.0}}, "resolution is 2.0, but .* holds shards"),
        ({"partition": "metis"}, "holds shards, which are cut already; leave --partition out"),
    ],
)
def test_what_is_done_cannot_be_set(stored: Config, options: dict[str, Any], sentence: str) -> None:
    """Settings of the partition, the split and the features belong to the cut."""
    with pytest.raises(AtollError, match=sentence):
        configuration.resolve("fedavg", dataset=stored.dataset, **options)


def test_other_parties_and_scenarios_are_refused(stored: Config) -> None:
    """The number of parties is given, and an algorithm must be made for the scenario."""
    with pytest.raises(AtollError, match="holds 3 parties, not 4; leave --parties out"):
        atoll.run("fedavg", dataset=stored.dataset, parties=4)
    with pytest.raises(AtollError, match="glasu is for vertical parties, but the partition 'shards' is horizontal"):
        atoll.run("glasu", dataset=stored.dataset)
    with pytest.raises(AtollError, match=r"holds no shards \(manifest.json is missing\)"):
        atoll.run("fedavg", dataset=str(Path(stored.dataset) / "party-0"), partition="shards")


def test_nothing_is_left_of_shards_that_were_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is stopped leaves no folder; a folder that holds something is not written to."""
    config = small("fedavg")
    data = federated(config)

    def stop(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shard_writer, "_digested", stop)
        with pytest.raises(KeyboardInterrupt):
            cut(config, data, tmp_path / "shards")
    assert not list(tmp_path.iterdir())
    (tmp_path / "shards").mkdir()
    cut(config, data, tmp_path / "shards")
    with pytest.raises(AtollError, match="is not an empty folder; choose another --out"):
        cut(config, data, tmp_path / "shards")
