"""The source of a module's class as a file of its own: what is used of the Python module that it is in, and the imports."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Sequence

from torch import nn

ABOUT = "A network trained with atoll, which it does not need: `Model(...)(x, edge_index)` gives logits (N, C)."


def source_of(kind: type[nn.Module]) -> str:
    """A file with this class alone, there called Model: imports, what it uses of its module, and itself."""
    return text_of(*pieces(kind)).replace(kind.__name__ + "(", "Model(")


def text_of(imports: Sequence[str], bodies: Sequence[str]) -> str:
    """A file of these imports, functions and classes."""
    return f'"""{ABOUT}"""\n\n' + "\n".join(imports) + "\n\n\n" + "\n\n\n".join(bodies) + "\n"


def pieces(kind: type[nn.Module]) -> tuple[list[str], list[str]]:
    """The imports of a class, and the source of what it uses of its module, itself among it."""
    whole = inspect.getsource(importlib.import_module(kind.__module__))
    tree = ast.parse(whole)
    defined = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    needed, new = set[str](), {kind.__name__}
    while new:
        needed |= new
        used = {node.id for name in new for node in ast.walk(defined[name]) if isinstance(node, ast.Name)}
        new = (used & defined.keys()) - needed
    bodies = [ast.get_source_segment(whole, node) or "" for name, node in defined.items() if name in needed]
    names = {node.id for name in needed for node in ast.walk(defined[name]) if isinstance(node, ast.Name)}
    return [line for node in tree.body if (line := _import(node, names))], bodies


def _import(node: ast.stmt, names: set[str]) -> str:
    """An import without the names that are not used; "" for other statements and imports without any use."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return ""
    future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
    node.names = [one for one in node.names if future or (one.asname or one.name.partition(".")[0]) in names]
    return ast.unparse(node) if node.names else ""
