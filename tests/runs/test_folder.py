"""A run's folder under damage, full disks, two users at once and strangers' files."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll import storage, wire
from atoll.cli import main
from atoll.errors import AtollError, AtollWarning
from atoll.runs import api, config, runner
from atoll.runs.folder import Folder
from small import small

OWN = "from atoll.algorithms.fedavg import Cohort, Settings, evaluate, start, step\nSCENARIOS = ('horizontal',)\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run of six rounds with a checkpoint after each."""
    path = tmp_path_factory.mktemp("whole") / "run"
    runner.run(small("fedavg", rounds=6, checkpoint_every=1), out=path)
    return path


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["atoll", *arguments])
    try:
        main.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def numbers(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """History, result and checkpoint without clocks and warnings."""
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in Folder(path).rows()]
    result = json.loads((path / "result.json").read_text())
    saved = dict(wire.leaves(storage.read_document(path / "checkpoint.safetensors")["state"]))
    return rows, {name: result[name] for name in ("metrics", "last", "best_round", "rounds", "bytes")}, saved


def assert_same(one: Path, other: Path) -> None:
    """The same numbers, bit for bit."""
    (rows, result, state), (rows2, result2, state2) = numbers(one), numbers(other)
    assert (rows, result) == (rows2, result2)
    assert all(torch.equal(value, state2[name]) for name, value in state.items())


def flip(path: Path, place: int, bit: int = 0) -> None:
    """One bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def test_the_last_two_checkpoints_are_kept(whole: Path) -> None:
    """With consecutive rounds, and each knows its history."""
    last, before = (storage.read_document(whole / name) for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors"))
    assert (last["progress"]["round"], before["progress"]["round"]) == (6, 5)
    lines = (whole / "history.jsonl").read_bytes().splitlines(keepends=True)
    assert (last["history"], before["history"]) == (sum(map(len, lines)), sum(map(len, lines[:5])))


def test_a_flipped_bit_anywhere_never_passes(whole: Path, tmp_path: Path) -> None:
    """Over the whole file, header included: the checkpoint before is used, that is said, and the numbers are the same."""
    size = (whole / "checkpoint.safetensors").stat().st_size
    header = [0, 7, 8, 20, 30, 60, 100, 200]
    for place in [*header, *range(400, size, size // 12), size - 1]:
        run = tmp_path / str(place)
        shutil.copytree(whole, run)
        flip(run / "checkpoint.safetensors", place, place % 8)
        with pytest.warns(
            AtollWarning, match=r"checkpoint\.safetensors is damaged.* continuing from the checkpoint before it, of round 5"
        ):
            result = runner.resume(run)
        assert_same(run, whole)
        (told,) = result.warnings
        assert json.loads((run / "result.json").read_text())["warnings"] == [told]


def test_a_damaged_checkpoint_never_replaces_a_good_one(whole: Path, tmp_path: Path) -> None:
    """After the fall back the good one is the last; damaging the next one again still leaves a good one."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for _ in range(3):
        flip(run / "checkpoint.safetensors", 500)
        with pytest.warns(AtollWarning, match="is damaged"):
            runner.resume(run)
        assert_same(run, whole)


@pytest.mark.filterwarnings("default::atoll.errors.AtollWarning")
def test_the_user_is_told(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """On stderr, in the summary, and on the report's page."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    flip(run / "checkpoint.safetensors", 500)
    assert command(monkeypatch, "resume", str(run), "--quiet") == 0
    seen = capsys.readouterr()
    assert "continuing from the checkpoint before it" in seen.err
    assert "warning" in seen.out
    assert "round 5" in " ".join(seen.out.split())
    assert command(monkeypatch, "report", str(run), "--html", str(tmp_path / "page.html"), "--embeddings", "none") == 0
    assert "continuing from the checkpoint before it, of round 5" in (tmp_path / "page.html").read_text()


def test_both_damaged_is_one_sentence(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Exit code 2, nothing touched."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors"):
        flip(run / name, 500)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert command(monkeypatch, "resume", str(run), "--quiet") == 2
    told = capsys.readouterr().err
    assert told.startswith(f"atoll: Both checkpoints of {run} are damaged")
    assert told.count("\n") == 1
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_flipped_bit_in_the_history_does_not_pass(whole: Path, tmp_path: Path) -> None:
    """In the last round, the checkpoint before does without it; in an earlier one, nobody can."""
    run, early = tmp_path / "run", tmp_path / "early"
    for path in (run, early):
        shutil.copytree(whole, path)
    flip(run / "history.jsonl", (run / "history.jsonl").stat().st_size - 20, 0)
    with pytest.warns(AtollWarning, match=r"history\.jsonl is damaged"):
        runner.resume(run)
    assert_same(run, whole)
    flip(early / "history.jsonl", 15)
    with pytest.raises(AtollError, match=r"history\.jsonl is damaged: it has other bytes"):
        runner.resume(early)


def test_a_crash_between_the_renames_loses_nothing(whole: Path, tmp_path: Path) -> None:
    """The last is the one before already, the new one not there yet: an ordinary resume, without a warning."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "checkpoint.safetensors").unlink()
    (run / ".checkpoint.safetensors.0123456789abcdef.partial").write_bytes(b"half")
    assert runner.resume(run).warnings == []
    assert_same(run, whole)
    assert not list(run.glob(".*"))


def test_a_checkpoint_without_checksum_resumes_with_a_warning(whole: Path, tmp_path: Path) -> None:
    """As an earlier version wrote it: alone, and without a digest of the history."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    document = storage.read_document(run / "checkpoint.previous.safetensors")
    (run / "checkpoint.previous.safetensors").unlink()
    del document["history_digest"], document["warnings"]
    (run / "checkpoint.safetensors").write_bytes(wire.encode(document))
    with pytest.warns(AtollWarning, match="has no checksum: an earlier version wrote it"):
        runner.resume(run)
    assert_same(run, whole)


def test_the_history_is_on_the_disk_before_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of every fsync and rename of a save."""
    folder = Folder.create(tmp_path / "run", small("fedavg"))
    folder.append({"round": 1})
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def sync(handle: int) -> None:
        name = Path(f"/proc/self/fd/{handle}").readlink().name
        calls.append("partial" if name.endswith(".partial") else name)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", lambda self, to: (calls.append(f"→ {to.name}"), replace(self, to))[1])
    folder.save({"progress": {}, "ledger": {}})
    folder.save({"progress": {}, "ledger": {}})
    first = ["history.jsonl", "run", "partial", "→ checkpoint.safetensors", "run"]
    assert calls == [*first, *first[:3], "→ checkpoint.previous.safetensors", *first[3:]]


# two at once


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that uses a folder."""
    script = (
        "import sys; from pathlib import Path; from atoll.storage import Lock\n"
        "Lock(Path(sys.argv[1]), 'It').acquire(); print('locked', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        assert child.stdout.readline() == "locked\n"
        yield child
        child.send_signal(signal.SIGKILL)
        child.wait()


def test_a_run_in_use_is_neither_resumed_nor_begun(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Exit code 2 and one sentence that names the process; a report reads it all the same; a killed process locks nobody out."""
    run, fresh = tmp_path / "run", tmp_path / "fresh"
    shutil.copytree(whole, run)
    (run / "result.json").unlink()
    fresh.mkdir()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with holding(run) as child, holding(fresh) as other:
        assert command(monkeypatch, "resume", str(run), "--quiet") == 2
        assert capsys.readouterr().err.startswith(f"atoll: The run {run} is in use by process {child.pid} on ")
        with pytest.raises(AtollError, match=f"in use by process {other.pid} on"):
            runner.run(small("fedavg"), out=fresh)
        assert not (fresh / "config.toml").exists()
        assert command(monkeypatch, "report", str(run), "--html", str(tmp_path / "page.html"), "--embeddings", "none") == 0
    (run / storage.LOCK).unlink()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    runner.resume(run)
    assert_same(run, whole)


def test_two_resumes_at_once(whole: Path, tmp_path: Path) -> None:
    """The second comes while the first is in the middle of a round."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.copy(run / "checkpoint.previous.safetensors", run / "checkpoint.safetensors")
    refused = []

    def second(row: dict[str, Any], rounds: int) -> None:
        with pytest.raises(AtollError, match=f"in use by process {os.getpid()}") as told:
            runner.resume(run)
        refused.append(told)

    runner.resume(run, watch=second)
    assert len(refused) == 1
    assert_same(run, whole)


def test_a_new_run_does_not_take_back_the_folder_of_another(tmp_path: Path) -> None:
    """Two `run --out` of one name: the second is refused and removes nothing of the first's."""
    config, seen = small("fedavg"), []

    def second(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == rounds:
            return  # its checkpoint is there
        for name in ("config.toml", "history.jsonl"):
            (tmp_path / "run" / name).rename(tmp_path / name)
        with pytest.raises(AtollError, match="in use by process"):
            runner.run(config, out=tmp_path / "run")
        for name in ("config.toml", "history.jsonl"):
            (tmp_path / name).rename(tmp_path / "run" / name)
        seen.append(row)

    runner.run(config, out=tmp_path / "run", watch=second)
    assert len(seen) == 2


# full disks


def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_remains(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """At the history, at the checkpoint, at the result: exit code 2; with room again the run ends with the same bits."""
    write, room = os.write, [0]

    def limited(handle: int, data: Any) -> int:
        if "/run" in os.readlink(f"/proc/self/fd/{handle}"):  # noqa: PTH115
            if room[0] <= 0:
                raise OSError(28, os.strerror(28))
            data = data[: room[0]]
            room[0] -= len(data)
        return write(handle, data)

    document = tmp_path / "config.toml"
    shutil.copy(whole / "config.toml", document)
    full = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    size = (whole / "checkpoint.safetensors").stat().st_size
    for number, bytes_left in enumerate((10, 1800, 3000, size + 2000, 2 * size, 3 * size + 2000, 5 * size, full * 3)):
        run = tmp_path / f"run-{number}"
        room[0] = bytes_left
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", limited)
            code = command(patch, "run", str(document), "--out", str(run), "--quiet")
        told = capsys.readouterr().err
        if code:
            assert (code, told.count("\n")) == (2, 1), told
            assert "No space left on device" in told
            assert not list(run.glob(".*"))
        if (run / "config.toml").exists():
            runner.resume(run)
            assert_same(run, whole)
        else:
            assert not run.exists()


# strangers' folders


@pytest.fixture
def stranger(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run from a stranger: a finished FedAvg, but its configuration names a file that leaves a trace when imported."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, tmp_path / "run")
    evil = f"from pathlib import Path\nPath({str(tmp_path / 'trace')!r}).write_text('was here')\n" + OWN
    for place in (tmp_path / "run" / "evil.py", tmp_path / "evil.py"):
        place.write_text(evil)
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["{run}/evil.py", "run/evil.py", "evil.py", "./run/../evil.py"])
def test_nothing_of_a_strangers_folder_is_run(stranger: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Neither by a report, nor by a comparison, nor by reading it, nor by a resume that does not name the file."""
    source = stranger / "config.toml"
    path = name.format(run=stranger)
    source.write_text(source.read_text().replace('algorithm = "fedavg"', f'algorithm = "{path}"'))
    document = storage.read_document(stranger / "checkpoint.safetensors")
    digest = hashlib.sha256((stranger / "evil.py").read_bytes()).hexdigest()
    storage.write_document(stranger / "checkpoint.safetensors", document | {"algorithm_sha256": digest})
    assert command(monkeypatch, "report", str(stranger), "--html", "page.html") == 0
    assert "which is not run because a folder names it" in Path("page.html").read_text()
    assert command(monkeypatch, "resume", str(stranger), "--quiet") == 2
    told = capsys.readouterr().err
    assert f"atoll resume {stranger} --algorithm {path}" in told
    (stranger.parent / "out").mkdir()
    shutil.copytree(stranger, stranger.parent / "out" / "fedavg-0")
    assert command(monkeypatch, "compare", "fedavg", "--seeds", "1", "--out", "out", "--quiet") == 2
    assert "holds a run with other settings" in capsys.readouterr().err
    assert runner.read(stranger).config.algorithm == path
    with pytest.raises(AtollError, match="is not run because a folder names it"):
        runner.prepare(runner.read(stranger).config)
    with pytest.raises(AtollError, match="is not run because a folder names it"):
        api.resume(stranger)
    assert not (stranger.parent / "trace").exists()


def test_settings_with_strange_names_are_refused(stranger: Path) -> None:
    """They are shown, never made part of a program."""
    source = stranger / "config.toml"
    text = source.read_text().replace('algorithm = "fedavg"', 'algorithm = "evil.py"')
    for name in ('"__init__"', '"a b"', '"lambda"', '"x=print(1)"'):
        source.write_text(text.replace("[settings]", f"[settings]\n{name} = 1"))
        with pytest.raises(AtollError, match="a name that no setting has"):
            Folder.open(stranger)


def test_an_own_algorithm_is_resumed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The same file goes on, wherever it lies; a changed one, or its cached form, does not."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    options = {"dataset": "csbm", "partition": "random", "parties": 2, "nodes": 60, "rounds": 4, "checkpoint_every": 1}
    atoll.run("own.py", **options, out="whole")
    shutil.copytree("whole", "run")
    shutil.copy("run/checkpoint.previous.safetensors", "run/checkpoint.safetensors")
    assert command(monkeypatch, "resume", "run", "--quiet") == 2
    assert "say so: atoll resume run --algorithm own.py" in capsys.readouterr().err
    shutil.copy("own.py", "moved.py")
    assert command(monkeypatch, "resume", "run", "--algorithm", "moved.py", "--quiet") == 0
    assert_same(Path("run"), Path("whole"))
    assert len(json.loads(Path("run/result.json").read_text())["algorithm_sha256"]) == 64
    Path("changed.py").write_text(OWN + "# one line more\n")
    with pytest.raises(AtollError, match=r"changed\.py is not the file that run was begun with"):
        atoll.resume("run", algorithm="changed.py")
    with pytest.raises(AtollError, match="There is no algorithm in"):
        atoll.resume("run", algorithm="gone.py")
    assert command(monkeypatch, "report", "run", "--html", "page.html", "--embeddings", "none") == 0


def test_a_builtin_algorithm_is_not_replaced_by_name(whole: Path, tmp_path: Path) -> None:
    """`--algorithm` names what the run is of; it does not change it."""
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(AtollError, match=r"is a run of fedavg, not of .*own\.py; leave --algorithm out"):
        runner.resume(tmp_path / "run", algorithm=tmp_path / "own.py")
    runner.resume(tmp_path / "run", algorithm="fedavg")


MODEL_TABLES = [  # where a configuration might name a model; only what the caller says may be imported
    '[settings]\nmodel = "{evil}"\n',
    '[settings]\nmodel = "{evil}:Net"\n',
    '[settings_settings]\nmodel = "{evil}"\n',
    '[settings_settings]\nmodel = "{evil}:Net"\n',
    '[settings_settings_settings]\nmodel = "{evil}"\n',
    '[fedavg]\nmodel = "{evil}"\n',
    '[run_settings]\nmodel = "{evil}"\n',
    '[model]\nmodel = "{evil}"\n',
]


@pytest.mark.parametrize("table", MODEL_TABLES)
@pytest.mark.parametrize("through", ["read", "report", "resume", "run"])
def test_a_model_file_that_a_folder_names_is_not_imported(
    table: str, through: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever table of config.toml names it, and whatever is done with the folder."""
    evil = tmp_path / "evil.py"
    evil.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'trace')!r}).write_text('was here')\n")
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    source = folder / "config.toml"
    lines = [line for line in source.read_text().splitlines() if not line.startswith("model = ")]
    added = table.format(evil=evil)
    if added.startswith("[settings]"):
        lines.insert(lines.index("[settings]") + 1, added.splitlines()[1])
    else:
        lines += added.splitlines()
    source.write_text("\n".join(lines) + "\n")
    with contextlib.suppress(AtollError):
        if through == "read":
            atoll.read(folder)
        elif through == "report":
            assert command(monkeypatch, "report", str(folder), "--html", str(tmp_path / "page.html")) in (0, 2)
        elif through == "resume":
            atoll.resume(folder)
        else:
            config.from_dict(tomllib.loads(source.read_text()), str(source))
    assert not (tmp_path / "trace").exists()


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    """It is left as it is."""
    (tmp_path / "run").write_text("mine")
    with pytest.raises(AtollError, match="is a file, and a run needs a folder; choose another --out"):
        Folder.create(tmp_path / "run", small("fedavg"))
    assert (tmp_path / "run").read_text() == "mine"
