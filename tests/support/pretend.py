"""A pretend accelerator: tensors on the device `pretend` live in ordinary memory, but what fails or waits on a GPU does so here.

    with Accelerator() as traffic:
        ...                                 # torch.zeros(3, device="pretend"), tensor.to("pretend"), forward, backward, …
    traffic.waits                           # where a program on the CPU had to wait for the device, by line of code

- A tensor of the CPU among the arguments of an operation on `pretend` is an error that names the operation and both shapes; only
  a single number is taken by operations that take one on a GPU.
- `.numpy()` and sparse tensors are errors; so are kernels that not every device has, unless `kernels` says that this one does.
  Products of matrices of whole numbers are, too: only the CPU has them.
- Random numbers drawn there are errors, unless `draws=True`: a device's own differ from the CPU's, and take its own generators.
- With `doubles=False` there is no double precision, as on mps.
- Copies to the CPU, `.item()`, `bool(…)`, `.tolist()`, and operations whose result's size depends on the numbers are counted.
"""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "pretend"
MODULE = SimpleNamespace(  # what torch asks of a device's module
    is_available=lambda: True,
    current_device=lambda: 0,
    device_count=lambda: 1,
    _is_in_bad_fork=lambda: False,
    manual_seed_all=lambda seed: None,
    _lazy_init=lambda: None,
    is_initialized=lambda: True,
    get_amp_supported_dtype=list,
)
torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME, MODULE)
DEVICE = torch.device(NAME, 0)
CPU = torch.device("cpu")
SOURCES = str(Path(torch.__file__).parent)

NUMBERS_TAKEN = {  # operations that on a GPU take a single number of the CPU
    *("add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "pow", "eq", "ne", "lt", "le", "gt", "ge"),
    *("maximum", "minimum", "logical_and", "logical_or", "bitwise_and", "bitwise_or", "where", "fill", "masked_fill"),
    *("xlogy", "copysign", "atan2", "fmod", "add_", "sub_", "mul_", "div_", "fill_", "masked_fill_", "pow_", "index_put_"),
    *("index_fill", "index_fill_", "_index_put_impl_", "index_put"),
}
COPIES = {"_to_copy", "copy_", "_copy_from", "_copy_from_and_resize", "copy"}
SIZES = {  # the size of the result depends on the numbers, so that the CPU waits for them
    *("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "equal", "is_nonzero"),
}
FUSED = {"_embedding_bag_forward_only", "_fused_adam_", "_fused_adamw_", "_fused_sgd_"}  # kernels that CUDA has, others may not
PRODUCTS = {"mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "baddbmm", "addbmm", "addr"}  # on a GPU not of whole numbers
DRAWS = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "bernoulli_", "normal"),
    *("normal_", "uniform_", "exponential_", "geometric_", "log_normal_", "cauchy_", "random_", "multinomial", "poisson"),
    *("native_dropout", "rrelu_with_noise", "binomial"),
}
NOWHERE = {"sparse_sampled_addmm", "segment_reduce", "_sparse_csr_tensor_unsafe", "sparse_compressed_tensor", "to_sparse"}


class Traffic:
    """What crossed between the CPU and the device, by the line of atoll's code that caused it."""

    def __init__(self) -> None:
        self.up: Counter[str] = Counter()  # copies to the device
        self.waits: Counter[str] = Counter()  # copies from the device, and whatever else makes the CPU wait for it

    def clear(self) -> None:
        """Begin to count anew."""
        self.up.clear()
        self.waits.clear()

    def waited_in(self, *parts: str) -> int:
        """How often it was waited in files whose path contains one of these."""
        return sum(count for place, count in self.waits.items() if any(part in place for part in parts))

    def waited_outside(self, *parts: str) -> dict[str, int]:
        """Where it was waited apart from those files, and how often."""
        return {place: count for place, count in self.waits.items() if not any(part in place for part in parts)}


class Pretend(torch.Tensor):
    """A tensor on the device; `held` is where its numbers really are."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Pretend:
        """A tensor without numbers of its own."""
        if held.layout != torch.strided:
            raise NotImplementedError(f"there are no {held.layout} tensors on {DEVICE}")
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pretend({self.held!r})"

    def tolist(self) -> Any:
        """As on a GPU: the numbers are copied first."""
        _note("waits")
        return self.held.tolist()

    def data_ptr(self) -> int:
        """Where the numbers are."""
        return self.held.data_ptr()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class Accelerator(TorchDispatchMode):
    """Inside, the device `pretend` exists; `kernels` are those of CUDA that it has, all of them with `kernels=FUSED`."""

    current: Accelerator | None = None

    def __init__(self, kernels: set[str] | frozenset[str] = frozenset(), *, doubles: bool = True, draws: bool = False) -> None:
        super().__init__()
        self.kernels, self.doubles, self.draws, self.traffic = kernels, doubles, draws, Traffic()

    def __enter__(self) -> Traffic:  # type: ignore[override]
        Accelerator.current = self
        super().__enter__()
        return self.traffic

    def __exit__(self, *reason: Any) -> None:
        Accelerator.current = None
        super().__exit__(*reason)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and device.type == NAME:
            return _dispatch(func, args, kwargs)
        for tensor in _tensors(args, kwargs):
            if type(tensor) is Pretend:
                return _dispatch(func, args, kwargs)
        return func(*args, **kwargs)


def _tensors(args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, torch.Tensor))


def _held(value: Any) -> Any:
    if type(value) is Pretend:
        return value.held
    if isinstance(value, (list, tuple)):
        return type(value)(_held(item) for item in value)
    return value


def _dispatch(func: Any, args: Any, kwargs: Any) -> Any:
    name = func._schema.name.partition("::")[2]
    here = list(_tensors(args, kwargs))
    target = kwargs.get("device")
    if name in COPIES:
        return _copied(func, name, args, kwargs, target)
    _check(name, here, args)
    if name == "_local_scalar_dense" or name in SIZES or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        _note("waits")
    elif name.startswith(("index", "_index")) and any(_is_mask(item) for value in args[1:2] for item in value or ()):
        _note("waits")  # the rows of a mask are counted first
    plain = {key: _held(value) for key, value in kwargs.items()}
    if target is not None:
        plain["device"] = CPU
    result = func(*map(_held, args), **plain)
    return _wrapped(result, {id(tensor.held): tensor for tensor in here if type(tensor) is Pretend})


def _is_mask(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)


def _check(name: str, here: list[torch.Tensor], args: Any) -> None:
    mode = Accelerator.current
    if name in NOWHERE or (name in FUSED and not (mode is not None and name in mode.kernels)):
        raise NotImplementedError(f"{name} is not there on {DEVICE}")
    if name == "_embedding_bag_forward_only" and int(_held(args[2])[-1]) != len(args[1]):
        raise RuntimeError(f"{name}: on CUDA the last bag goes on to the last index, whatever the last offset is ({_where()})")
    if name in DRAWS and not (mode is not None and mode.draws):
        raise RuntimeError(f"{name}: numbers drawn on {DEVICE} are not the CPU's ({_where()}); draw there, and move them")
    ours = [tensor for tensor in here if type(tensor) is Pretend]
    if name in PRODUCTS and ours and not ours[0].dtype.is_floating_point:
        raise NotImplementedError(f"{name} is not there for {ours[0].dtype} on {DEVICE} ({_where()})")
    for tensor in here:
        if ours and type(tensor) is not Pretend and (tensor.dim() or name.removesuffix("_") not in NUMBERS_TAKEN):
            raise RuntimeError(
                f"{name}: a tensor {tuple(tensor.shape)} of the CPU meets one {tuple(ours[0].shape)} of {DEVICE} ({_where()}); "
                "make it there: device=self.device, or x.new_zeros(…)"
            )


def _copied(func: Any, name: str, args: Any, kwargs: Any, target: Any) -> Any:
    """Copies are the only way between the devices."""
    source = args[1] if name == "copy_" else args[0]
    if name == "copy_":
        if (type(args[0]) is Pretend) != (type(source) is Pretend):
            _note("up" if type(args[0]) is Pretend else "waits")
        func(_held(args[0]), _held(source), *args[2:], **kwargs)
        return args[0]
    stays = target is None or target.type == source.device.type
    plain = {**kwargs, "device": CPU} if target is not None else kwargs
    result = func(*map(_held, args), **plain)
    if not stays:
        _note("up" if target.type == NAME else "waits")
    to_ours = type(source) is Pretend if stays else target.type == NAME
    return _wrapped(result, {}) if to_ours else result


def _wrapped(result: Any, known: dict[int, Pretend]) -> Any:
    if isinstance(result, torch.Tensor):
        mode = Accelerator.current
        if result.dtype == torch.float64 and mode is not None and not mode.doubles:
            raise TypeError(f"there is no float64 on {DEVICE} ({_where()})")
        before = known.get(id(result))
        return Pretend(result) if before is None else before
    if isinstance(result, (list, tuple)):
        return type(result)(_wrapped(item, known) for item in result)
    return result


def _note(kind: str) -> None:
    mode = Accelerator.current
    if mode is not None:
        getattr(mode.traffic, kind)[_where()] += 1


def _where() -> str:
    """The innermost line outside torch and this file."""
    if threading.current_thread() is not threading.main_thread():
        return "a backward pass"
    frame = next(
        (
            frame
            for frame in reversed(traceback.extract_stack(limit=60))
            if not frame.filename.startswith(SOURCES) and frame.filename != __file__
        ),
        None,
    )
    if frame is None:
        return "?"
    path = Path(frame.filename)
    parts = path.parts[path.parts.index("atoll") + 1 :] if "atoll" in path.parts else path.parts[-1:]
    return f"{'/'.join(parts)}:{frame.lineno} {frame.line}"
