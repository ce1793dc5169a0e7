"""A trained model, to be used: what it predicts for the nodes it was trained on and for nodes that arrived later."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from atoll import device as devices
from atoll.data.encoding import Encoding
from atoll.data.federated_data import FederatedData
from atoll.data.new_nodes import InputForm
from atoll.data.script_data import ScriptData
from atoll.errors import AtollError, AtollWarning, suggest
from atoll.federation.messages import Schema
from atoll.graphs.graph import Graph
from atoll.runs import inference, outputs, predicted_nodes, site_links, target_outputs
from atoll.runs.config import GIVEN, Config
from atoll.runs.described_config import described
from atoll.runs.evaluation import Evaluation, judge
from atoll.runs.experiment import task_of
from atoll.runs.export import export_files
from atoll.runs.model_files import ModelFiles, with_memory_of_sites
from atoll.runs.own_files import with_own_files
from atoll.runs.preparation import load_parties, read_preprocessing
from atoll.runs.target_outputs import TargetEvaluation
from atoll.tasks import LINK_TASK, Task
from atoll.tasks.decisions import decide
from atoll.tasks.node_classification import NodeClassification
from atoll.tasks.targets import Targets

if TYPE_CHECKING:
    import pandas as pd


class TrainedModel:
    """A trained model: `load_model` reads one from a folder, `result.model()` gives that of a run.

    Attributes:
        description: What `model.json` says: algorithm, settings, columns, classes, parties, metrics, versions, digests.
        config: The configuration of the run it is from.
        files: The description and the tensors.

    Examples:
        >>> import atoll
        >>> model = atoll.run("fedavg", dataset="csbm", partition="random", parties=2, rounds=3, nodes=200, classes=3).model()
        >>> model
        TrainedModel(fedavg on csbm: 2 parties, 64 columns, 3 classes, round 3)
        >>> table = model.predict()
        >>> list(table.columns), len(table)
        (['id', 'party', 'split', 'label', 'class', 'p[0]', 'p[1]', 'p[2]'], 200)
        >>> new = atoll.load("csbm", nodes=50, classes=3, graph_seed=1)
        >>> len(model.predict(new))
        50
    """

    def __init__(self, files: ModelFiles, config: Config, *, given: Graph | ScriptData | None = None) -> None:
        """`given`: the training data where it was given as an object."""
        self.files = files
        self.config = config
        self.description = files.description
        self.given = given

    def __repr__(self) -> str:
        about = self.description
        parties = "1 party" if about["parties"] == 1 else f"{about['parties']} parties"
        return (
            f"{type(self).__name__}({about['algorithm']} on {self.config.dataset}: {parties}, {about['features']} columns, "
            f"{about['num_classes']} classes, round {about['best_round']})"
        )

    def predict(
        self,
        data: Any = None,
        party: str | int | None = None,
        known: Any = None,
        join: str | None = None,
        pairs: Any = None,
    ) -> pd.DataFrame:
        """Predict the class of every node, labeled or not.

        Parameters:
            data: Nodes that arrived later: a folder with the tables `nodes` and `edges`, an .npz, a torch_geometric `Data`, a
                NetworkX graph, DataFrames (nodes, edges), an atoll `Graph`, or one of these per party (a dict, or a folder that
                holds folders). By default the data that the model was trained on, which is loaded again.
            party: A party's name or number: whose nodes of the training data, or whose model and graph for new nodes. It is
                needed for new nodes where every party has a model of its own.
            known: At a site, which keeps no copy of its data: the folder of before, where edges of new nodes name nodes of it.
            join: With nfedgnn and cnfgnn, what new users begin with, who have no weights of their own: mean, initial or
                neighbors; that of the run by default.
            pairs: Link prediction: a .csv, .parquet or DataFrame with the columns `source` and `target`, to be scored in place of
                the pairs of the training data; the two nodes of a pair are of one party.

        Returns:
            One row per node, or per node and party where several parties hold it: `id`, `party`, `split`, `label` (where it is
            known), `class`, and `p[CLASS]`, the probability of each class. Of labels, in their place, `label[NAME]` and
            `p[NAME]` for each; of values `value[NAME]` and `predicted[NAME]`.
        """
        predicted = self.outputs(data, party, known, join, pairs)
        return self.table(predicted)

    def table(self, predicted: outputs.Outputs) -> pd.DataFrame:
        """Outputs as the table that `predict` gives."""
        if isinstance(task := self.task, Targets):
            return target_outputs.table(predicted, task, self.classes)
        self._require_classes("table of predictions")
        return outputs.table(predicted, self.decide(predicted.logits), self.classes)

    def outputs(
        self,
        data: Any = None,
        party: str | int | None = None,
        known: Any = None,
        join: str | None = None,
        pairs: Any = None,
    ) -> outputs.Outputs:
        """The same as `predict`, before it becomes a table: the nodes as a graph, logits, parties."""
        if self.own_numbers is not None and self.task.name == LINK_TASK and data is not None:
            return site_links.at_site(self, data, party, known, pairs)
        if pairs is not None:
            if data is not None or known is not None or join is not None:
                raise AtollError("--pairs names nodes of the training data; leave --data, --known and --join out.")
            return predicted_nodes.of_pairs(self, pairs, party)
        if data is not None:
            return predicted_nodes.of_new_data(self, data, party, known, join)
        if known is not None:
            raise AtollError("--known is the graph that new nodes have edges to; give the new nodes too: --data FOLDER.")
        if join is not None:
            raise AtollError("--join is for users who join after training; give them: --data FOLDER.")
        return predicted_nodes.of_training_data(self, party)

    def decide(self, logits: Tensor) -> Tensor:
        """(N,) the class of each node: the likeliest one or, with a threshold, that of the threshold."""
        threshold = self.description.get("threshold")
        return logits.argmax(1) if threshold is None else decide(logits.double().softmax(1), threshold)

    def evaluate(
        self, data: Any = None, party: str | int | None = None, known: Any = None, join: str | None = None
    ) -> Evaluation | TargetEvaluation:
        """Judge the model on labeled nodes: the test nodes or, where none are marked, all of them.

        Parameters:
            data, party, known, join: As for `predict`.

        Returns:
            Metrics overall, by class (label, value) and by party; `print` shows them as a table, `to_dict` gives plain values.
        """
        predicted, averaged = self.outputs(data, party, known, join), self._averaged()
        if isinstance(task := self.task, Targets):
            return replace(target_outputs.judge(predicted, task, self.classes), averaged=averaged)
        self._require_classes("evaluation by class")
        threshold = self.description.get("threshold")
        judged = judge(predicted.graph, predicted.logits, predicted.party_names, self.classes, threshold)
        return replace(judged, averaged=averaged)

    @property
    def average_words(self) -> str:
        """How the setting `average` has the run's metrics averaged over the parties; empty where they are pooled."""
        words = {"mean": "the mean", "nodes": "the mean by items", "worst": "the worst"}
        return "" if self.description["parties"] == 1 else words.get(self.config.run.average, "")

    def _averaged(self) -> str:
        """How the run's metrics are averaged over the parties, in words; empty where they are of all items together."""
        ranked = "for AUC, AP, MRR and Hits@K the mean"
        several = self.description["parties"] > 1
        return self.average_words or (ranked if several and self.task.name == LINK_TASK else "")

    def export(self, to: str, out: str | Path, party: str | int | None = None) -> list[Path]:
        """Write the model for other programs; see `atoll.export_model`."""
        return export_files(self.files, self.config, to, out, party=party)

    def _require_classes(self, what: str) -> None:
        """Refuse what is made of one probability per class, where the task predicts something else."""
        if not isinstance(self.task, NodeClassification):
            raise AtollError(f"There is no {what} for the task {self.task.name}; use model.outputs().")

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes; None where they are 0, 1, 2, …"""
        return None if self.description.get("classes") is None else tuple(self.description["classes"])

    @property
    def names(self) -> tuple[str, ...]:
        """The parties' names, in party order; empty where they only have numbers."""
        return tuple(map(str, self.description["names"]))

    @property
    def own_numbers(self) -> Sequence[int] | None:
        """At a site, the numbers of its parties; None where the model is that of a whole federation."""
        numbers: Sequence[int] | None = self.description.get("party_numbers")
        return numbers

    @property
    def schema(self) -> Schema:
        """What the parties and the server knew of the data."""
        about = self.description
        return Schema(about["features"], about["num_classes"], about["parties"], int(about.get("nodes") or 0))

    @property
    def task(self) -> Task:
        """What is predicted."""
        task: Any = task_of(self.config, self.schema, self.classes)
        scale = self.description.get("value_scale")
        scaled: Task = task.scaled(scale) if scale else task
        return scaled

    @cached_property
    def encodings(self) -> tuple[Encoding | None, tuple[Encoding | None, ...]]:
        """The encoding of all parties' columns, or each party's own."""
        return read_preprocessing(self.description.get("preprocessing"))

    def form(self, **changes: Any) -> InputForm:
        """What the model expects of its input."""
        about, data = self.description, self.config.data
        expected = {
            "features": about["features"],
            "num_classes": about["num_classes"],
            "columns": None if about.get("columns") is None else tuple(about["columns"]),
            "class_names": self.classes,
            "encoding": self.encodings[0],
            "directed": bool(getattr(data, "directed", False)),
            "normalize": bool(getattr(data, "normalize_features", False)),
            "edge_weights": bool(about.get("edge_weights", False)),
            "target": getattr(data, "target", "class"),
            "links": self.task.name == LINK_TASK,
            "at_sites": self._across_sites and about.get("columns") is None,
        }
        return InputForm(**(expected | changes))

    @property
    def _across_sites(self) -> bool:
        """Whether this is what a server keeps of a run across real sites."""
        return self.config.dataset == GIVEN and self.config.engine == "nvflare" and self.own_numbers is None

    @cached_property
    def training_data(self) -> FederatedData:
        """The data it was trained on, loaded again, with the columns encoded as they were."""
        if self.own_numbers is not None:
            raise AtollError("A site keeps no copy of its data; give it: --data FOLDER.")
        if self._across_sites:
            raise AtollError("The model was trained across sites, and the data is there; give data to predict: --data NEW.")
        if self.config.dataset == GIVEN and self.given is None:
            raise AtollError(
                "The model was trained on a dataset given as an object; give it again: atoll.load_model(…, dataset=…)."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AtollWarning)  # it was said when the model was trained
            return load_parties(inference.plain(self.config), self.given, self.encodings[0])[0]

    def party_number(self, party: str | int) -> int:
        """The number of a party that is given by name or number."""
        text, count = str(party), self.description["parties"]
        if text in self.names:
            return self.names.index(text)
        if text.isdecimal() and int(text) < count:
            return int(text)
        hint = suggest(text, self.names) if self.names else f"; it has {count}, numbered from 0."
        raise AtollError(f"The model has no party {text!r}{hint}")


def load_model(
    path: str | Path, *, dataset: Any = None, algorithm: str | Path | None = None, model: Any = None, device: str = "cpu"
) -> TrainedModel:
    """Read the trained model of a run's folder. Nothing is run.

    Parameters:
        path: The folder that `out` or `--out` named, or the folder `model` in it; at a site, `KIT/runs/NAME`.
        dataset: The training data again, if it was given as an object, which a folder cannot hold.
        algorithm: The file of an algorithm of your own again: a folder alone never makes atoll run a file.
        model: The file, class or function of a model of your own again.
        device: Where it predicts, as for `atoll.run`; wherever it was trained.

    Returns:
        The model of the best round.

    Examples:
        >>> import atoll, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = atoll.run("centralized", dataset="csbm", parties=2, rounds=1, nodes=99, out=f"{folder}/a")
        ...     model = atoll.load_model(f"{folder}/a")
        >>> model.description["best_round"] == result.best_round
        True
        >>> model.predict()["class"].nunique() <= 5
        True
    """
    from atoll.runs.api import given_objects

    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise AtollError(f"There is no folder {path}; give the folder that --out named.")
    files = with_memory_of_sites(ModelFiles.read(folder), folder)
    config = described(files.description["config"], f"model.json of {path}")
    config = replace(config, device=devices.name(devices.find(device)))
    given: dict[str, Any] = {"algorithm": algorithm, "model": model}
    config = with_own_files(config, path, lambda: files.description, **given, command="predict", function="load_model")
    return TrainedModel(files, config, given=dataset if isinstance(dataset, ScriptData) else given_objects(dataset))
