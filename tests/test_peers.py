"""The benchmark beside other programs: how it calls them, and one line where it cannot. What it measures is not tested."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from benchmarks.peers import FEDERATEDSCOPE, FEDGRAPH, OPENFGL, PEERS, REPORT, Peer, measure, named_peers

TRAINER = """
class FGLTrainer:
    def __init__(self, args):
        assert args.dataset == ["Cora"] and args.num_clients == 10 and args.fl_algorithm == "fedavg"
        self.rounds = args.num_rounds

    def train(self):
        print("rounds", self.rounds)
"""


@pytest.fixture
def openfgl(tmp_path: Path) -> Path:
    """A stand-in for a checkout of OpenFGL."""
    folder = tmp_path / "checkout" / "openfgl"
    (folder / "flcore").mkdir(parents=True)
    for name in ("__init__.py", "flcore/__init__.py"):
        (folder / name).write_text("")
    (folder / "config.py").write_text("import argparse\nargs = argparse.ArgumentParser().parse_args()\n")
    (folder / "flcore" / "trainer.py").write_text(TRAINER)
    return folder.parent


def test_a_checkout_is_timed(openfgl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's file names it; its driver prints the time of a round."""
    (tmp_path / "peers.toml").write_text(f'[OpenFGL]\nfolder = "{openfgl}"\n')
    monkeypatch.setenv("ATOLL_PEERS", str(tmp_path / "peers.toml"))
    answer = measure(PEERS[0], named_peers()["OpenFGL"], 3)
    assert isinstance(answer, float)
    assert 0 <= answer < 1000


def test_any_command_is_timed(tmp_path: Path) -> None:
    """With N and with 2·N rounds."""
    script = "import sys; open('seen', 'a').write(sys.argv[1] + ' ')"
    said = {"folder": str(tmp_path), "command": f'{sys.executable} -c "{script}" {{rounds}}'}
    assert isinstance(measure(Peer("FedGB", "fedgb"), said, 3), float)
    assert (tmp_path / "seen").read_text() == "3 6 "


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({}, "is not installed; name its checkout"),
        ({"folder": "."}, "has no option for this work; give a command"),
        ({"command": "no-such-program {rounds}"}, "could not be run"),
        ({"command": f"{sys.executable} -c 'raise SystemExit(\"out of luck\")'"}, r"failed \(exit code 1\): out of luck"),
    ],
)
def test_one_line_where_there_is_nothing_to_time(said: dict[str, str], sentence: str) -> None:
    """A peer that is missing or fails does not end the benchmark."""
    answer = measure(Peer("Nobody", "no_such_package"), said, 2)
    assert isinstance(answer, str)
    assert re.search(sentence, answer)


def test_a_driver_that_fails_says_why() -> None:
    """The last line of its errors."""
    answer = measure(Peer("Nobody", "no_such_package", "raise ValueError('other version')"), {"folder": "."}, 2)
    assert answer == "Nobody failed (exit code 1): ValueError: other version"


def test_unknown_names_end_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing error in the file is not ignored."""
    (tmp_path / "peers.toml").write_text("[OpenFLG]\n")
    monkeypatch.setenv("ATOLL_PEERS", str(tmp_path / "peers.toml"))
    with pytest.raises(SystemExit, match="names 'OpenFLG'; there is OpenFGL"):
        named_peers()


@pytest.mark.parametrize("driver", [OPENFGL, FEDGRAPH, FEDERATEDSCOPE])
def test_drivers_are_programs(driver: str) -> None:
    """They compile, and report under the name that is looked for."""
    compile(driver, "driver", "exec")
    assert f'print("{REPORT}"' in driver
