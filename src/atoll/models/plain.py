"""A user's own `torch.nn.Module` as a backbone: one set of parameters per party, one call of the module per party.

The module is written as for one graph, the way PyG's are:

    class MyGNN(torch.nn.Module):
        def __init__(self, in_channels, hidden_channels, out_channels, num_layers=2, dropout=0.0): ...
        def forward(self, x, edge_index): ...  # logits (N, out_channels)
        def embed(self, x, edge_index): ...    # optional: the last hidden representation (N, hidden_channels)

Either may take `edge_weight` (E,) as well; it is given where the edges have weights.

The constructor names those of these arguments that it takes; its other arguments with a default become settings (model.NAME).
Parameters are drawn per party. Everything else that the constructor makes (buffers, attributes) is the same for all parties and
runs, and a call may not change it: a party's result would depend on the calls before.

Parties are computed one after the other, not by `torch.func.vmap`: their graphs differ in size, and batched products round
differently with the number of parties, so that results would depend on which parties share a process.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import UninitializedParameter

from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph
from atoll.graphs.minibatch import MiniBatch
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.module_state import difference, module_state, places_of, replace_parameters
from atoll.random import Draws
from atoll.settings import setting

Factory = Callable[..., nn.Module]  # a subclass of nn.Module, or a function that makes a module
ARGUMENTS = ("in_channels", "hidden_channels", "out_channels", "num_layers", "dropout", "bias")  # given by name where taken


class PlainModule(Backbone):
    """A module written for one graph, with a set of parameters per party. `plain_backbone` makes subclasses of it."""

    weighted_edges = False
    factory: ClassVar[Factory]
    label: ClassVar[str]  # what errors call it
    module: nn.Module  # the user's, its parameters with a leading party axis
    initial_buffers: dict[str, Tensor]
    places: dict[str, list[str]]  # by the first name of each parameter and buffer, where the module holds it

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: Any = None) -> None:
        super().__init__(shape, draws, settings)
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            module = self._construct(0)
            modules = [] if draws is None else [self._construct(seed) for seed in _seeds(draws)]
        self._check(module)
        self.__dict__["module"] = module  # not registered: the parameters keep the names that they have in the user's module
        self.__dict__["initial_buffers"] = {name: value.clone() for name, value in module.named_buffers()}
        self.__dict__["places"] = places_of(module)
        if draws is None:
            stacked = {name: torch.zeros(shape.parties, *value.shape) for name, value in module.named_parameters()}
        else:
            every = [dict(one.named_parameters()) for one in modules]
            stacked = {name: torch.stack([one[name].detach() for one in every]) for name, _ in module.named_parameters()}
        replace_parameters(module, stacked)
        self._modules, self._parameters = module._modules, module._parameters

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        logits = self._per_party(None, graph, draws)
        if logits.shape[1:] != (self.shape.classes,):
            columns = "×".join(map(str, logits.shape[1:])) or "no"
            raise AtollError(f"{self.label} gives {columns} columns for each node, but there are {self.shape.classes} classes.")
        return logits

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """What the module's own `embed` gives."""
        if not callable(getattr(type(self.module), "embed", None)):
            raise AtollError(f"{self.label} has no method embed(x, edge_index), which this needs; add one.")
        embedded = self._per_party("embed", graph, draws)
        if embedded.ndim != 2 or embedded.shape[1] != self.shape.hidden:
            width = "×".join(map(str, embedded.shape[1:]))
            raise AtollError(f"embed of {self.label} gives {width} columns for each node; it must give hidden_channels.")
        return embedded

    @classmethod
    def embedding_width(cls, shape: ModelShape) -> int:
        """As wide as `embed` must be."""
        return shape.hidden

    @property
    def hops(self) -> int:
        """One per layer, as far as the settings tell."""
        return self.shape.layers

    def _per_party(self, method: str | None, graph: Graph, draws: Draws | None) -> Tensor:
        """The module's output on every party's graph; its randomness is a function of the draws alone.

        It works on copies, and so do its gradients: torch rounds differently where a tensor does not begin at a vector register.
        Of a mini-batch it gets all sampled nodes, as from PyG's loaders, and the output is that of the training nodes among them.
        """
        if isinstance(graph, MiniBatch) and graph.sampled is not None:
            return self._per_party(method, graph.sampled.union[0], draws)[graph.sampled.union[1]]
        x, edges = _inputs(graph)
        weights = self._weights(method, graph)
        if draws is not None and self.shape.input_dropout:
            x = x * draws.keep(1 - self.shape.input_dropout, graph.sizes, x.shape[1])
        seeds = [0] * graph.parties if draws is None else _seeds(draws, graph.sizes)
        self.module.train(draws is not None)
        call = _Call(self.module, method)
        names = ["module." + name for name, _ in self.named_parameters()]
        before = module_state(self.module)
        by_party = zip(*(value.unbind() for value in self.parameters()), strict=True)
        outputs = []
        with own_randomness(x.device):
            inputs = zip(torch.split(x, graph.sizes), edges, weights, strict=True)
            for seed, values, (rows, edge_index, weight) in zip(seeds, by_party, inputs, strict=True):
                if not len(rows):  # a party that has no batch left
                    continue
                torch.manual_seed(seed)
                parameters = {name: value.clone() for name, value in zip(names, values, strict=True)}
                outputs.append(self._call(call, parameters, rows.clone(), edge_index, weight))
                if outputs[-1].requires_grad:
                    outputs[-1].register_hook(torch.clone)  # type: ignore[no-untyped-call]
        if changed := difference(before, module_state(self.module)):
            raise AtollError(
                f"{self.label} changes its attribute {changed!r} when it is called, so that a party's result would depend on the "
                "calls before; keep what a call computes in local variables."
            )
        return torch.cat(outputs) if outputs else x.new_zeros(0, self.shape.classes if method is None else self.shape.hidden)

    def _weights(self, method: str | None, graph: Graph) -> list[Tensor | None]:
        """The weights of every party's edges, where the edges have weights and the module takes them, or cannot do without."""
        taken = _weight_argument(self.module, method or "forward")
        if graph.edge_weight is None and (taken is None or taken.default is not taken.empty):
            return [None] * graph.parties
        if taken is None:
            assert graph.edge_weight is not None
            if "unused_weights" not in graph.derived:  # once for each graph
                sentence = f"Edge weights are not used: {method or 'forward'} of {self.label} does not take `edge_weight`."
                warnings.warn(sentence, AtollWarning, stacklevel=5)
                graph.derived["unused_weights"] = graph.edge_weight
            return [None] * graph.parties
        if "local_weights" not in graph.derived:
            one = torch.ones(graph.edge_index.shape[1], device=graph.device)
            weights = one if graph.edge_weight is None else graph.edge_weight
            graph.derived["local_weights"] = weights[graph.derived["local_order"]]
        return list(torch.split(graph.derived["local_weights"], graph.derived["edges_per_party"].tolist()))

    def _call(
        self, call: _Call, parameters: dict[str, Tensor], x: Tensor, edge_index: Tensor, edge_weight: Tensor | None
    ) -> Tensor:
        buffers = {"module." + name: value.to(x.device, copy=True) for name, value in self.initial_buffers.items()}
        values = (parameters | buffers).items()
        everywhere = {"module." + path: value for name, value in values for path in self.places[name.removeprefix("module.")]}
        try:
            output, replaced = functional_call(call, everywhere, (x, edge_index, edge_weight), tie_weights=False)
        except AtollError:
            raise
        except (Exception, SystemExit) as error:  # whatever the user's module does
            raise AtollError(f"{self.label} fails on a graph of {len(x)} nodes ({type(error).__name__}: {error}).") from error
        if not isinstance(output, Tensor) or output.ndim < 1 or len(output) != len(x):
            what = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise AtollError(f"{self.label} gives {what} for {len(x)} nodes; it must give a tensor with one row per node.")
        if changed := [name.removeprefix("module.") for name, value in buffers.items() if value._version] + replaced:
            kind = "buffer" if changed[0] in self.initial_buffers else "parameter"
            raise AtollError(
                f"{self.label} changes its {kind} {changed[0]!r} in training, which is not part of a federated "
                "model; use LayerNorm, or batch norm with track_running_stats=False."
            )
        return output

    @classmethod
    def arguments(cls, shape: ModelShape, settings: Any) -> dict[str, Any]:
        """What the constructor is called with."""
        offered = dict(
            zip(ARGUMENTS, (shape.features, shape.hidden, shape.classes, shape.layers, shape.dropout, shape.bias), strict=True)
        )
        taken = {name: value for name, value in offered.items() if name in _signature(cls.factory)}
        return taken | {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}

    def _construct(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        try:
            module = type(self).factory(**self.arguments(self.shape, self.settings))
        except (Exception, SystemExit) as error:  # whatever the user's constructor does
            raise AtollError(f"{self.label} cannot be made ({type(error).__name__}: {error}).") from error
        if not isinstance(module, nn.Module):
            raise AtollError(f"{self.label} gives a {type(module).__name__}, not a torch.nn.Module.")
        return module

    def _check(self, module: nn.Module) -> None:
        parameters = dict(module.named_parameters())
        if not parameters:
            raise AtollError(f"{self.label} has no parameters, so there is nothing to train.")
        for name, value in parameters.items():
            if isinstance(value, UninitializedParameter):
                raise AtollError(f"{self.label} does not say the size of {name!r}; use in_channels instead of -1.")
            if value.dtype != torch.float32 or not value.requires_grad:
                raise AtollError(f"The parameter {name!r} of {self.label} must be float32 and trainable; make others buffers.")
        if cached := [name for name, part in module.named_modules() if getattr(part, "cached", False) is True]:
            raise AtollError(f"{cached[0]!r} of {self.label} caches the graph, but every party has its own; use cached=False.")


def own_randomness(device: torch.device) -> AbstractContextManager[None]:
    """What is drawn from torch's global generators inside is not missing outside; a module's own dropout draws on its device."""
    devices = [device.index or 0] if device.type == "cuda" else []
    return torch.random.fork_rng(devices=devices)


class _Call(nn.Module):
    """One call of a module, or of another of its methods: what it gives, and which tensors of the module it replaced."""

    def __init__(self, module: nn.Module, method: str | None) -> None:
        super().__init__()
        self.module, self.method = module, method
        self.parts = list(module.named_modules())

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> tuple[Any, list[str]]:
        """The output, and the names of parameters and buffers that are other tensors than before."""
        before = self._tensors()
        weights = {} if edge_weight is None else {"edge_weight": edge_weight}
        output = (getattr(self.module, self.method) if self.method else self.module)(x, edge_index, **weights)
        replaced = [
            (part, name) for (part, name, one), (_, _, other) in zip(before, self._tensors(), strict=False) if one is not other
        ]
        return output, [f"{part}.{name}" if part else name for part, name in replaced]

    def _tensors(self) -> list[tuple[str, str, Tensor | None]]:
        return [
            (prefix, name, value)
            for prefix, part in self.parts
            for values in (part._parameters, part._buffers)
            for name, value in values.items()
        ]


def plain_backbone(factory: Factory, label: str) -> type[PlainModule]:
    """The backbone that a class of modules, or a function that makes one, stands for."""
    parameters = _signature(factory)
    options = {name: p for name, p in parameters.items() if name not in ARGUMENTS}
    if unknown := [name for name, p in options.items() if p.default is p.empty]:
        raise AtollError(f"{label} needs {unknown[0]!r}, which has no default; atoll gives {', '.join(ARGUMENTS)}.")
    fields = [
        (name, type(p.default), setting(p.default, f"{name} of {label}."))
        for name, p in options.items()
        if type(p.default) in (int, float, bool, str) and not name.startswith("_")  # a name that config.toml cannot hold
    ]
    settings_type = dataclasses.make_dataclass("Settings", fields, frozen=True)
    names = {"factory": staticmethod(factory), "label": label, "settings_type": settings_type, "__doc__": factory.__doc__}
    return type("UserModule", (PlainModule,), names)


def _signature(factory: Factory) -> Mapping[str, inspect.Parameter]:
    """The arguments that can be given by name."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: p for name, p in inspect.signature(factory).parameters.items() if p.kind in by_name}


def _weight_argument(module: nn.Module, method: str) -> inspect.Parameter | None:
    """A method's argument `edge_weight`; some of PyG's models have one although their layers cannot use it."""
    if getattr(module, "supports_edge_weight", True) is False:
        return None
    return inspect.signature(getattr(module, method)).parameters.get("edge_weight")


def _seeds(draws: Draws, sizes: Sequence[int] | None = None) -> list[int]:
    """The next seed of every party; 0, and nothing is drawn, where its size is 0."""
    wanted = [1] * len(draws.generators) if sizes is None else sizes
    pairs = zip(draws.generators, wanted, strict=True)
    return [int(torch.randint(2**62, (), generator=one, device="cpu")) if size else 0 for one, size in pairs]


def _inputs(graph: Graph) -> tuple[Tensor, list[Tensor]]:
    """Dense features (N, d), and every party's edges with nodes counted from 0; computed once for each graph."""
    if "dense_features" not in graph.derived:
        x = graph.x if isinstance(graph.x, Tensor) else torch.from_numpy(graph.x.toarray()).to(graph.device)
        graph.derived["dense_features"] = x
    if "local_edges" not in graph.derived:
        owner = graph.party[graph.edge_index[1]]
        graph.derived["local_order"] = order = owner.argsort(stable=True)
        graph.derived["local_edges"] = (graph.edge_index - graph.ptr[owner])[:, order]
        graph.derived["edges_per_party"] = torch.bincount(owner, minlength=graph.parties)
    edges = torch.split(graph.derived["local_edges"], graph.derived["edges_per_party"].tolist(), 1)
    return graph.derived["dense_features"], list(edges)
