"""Modules for one graph as files that other runtimes load: TorchScript, torch.export and ONNX.

The numbers of nodes and edges stay open. None of the files holds paths of this machine, which torch writes there for debugging.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import logging
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from atoll.errors import AtollError

Function = Callable[..., Tensor]
OPEN = {"x": (0, "nodes"), "edge_index": (1, "edges"), "ptr": (0, "bounds"), "pairs": (1, "pairs")}  # input → its open axis
OPSET = 18  # the first in which ScatterElements takes a maximum, which attention needs


def torchscript(module: nn.Module, *inputs: Tensor) -> bytes:
    """The bytes of a TorchScript archive: compiled where TorchScript knows all of the module, else traced on this graph."""
    with _quiet(), _called_model(module):
        try:
            archive = _saved(torch.jit.script(module))
        except Exception:  # whatever TorchScript cannot compile or save
            try:
                archive = _saved(torch.jit.trace(module, inputs, check_trace=False))  # type: ignore[no-untyped-call]
            except Exception as error:
                raise _impossible("TorchScript", error) from error
    return _without_debugging(archive)


def _saved(compiled: Any) -> io.BytesIO:
    archive = io.BytesIO()
    torch.jit.save(compiled, archive)
    return archive


def exported_program(module: nn.Module, *inputs: Tensor) -> bytes:
    """The bytes of a torch.export archive (.pt2)."""
    program = _program(module, inputs, "torch.export")
    archive = io.BytesIO()
    with _quiet():
        torch.export.save(program, archive)
    return archive.getvalue()


def onnx(module: nn.Module, *inputs: Tensor) -> bytes:
    """The bytes of an ONNX model with the inputs of `names_of` and the output `logits`."""
    require("onnx", "onnxscript")
    program = _program(module, inputs, "ONNX")
    with _quiet():
        try:
            made = torch.onnx.export(
                program,
                inputs,
                dynamo=True,
                input_names=list(names_of(module)),
                output_names=["logits"],
                opset_version=OPSET,
                verbose=False,
            )
        except Exception as error:  # whatever ONNX has no operator for
            raise _impossible("ONNX", error) from error
        assert made is not None
        model = made.model_proto
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.functions):
        part.ClearField("metadata_props")  # the lines of the source and their paths
    for function in model.functions:
        for node in function.node:
            node.ClearField("metadata_props")
    rows = {"ptr": "graphs", "pairs": "pairs"}.get(names_of(module)[-1], "nodes")
    for value in (*model.graph.input, *model.graph.output):
        _name_axes(value, rows)
    return bytes(model.SerializeToString())


def load_torchscript(data: bytes) -> Function:
    """What a TorchScript archive computes."""
    with _quiet():
        loaded: Function = torch.jit.load(io.BytesIO(data))  # type: ignore[no-untyped-call]
    return loaded


def load_exported_program(data: bytes) -> Function:
    """What a torch.export archive computes."""
    with _quiet():
        loaded: Function = torch.export.load(io.BytesIO(data)).module()
    return loaded


def load_onnx(data: bytes) -> Function:
    """What an ONNX model computes, by onnxruntime."""
    require("onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(*inputs: Tensor) -> Tensor:
        names = [each.name for each in session.get_inputs()]
        (logits,) = session.run(["logits"], {name: each.numpy() for name, each in zip(names, inputs, strict=True)})
        return torch.from_numpy(logits)

    return run


def require(*packages: str) -> None:
    """Stop with one sentence where a package of the extra is missing."""
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise AtollError(f"Export to ONNX needs {missing[0]}, which is not installed; run `pip install 'atoll[export]'`.")


def names_of(module: nn.Module) -> tuple[str, ...]:
    """The names of a module's inputs: `x`, `edge_index` and, where its items are graphs or pairs, `ptr` or `pairs`."""
    third = list(inspect.signature(module.forward).parameters)[2:3]
    return ("x", "edge_index", *(name for name in third if name in OPEN))


def _program(module: nn.Module, inputs: Sequence[Tensor], target: str) -> Any:
    """The module as a graph of torch's operators, with open numbers of nodes, edges and items."""
    own = list(inspect.signature(module.forward).parameters)
    least = {"bounds": 3}  # torch.export takes one graph for a case of its own
    axes = [{axis: torch.export.Dim(size, min=least.get(size))} for axis, size in (OPEN[name] for name in names_of(module))]
    with _quiet():
        try:
            program = torch.export.export(module, tuple(inputs), dynamic_shapes=dict(zip(own, axes, strict=False)), strict=False)
        except Exception as error:  # whatever torch.export cannot follow
            raise _impossible(target, error) from error
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn"):
                node.meta.pop(key, None)
    return program


def _name_axes(value: Any, rows: str) -> None:
    """The names of OPEN instead of the exporter's; others are of nodes, or of the items."""
    axes = value.type.tensor_type.shape.dim
    for index, axis in enumerate(axes):
        if axis.dim_param:
            named, size = OPEN.get(value.name, (0, ""))
            axis.dim_param = size if size and named == index else rows


def _without_debugging(archive: io.BytesIO) -> bytes:
    """The archive without the records that map its code to this machine's files."""
    cleaned = io.BytesIO()
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(cleaned, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                new.writestr(zipfile.ZipInfo(entry.filename), old.read(entry))
    return cleaned.getvalue()


@contextlib.contextmanager
def _called_model(module: nn.Module) -> Iterator[None]:
    """TorchScript names code after the Python module it is in, which for a user's file is its path: here it is `model`."""
    files = {name for part in module.modules() if (name := type(part).__module__).startswith("atoll.")}
    members = [
        (one, name) for name in files for one in vars(sys.modules[name]).values() if getattr(one, "__module__", "") == name
    ]
    defined = [(one, name) for one, name in members if inspect.isclass(one) or inspect.isfunction(one)]
    for one, _ in defined:
        one.__module__ = "model"
    try:
        yield
    finally:
        for one, name in defined:
            one.__module__ = name


def _impossible(target: str, error: Exception) -> AtollError:
    reason = " ".join(str(error).split("\n")[0].split())[:200]
    return AtollError(f"This model cannot become {target} ({type(error).__name__}: {reason}); export it to safetensors.")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' own notes: deprecations, and operators of packages that are not installed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
