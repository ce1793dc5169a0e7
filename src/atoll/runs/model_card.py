"""What is known of a trained model: the description in `model/model.json` and, for people, the card in `model/README.md`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from atoll.errors import listed
from atoll.federation.messages import Schema
from atoll.runs.config import Config
from atoll.runs.experiment import Experiment
from atoll.runs.markdown import cell
from atoll.runs.metrics import in_order, metric_format
from atoll.runs.model_files import FORMAT
from atoll.runs.preparation import preprocessing_document
from atoll.runs.progress import Progress
from atoll.runs.resumed_config import file_digests
from atoll.version import __version__

MAX_LISTED = 50  # parties or columns that a card lists


def describe(
    config: Config,
    schema: Schema,
    scenario: str,
    *,
    best_round: int,
    metrics: Mapping[str, Any],
    names: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    party_numbers: Sequence[int] | None = None,
    preprocessing: Any = None,
    **facts: Any,
) -> dict[str, Any]:
    """The content of model.json.

    `party_numbers` are the parties whose memory is kept where it is not that of all; `preprocessing` what makes the input
    columns of raw ones; `facts` whatever else is known: `rounds`, `data` (sizes and digest), `partial`, `epsilon`.
    """
    return {
        "format": FORMAT,
        "atoll": __version__,
        "torch": torch.__version__,
        "algorithm": config.algorithm,
        "scenario": scenario,
        "task": config.run.task,
        "parties": schema.parties,
        "party_numbers": None if party_numbers is None else list(map(int, party_numbers)),
        "names": list(names),
        "features": schema.features,
        "columns": None if columns is None else list(columns),
        "num_classes": schema.classes,
        "classes": None if classes is None else list(classes),
        "nodes": schema.nodes,  # of a vertical federation
        "preprocessing": preprocessing,
        "architecture": architecture(config),
        "best_round": best_round,
        "metrics": dict(metrics),
        **facts,
        "config": config.to_dict(),
    } | file_digests(config)


def model_scale(task: Any) -> dict[str, Any]:
    """Mean and deviation of each value in a model's units, where it predicts values."""
    scale = getattr(task, "scale", ())
    return {"value_scale": [list(pair) for pair in scale]} if scale else {}


def architecture(config: Config) -> dict[str, Any]:
    """The network that a configuration names, and its settings."""
    settings = config.to_dict().get("settings", {})
    return {
        "model": settings.get("model"),
        **{name: settings[name] for name in ("hidden", "layers", "dropout", "bias") if name in settings},
        "settings": {} if config.model is None else dataclasses.asdict(config.model),
    }


def describe_run(experiment: Experiment, progress: Progress, *, digest: bool) -> dict[str, Any]:
    """The content of model.json after the rounds of a run; with `digest`, of its data too."""
    federation, data = experiment.federation, experiment.data
    parts, source = (data.parts, data.named) if data is not None else (None, None)
    columns = None if source is None else source.feature_names
    facts: dict[str, Any] = {
        "rounds": progress.round,
        "partial": progress.partial,
        "data": experiment.extent if digest else {},
        "widths": None if parts is None or parts.widths is None else list(parts.widths),
        "party_classes": None if parts is None or parts.classes is None else list(parts.classes),
        "party_columns": None if data is None else [None if each is None else list(each) for each in data.party_columns] or None,
        "memory_at_sites": getattr(experiment.engine, "memory_at_sites", not hasattr(experiment.engine, "snapshot")),
    }
    if experiment.start:
        facts["start_from"] = experiment.start
    if parts is not None and parts.edge_weight is not None:
        facts["edge_weights"] = True
    if "epsilon" in progress.last:
        facts["epsilon"], facts["delta"] = progress.last["epsilon"], experiment.config.dp.delta
    if parts is not None and parts.parties <= MAX_LISTED and federation.scenario != "node":
        facts["party_nodes"], facts["party_train_nodes"] = parts.sizes, parts.num_train.tolist()
    return describe(
        experiment.config,
        federation.schema,
        federation.scenario,
        best_round=progress.best_round,
        metrics=progress.best,
        names=federation.names,
        columns=columns,
        classes=None if source is None else source.class_names,
        preprocessing=None if data is None else preprocessing_document(data),
        **facts,
    )


def card(about: Mapping[str, Any]) -> str:
    """README.md: the model for people, made of its description alone."""
    config = about["config"]
    sections = [
        f"# {cell(about['algorithm'])} on {cell(config.get('dataset', 'own data'))}",
        f"A model for {about['task'].replace('-', ' ')}, trained by atoll {about['atoll']} with `{about['algorithm']}` over "
        f"{about['parties']} {'party' if about['parties'] == 1 else 'parties'} ({about['scenario']}). It is the model of round "
        f"{about['best_round']} of {about.get('rounds', about['best_round'])}, the one with the best validation score.",
        "## Use\n\n" + _use(about),
        "## Data\n\n" + _data(about),
        "## Metrics\n\n" + _metrics(about),
        "## Privacy\n\n" + _privacy(about),
        "## Intended use and limits\n\n" + LIMITS,
    ]
    return "\n\n".join(sections) + "\n"


LIMITS = """Meant for nodes like those it was trained on: the same columns with the same meaning and scale, the same kind of
edges. The metrics are those of the test nodes of the training data; data of another place or time may be predicted worse, so
evaluate it there first. The probabilities are a softmax of the model's outputs and are not calibrated. A trained model can
reveal something of the data it was trained on: give it to those who may see that, or train with differential privacy."""


def _use(about: Mapping[str, Any]) -> str:
    if about.get("party_numbers") is not None:
        return (
            "`KIT` is the kit of the site, `FOLDER` its own data or nodes that arrived later. Nothing leaves the site.\n\n"
            "```bash\natoll predict KIT --data FOLDER --out predictions.csv\n```"
        )
    return (
        "`RUN` is the folder that holds this folder `model/`.\n\n"
        "```bash\natoll predict RUN --out predictions.csv\natoll predict RUN --data NEW --out new.csv\n```\n\n"
        '```python\nmodel = atoll.load_model("RUN")\ntable = model.predict()\n```'
    )


def _data(about: Mapping[str, Any]) -> str:
    data = about.get("data", {})
    lines = [f"- {data[name]} {name}" for name in ("nodes", "edges") if name in data]
    lines.append(f"- {about['features']} input columns{_listed(about.get('columns'))}")
    if about.get("preprocessing") is not None:
        lines.append("- the input columns are an encoding of the table's, which `model.json` holds; new data is given as a table")
    lines += ["- edges with weights (`weight`, `edge_weight`)"] if about.get("edge_weights") else []
    lines.append(f"- {about['num_classes']} classes{_listed(about.get('classes'))}")
    partition = about["config"].get("partition")
    lines.append(f"- {about['parties']} parties{_listed(about['names'])}, partition `{partition}`, scenario {about['scenario']}")
    if "digest" in data:
        lines.append(f"- digest {data['digest']}")
    return "\n".join(lines)


def _metrics(about: Mapping[str, Any]) -> str:
    metrics = about["metrics"]
    plain = {name: value for name, value in metrics.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    rows = [f"| {metric_format(name).words} | {_number(name, plain[name])} |" for name in in_order(plain)]
    text = "\n".join(["| metric | value |", "|---|---|", *rows])
    if about.get("partial"):
        text += "\n\nA party was missing in this round: its nodes are not in these numbers."
    return text + _by_class(about) + _by_party(about)


def _by_class(about: Mapping[str, Any]) -> str:
    """How classes are decided, and a table with a row per class."""
    detail, threshold = about.get("detail") or {}, about.get("threshold")
    text = ""
    if threshold:
        how = "given" if threshold["by"] == "given" else f"the best {threshold['by']} on validation nodes"
        text = (
            f"\n\nClass {cell(threshold['class'])} is predicted from a probability of {threshold['value']:.4g} on ({how}); "
            "the table by class is about these decisions, the metrics above about the likeliest class."
        )
    rows = list(detail.get("by_class", {}).items())
    if not rows or len(rows) > MAX_LISTED:
        return text
    columns = [name for name in rows[0][1] if name != "items" and any(row[name] is not None for _, row in rows)]
    head = ["class", "test nodes", *({"f1": "F1"}.get(name, metric_format(name).words) for name in columns)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, row in rows:
        cells = ["" if row[column] is None else f"{100 * row[column]:.2f} %" for column in columns]
        lines.append(f"| {' | '.join([cell(name), str(row['items']), *cells])} |")
    return text + "\n\n" + "\n".join(lines)


def _by_party(about: Mapping[str, Any]) -> str:
    """A table with a row per party."""
    columns = {name.removeprefix("party_"): value for name, value in about["metrics"].items() if name.startswith("party_")}
    columns = {name: value for name, value in columns.items() if isinstance(value, list) and len(value) == about["parties"]}
    if not columns or about["parties"] > MAX_LISTED:
        return ""
    sizes = {
        words: about[key] for words, key in (("nodes", "party_nodes"), ("training nodes", "party_train_nodes")) if key in about
    }
    names = about["names"] or [str(party) for party in range(about["parties"])]
    head = ["party", *sizes, *(metric_format(name).words for name in columns)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for party, name in enumerate(names):
        cells = [str(values[party]) for values in sizes.values()]
        cells += ["" if values[party] is None else _number(metric, values[party]) for metric, values in columns.items()]
        lines.append(f"| {' | '.join([cell(name), *cells])} |")
    return "\n\n" + "\n".join(lines)


def _privacy(about: Mapping[str, Any]) -> str:
    run = about["config"].get("run", {})
    lines = []
    if "epsilon" in about:
        spent = "not bounded" if about["epsilon"] is None else f"{about['epsilon']:.4g}"
        lines.append(f"- Differential privacy: ε = {spent} at δ = {about['delta']:g}, spent by the whole run.")
    else:
        lines.append("- Trained without differential privacy.")
    if start := about.get("start_from"):
        lines.append(f"- Training began with the model of `{cell(start['path'])}`, whose privacy is not part of this.")
    lines.append(f"- Secure aggregation was {'on: the server saw sums only' if run.get('secure') else 'off'}.")
    return "\n".join(lines)


def _number(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if metric_format(name).percent else f"{value:.4g}"


def _listed(names: Sequence[Any] | None) -> str:
    if not names:
        return ""
    return ": " + listed(map(cell, names), MAX_LISTED)
