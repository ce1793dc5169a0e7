"""Files that survive a crash, a full disk, planted links and two users at once."""

import errno
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import storage, wire
from atoll.errors import AtollError, AtollWarning

DOCUMENT = {
    "book": {"round": 3, "best": {"accuracy": 0.5}},
    "state": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor([1, 2])},
    "shared": torch.ones(1, 4).expand(5, 4),
}


def inside(folder: Path) -> list[str]:
    """The names in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_a_document_comes_back_and_is_plain_safetensors(tmp_path: Path) -> None:
    """What was written is read, and any safetensors reader reads it too."""
    path = tmp_path / "a.safetensors"
    storage.write_document(path, DOCUMENT, compact=True)
    again = storage.read_document(path)
    assert again["book"] == DOCUMENT["book"]
    assert torch.equal(again["state"]["w"], DOCUMENT["state"]["w"])
    assert again["shared"].shape == (5, 4)
    assert torch.equal(safetensors.torch.load_file(path)["state/n"], torch.tensor([1, 2]))
    assert inside(tmp_path) == ["a.safetensors"]


def test_the_checksum_is_sha256_of_all_other_bytes(tmp_path: Path) -> None:
    """The naive rule: take the entry out of the file's text, hash the rest with the digits left out."""
    path = tmp_path / "a.safetensors"
    storage.write_document(path, DOCUMENT)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    told = json.loads(data[8 : 8 + length])["__metadata__"]["checksum"]
    before, after = data.split(told.encode())
    assert hashlib.sha256(before + after.removeprefix(b'", ')).hexdigest() == told
    assert (8 + length) % 8 == 0, "the tensors stay aligned"


def test_no_flipped_bit_passes(tmp_path: Path) -> None:
    """A bit of every byte, and the one that changes a letter's case, header and checksum included."""
    path = tmp_path / "a.safetensors"
    storage.write_document(path, DOCUMENT)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in {5, place % 8}:
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            with pytest.raises(storage.DamagedError, match="is damaged"):  # nor does it pass, with a warning, as an old file
                storage.read_document(path)


@given(st.integers(0, 2000), st.binary(max_size=40))
def test_no_cut_or_overwritten_stretch_passes(tmp_path_factory: pytest.TempPathFactory, start: int, patch: bytes) -> None:
    """A file that ends early, or in which a stretch is something else."""
    path = tmp_path_factory.mktemp("cut") / "a.safetensors"
    storage.write_document(path, DOCUMENT)
    whole = path.read_bytes()
    start %= len(whole)
    other = whole[:start] + patch + (whole[start + len(patch) :] if patch else b"")
    if other != whole:
        path.write_bytes(other)
        with pytest.raises(storage.DamagedError):
            storage.read_document(path)


def test_a_document_without_checksum_is_read_with_a_warning(tmp_path: Path) -> None:
    """As an earlier version wrote it."""
    path = tmp_path / "old.safetensors"
    path.write_bytes(wire.encode(DOCUMENT))
    with pytest.warns(AtollWarning, match="old.safetensors has no checksum"):
        assert storage.read_document(path)["book"]["round"] == 3


def test_planted_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link at the target is replaced; one at the partial's name, were it guessed, stops the write; none is written through."""
    victim, path = tmp_path / "victim", tmp_path / "folder" / "file"
    path.parent.mkdir()
    victim.write_text("mine")
    path.symlink_to(victim)
    storage.write_whole(path, b"new")
    assert (victim.read_text(), path.is_symlink(), path.read_bytes()) == ("mine", False, b"new")
    monkeypatch.setattr(storage.secrets, "token_hex", lambda _: "guessed")
    for planted in (".file.guessed.partial", ".file.partial"):
        (path.parent / planted).symlink_to(victim)
    with pytest.raises(AtollError, match="cannot be written"):
        storage.write_whole(path, b"newer")
    assert (victim.read_text(), path.read_bytes()) == ("mine", b"new")


def test_a_link_is_not_appended_through(tmp_path: Path) -> None:
    """Nor is a log or a lock that somebody made a link of."""
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    (tmp_path / "log").symlink_to(victim)
    (tmp_path / storage.LOCK).symlink_to(victim)
    with pytest.raises(AtollError, match="cannot be written"):
        storage.append_line(tmp_path / "log", "yours")
    with pytest.raises(AtollError, match="cannot be written"), storage.Lock(tmp_path, "It"):
        pass
    assert victim.read_text() == "mine\n"


def test_the_bytes_are_on_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the calls: file, rename, folder."""
    calls = []
    fsync, replace = os.fsync, Path.replace

    def sync(handle: int) -> None:
        calls.append(Path(f"/proc/self/fd/{handle}").readlink().name.rpartition(".")[2])
        fsync(handle)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", lambda self, to: (calls.append("rename"), replace(self, to))[1])
    storage.write_whole(tmp_path / "a", b"x")
    assert calls == ["partial", "rename", tmp_path.name]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_refused_write_is_one_sentence_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Half of it goes through, then the disk is full."""
    path, log = tmp_path / "a", tmp_path / "log"
    storage.write_whole(path, b"old")
    storage.append_line(log, "old")
    write = os.write

    def faulty(handle: int, data: bytes) -> int:
        if len(data) <= 2:
            raise OSError(code, os.strerror(code))
        return write(handle, data[:2])

    monkeypatch.setattr(os, "write", faulty)
    for attempt in (lambda: storage.write_whole(path, b"newer"), lambda: storage.append_line(log, "newer")):
        with pytest.raises(AtollError, match=os.strerror(code)) as told:
            attempt()
        assert str(told.value).count("\n") == 0
    assert (path.read_bytes(), log.read_text()) == (b"old", "old\n")
    assert inside(tmp_path) == ["a", "log"]


def test_a_file_that_may_not_grow_is_one_sentence(tmp_path: Path) -> None:
    """The system's own refusal, not a mock's: a limit on the size of files."""
    script = (
        "import resource, sys; from pathlib import Path; from atoll import storage; from atoll.errors import AtollError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: storage.write_whole(Path(sys.argv[1]), b'x' * 5000)\n"
        "except AtollError as error: print(error)"
    )
    assert resource.RLIMIT_FSIZE
    (tmp_path / "a").write_text("old")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], capture_output=True, text=True, check=True)
    assert "cannot be written (File too large); make room there" in done.stdout
    assert ((tmp_path / "a").read_text(), inside(tmp_path)) == ("old", ["a"])


def test_lines_are_whole(tmp_path: Path) -> None:
    """A line that a crash cut off goes; whole ones stay."""
    log = tmp_path / "log"
    storage.append_line(log, "one")
    with log.open("a") as file:
        file.write('{"tw')
    storage.append_line(log, "three")
    assert log.read_text() == "one\nthree\n"
    with pytest.raises(ValueError, match="line break"):
        storage.append_line(log, "four\nfive")


def test_a_lock_is_for_one(tmp_path: Path) -> None:
    """The second hears who has it; afterwards nothing is left."""
    with storage.Lock(tmp_path, "The run x"):
        with pytest.raises(AtollError, match=rf"^The run x is in use by process {os.getpid()} on \S+; wait"):
            storage.Lock(tmp_path, "The run x").acquire()
        assert inside(tmp_path) == [storage.LOCK]
    assert inside(tmp_path) == []
    with storage.Lock(tmp_path, "The run x"):
        pass


def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    """SIGKILL leaves the file, and the file alone stops nobody."""
    script = (
        "import sys; from pathlib import Path; from atoll.storage import Lock\n"
        "Lock(Path(sys.argv[1]), 'It').acquire(); print('locked', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(AtollError, match=f"in use by process {child.pid} on"):
            storage.Lock(tmp_path, "It").acquire()
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert (tmp_path / storage.LOCK).exists()
    with storage.Lock(tmp_path, "It"):
        pass


def test_a_lock_whose_file_was_just_removed_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it, the one before may remove it: such a lock would protect nothing."""
    flock, removed = storage.fcntl.flock, []

    def late(handle: int, how: int) -> None:
        flock(handle, how)
        if not removed:
            removed.append((tmp_path / storage.LOCK).unlink())

    monkeypatch.setattr(storage.fcntl, "flock", late)
    lock = storage.Lock(tmp_path, "It")
    with lock:
        assert lock.handle is not None
        assert os.path.samestat(os.fstat(lock.handle), (tmp_path / storage.LOCK).stat())


def test_partial_files_of_the_killed_are_swept(tmp_path: Path) -> None:
    """And only those."""
    for name in (".a.0123.partial", "a", ".hidden"):
        (tmp_path / name).write_text("")
    storage.sweep(tmp_path)
    assert inside(tmp_path) == [".hidden", "a"]
