"""Planetoid's pickles are read without unpickling: the same numbers, and forged files are refused."""

import os
import pickle
import pickletools
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from atoll.data import load, planetoid
from atoll.data.catalog import catalog
from atoll.errors import AtollError

DATA = Path(os.environ.get("ATOLL_DATA", ""))
FILES = sorted(path for path in DATA.glob("*/raw/ind.*") if path.suffix != ".index") if os.environ.get("ATOLL_DATA") else []


@pytest.mark.skipif(not FILES, reason="no Planetoid files")
@pytest.mark.filterwarnings("ignore")
def test_the_files_say_what_unpickling_says() -> None:
    """All 21 of Cora, CiteSeer and PubMed, beside Python's own unpickling of these (trusted) copies."""
    for path in FILES:
        found, naive = planetoid.read(path), pickle.loads(path.read_bytes(), encoding="latin1")
        if isinstance(found, dict):
            assert found == dict(naive), path
        elif isinstance(found, np.ndarray):
            assert found.dtype == naive.dtype
            assert np.array_equal(found, naive), path
        else:
            assert (found.shape, found.dtype) == (naive.shape, naive.dtype)
            assert (found != naive).nnz == 0, path


# files of the old form, from parts


def text(value: bytes) -> bytes:
    """A byte string."""
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<I", len(value)) + value


def number(value: int) -> bytes:
    """An integer."""
    return b"J" + struct.pack("<i", value)


def name(module: str, thing: str) -> bytes:
    """A global."""
    return f"c{module}\n{thing}\n".encode()


def order(sign: bytes, flags: int = 0) -> bytes:
    """A dtype's state."""
    return b"(" + number(3) + text(sign) + b"NNN" + number(-1) * 2 + number(flags) + b"tb"


def dtype(code: bytes = b"i4", state: bytes | None = None) -> bytes:
    """A dtype with its byte order."""
    return name("numpy", "dtype") + text(code) + number(0) + number(1) + b"\x87R" + (order(b"<") if state is None else state)


def empty(kind: bytes, size: int = 0, code: bytes = b"b") -> bytes:
    """An array as it is made before it has its state."""
    return name("numpy.core.multiarray", "_reconstruct") + kind + number(size) + b"\x85" + text(code) + b"\x87R"


NDARRAY = name("numpy", "ndarray")


def array(data: bytes, shape: bytes, kind: bytes | None = None) -> bytes:
    """An array with its state."""
    return empty(NDARRAY) + b"(" + number(1) + shape + (dtype() if kind is None else kind) + b"\x89" + text(data) + b"tb"


def vector(values: list[int]) -> bytes:
    """An array of 32-bit integers."""
    return array(np.array(values, "<i4").tobytes(), number(len(values)) + b"\x85")


def matrix(shape: tuple[int, int], data: bytes, indices: bytes, indptr: bytes) -> bytes:
    """A CSR matrix with its state."""
    state = text(b"_shape") + number(shape[0]) + number(shape[1]) + b"\x86"
    state += text(b"data") + data + text(b"indices") + indices + text(b"indptr") + indptr
    return name("scipy.sparse.csr", "csr_matrix") + b")\x81}(" + state + b"ub"


def file(content: bytes) -> bytes:
    """A whole file."""
    return b"\x80\x02" + content + b"."


def lists(content: bytes) -> bytes:
    """A defaultdict of lists."""
    return name("collections", "defaultdict") + name("__builtin__", "list") + b"\x85R(" + content + b"u"


def test_the_parts_make_a_file(tmp_path: Path) -> None:
    """What the forgeries below are made of is read as it should be."""
    path = tmp_path / "ind.cora.x"
    path.write_bytes(file(matrix((2, 3), vector([1, 2]), vector([0, 2]), vector([0, 1, 2]))))
    assert planetoid.read(path).toarray().tolist() == [[1, 0, 0], [0, 0, 2]]  # type: ignore[union-attr]
    path.write_bytes(file(lists(number(0) + b"](" + number(1) + number(2) + b"e" + number(1) + b"]" + number(0) + b"a")))
    assert planetoid.read(path) == {0: [1, 2], 1: [0]}
    path.write_bytes(file(array(np.arange(6, dtype="<i4").tobytes(), number(2) + number(3) + b"\x86")))
    assert planetoid.read(path).tolist() == [[0, 1, 2], [3, 4, 5]]  # type: ignore[union-attr]


GOOD = vector([0, 1, 2])
FORGED = {
    "object array": array(b"\x41" * 8, number(1) + b"\x85", dtype(b"O8")),
    "void dtype": array(b"\x41" * 8, number(1) + b"\x85", dtype(b"V8")),
    "dtype with fields": array(b"\x41" * 8, number(1) + b"\x85", dtype(b"i4", b"(" + number(3) + text(b"<") + b"N}N" + b"tb")),
    "big endian": array(b"\x41" * 4, number(1) + b"\x85", dtype(b"i4", order(b">"))),
    "dtype without order": array(b"\x41" * 4, number(1) + b"\x85", dtype(b"i4", b"")),
    "dtype is a number": array(b"\x41" * 4, number(1) + b"\x85", number(4)),
    "too few bytes": array(b"\x00" * 4, number(1000) + b"\x85"),
    "too many bytes": array(b"\x00" * 400, number(1) + b"\x85"),
    "negative shape": array(b"", number(-1) + b"\x85"),
    "huge shape": array(b"", number(2**31 - 1) + number(2**31 - 1) + b"\x86"),
    "shape of text": array(b"", text(b"x") + b"\x85"),
    "built twice": GOOD + b"(" + number(1) + number(3) + b"\x85" + dtype() + b"\x89" + text(b"\x00" * 12) + b"tb",
    "array without state": empty(NDARRAY),
    "indptr beyond the data": matrix((2, 3), vector([1, 2]), vector([0, 2]), vector([0, 1, 2**30])),
    "indptr downwards": matrix((3, 3), vector([1, 2]), vector([0, 2]), vector([0, 5, 1, 2])),
    "index out of range": matrix((2, 3), vector([1, 2]), vector([0, 2**30]), vector([0, 1, 2])),
    "negative index": matrix((2, 3), vector([1, 2]), vector([0, -5]), vector([0, 1, 2])),
    "data too short": matrix((2, 3), vector([1]), vector([0, 2]), vector([0, 1, 2])),
    "rows without indptr": matrix((2**30, 3), vector([1, 2]), vector([0, 2]), vector([0, 1, 2])),
    "matrix of lists": matrix((2, 3), b"]", b"]", b"]"),
    "matrix of itself": name("scipy.sparse.csr", "csr_matrix") + b")\x81q\x01}(" + text(b"data") + b"h\x01ub",
    "list of itself": lists(number(0) + b"]q\x01h\x01a"),
    "dictionary of itself": lists(number(0) + b"}q\x01(" + number(1) + b"h\x01u"),
    "lists of text": lists(number(0) + b"]" + text(b"x") + b"a"),
    "system": name("os", "system") + text(b"touch ran") + b"\x85R",
    "eval by another name": name("__builtin__", "eval") + text(b"1") + b"\x85R",
    "list called": name("__builtin__", "list") + b")R",
    "ndarray called": name("numpy", "ndarray") + number(5) + b"\x85\x85R",
    "reconstruct something else": empty(name("__builtin__", "list")),
    "reconstruct a size": empty(NDARRAY, 2**31 - 1, b"O"),
    "state of a number": number(1) + number(2) + b"b",
    "memo that is not there": b"h\x07",
    "mark as a value": b"(q\x01h\x01",
    "popped too often": b"\x87",
    "extension": b"\x82\x01",
    "persistent": b"Pid\n",
    "nothing": b"",
    "text only": text(b"hello"),
    "length beyond the end": b"T" + struct.pack("<I", 2**32 - 1) + b"x",
}  # fmt: skip


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_file_is_one_sentence(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of any of the files; nothing is called, nothing crashes, the sentence names the file."""
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Cora" / "raw").mkdir(parents=True)
    for each in catalog()["cora"].files:
        (tmp_path / "Cora" / "raw" / each).write_bytes(file(FORGED[kind]))
    with pytest.raises(AtollError, match=r"The raw files of cora in .* cannot be read \(RefusedError: ind\.cora\.tx: ") as told:
        load("cora")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "ran").exists()


@given(st.data())
def test_no_mangled_file_crashes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any bytes put anywhere into a good file: it is read or refused, in this process."""
    good = file(matrix((2, 3), vector([1, 2]), vector([0, 2]), vector([0, 1, 2])))
    start = data.draw(st.integers(0, len(good)))
    patch = data.draw(st.one_of(st.binary(max_size=6), st.sampled_from([bytes([ord(op.code)]) for op in pickletools.opcodes])))
    path = tmp_path_factory.mktemp("mangled") / "ind.cora.x"
    path.write_bytes(good[:start] + patch + good[start + data.draw(st.integers(0, len(patch))) :])
    try:
        found = planetoid.read(path)
    except planetoid.RefusedError:
        return
    assert isinstance(found, (np.ndarray, sp.csr_array, dict))
    if isinstance(found, sp.csr_array):
        found.check_format(full_check=True)


@pytest.mark.skipif(not FILES, reason="no Planetoid files")
@pytest.mark.parametrize("mixed", ["y", "ty", "tx", "test.index", "graph"])
def test_files_of_two_datasets_are_not_mixed(mixed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each whole by itself, but not of one graph."""
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    shutil.copytree(DATA / "Cora", tmp_path / "Cora")
    shutil.copy(DATA / "PubMed" / "raw" / f"ind.pubmed.{mixed}", tmp_path / "Cora" / "raw" / f"ind.cora.{mixed}")
    if mixed == "y":  # of PubMed there are fewer, which would do: too many do not
        shutil.copy(DATA / "Cora" / "raw" / "ind.cora.ally", tmp_path / "Cora" / "raw" / "ind.cora.y")
    with pytest.raises(AtollError, match=r"not of one dataset|a node that does not exist"):
        load("cora")


def test_the_old_way_crashed(tmp_path: Path) -> None:
    """Why nothing is unpickled: with only the right names, an object array of made-up pointers ends Python itself."""
    forged = tmp_path / "forged"
    forged.write_bytes(file(array(b"\x41" * 8, number(1) + b"\x85", dtype(b"O8", order(b"|", 63)))))
    script = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'), encoding='latin1'))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(forged)], capture_output=True, check=False)
    assert done.returncode != 0
    with pytest.raises(planetoid.RefusedError, match="only i4, i8, f4, f8 are allowed"):
        planetoid.read(forged)
