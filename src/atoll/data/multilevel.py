"""Louvain's communities by igraph's compiled part alone: the package around it imports matplotlib, a fifth of a short run."""

from __future__ import annotations

import importlib.util
import random
import sys
import threading
from functools import cache
from importlib.machinery import PathFinder
from typing import Any

import numpy as np

from atoll.data.builder import Ints

CORE = "igraph._igraph"
_LOCK = threading.Lock()  # igraph has one random number generator for the whole process


def louvain(nodes: int, edges: Ints, resolution: float, seed: int) -> Ints:
    """(N,) each node's community in the graph of these edges (E, 2), each once; the seed decides the order of the nodes."""
    core = compiled()
    pairs = np.ascontiguousarray(edges, np.int64 if core.INTEGER_SIZE == 64 else np.int32)
    net = core.GraphBase(nodes, pairs.data)
    with _LOCK:
        try:
            core.set_random_number_generator(random.Random(seed))
            return np.array(net.community_multilevel(resolution=resolution))
        finally:
            core.set_random_number_generator(random)


@cache
def compiled() -> Any:
    """igraph's extension module, without the package where that is not imported yet; a later `import igraph` finds it."""
    if CORE not in sys.modules and "igraph" not in sys.modules and (package := importlib.util.find_spec("igraph")) is not None:
        spec = PathFinder.find_spec(CORE, package.submodule_search_locations)
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules[CORE] = module
            spec.loader.exec_module(module)
            return module
    return importlib.import_module(CORE)
