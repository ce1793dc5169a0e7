"""Data: datasets by name, the user's own graphs, partitions, splits and statistics of them.

graph = load("pubmed")
parties = split(partition(graph, "louvain_largest", 7, PartitionSettings(), seed=0), SplitSettings("random"), seed=0)
"""

from atoll.data.builder import build_graph, row_normalize
from atoll.data.catalog import DataSettings
from atoll.data.csbm import CsbmSettings, csbm
from atoll.data.datasets import load
from atoll.data.files import save
from atoll.data.partition import SCENARIO_OF, partition, scenario_of
from atoll.data.partition_settings import PartitionSettings
from atoll.data.pyg import from_pyg
from atoll.data.registry import DATASETS, Dataset, known
from atoll.data.splits import SplitSettings, split
from atoll.data.statistics import PartitionStatistics, partition_statistics

__all__ = [
    "DATASETS",
    "SCENARIO_OF",
    "CsbmSettings",
    "DataSettings",
    "Dataset",
    "PartitionSettings",
    "PartitionStatistics",
    "SplitSettings",
    "build_graph",
    "csbm",
    "from_pyg",
    "known",
    "load",
    "partition",
    "partition_statistics",
    "row_normalize",
    "save",
    "scenario_of",
    "split",
]
