"""The Planetoid files of 2016 (`ind.cora.x` …) read without unpickling.

They are pickles of protocol 2, each of a NumPy array, a SciPy CSR matrix or a dictionary of lists. `read` interprets only the
opcodes that they consist of and builds arrays from their bytes itself: nothing that a file names is ever imported or called,
and anything that is not exactly such a file is refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

DTYPES = ("i4", "i8", "f4", "f8")
AdjacencyLists = dict[int, list[int]]


class PickledName(NamedTuple):
    """A Python object that a file names."""

    name: str


RECONSTRUCT = PickledName("numpy.core.multiarray _reconstruct")
NDARRAY, DTYPE, CSR = PickledName("numpy ndarray"), PickledName("numpy dtype"), PickledName("scipy.sparse.csr csr_matrix")
DEFAULTDICT, LIST = PickledName("collections defaultdict"), PickledName("__builtin__ list")
NAMES = {name.name: name for name in (RECONSTRUCT, NDARRAY, DTYPE, CSR, DEFAULTDICT, LIST)}
LITTLE_ENDIAN = (3, b"<", None, None, None, -1, -1, 0)  # the state of a plain dtype


@dataclass
class PickledDtype:
    """A dtype, complete once its byte order is set."""

    code: str
    ordered: bool = False


@dataclass
class PickledArray:
    """An array, complete once its state is set."""

    values: NDArray[Any] | None = None


@dataclass
class PickledMatrix:
    """A CSR matrix, complete once its state is set."""

    state: dict[bytes, Any] = field(default_factory=dict)


MARK = PickledName("(mark)")


class RefusedError(ValueError):
    """The file is not one of Planetoid's."""


def read(path: Path) -> NDArray[Any] | sp.csr_array | AdjacencyLists:
    """The array, matrix or adjacency lists in a file."""
    try:
        return _Reader(path.read_bytes()).run()
    except RefusedError as error:
        raise RefusedError(f"{path.name}: {error}") from None
    except (struct.error, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise RefusedError(f"{path.name}: it is truncated or out of order ({type(error).__name__})") from None


class _Reader:
    """Interprets a pickle with a stack of plain values."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> NDArray[Any] | sp.csr_array | AdjacencyLists:
        """Interpret the file; the value left on the stack is the result."""
        if self._take(2) != b"\x80\x02":
            raise RefusedError("it is not a pickle of protocol 2")
        while (code := self._take(1)) != b".":
            self._step(code)
        if len(self.stack) != 1 or self.position != len(self.data):
            raise RefusedError("it does not end where it should")
        (result,) = self.stack
        if isinstance(result, PickledArray) and result.values is not None:
            return result.values
        if isinstance(result, PickledMatrix):
            return _matrix(result.state)
        if isinstance(result, dict) and all(type(key) is int and type(item) is list for key, item in result.items()):
            return result
        raise RefusedError("it holds neither an array nor a matrix nor lists of neighbors")

    def _take(self, count: int) -> bytes:
        piece = self.data[self.position : self.position + count]
        if len(piece) < count:
            raise RefusedError("it is truncated")
        self.position += count
        return piece

    def _line(self) -> str:
        end = self.data.index(b"\n", self.position, self.position + 100)
        piece = self.data[self.position : end]
        self.position = end + 1
        return piece.decode("ascii")

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _pop(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count or any(item is MARK for item in self.stack[len(self.stack) - count :]):
            raise RefusedError("it is out of order")
        taken = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        return taken

    def _marked(self) -> tuple[Any, ...]:
        """Everything above the last mark."""
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is MARK:
                taken = tuple(self.stack[index + 1 :])
                del self.stack[index:]
                return taken
        raise RefusedError("it is out of order")

    def _step(self, code: bytes) -> None:
        push = self.stack.append
        match code:
            case b"(":
                push(MARK)
            case b"N":
                push(None)
            case b"\x88" | b"\x89":
                push(code == b"\x88")
            case b"K":
                push(self._number("<B"))
            case b"M":
                push(self._number("<H"))
            case b"J":
                push(self._number("<i"))
            case b"U":
                push(self._take(self._number("<B")))
            case b"T":
                push(self._take(self._number("<I")))
            case b")":
                push(())
            case b"\x85" | b"\x86" | b"\x87":
                push(self._pop(code[0] - 0x84))
            case b"t":
                push(self._marked())
            case b"]":
                push([])
            case b"}":
                push({})
            case b"q" | b"r":
                number, (top,) = self._number("<B" if code == b"q" else "<I"), self._pop(1)
                self.memo[number] = top
                push(top)
            case b"h":
                push(self.memo[self._number("<B")])
            case b"j":
                push(self.memo[self._number("<I")])
            case b"c":
                push(self._named())
            case b"a":
                self._extend(*self._pop(1))
            case b"e":
                self._extend(*self._marked())
            case b"u":
                self._update(self._marked())
            case b"R":
                push(_call(*self._pop(2)))
            case b"\x81":
                if self._pop(2) != (CSR, ()):
                    raise RefusedError("it makes an object that does not belong in a dataset")
                push(PickledMatrix())
            case b"b":
                owner, state = self._pop(2)
                push(owner)
                _build(owner, state)
            case _:
                raise RefusedError(f"it has an opcode {code!r} that Planetoid files do not have")

    def _named(self) -> PickledName:
        name = f"{self._line()} {self._line()}"
        if name not in NAMES:
            raise RefusedError(f"it names {name!r}, which does not belong in a dataset")
        return NAMES[name]

    def _extend(self, *items: Any) -> None:
        (owner,) = self._pop(1)
        if type(owner) is not list or not all(type(item) is int for item in items):
            raise RefusedError("a list holds something other than whole numbers")
        owner.extend(items)
        self.stack.append(owner)

    def _update(self, items: tuple[Any, ...]) -> None:
        (owner,) = self._pop(1)
        if type(owner) is not dict or len(items) % 2 or not all(type(key) in (int, bytes) for key in items[::2]):
            raise RefusedError("a dictionary is out of order")
        owner.update(zip(items[::2], items[1::2], strict=True))
        self.stack.append(owner)


def _call(function: Any, arguments: Any) -> Any:
    """The results of the calls in these files."""
    if function == RECONSTRUCT and arguments == (NDARRAY, (0,), b"b"):
        return PickledArray()
    if function == DEFAULTDICT and arguments == (LIST,):
        return {}
    if function == DTYPE and isinstance(arguments, tuple) and len(arguments) == 3 and arguments[1:] == (0, 1):
        code = arguments[0].decode("ascii", "replace") if isinstance(arguments[0], bytes) else ""
        if code in DTYPES:
            return PickledDtype(code)
        raise RefusedError(f"it has an array of {code or 'no'!r} numbers; only {', '.join(DTYPES)} are allowed")
    raise RefusedError("it calls something that does not belong in a dataset")


def _build(owner: Any, state: Any) -> None:
    """Give an array, dtype or matrix its state, once."""
    if isinstance(owner, PickledDtype) and not owner.ordered and state == LITTLE_ENDIAN:
        owner.ordered = True
    elif isinstance(owner, PickledArray) and owner.values is None and isinstance(state, tuple) and len(state) == 5:
        owner.values = _array(*state)
    elif isinstance(owner, PickledMatrix) and not owner.state and type(state) is dict:
        owner.state = dict(state)
    else:
        raise RefusedError("an object's state does not fit its kind")


def _array(version: Any, shape: Any, dtype: Any, columns_first: Any, data: Any) -> NDArray[Any]:
    valid_shape = isinstance(shape, tuple) and 1 <= len(shape) <= 2 and all(type(size) is int and size >= 0 for size in shape)
    if (
        version != 1
        or not valid_shape
        or not isinstance(dtype, PickledDtype)
        or not dtype.ordered
        or type(columns_first) is not bool
    ):
        raise RefusedError("an array's description is out of order")
    kind = np.dtype(f"<{dtype.code}")
    if type(data) is not bytes or len(data) != prod(shape) * kind.itemsize:
        raise RefusedError("an array has more or fewer bytes than its shape says")
    return np.frombuffer(data, kind).reshape(shape, order="F" if columns_first else "C")


def _matrix(state: dict[bytes, Any]) -> sp.csr_array:
    parts = [state.get(name) for name in (b"data", b"indices", b"indptr")]
    shape = state.get(b"_shape")
    arrays = [
        part.values for part in parts if isinstance(part, PickledArray) and part.values is not None and part.values.ndim == 1
    ]
    if len(arrays) != 3 or any(array.dtype.kind != "i" for array in arrays[1:]):
        raise RefusedError("a matrix lacks one of its arrays")
    if not isinstance(shape, tuple) or len(shape) != 2 or not all(type(size) is int and size >= 0 for size in shape):
        raise RefusedError("a matrix has no shape")
    data, indices, indptr = arrays
    rows, columns = shape
    ordered = len(indptr) == rows + 1 and indptr[0] == 0 and indptr[-1] == len(indices) == len(data)
    if not ordered or bool((np.diff(indptr) < 0).any()) or bool(((indices < 0) | (indices >= columns)).any()):
        raise RefusedError("a matrix's arrays do not fit together")
    return sp.csr_array((data, indices, indptr), shape=(rows, columns))
