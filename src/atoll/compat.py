"""Import paths that algorithms written for atoll 0.1 use: they still work, with a warning that names the new place.

The modules of 0.1 that its page on own algorithms named no longer exist as files. They are made when something imports them, and
look their names up in the modules of today; nothing else is imported before that.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple

from atoll.errors import AtollWarning

_COUNTS = "atoll.tasks.node_classification"
_MASKS = "atoll.graphs.masks"


class Moved(NamedTuple):
    """Where the names of a module of 0.1 are now: in `module`, except for those that have another place or name."""

    module: str
    renamed: Mapping[str, str] = {}  # name in 0.1 → module:attribute
    advice: str = ""


MODULES = {
    "atoll.cohort": Moved("atoll.federation.cohort", advice="Cohort, verb, MODEL and first_model are in atoll itself"),
    "atoll.declarations": Moved("atoll.federation.declarations", advice="COUNTS and WEIGHT are in atoll itself"),
    "atoll.graph": Moved("atoll.graphs.graph", advice="Graph is in atoll itself"),
    "atoll.losses": Moved(
        "atoll.models.losses",
        {
            "cross_entropy": f"{_COUNTS}:TASK.loss",
            "by_party": f"{_MASKS}:party_sums",
            "node_weights": f"{_MASKS}:node_weights",
            "batch": f"{_MASKS}:random_batch",
            "resolve": f"{_MASKS}:resolve",
            "Mask": f"{_MASKS}:Mask",
        },
        "write self.task.loss in place of cross_entropy",
    ),
    "atoll.metrics": Moved(
        "atoll.federation.metrics",
        {"count": f"{_COUNTS}:TASK.counts", "pooled": f"{_COUNTS}:TASK.metrics", "macro_f1": f"{_COUNTS}:macro_f1"},
        "write self.task.counts in place of metrics.count",
    ),
    "atoll.optim": Moved("atoll.models.optim"),
    "atoll.parameters": Moved("atoll.models.parameters"),
}
NAMES = {  # of modules that are packages now
    "atoll.federation": {
        "Federation": "atoll.federation.federation:Federation",
        "Replies": "atoll.federation.replies:Replies",
        "Answer": "atoll.federation.messages:Answer",
        "Failure": "atoll.federation.messages:Failure",
        "Engine": "atoll.federation.messages:Engine",
    },
    "atoll.models": {
        "read": "atoll.models.parameters:get_parameters",
        "load": "atoll.models.parameters:set_parameters",
        "build": "atoll.models.registry:build",
        "MODELS": "atoll.models.registry:MODELS",
        "Model": "atoll.models.backbone:Backbone",
        "Chain": "atoll.models.backbone:Chain",
        "Dense": "atoll.models.layers:Dense",
    },
}


def old_names(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package that was a module in 0.1: its names from where they are now, each with a warning."""

    def find(name: str) -> Any:
        target = NAMES[package].get(name)
        if target is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        warnings.warn(f"{package}.{name} is {target.replace(':', '.')} now.", AtollWarning, stacklevel=2)
        return _resolve(target)

    return find


class OldModules(MetaPathFinder, Loader):
    """Finds the modules of 0.1, after all other finders."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """An old module, where the name is that of one."""
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def exec_module(self, module: Any) -> None:
        """Fill the module: it looks names up where they are now."""
        name = module.__name__
        moved = MODULES[name]
        advice = f"; {moved.advice}" if moved.advice else ""
        warnings.warn(f"{name} is {moved.module} now{advice}.", AtollWarning, stacklevel=2)

        def find(attribute: str) -> Any:
            try:
                return _resolve(moved.renamed.get(attribute, f"{moved.module}:{attribute}"))
            except AttributeError:
                raise AttributeError(f"module {name!r}, which is {moved.module} now, has no attribute {attribute!r}") from None

        module.__doc__ = f"{moved.module}, as it was called in atoll 0.1."
        module.__getattr__ = find


def install() -> None:
    """Make the modules of 0.1 importable."""
    if not any(isinstance(finder, OldModules) for finder in sys.meta_path):
        sys.meta_path.append(OldModules())


def _resolve(target: str) -> Any:
    module, _, attributes = target.partition(":")
    value: Any = importlib.import_module(module)
    for attribute in attributes.split("."):
        value = getattr(value, attribute)
    return value
