"""Another backbone at every party: those with the same one are computed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.parameters import get_parameters, set_parameters
from atoll.models.registry import MODELS
from atoll.random import Draws


class MixedBackbone(Backbone):
    """One of several backbones at each party.

    Every backbone has parameters (P, …) for all parties, zero where a party has another one: they are never used there and no
    gradient reaches them. So the parameters have the same names whichever parties share a process.
    """

    def __init__(self, kinds: Sequence[str], names: Sequence[str], shape: ModelShape, draws: Callable[[], Draws | None]) -> None:
        """`kinds`: all backbones of the federation; `names`: that of each party here; `draws` gives the same draws each time."""
        super().__init__(shape)
        self.names = list(names)
        self.kinds = sorted(set(kinds))
        self.members = {kind: [p for p, name in enumerate(names) if name == kind] for kind in self.kinds}
        self.backbones = nn.ModuleDict({kind: MODELS.find(kind)(shape, draws()) for kind in self.kinds})
        self.parts: tuple[Graph, dict[str, Graph]] | None = None  # of the graph that was used last
        self.clear_unused()

    @torch.no_grad()
    def clear_unused(self) -> None:
        """Zeros where a party has another backbone."""
        for kind in self.kinds:
            unused = torch.tensor([name != kind for name in self.names], dtype=torch.bool)
            for parameter in self.backbones[kind].parameters():
                parameter[unused.to(parameter.device)] = 0

    def draw_uniform(self, draws: Callable[[], Draws]) -> None:
        """All weights from U(0, 1)."""
        for backbone in self.backbones.values():
            draw_uniform(backbone, draws())
        self.clear_unused()

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        return self._per_kind(graph, draws, "forward", self.shape.classes)

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """The last hidden representation of each party's backbone; all must be equally wide."""
        widths = {kind: MODELS.find(kind).embedding_width(self.shape) for kind in self.kinds}
        if len(set(widths.values())) > 1:
            raise AtollError(f"{', '.join(self.kinds)} have hidden representations of different widths.")
        return self._per_kind(graph, draws, "embed", next(iter(widths.values())))

    def alone(self, party: int) -> Backbone:
        """The backbone of one party (P = 1)."""
        kind = self.names[party]
        one = MODELS.find(kind)(replace(self.shape, parties=1))
        set_parameters(one, {name: value[party : party + 1] for name, value in get_parameters(self.backbones[kind]).items()})
        return one

    def _per_kind(self, graph: Graph, draws: Draws | None, method: str, width: int) -> Tensor:
        """What `method` of each backbone gives for its parties, in the graph's rows."""
        if self.parts is None or self.parts[0] is not graph:
            self.parts = graph, {kind: graph.select(members) for kind, members in self.members.items() if members}
        outputs, rows = [], []
        for kind, part in self.parts[1].items():
            members = torch.tensor(self.members[kind]).to(graph.device)
            backbone = self.backbones[kind]
            parameters = {f"inner.{name}": value.index_select(0, members) for name, value in backbone.named_parameters()}
            selected = None if draws is None else draws.select(self.members[kind])
            outputs.append(functional_call(_Method(backbone, method), parameters, (part, selected)))
            rows.append(torch.isin(graph.party, members).nonzero()[:, 0])
        order = torch.cat(rows).argsort()
        return torch.cat(outputs)[order] if outputs else torch.zeros(0, width, device=graph.device)


class _Method(nn.Module):
    """A method of a backbone as `forward`."""

    def __init__(self, inner: nn.Module, method: str) -> None:
        super().__init__()
        self.inner, self.method = inner, method

    def forward(self, graph: Graph, draws: Draws | None) -> Tensor:
        out: Tensor = getattr(self.inner, self.method)(graph, draws)
        return out


def draw_uniform(backbone: Backbone | nn.Module, draws: Draws) -> None:
    """All weights from U(0, 1), each party's by its own draws."""
    set_parameters(backbone, {name: draws.uniform(*value.shape[1:]) for name, value in get_parameters(backbone).items()})


def check_kinds(kinds: Sequence[str]) -> None:
    """Refuse a name that is not one of atoll's models or another package's."""
    for kind in kinds:
        if kind not in MODELS.names():
            raise AtollError(f"models names {kind!r}, but must name some of {', '.join(MODELS.names())}.")
