"""MLflow's own store, in a folder, holds configuration, rounds and summary; it never stops a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.errors import AtollError, AtollWarning
from atoll.runs.loggers.mlflow import ID_FILE, MlflowLogger

TINY: dict[str, Any] = {"dataset": "csbm", "nodes": 80, "partition": "random", "parties": 2, "rounds": 3, "loggers": ["mlflow"]}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of an empty store."""
    mlflow = pytest.importorskip("mlflow", reason='pip install "atoll[mlflow]"')
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    for name in ("EXPERIMENT_NAME", "EXPERIMENT_ID", "RUN_NAME"):
        monkeypatch.delenv(f"MLFLOW_{name}", raising=False)
    return mlflow.MlflowClient()


def runs(client: Any, experiment: str = "atoll") -> list[Any]:
    """The runs of an experiment."""
    return list(client.search_runs([client.get_experiment_by_name(experiment).experiment_id]))


def curve(client: Any, run: Any, name: str) -> list[tuple[int, float]]:
    """A metric by round."""
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]


def test_it_gets_configuration_rounds_and_summary(client: Any) -> None:
    """Parameters by dotted names, metrics by round under the names of the history's columns, the best round's at the end."""
    result = atoll.run("fedavg", **TINY, seed=4)
    (run,) = runs(client)
    assert (run.info.run_name, run.info.status) == ("fedavg csbm seed 4", "FINISHED")
    assert (run.data.params["seed"], run.data.params["settings.model"], run.data.params["run.rounds"]) == ("4", "gcn", "3")
    for column in ("train_loss", "test_accuracy", "bytes_up_total"):
        assert curve(client, run, column) == list(zip([1, 2, 3], result.history[column].tolist(), strict=True))
    assert run.data.metrics["best_test_accuracy"] == result.metrics["accuracy"]
    assert "round" not in run.data.metrics


def test_a_resumed_run_is_the_same_run_there(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No round is logged twice; where the store does not have the run any more, it is a new one."""
    folder = tmp_path / "run"
    whole = atoll.run("local", **TINY, out=folder)
    atoll.resume(folder, rounds=5, loggers=["mlflow"])
    (run,) = runs(client)
    assert run.info.run_id == (folder / ID_FILE).read_text()
    assert [step for step, _ in curve(client, run, "val_loss")] == [1, 2, 3, 4, 5]
    logger = MlflowLogger("again", folder)
    with logger:
        logger(whole.history.to_dict("records")[2], 5)  # a round that a crash made the run do again
    assert len(curve(client, run, "val_loss")) == 5
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")
    client.delete_run(run.info.run_id)
    (folder / ID_FILE).write_text("0" * 32)
    atoll.resume(folder, rounds=6, loggers=["mlflow"])
    (fresh,) = runs(client, "other")
    assert curve(client, fresh, "val_loss")[0][0] == 6
    assert (folder / ID_FILE).read_text() == fresh.info.run_id


def test_a_run_of_the_programs_own_is_used_and_stays_open(client: Any) -> None:
    """`mlflow.start_run` around `atoll.run`."""
    import mlflow

    with mlflow.start_run(run_name="mine") as mine:
        atoll.run("local", **TINY)
        assert client.get_run(mine.info.run_id).info.status == "RUNNING"
    assert len(curve(client, mine, "train_loss")) == 3
    assert client.get_experiment_by_name("atoll") is None


@pytest.mark.parametrize(("error", "status"), [(RuntimeError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_a_run_that_fails_is_marked(client: Any, error: type[BaseException], status: str) -> None:
    """Broken by an error or by the user."""

    def fail(row: Any) -> None:
        raise error

    with pytest.raises(error):
        atoll.run("local", **TINY, on_round=fail)
    assert runs(client)[0].info.status == status


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_store_that_is_gone_does_not_stop_the_run(client: Any, comes_back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning; what was not sent is sent at the end, if it can be."""
    log_batch, metric_batches = type(client).log_batch, 0

    def failing(self: Any, run_id: str, **given: Any) -> None:
        nonlocal metric_batches
        metric_batches += "metrics" in given
        if "metrics" in given and metric_batches > 1 and not (comes_back and metric_batches > 2):
            raise OSError("no route to host")
        log_batch(self, run_id, **given)

    monkeypatch.setattr(type(client), "log_batch", failing)
    with pytest.warns(AtollWarning, match="MLflow cannot be reached .no route to host.; the run goes on") as caught:
        result = atoll.run("local", **TINY)
    assert result.rounds == 3
    assert len(caught) == (1 if comes_back else 2)
    assert [step for step, _ in curve(client, runs(client)[0], "val_loss")] == ([1, 2, 3] if comes_back else [1])


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    """A store that cannot be used, or the package: one sentence."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://here")
    with pytest.raises(AtollError, match=r"The logger mlflow cannot start a run at nonsense://here .*; set MLFLOW_TRACKING_URI"):
        atoll.run("local", **TINY)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(AtollError, match=r'needs mlflow, which is not installed; run `pip install "atoll\[mlflow\]"`'):
        atoll.run("local", **TINY, out=tmp_path / "run")
    assert not list(tmp_path.glob("run"))
