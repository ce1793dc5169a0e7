"""For all tests: one torch thread and a fixed choice of examples, so that results are the same everywhere."""

import os
import sys
from pathlib import Path

import hypothesis
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "support"))
torch.set_num_threads(1)
os.environ["ATOLL_PARTITION_CACHE"] = "off"  # tests compute what they test
hypothesis.settings.register_profile("atoll", deadline=None, max_examples=40, derandomize=True, database=None)
hypothesis.settings.load_profile("atoll")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares one running thing comes first: groups that begin last would leave the other workers idle."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
