"""Models that the user gives: a class, a function that makes a module, or a file with a class.

A file runs only because the user names it, never because a run folder or a server does: `load` is called with what was named
on the command line or in Python, and `find_loaded` imports nothing.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from atoll.errors import AtollError, suggest
from atoll.models.backbone import Backbone
from atoll.models.plain import Factory, plain_backbone

_loaded: dict[str, type[Backbone]] = {}  # by the name that a configuration holds
_digests: dict[Path, str] = {}  # SHA-256 of the files that were imported
_provided: dict[Path, bytes] = {}  # files of another machine


def is_user_model(name: Any) -> bool:
    """Whether this names a model that is not in the registry but was given as a file or as an object."""
    return isinstance(name, str) and (":" in name or name.endswith(".py"))


def load(model: Any) -> str:
    """The name for a configuration of what the user gave as the model; files are imported, objects remembered.

    >>> load("gcn")
    'gcn'
    """
    if isinstance(model, Path):
        model = str(model)
    if isinstance(model, str):
        if is_user_model(model) and file_of(model) is not None:
            _loaded[_key(model)] = _from_file(model)
        return model
    name = getattr(model, "__qualname__", None)
    if isinstance(model, nn.Module):
        raise AtollError(f"model is an instance of {type(model).__name__}; give the class, so that every party gets its own.")
    if not callable(model) or name is None:
        raise AtollError(f"model is a {type(model).__name__}; give a name, a file, a class or a function that makes a module.")
    label = f"{model.__module__}:{name}"
    _loaded[label] = _backbone(model, name)
    return label


def load_all(models: Iterable[Any]) -> list[str]:
    """The names of several models, each of another one: a class that a function makes has the same name at each call."""
    given: dict[str, Any] = {}
    for model in models:
        name = load(model)
        if given.setdefault(name, model) is not model and not isinstance(model, (str, Path)):
            raise AtollError(
                f"models holds two different objects called {model.__qualname__}; give one of them another __qualname__."
            )
    return list(given)


def find_loaded(name: str) -> type[Backbone]:
    """The backbone that the user gave under this name."""
    if (loaded := _loaded.get(_key(name))) is not None:
        return loaded
    if file_of(name) is not None:
        raise AtollError(f"The model is the file {name}, which is not run because a folder or a server names it; give --model.")
    raise AtollError(f"The model {name} was given as an object; give it again: model={name.rpartition(':')[2]}.")


def short_name(name: str) -> str:
    """A name for tables and folders: without the path of a file, without the module of a class."""
    path = file_of(name) if is_user_model(name) else None
    shown = name.rpartition(":")[2] if path is None else path.stem + name[len(name.rpartition(".py")[0]) + 3 :]
    return shown.replace(":", ".").replace("<locals>.", "")


def check_short_names(models: Sequence[str]) -> None:
    """Refuse models that would have the same name in a table."""
    shown = {short_name(model): model for model in reversed(models)}
    if same := [model for model in models if shown[short_name(model)] != model]:
        first = shown[short_name(same[0])]
        raise AtollError(f"The models {first} and {same[0]} would both be the row {short_name(first)!r}; rename one of them.")


def digest(name: str, *, read: bool = False) -> str | None:
    """SHA-256 of a model's file as it was imported or, with `read`, as it is now. None for all other models."""
    file = file_of(name) if is_user_model(name) else None
    if file is None:
        return None
    return hashlib.sha256(_source(file)).hexdigest() if read else _digests.get(file)


def file_of(name: str) -> Path | None:
    """The file in `path/to/file.py` and `path/to/file.py:Class`."""
    path, colon, _ = name.rpartition(":")
    path = path if colon and path.endswith(".py") else name
    return Path(path).resolve() if path.endswith(".py") else None


def _key(name: str) -> str:
    file = file_of(name)
    return name if file is None else str(file) + name[len(name.rpartition(".py")[0]) + 3 :]


def source(name: str) -> bytes:
    """The content of a model's file; empty for all other models."""
    file = file_of(name) if is_user_model(name) else None
    return b"" if file is None else _source(file)


def provide(name: str, content: bytes) -> None:
    """Take this as the content of a model's file that is on another machine."""
    if (file := file_of(name)) is not None:
        _provided[file] = content


def _source(path: Path) -> bytes:
    if path in _provided:
        return _provided[path]
    try:
        return path.read_bytes()
    except OSError as error:
        raise AtollError(f"There is no model in {path}: {'no such file' if not path.exists() else error.strerror}.") from error


def _from_file(name: str) -> type[Backbone]:
    path = file_of(name)
    assert path is not None
    module = _import(path)
    classes = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__
    }
    wanted = name.rpartition(":")[2] if not name.endswith(".py") else ""
    if wanted:
        if wanted not in classes:
            raise AtollError(f"{path} has no torch.nn.Module {wanted!r}{suggest(wanted, list(classes))}")
    elif "Model" in classes or len(classes) == 1:
        wanted = "Model" if "Model" in classes else next(iter(classes))
    else:
        hint = f"it has {', '.join(classes)}; say which: --model {name}:{list(classes)[-1]}" if classes else "it has none"
        raise AtollError(f"{path} must define one torch.nn.Module, or one called Model, but {hint}.")
    return _backbone(classes[wanted], f"{wanted} in {path.name}")


def _import(path: Path) -> ModuleType:
    """The module in a file, executed once for each content of the file."""
    key, source = f"{__name__}:{path}", _source(path)
    sha = hashlib.sha256(source).hexdigest()
    if _digests.get(path) != sha:
        sys.modules[key] = module = ModuleType(key)
        module.__file__ = str(path)
        try:  # exactly these bytes, not a cached form of them
            exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
        except KeyboardInterrupt:
            del sys.modules[key]
            raise
        except BaseException as error:  # whatever the file does
            del sys.modules[key]
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
            line = f", line {lines[-1]}" if lines and not isinstance(error, SyntaxError) else ""
            raise AtollError(f"{path} cannot be imported ({type(error).__name__}: {error}{line}).") from error
        _digests[path] = sha
    return sys.modules[key]


def _backbone(model: Factory, label: str) -> type[Backbone]:
    if inspect.isclass(model) and issubclass(model, Backbone):
        return model
    if inspect.isclass(model) and not issubclass(model, nn.Module):
        raise AtollError(f"{label} is not a torch.nn.Module.")
    return plain_backbone(model, label)
