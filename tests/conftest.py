"""For all tests: one torch thread and a fixed choice of examples, so that results are the same everywhere."""

import functools
import os
import re
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "support"))
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of processes that tests start: another number of threads may round differently
os.environ["ATOLL_PARTITION_CACHE"] = "off"  # tests compute what they test
hypothesis.settings.register_profile("atoll", deadline=None, max_examples=40, derandomize=True, database=None)
hypothesis.settings.load_profile("atoll")

# Files whose tests are parametrized over the algorithms: each algorithm's tests are a unit of work, and share their usual runs.
BY_ALGORITHM = ("test_promises.py", "test_batched_promises.py", "test_threat_model.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first: units that begin last would leave the other workers idle."""
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadscope` (or `loadgroup`), workers are handed whole files: what the tests of a file share is made once."""
    if config.getvalue("dist") not in ("loadscope", "loadgroup"):
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False  # it would put the files with the fewest tests last, whatever they take
    return ByFile(config, log)


def unit_of(nodeid: str) -> str:
    """The unit of work that a test belongs to: its file or, of `BY_ALGORITHM`, its file and algorithm."""
    file, _, name = nodeid.partition("::")
    if not file.endswith(BY_ALGORITHM):
        return file
    algorithm = next((part for part in re.split(r"[-\[\]]", name)[1:] if part in algorithms()), "")
    return f"{file} {algorithm}"


@functools.cache
def algorithms() -> frozenset[str]:
    """The names of all algorithms."""
    from atoll.algorithms import names

    return frozenset(names())
