"""Data: known, synthetic and own graphs, splits, partitions and what is in them.

graph = load("pubmed")
parties = split(partition(graph, "louvain", 7, PartitionSettings(), seed=0), SplitSettings("random"), seed=0)
"""

from atoll.data.builder import row_normalize
from atoll.data.catalog import DataSettings
from atoll.data.csbm import CsbmSettings, csbm
from atoll.data.datasets import load
from atoll.data.files import save
from atoll.data.partition import SCENARIO_OF, PartitionSettings, partition, scenario_of
from atoll.data.pyg import from_pyg
from atoll.data.registry import DATASETS, Dataset, known
from atoll.data.splits import SplitSettings, split
from atoll.data.statistics import Facts, facts

__all__ = [
    "DATASETS",
    "SCENARIO_OF",
    "CsbmSettings",
    "DataSettings",
    "Dataset",
    "Facts",
    "PartitionSettings",
    "SplitSettings",
    "csbm",
    "facts",
    "from_pyg",
    "known",
    "load",
    "partition",
    "row_normalize",
    "save",
    "scenario_of",
    "split",
]
