"""Louvain by igraph's compiled part: the same communities as by the package, which can still be imported afterwards."""

from __future__ import annotations

import subprocess
import sys

ALONE = """
import random, sys
import numpy as np
from atoll.data.multilevel import louvain

edges = np.random.default_rng(0).integers(0, 90, (260, 2))
edges = np.unique(np.sort(edges[edges[:, 0] != edges[:, 1]], 1), axis=0)
found = [louvain(90, edges, resolution, 3).tolist() for resolution in (1.0, 2.0)]
assert not {"igraph", "matplotlib"} & sys.modules.keys()

import igraph

for resolution, communities in zip((1.0, 2.0), found):
    igraph.set_random_number_generator(random.Random(3))
    assert igraph.Graph(90, edges).community_multilevel(resolution=resolution).membership == communities
igraph.set_random_number_generator(random)
assert louvain(90, edges, 1.0, 3).tolist() == found[0]
assert max(found[0]) < max(found[1])
"""


def test_it_equals_the_package_without_importing_it() -> None:
    """In a process of its own: nothing else has imported igraph there."""
    subprocess.run([sys.executable, "-c", ALONE], check=True)


NOT_FOUND = """
import importlib.util, sys
import numpy as np
from atoll.data import multilevel
importlib.util.find_spec = lambda name: None
assert len(multilevel.louvain(4, np.array([[0, 1], [2, 3]]), 1.0, 0)) == 4
assert "igraph" in sys.modules
"""


def test_where_the_extension_is_not_found_the_package_is_imported() -> None:
    """An igraph with other modules inside. In a process of its own: the extension can be loaded once."""
    subprocess.run([sys.executable, "-c", NOT_FOUND], check=True)
