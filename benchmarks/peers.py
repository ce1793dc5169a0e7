"""FedAvg beside other programs: atoll, plain PyG and, where they are installed, OpenFGL, FedGraph, FederatedScope and FedGB.

The work: Cora, 10 Louvain parties, a GCN of two layers with 64 hidden units, 5 local epochs of Adam, evaluation in every round,
on the processor. atoll and plain PyG take turns on the same parties. Another program runs in its own process, with the Python
that has it, and cuts Cora by its own rule; what else it does otherwise is said in its line. Setting up is not counted.

The scripts that time the others were written from their documentation and tested with a stand-in; FedGraph's has also been
started with FedGraph 0.2.5 (docs/benchmarks.md says how far it came).

A program that is not installed here is named in a TOML file, ATOLL_PEERS=peers.toml:

    [OpenFGL]
    folder = "/src/OpenFGL"                        # its checkout
    python = "/src/OpenFGL/.venv/bin/python"       # by default this one

    [FedGB]
    folder = "/src/FedGB"
    command = "python my_fedavg.py --rounds {rounds}"   # any program: timed with N and with 2·N rounds, the difference counts
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fedavg import EPOCHS, HIDDEN, LR, Plain, clock, turns

PARTIES, ROUNDS = 10, 20
REPORT = "atoll-peer-ms"  # begins the line in which a driver prints its milliseconds per round


@dataclass(frozen=True)
class Peer:
    """Another program: how it is imported, the script that times it, and how its work differs from atoll's."""

    name: str
    module: str
    driver: str = ""  # run with the number of rounds and a folder for data; empty where a command must be given
    note: str = ""


OPENFGL = f"""
import sys, time
rounds, root = int(sys.argv[1]), sys.argv[2]
sys.argv = sys.argv[:1]  # its configuration reads them
import openfgl.config
from openfgl.flcore.trainer import FGLTrainer
args = openfgl.config.args
args.root, args.dataset, args.simulation_mode = root, ["Cora"], "subgraph_fl_louvain"
args.num_clients, args.num_rounds, args.num_epochs = {PARTIES}, rounds, {EPOCHS}
args.fl_algorithm, args.model, args.metrics, args.use_cuda = "fedavg", ["gcn"], ["accuracy"], False
args.hid_dim, args.num_layers, args.dropout, args.lr, args.weight_decay = {HIDDEN}, 2, 0.0, {LR}, 0.0
trainer = FGLTrainer(args)
began = time.perf_counter()
trainer.train()
print("{REPORT}", (time.perf_counter() - began) / rounds * 1e3)
"""

FEDGRAPH = f"""
import os, shutil, sys, time
import attridict, ray
from fedgraph.federated_methods import run_fedgraph
rounds, root = int(sys.argv[1]), sys.argv[2]
begin = ray.init
ray.init = lambda *args, **options: begin(address="local")  # it would join any cluster that runs on this machine
given = os.path.join(os.environ.get("ATOLL_DATA", ""), "Cora", "raw")
if os.path.isdir(given):  # where it would put what it downloads
    shutil.copytree(given, os.path.join("data", "cora", "raw"))
common = dict(dataset="cora", fedgraph_task="NC", method="FedAvg", local_step={EPOCHS}, learning_rate={LR}, n_trainer={PARTIES},
              num_layers=2, num_hops=0, gpu=False, iid_beta=10000, logdir=root, use_encryption=False, use_huggingface=False,
              saveto_huggingface=False, use_cluster=False, batch_size=-1, distribution_type="average",
              num_cpus_per_trainer=1 / {PARTIES}, num_gpus_per_trainer=0)
seconds = []
for count in (rounds, 2 * rounds):
    began = time.perf_counter()
    run_fedgraph(attridict(dict(common, global_rounds=count)))
    seconds.append(time.perf_counter() - began)
print("{REPORT}", (seconds[1] - seconds[0]) / rounds * 1e3)
"""

FEDERATEDSCOPE = f"""
import subprocess, sys, time
from pathlib import Path
import federatedscope
rounds, root = int(sys.argv[1]), sys.argv[2]
folder = Path(federatedscope.__file__).parent
config = folder / "gfl/baseline/fedavg_gnn_node_fullbatch_citation.yaml"
options = ["use_gpu", "False", "federate.method", "FedAvg", "federate.client_num", "{PARTIES}", "data.root", root,
           "model.hidden", "{HIDDEN}", "model.dropout", "0.0", "train.local_update_steps", "{EPOCHS}",
           "train.optimizer.type", "Adam", "train.optimizer.lr", "{LR}",
           "train.optimizer.weight_decay", "0.0", "early_stop.patience", "0", "eval.freq", "1"]
seconds = []
for count in (rounds, 2 * rounds):
    began = time.perf_counter()
    command = [sys.executable, str(folder / "main.py"), "--cfg", str(config), *options, "federate.total_round_num", str(count)]
    subprocess.run(command, check=True, cwd=root)
    seconds.append(time.perf_counter() - began)
print("{REPORT}", (seconds[1] - seconds[0]) / rounds * 1e3)
"""

PEERS = (
    Peer("OpenFGL", "openfgl", OPENFGL, "judges each party's own model"),
    Peer("FedGraph", "fedgraph", FEDGRAPH, "a process per party (Ray), parties by classes, its own width"),
    Peer("FederatedScope", "federatedscope", FEDERATEDSCOPE, "evaluates by its own rule"),
    Peer("FedGB", "fedgb", note="a command of yours"),
)


def main(rounds: int = ROUNDS, count: int = 5) -> list[dict[str, object]]:
    from atoll.runs import config, runner

    values = {"rounds": rounds, "epochs": EPOCHS, "lr": LR, "hidden": HIDDEN}
    experiment = runner.prepare(
        config.resolve("fedavg", dataset="cora", partition="openfgl_louvain", parties=PARTIES, values=values)
    )
    plain = Plain(experiment.party_data.parts)
    ours = {
        "atoll": lambda: clock(lambda: runner.rounds(experiment), 1)() / rounds,
        "plain PyG": clock(plain.round, max(1, rounds // 5)),
    }
    best = turns(ours, count)
    rows = [_row(name, milliseconds, best["atoll"], "the same parties") for name, milliseconds in best.items()]
    for peer in PEERS:
        answer = measure(peer, named_peers().get(peer.name, {}), rounds)
        if isinstance(answer, str):
            print(answer, file=sys.stderr, flush=True)
        else:
            rows.append(_row(peer.name, answer, best["atoll"], peer.note))
    return rows


def _row(name: str, milliseconds: float, ours: float, note: str) -> dict[str, object]:
    return {"FedAvg on Cora": name, "ms per round": milliseconds, "atoll is faster": f"{milliseconds / ours:.1f} ×", "note": note}


def named_peers() -> dict[str, dict[str, str]]:
    """The programs that the user's file names."""
    path = os.environ.get("ATOLL_PEERS")
    if not path:
        return {}
    try:
        document = tomllib.loads(Path(path).expanduser().read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"ATOLL_PEERS={path} cannot be read ({error}).")
    known = [peer.name for peer in PEERS]
    if unknown := [name for name in document if name not in known]:
        sys.exit(f"ATOLL_PEERS={path} names {unknown[0]!r}; there is {', '.join(known)}.")
    return document


def measure(peer: Peer, said: dict[str, str], rounds: int) -> float | str:
    """Milliseconds per round, or one line on why there are none."""
    if not said and importlib.util.find_spec(peer.module) is None:
        return (
            f"{peer.name} is not installed; name its checkout in a TOML file, ATOLL_PEERS=peers.toml (see benchmarks/peers.py)."
        )
    if not peer.driver and "command" not in said:
        return f"{peer.name} has no option for this work; give a command with {{rounds}} in it (see benchmarks/peers.py)."
    python, folder = said.get("python", sys.executable), str(Path(said.get("folder", ".")).expanduser().resolve())
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))}
    with tempfile.TemporaryDirectory() as scratch:
        if "command" in said:
            return _slope(peer, said["command"], folder, env, rounds)
        ended = subprocess.run(
            [python, "-c", peer.driver, str(rounds), scratch], cwd=scratch, env=env, capture_output=True, text=True, check=False
        )
    lines = [line for line in ended.stdout.splitlines() if line.startswith(REPORT)]
    return float(lines[-1].split()[1]) if lines else _failed(peer, ended)


def _slope(peer: Peer, command: str, folder: str, env: dict[str, str], rounds: int) -> float | str:
    """The difference between N and 2·N rounds of a command, per round."""
    seconds = []
    for number in (rounds, 2 * rounds):
        words = shlex.split(command.replace("{rounds}", str(number)))
        began = time.perf_counter()
        try:
            ended = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"{peer.name} could not be run ({error})."
        seconds.append(time.perf_counter() - began)
        if ended.returncode:
            return _failed(peer, ended)
    return (seconds[1] - seconds[0]) / rounds * 1e3


def _failed(peer: Peer, ended: subprocess.CompletedProcess[str]) -> str:
    last = (ended.stderr.strip().splitlines() or ["it printed no time"])[-1]
    return f"{peer.name} failed (exit code {ended.returncode}): {last}"


if __name__ == "__main__":
    for row in main():
        print(row)
