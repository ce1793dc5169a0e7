"""The command line as a person meets it: results, and one sentence with exit code 2 for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll import algorithms
from atoll.cli import main

TINY = [
    "--dataset",
    "csbm",
    "--set",
    "nodes=80",
    "--set",
    "features=8",
    "--partition",
    "random",
    "--parties",
    "2",
    "--rounds",
    "2",
]


def atoll(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["atoll", *arguments])
    code = 0
    try:
        main.main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A function that runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: atoll(capsys, monkeypatch, *arguments)


def test_run_resume_and_run_again_from_the_configuration(call) -> None:
    """A run writes its folder; resuming gives the same result; its config.toml runs it again."""
    code, out, _ = call("run", "fedavg", *TINY, "--seed", "3", "--out", "runs/a")
    assert code == 0
    assert "fedavg on csbm: 2 parties, horizontal, seed 3" in out
    assert "accuracy" in out
    code, resumed, _ = call("resume", "runs/a")
    assert code == 0
    assert resumed.splitlines()[1] == out.splitlines()[1]
    code, _, _ = call("run", "runs/a/config.toml", "--out", "runs/b")
    assert code == 0
    one, two = (json.loads(Path(f"runs/{name}/result.json").read_text()) for name in "ab")
    assert one["metrics"] == two["metrics"]
    assert one["settings"] == two["settings"]


def test_a_model_for_other_programs(call) -> None:
    """`export` writes a folder whose loader runs; it writes over nothing."""
    assert call("run", "fedavg", *TINY, "--out", "runs/a")[0] == 0
    code, out, _ = call("export", "runs/a", "--to", "safetensors", "--out", "exported")
    assert (code, "Written to exported: README.md, SHA256SUMS" in out) == (0, True)
    done = subprocess.run([sys.executable, "exported/load.py"], capture_output=True, text=True, check=True)
    assert "5 classes: '0', '1', '2', '3', '4'; difference from atoll" in done.stdout
    code, _, err = call("export", "runs/a", "--to", "safetensors", "--out", "exported")
    assert (code, err.strip()) == (2, "atoll: exported is already there; choose another --out, or delete it.")


def test_compare_prints_a_row_each(call) -> None:
    """Mean ± standard deviation, bytes and seconds for every algorithm, and all runs in the folder."""
    code, out, _ = call("compare", "local,fedavg,centralized", *TINY, "--seeds", "2", "--out", "runs/c")
    assert code == 0
    for word in ("local", "fedavg", "centralized", "accuracy", "minority", "MB up", "seconds", "±"):
        assert word in out
    assert len(list(Path("runs/c").glob("*/result.json"))) == 6
    assert [row["row"] for row in json.loads(Path("runs/c/comparison.json").read_text())] == ["local", "fedavg", "centralized"]


def test_compare_several_datasets(call) -> None:
    """One table and one folder each, then the ranks over them."""
    from atoll import load

    for seed, name in enumerate(("one", "two")):
        data = load("csbm", nodes=80, graph_seed=seed)
        Path(name).mkdir()
        edges = data.edge_index.T.tolist()
        Path(name, "edges.csv").write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in edges if a < b))
        rows = [f"{index},{label},{index % 7}\n" for index, label in enumerate(data.y.tolist())]
        Path(name, "nodes.csv").write_text("id,label,x\n" + "".join(rows))
    arguments = ("--dataset", "one,two", "--partition", "random", "--parties", "2", "--rounds", "1", "--seeds", "2")
    code, out, err = call("compare", "local,fedavg,fedprox", *arguments, "--out", "runs/many", "--quiet")
    assert code == 0, err
    assert out.count("mean ± standard deviation (n − 1) over 2 seeds") == 2
    assert "Friedman's test: χ² =" in " ".join(out.split())
    ranks = json.loads(Path("runs/many/ranks.json").read_text())
    assert ranks["datasets"] == ["one", "two"]
    assert sorted(ranks["mean_ranks"]) == ["fedavg", "fedprox", "local"]
    assert len(list(Path("runs/many/two").glob("*/result.json"))) == 6
    Path("two", "nodes.csv").write_text("id,label\n0\n")
    code, _, err = call("compare", "local,fedavg,fedprox", *arguments, "--out", "runs/none", "--quiet")
    assert code == 2
    assert "nodes.csv" in err
    assert not Path("runs/none").exists()  # the first dataset is not run where the second cannot be


def test_tune_and_use(call) -> None:
    """The command, its file, and comparisons with it and with tuning of their own."""
    Path("space.toml").write_text("lr = [0.003, 0.05]\n")
    tuning = ("--space", "space.toml", "--trials", "3", "--seeds", "1", "--out", "runs/t")
    code, out, err = call("tune", "fedavg", *TINY, *tuning)
    assert code == 0, err
    assert "Chosen: lr=" in out
    tuned = json.loads(Path("runs/t/tuned.json").read_text())
    assert (tuned["seeds"], len(tuned["trials"])) == ([1000], 3)
    code, out, _ = call("compare", "local,fedavg", *TINY, "--seeds", "1", "--tuned", "runs/t/tuned.json")
    assert (code, "Not tuned alike: local not at all, fedavg 3 trials on the seed 1000." in " ".join(out.split())) == (0, True)
    more = ("--tune", "2", "--tune-seeds", "1", "--space", "space.toml", "--out", "runs/c")
    code, out, _ = call("compare", "local,fedavg", *TINY, "--seeds", "1", *more)
    assert (code, "Tuned on validation nodes" in out) == (0, True)
    assert json.loads(Path("runs/c/comparison.json").read_text())[1]["tuned"]["space"] == {"lr": [0.003, 0.05]}


def test_lists_and_help(call) -> None:
    """A stranger finds algorithms, their settings, datasets and what a partition looks like."""
    shown = call("algorithms")[1]
    assert all(f"\n  {name} " in shown for name in algorithms.names())
    few = call("algorithms", "--scenario", "overlapping", "--task", "link-prediction")[1]
    assert ("\n  moon " in few, "\n  fedgta " in few, "\n  glasu " in few) == (True, False, False)
    few = call("algorithms", "--task", "graph-regression")[1]  # only what a run would take
    assert ("\n  gcfl " in few, "\n  fedproto " in few, "\n  fedlit " in few, "\n  fedbn " in few) == (True, False, False, False)
    shown = call("algorithms", "fedavg")[1]
    assert "keep_optimizer" in shown
    assert "Learning rate." in shown
    assert "pubmed" in call("datasets")[1]
    code, out, _ = call("partition", "--parties", "3", "--set", "nodes=300")
    assert code == 0
    assert "homophily" in out.lower()
    assert call("--help")[0] == 0
    assert call("--version")[1].startswith("atoll ")


WRONG = [
    (["tune", "fedavgg"], "no algorithm 'fedavgg'"),
    (["tune", "fedavg", "--space", "nothing.toml"], "--space nothing.toml cannot be read"),
    (["tune", "fedavg", "--trials", "1"], "--trials is 1 but must be at least 2"),
    (["tune", "fedavg", "--seeds", "x"], "--seeds is 'x' but must be a number of seeds"),
    (["tune", "fedavg", "--sampler", "best"], "--sampler is 'best' but must be one of"),
    (["tune", "fedavg", "--sampler", "grid"], "A grid needs values, but lr is a range"),
    (["tune", "fedavg", "--jobs", "0"], "--jobs is 0"),
    (["tune", "fedavg", "--set", "lr=1", "--set", "lr=2"], "--set lr is given twice"),
    (["compare", "local", "--set", "lr=1", "--set", "lr=2"], "--set lr is given twice"),
    (["compare", "local", "--rounds", "1", "--set", "rounds=2"], "--set rounds is given twice"),
    (["compare", "local", "--tune", "1"], "--tune is 1 but must be at least 2"),
    (["compare", "local", "--tune", "-3"], "--tune is -3 but must be at least 2"),
    (["compare", "local", "--tune", "3", "--tune-seeds", "0,1"], "Seed 0, 1 would be both tuned on and reported"),
    (["compare", "local", "--space", "x.toml"], "--space and --tune-seeds are for tuning; give --tune N"),
    (["compare", "local", "--tuned", "x.json"], "--tuned x.json cannot be read"),
    (["compare", "local", "--dataset", "csbm,csbm"], "--dataset names csbm twice"),
    (["compare", "local", "--dataset", ","], "--dataset is a comma"),
    (["run", "fedavg", "--tuned", "x.json"], "--tuned x.json cannot be read"),
    (["run", "fedavgg"], "no algorithm 'fedavgg'; did you mean 'fedavg'?"),
    (["run", "fedavg", "--dataset", "coraa"], "'coraa'"),
    (["run", "fedavg", "--set", "learning_rte=1"], "no setting 'learning_rte'"),
    (["run", "fedavg", "--set", "epocs=1"], "did you mean 'epochs'?"),
    (["run", "fedavg", "--set", "lr=fast"], "lr is 'fast' but must be a number"),
    (["run", "fedavg", "--set", "lr"], "not of the form key=value"),
    (["run", "fedavg", "--model", "gcnn"], "did you mean 'gcn'?"),
    (["run", "fedavg", "--parties", "0"], "parties is 0"),
    (["run", "fedavg", "--rounds", "0"], "rounds is 0"),
    (["run", "fedavg", "--threads", "0"], "--threads is 0"),
    (["run", "fedavg", "--partition", "metsi"], "did you mean 'metis'?"),
    (["run", "fedavg", "--partition", "vertical", "--parties", "2"], "fedavg is for horizontal"),
    (["run", "fedavg", "--partition", "louvain_largest", "--parties", "2900"], "communities"),
    (["run", "fedavg", "--partition", "random", "--parties", "3000"], "but no training nodes"),
    (["run", "fedavg", "--partition", "random", "--parties", "4000"], "4000 parties"),
    (["run", "fedavg", "--engine", "inproces"], "did you mean 'inprocess'?"),
    (["run", "fedavg", "--engine", ""], "no engine ''"),
    (["run", "fedavg", "--dataset", ""], "dataset is '' but must be a name or a path"),
    (["run", "fedavg", "--partition", ""], "partition is '' but must be a name or a path"),
    (["run", "fedavg", "--partition", "files"], "files takes a folder with one folder per party, but the dataset is 'csbm'"),
    (["run", "fedavg", "--dataset", "y" * 5000], "(File name too long); check the path"),
    (["run", "fedavg", "--threads", "100000"], "at most 256"),
    (["run", "fedavg", "--set", "lr=inf"], "lr is inf but must be a finite number"),
    (["run", "fedavg", "--set", "optimizer=ADAM"], "must be one of adam, adamw, sgd; did you mean 'adam'?"),
    (["run", "fedavg", "--set", "verb=fit"], "did you mean 'dp.verb'?"),
    (["run", "fedavg", "--set", "noise.foo=1"], "there is edge_noise"),
    (["run", "fedavg", "--set", "dp.nois=1"], "did you mean 'noise'?"),
    (["run", "fedavg", "--set", "parties=3"], "say --parties in place of --set parties"),
    (["run", "fedavg", "--set", "local.lr=1"], "'local.lr' is a setting of local, but fedavg is run"),
    (["run", "fedavg", "--set", "zzzzzz=1"], "`atoll algorithms fedavg` lists its settings"),
    (["run", "fedavg", "--set", "lr=1e30", "--set", "nodes=300"], "the training diverges; lower lr"),
    (["run", "fedavg", "--set", "hidden=1000000", "--set", "layers=9", "--set", "nodes=300"], "not enough memory"),
    (["run", "fedavg", "--set", "hidden=1000000000000"], "hidden is 1000000000000 but must be at most 1000000"),
    (["run", "fedavg", "--secure", "--parties", "1", "--set", "nodes=300"], "have more parties take part, or leave secure out"),
    (
        ["run", "gcfl", "--secure", "--set", "nodes=300", "--parties", "2"],
        "is private: the server may only ask for its total; choose",
    ),
    (["run", "glasu", "--dataset", "csbm", "--parties", "2", "--set", "label_holder=9"], "label_holder is 9"),
    (["run", "glasu", "--dataset", "csbm", "--parties", "1", "--set", "label_holder=0"], "label_holder needs another party"),
    (["run", "odd.toml"], "odd.toml: dataset is 3 but must be a name or a path"),
    (["run", "syntax.py"], "syntax.py cannot be imported (SyntaxError: "),
    (["run", "raising.py"], "raising.py cannot be imported (ValueError: boom, line 2)"),
    (["run", "leaving.py"], "leaving.py cannot be imported (SystemExit: 5, line 1)"),
    (["export", "nowhere", "--to", "pyg", "--out", "new"], "nowhere holds no trained model"),
    (
        ["export", "nowhere", "--to", "onxx", "--out", "new"],
        "--to is 'onxx', which is not a format of exports; did you mean 'onnx'?",
    ),
    (["run", "fedavg", "--from", "nowhere"], "nowhere holds no trained model"),
    (["run", "settings.py"], "settings.py is not an algorithm: Settings must be a dataclass"),
    (["run", "spreads.py"], "spreads.py is not an algorithm: SCENARIOS must be a tuple of horizontal"),
    (["run", "a\0.toml"], "is not a path"),
    (["partition", "--set", "nodes=300", "--parties", "2", "--out", "broken.toml"], "broken.toml is not an empty folder"),
    (["report", "."], "is not a run"),
    (["reproduce", "nfedgnn/table1", "--no-run", "--only", "zzzz"], "No line of nfedgnn/table1 has 'zzzz' in its label"),
    (["reproduce", "nfedgnn/table1", "--no-run", "--page", "broken.toml/x.md"], "broken.toml cannot be read or written"),
    (["run", "nowhere.toml"], "nowhere.toml cannot be read"),
    (["run", "broken.toml"], "broken.toml is not valid TOML"),
    (["resume", "."], "is not a run"),
    (["compare", "local,fedavgg"], "no algorithm 'fedavgg'"),
    (["compare", "local", "--set", "nothing_at_all=1"], "None of local has a setting"),
    (["algorithms", "nothing"], "no algorithm 'nothing'"),
    (["algorithms", "--scenario", "vertica"], "no scenario 'vertica'; did you mean 'vertical'?"),
    (["algorithms", "--task", "links"], "no task 'links'"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_mistakes_get_one_sentence_and_exit_code_2(call, arguments: list[str], sentence: str, tmp_path: Path) -> None:
    """What, where and what to do; nothing is written."""
    Path("broken.toml").write_text("algorithm = ")
    Path("odd.toml").write_text('algorithm = "fedavg"\ndataset = 3\n')
    Path("syntax.py").write_text("def step(:\n")
    Path("raising.py").write_text("import math\nraise ValueError('boom')\n")
    Path("leaving.py").write_text("raise SystemExit(5)\n")
    borrowed = "from atoll.algorithms.fedavg import Cohort, Settings, evaluate, start, step\n"
    Path("settings.py").write_text(borrowed + "Settings, SCENARIOS = dict, ('horizontal',)\n")
    Path("spreads.py").write_text(borrowed + "SCENARIOS = 'horizontal'\n")
    out = ["--out", "new"] if arguments[0] in ("run", "compare") else []
    code, _, err = call(*arguments, *out)
    assert code == 2
    assert sentence in err
    assert err.startswith("atoll: ")
    assert len(err.strip().splitlines()) == 1
    assert not Path("new").exists()


def write_graph(folder: Path, nodes: str, edges: str = "source,target\na,b\n") -> None:
    """An own graph of two CSV files."""
    folder.mkdir()
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(edges)


GOOD = "id,f1,f2,label\na,1,0,0\nb,0,1,1\nc,1,1,0\nd,0,0,1\ne,1,2,0\nf,2,1,1\n"


@pytest.mark.parametrize(
    ("nodes", "edges", "sentence"),
    [
        (GOOD.replace("c,1,1,0", "c,1,1,-7"), "source,target\na,b\n", "label"),
        (GOOD, "source,target\na,b\na,zz\n", "zz"),
        (GOOD.replace("c,1,1,0", "a,1,1,0"), "source,target\na,b\n", "already used"),
        ("id,f1,label\na,1,\nb,2,\nc,3,\n", "source,target\na,b\n", "No node has a class"),
    ],
)
def test_own_graphs_with_a_mistake(call, tmp_path: Path, nodes: str, edges: str, sentence: str) -> None:
    """A label that is not a class, an edge to nowhere, an id given twice, no labels at all."""
    write_graph(tmp_path / "graph", nodes, edges)
    code, _, err = call("run", "local", "--dataset", "graph", "--partition", "whole", "--rounds", "1", "--out", "new")
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("new").exists()


def test_an_own_graph_runs(call, tmp_path: Path) -> None:
    """Two CSV files with string ids are enough."""
    write_graph(tmp_path / "graph", GOOD)
    code, out, err = call("run", "local", "--dataset", "graph", "--partition", "whole", "--rounds", "1")
    assert (code, err) == (0, "")
    assert "local on graph" in out


def test_a_byte_order_mark_in_a_configuration(call) -> None:
    """Some editors write one; it does no harm."""
    text = "algorithm = 'local'\npartition = 'random'\nparties = 2\n[run]\nrounds = 1\n[data]\nnodes = 80\n"
    Path("run.toml").write_text(text, encoding="utf-8-sig")
    assert call("run", "run.toml")[0] == 0


@pytest.mark.filterwarnings("default")
def test_a_split_that_is_not_used_is_told(call, tmp_path: Path) -> None:
    """Own data keeps its split unless told otherwise; a split that a setting replaces is named, once."""
    nodes = GOOD.replace("label\n", "label,split\n").replace(",0\n", ",0,train\n").replace(",1\n", ",1,test\n")
    write_graph(tmp_path / "graph", nodes)
    arguments = ("run", "local", "--dataset", "graph", "--partition", "whole", "--rounds", "1")
    told = "atoll: graph has a split of its own, which split='random' replaces; to use it, set split=auto.\n"
    code, _, err = call(*arguments, "--set", "split=random", "--quiet")
    assert (code, err) == (0, told)
    code, _, err = call("compare", "local,fedavg", *arguments[2:], "--set", "split=random", "--seeds", "2", "--quiet")
    assert (code, err) == (0, told)
    code, _, err = call(*arguments, "--quiet")
    assert (code, err) == (0, "")


def test_missing_data_says_which_file_to_put_where(call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without data and without a network the error names the files and the place."""
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    code, _, err = call("run", "fedavg", "--dataset", "cora", "--rounds", "1")
    assert code == 2
    assert str(tmp_path / "nothing" / "Cora" / "raw") in err
    assert "ind.cora" in err


def test_help_is_quick() -> None:
    """`atoll --help` imports neither torch nor numpy: heavy imports wait until they are needed."""
    code = "import sys, atoll.cli.main; sys.exit(bool({'torch', 'numpy', 'pandas', 'scipy'} & sys.modules.keys()))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
