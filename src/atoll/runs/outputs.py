"""What a model gives for some nodes: logits with the nodes they belong to, and the same as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.federation.fields import sum_over_parties
from atoll.graphs.graph import Graph, stack
from atoll.graphs.pairs import some_pairs
from atoll.parties import Parties
from atoll.tasks import Task

if TYPE_CHECKING:
    import pandas as pd

PROBABILITY = "p[{}]"  # the column of a class's probability


@dataclass(frozen=True, eq=False)
class Outputs:
    """A model's outputs, row by row.

    A node that several parties hold has a row for each of them that predicts it.
    """

    graph: Graph  # the nodes: labels, splits, ids; one block per party
    logits: Tensor  # (N, C)
    parties: Parties  # the blocks' numbers in the federation
    names: tuple[str, ...] = ()  # of the blocks; empty where the parties only have numbers

    @property
    def node_ids(self) -> NDArray[Any]:
        """(I,) the items' ids in their data: text where nodes have any, else numbers."""
        if self.graph.graph_names is not None:
            return self.graph.graph_names
        if self.graph.graph_ids is not None:
            return self.graph.graph_ids.numpy()
        return self.graph.ids.numpy() if self.graph.node_names is None else self.graph.node_names

    @property
    def party_names(self) -> Sequence[str]:
        """What each block's party is called."""
        return self.names or [str(party) for party in self.parties]

    def rows(self, kept: Tensor) -> Outputs:
        """Some of the rows, by a mask; parties without any are left out."""
        if bool(kept.all()):
            return self
        sizes = torch.zeros(self.graph.parties, dtype=torch.int64).index_add_(0, self.graph.owner, kept.long())
        left = sizes.nonzero()[:, 0]
        if not self.graph.of_nodes:
            chosen = kept.nonzero()[:, 0]
            some = self.graph.take(chosen) if self.graph.pairs is None else some_pairs(self.graph, chosen)
            graph = some.select(left.tolist())
            names = tuple(self.names[block] for block in left.tolist()) if self.names else ()
            return Outputs(graph, self.logits[kept], Parties(self.parties.numbers[left.numpy()]), names)
        ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes[left].cumsum(0)])
        widths = self.graph.widths and tuple(self.graph.widths[block] for block in left.tolist())
        return Outputs(
            replace(self.graph.rows(kept.nonzero()[:, 0]), ptr=ptr, widths=widths),
            self.logits[kept],
            Parties(self.parties.numbers[left.numpy()]),
            tuple(self.names[block] for block in left.tolist()) if self.names else (),
        )

    @property
    def judged_graph(self) -> Graph:
        """The graph with all labeled items as test items where none is marked."""
        graph = self.graph
        if graph.pairs is None and not bool((graph.test & (graph.y >= 0)).any()):
            return replace(graph, test=graph.y >= 0, val=torch.zeros_like(graph.val), majority=graph.y)  # no minority either
        return graph

    def metrics(self, task: Task) -> dict[str, float]:
        """The task's metrics of the test nodes or, where none is marked, of all labeled nodes; empty where there are none."""
        counts = task.counts(self.logits, self.judged_graph)
        return task.metrics({name: sum_over_parties(value) for name, value in counts.items()})


def joined(several: Sequence[Outputs]) -> Outputs:
    """Outputs one after the other."""
    if len(several) == 1:
        return several[0]
    numbers = np.concatenate([one.parties.numbers for one in several])
    if len(np.unique(numbers)) < len(numbers):  # parties that training did not know
        numbers = np.arange(len(numbers))
    names = tuple(name for one in several for name in one.party_names) if any(one.names for one in several) else ()
    return Outputs(stack([one.graph for one in several]), torch.cat([one.logits for one in several]), Parties(numbers), names)


def table(outputs: Outputs, decided: Tensor, class_names: Sequence[str] | None) -> pd.DataFrame:
    """One row per node: `id`, `party`, `split`, `label`, `class`, and `p[CLASS]` for every class.

    Of pairs: `source` and `target` in place of `id`; of training data, without the pairs that no split has.
    """
    import pandas as pd

    outputs, decided = _of_splits(outputs, decided)
    columns = item_columns(outputs) | {
        "label": _classes(outputs.graph.y, class_names),
        "class": _classes(decided, class_names),
    }
    for label, probability in enumerate(outputs.logits.softmax(1).unbind(1)):
        columns[PROBABILITY.format(class_names[label] if class_names else label)] = probability.numpy()
    return pd.DataFrame(columns)


def item_columns(outputs: Outputs) -> dict[str, Any]:
    """The columns that every table begins with: which item, whose, and its split."""
    import pandas as pd

    graph, party = outputs.graph, outputs.graph.owner.numpy()
    split = np.select([graph.train.numpy(), graph.val.numpy(), graph.test.numpy()], [0, 1, 2], -1)
    return {
        **_named_items(outputs),
        "party": _named(party, outputs.names) if outputs.names else outputs.parties.numbers[party],
        "split": pd.Categorical.from_codes(split, ["train", "val", "test"]),
    }


def _named_items(outputs: Outputs) -> dict[str, Any]:
    """The columns that say which item a row is."""
    if outputs.graph.pairs is None:
        return {"id": outputs.node_ids}
    return dict(zip(("source", "target"), (outputs.node_ids[end.numpy()] for end in outputs.graph.pairs), strict=True))


def _of_splits(outputs: Outputs, decided: Tensor) -> tuple[Outputs, Tensor]:
    """Of training data's pairs, those that train, validate or test."""
    graph = outputs.graph
    split = graph.train | graph.val | graph.test
    if graph.pairs is None or not bool(split.any()):
        return outputs, decided
    return outputs.rows(split), decided[split]


def _named(codes: NDArray[Any], names: Sequence[str]) -> Any:
    """Names by number; an empty name is none."""
    import pandas as pd

    distinct = list(dict.fromkeys(name for name in names if name))
    number = np.array([distinct.index(name) if name else -1 for name in names], np.int64)
    return pd.Categorical.from_codes(number[codes], distinct)


def _classes(labels: Tensor, names: Sequence[str] | None) -> Any:
    """Classes by name, or as numbers where they have none; missing where there is no label."""
    import pandas as pd

    values = labels.numpy()
    if names is not None:
        return pd.Categorical.from_codes(values, list(names))
    return pd.arrays.IntegerArray(values, values < 0)
