"""Tables at sites: the encoding of one process to the last bit, names that stay at home, and a server that asks for too much."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll import wire
from atoll.data.encoding import CODES, Encoding, codes_of
from atoll.data.encoding_fit import FOREIGN, MAX_CALLS
from atoll.deploy import audit, server
from atoll.deploy.policy import SitePolicy
from atoll.deploy.site_tables import FITS_FOLDER, REFUSED
from atoll.deploy.table_forms import IMPLAUSIBLE
from atoll.engines.remote import read_answer
from atoll.errors import AtollError
from atoll.federation import agreements
from atoll.runs import runner
from atoll.runs.preparation import TableCohort
from clinics import CLINICS, SECRETS, Clinics, clinics, configs, table
from test_promises import assert_same

pytestmark = pytest.mark.filterwarnings("ignore::atoll.errors.AtollWarning")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports to a parent process are left out."""
    monkeypatch.setattr(server, "report", lambda **what: None)


def site_encodings(found: Clinics, run: str) -> dict[str, Encoding]:
    """What each site's model was trained with."""
    paths = {name: found.folder / "kits" / name / "runs" / run / "model" / "model.json" for name in found.wire.sites}
    return {name: Encoding.from_dict(json.loads(path.read_text())["preprocessing"]) for name, path in paths.items()}


def plain(encoding: Encoding) -> list[Any]:
    """All of an encoding but the categories' names."""
    columns = encoding.to_dict()["columns"]
    return [{name: value for name, value in column.items() if name != "labels"} for column in columns]


def equal(found: Clinics, algorithm: str = "fedavg", tolerance: float = 0.0, **values: Any) -> None:
    """The sites' run is that of one process: states, metrics, bytes and encodings."""
    here, there = configs(found.folder, algorithm, **values)
    experiment = runner.prepare(here)
    experiment.federation.load_whole = None  # the union of overlapping graphs, which only a simulation has
    one, other = runner.rounds(experiment), found.serve(there)
    assert_same(one, other, tolerance)
    whole = experiment.party_data.encoding
    for name, encoding in site_encodings(found, other.memory["run"]).items():
        if whole is not None:
            assert plain(encoding) == plain(whole), name
            for own, all_names in zip(encoding.columns, whole.columns, strict=True):
                assert all(label in ("", known) for label, known in zip(own.labels, all_names.labels, strict=True))


@pytest.mark.parametrize("secure", [False, True])
def test_sites_give_the_numbers_of_their_folders(tmp_path: Path, secure: bool) -> None:
    """Other orders, a ward that one has alone, a column that is empty at one: the bits of one process; no name leaves a site."""
    found = clinics(tmp_path, signed=secure)
    equal(found, secure=str(secure), **({"secure_min": 3} if secure else {}))
    sent = b"".join(found.wire.bytes)
    assert not [name for name in SECRETS if name.encode() in sent]
    labels = {name: site_encodings(found, run_of(found))[name].columns[1].labels for name in CLINICS}
    assert "secret-ward" in labels["clinic-c"]
    assert "" in labels["clinic-a"]
    journal = [line.entry for line in audit.read(found.folder / "kits" / "clinic-a" / "runs" / "journal.jsonl") if line.entry]
    verbs = [entry["verb"] for entry in journal if entry.get("verb") in MAX_CALLS]
    assert set(verbs) == MAX_CALLS.keys()
    assert all(verbs.count(verb) <= MAX_CALLS[verb] for verb in verbs)
    assert all(entry["masked"] == secure for entry in journal if entry.get("verb") in MAX_CALLS)


def run_of(found: Clinics) -> str:
    """The name of the run that was trained."""
    (path,) = (found.folder / "kits" / "clinic-a" / "runs").glob("*/model")
    return path.parent.name


def test_overlapping_and_vertical_sites(tmp_path: Path) -> None:
    """Nodes that clinics share count at each; vertical clinics encode their own columns, and nothing is asked for it."""
    shared = {name: table(place).assign(index=range(20 * place, 20 * place + 60)) for place, name in enumerate(CLINICS)}
    for frame in shared.values():
        frame["split"] = np.resize(["train", "val", "test"], 200)[frame["index"].astype(int)]
        frame["label"] = np.resize(["home", "ward", "ward"], 200)[frame["index"].astype(int)]
        frame["id"] = frame["index"]
    equal(clinics(tmp_path / "overlapping", shared), "fedgl", split="auto", scenario="overlapping")
    rows = [f"p{row}" for row in range(60)]
    apart = {name: table(place)[["ward", "blood_sugar"]].assign(id=rows) for place, name in enumerate(CLINICS)}
    for frame in apart.values():
        frame["label"], frame["split"] = np.resize(["home", "ward", "ward"], 60), np.resize(["train", "val", "test", "train"], 60)
    found = clinics(tmp_path / "vertical", apart)
    equal(found, "glasu", 1e-5, split="auto", scenario="vertical", hidden=4)
    assert not [data for data in found.wire.bytes if b"count_columns" in data]


def test_plain_numbers_beside_a_table_are_columns_too(tmp_path: Path) -> None:
    """One clinic misses nothing: alone it would need no encoding."""
    frames = {name: table(place)[["id", "dose", "blood_sugar", "label"]] for place, name in enumerate(CLINICS)}
    frames["clinic-b"] = frames["clinic-b"].fillna(1.5)
    equal(clinics(tmp_path, frames))


@pytest.mark.parametrize(
    ("change", "server_says", "site_says"),
    [
        (
            lambda frame: frame.assign(dose="high"),
            "column 5 of clinic-a .* is a number at clinic-a and a category at clinic-b; say in a features.toml",
            "column 'dose', a category here, is not encoded as at clinic-a",
        ),
        (
            lambda frame: frame.drop(columns="dose"),
            "Clinic-b has no column 5 of clinic-a .*, which clinic-a has",
            "columns there and not here: 1",
        ),
        (lambda frame: frame.assign(extra="x"), "Clinic-a has no column 7 of clinic-b .*, which clinic-b has", "'extra'"),
    ],
)
def test_columns_that_differ_are_one_sentence(
    tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame], server_says: str, site_says: str
) -> None:
    """The server says which site and which position; the site's own log says the name; the folders are refused alike."""
    frames = {name: table(place) for place, name in enumerate(CLINICS)}
    frames["clinic-b"] = change(frames["clinic-b"])
    found = clinics(tmp_path, frames)
    here, there = configs(tmp_path)
    with pytest.raises(AtollError, match=server_says) as refused:
        found.serve(there)
    assert not [name for name in ("dose", "extra") if name in str(refused.value)]
    assert any(site_says in text for text in found.said["clinic-b"])
    with pytest.raises(AtollError, match=r"`(dose|extra)`"):
        runner.prepare(here)


def test_features_files_must_agree(tmp_path: Path) -> None:
    """Other options are a sentence; the same listed values at all sites work, and are sent as digests."""
    found = clinics(tmp_path)
    said = '[ward]\nkind = "category"\nvalues = ["icu", "secret-ward"]\n[score]\nkind = "number"\nlow = 0\nhigh = 8\n'
    for name in CLINICS:
        (tmp_path / "data" / name / "features.toml").write_text(said)
    equal(found)
    assert b"secret-ward" not in b"".join(found.wire.bytes)
    (tmp_path / "data" / "clinic-b" / "features.toml").write_text(said.replace("8", "9"))
    with pytest.raises(AtollError, match=r"column 6 of clinic-a .* is encoded in another way at clinic-b than at clinic-a"):
        clinics(tmp_path).serve(configs(tmp_path)[1], "again")
    (tmp_path / "data" / "clinic-b" / "features.toml").write_text(said.replace('"secret-ward"', '"secret-other"'))
    with pytest.raises(AtollError, match="encoded in another way"):
        clinics(tmp_path).serve(configs(tmp_path)[1], "once more")


def test_numbers_without_a_table_do_not_fit(tmp_path: Path) -> None:
    """An .npz beside tables; in one process as at sites."""
    found = clinics(tmp_path)
    folder = tmp_path / "data" / "clinic-c"
    arrays = {"x": np.zeros((4, 6), np.float32), "edge_index": np.array([[0], [1]]), "y": np.arange(4) % 2}
    np.savez(folder / "graph.npz", **arrays, class_names=np.array(["home", "ward"]))
    here, there = configs(tmp_path)
    with pytest.raises(AtollError, match=r"clinic-a are encoded, and clinic-c has numbers without a table"):
        found.serve(there)
    with pytest.raises(AtollError, match=r"clinic-c has only numbers without a table"):
        runner.prepare(here)


@pytest.mark.parametrize("when", ["histogram", "fit"])
def test_a_killed_site_continues(tmp_path: Path, when: str) -> None:
    """A new process of a site in the middle of the fit, or of the rounds: the same bits, and nothing is asked twice."""
    found = clinics(tmp_path)
    here, there = configs(tmp_path, checkpoint_every=1, on_missing="stop")
    killed: list[str] = []

    def kill(site: str, request: dict[str, Any]) -> None:
        if site == "clinic-b" and request.get("verb") == when and not killed and (when == "histogram" or request["round"] == 2):
            killed.append(site)
            found.restart(site)

    found.wire.before = kill
    assert_same(runner.run(here), found.serve(there), 0.0)
    assert killed


def test_the_fit_waits_for_a_site_that_is_lost(tmp_path: Path) -> None:
    """It needs all sites: once the lost one is back, it begins again."""
    found = clinics(tmp_path)
    here, there = configs(tmp_path)
    lost: list[str] = []

    def lose(site: str, request: dict[str, Any]) -> str | None:
        if site == "clinic-b" and request.get("verb") == "histogram" and not lost:
            lost.append(site)
            return "lost the connection"
        return None

    found.wire.before = lose
    assert_same(runner.run(here), found.serve(there), 0.0)
    assert lost


def test_a_killed_server_resumes_with_the_encoding_of_the_run(tmp_path: Path) -> None:
    """From its checkpoint, without another fit; a site refuses another encoding, and other data, under the same run."""
    found = clinics(tmp_path)
    here, there = configs(tmp_path, rounds=3, checkpoint_every=1, on_missing="stop")

    class Killed(BaseException):
        """SIGKILL."""

    def kill(site: str, request: dict[str, Any]) -> None:
        if request.get("verb") == "fit" and request["round"] == 3:
            raise Killed

    found.wire.before = kill
    with pytest.raises(Killed):
        found.serve(there)
    found.wire.bytes.clear()
    for name in CLINICS:
        found.restart(name)
    begun: list[dict[str, Any]] = []
    found.wire.before = lambda site, request: begun.append(request) if request["kind"] == "begin" else None
    assert_same(runner.run(here), found.serve(there, resume=True), 0.0)
    assert not [data for data in found.wire.bytes if b"count_columns" in data or b"prepare" in data]
    request = begun[0]
    request["encoding"][0]["numbers"][0][3] += 1.0
    answer = read_answer(found.restart("clinic-a").handle(wire.encode(request)))
    assert answer == "refused: the encoding is not the one that the run began with."
    request["encoding"][0]["numbers"][0][3] -= 1.0
    table(0).assign(dose=1.0).to_csv(tmp_path / "data" / "clinic-a" / "nodes.csv", index=False)
    assert "its data has changed" in str(read_answer(found.restart("clinic-a").handle(wire.encode(request))))


def allow_another_fit(found: Clinics) -> None:
    """What the owner of clinic-b does for it."""
    (record,) = (found.folder / "kits" / "clinic-b" / "runs" / FITS_FOLDER).iterdir()
    record.unlink()


def prepared(found: Clinics, **values: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """How a server asks clinic-b before the first round, and the `prepare` that came before."""
    asked: list[dict[str, Any]] = []
    found.wire.before = lambda site, request: (
        asked.append(request) if request["kind"] == "prepare" and site == "clinic-b" else None
    )
    found.serve(configs(found.folder, **values)[1])
    request = {**asked[0], "run": "another-run"}
    allow_another_fit(found)
    found.wire.sites["clinic-b"].handle(wire.encode(request))

    def ask(verb: str, call: int = 1, **common: Any) -> Any:
        message = {"kind": "ask", "verb": verb, "round": 0, "call": call, "training": True, "each": {}, "common": common}
        envelope = {name: request[name] for name in ("atoll", "run", "parties")}
        return read_answer(found.wire.sites["clinic-b"].handle(wire.encode({**envelope, **message})))

    return ask, request


def ranges(ask: Callable[..., Any], number: int, low: float, high: float) -> dict[str, torch.Tensor]:
    """A range for one of the five numbers, and one that holds everything for the others."""
    found = {"low": torch.full((4,), -1e9, dtype=torch.float64), "high": torch.full((4,), 1e9, dtype=torch.float64)}
    found["low"][number], found["high"][number] = low, high
    return found


def test_a_server_cannot_narrow_down_one_patient(tmp_path: Path) -> None:
    """The attack: find the cell of the largest value, then ask for ever narrower ranges around it."""
    found = clinics(tmp_path)
    ask, _ = prepared(found)
    values = table(1)["blood_sugar"].dropna().astype(float)
    low, high, width = 0.0, float(values.max()) * 2, []
    for call in range(2, 20):
        reply = ask("histogram", call, **ranges(ask, 0, low, high))
        if isinstance(reply, str):
            break
        width.append(high - low)
        cells = reply["counts"][0, 0, 1:-1].nonzero()
        step = (high - low) / 512
        low, high = low + int(cells[-1]) * step, low + (int(cells[-1]) + 1) * step
    assert reply == f"refused: {REFUSED}"
    assert len(width) == 1
    assert any("refused to count column 'blood_sugar'" in text for text in found.said["clinic-b"])


def test_a_refused_range_is_the_last_answer(tmp_path: Path) -> None:
    """The attack: which ranges are refused says how many values they hold. One bit, then nothing: in no call, process or run."""
    found = clinics(tmp_path)
    ask, request = prepared(found)
    wide, narrow = ranges(ask, 0, -1e5, 1e5), ranges(ask, 0, 1.0, 1.0001)
    assert not isinstance(ask("histogram", 2, **wide), str)
    refused = f"refused: {REFUSED}"
    assert ask("histogram", 3, **narrow) == refused
    for again in (request, {**request, "run": "a-third-run"}):
        for call in range(2, 12):
            assert ask("histogram", call, **wide) == ask("histogram", call, **narrow) == refused
            assert ask("count_columns", call) == refused
        request["run"] = again["run"]
        found.restart("clinic-b").handle(wire.encode(again))
    allow_another_fit(found)
    found.restart("clinic-b").handle(wire.encode({**request, "run": "a-fourth-run"}))


def test_the_calls_of_a_run_are_counted_before_its_ranges_are_looked_at(tmp_path: Path) -> None:
    """Once the calls are spent, a narrow range gets the answer of a wide one, and closes nothing."""
    found = clinics(tmp_path)
    ask, _ = prepared(found)
    for call in range(2, 2 + MAX_CALLS["histogram"]):
        assert not isinstance(ask("histogram", call, **ranges(ask, 0, -1e5 - call, 1e5)), str)
    refused = f"refused: {REFUSED}"
    assert ask("histogram", 20, **ranges(ask, 0, 1.0, 1.0001)) == ask("histogram", 21, **ranges(ask, 0, -1e6, 1e6)) == refused
    assert not isinstance(ask("histogram", 2, **ranges(ask, 0, -1e5 - 2, 1e5)), str)


def test_a_begun_run_is_not_prepared_again(tmp_path: Path) -> None:
    """Nor does another run of the same table learn more than the first: only the same arguments are answered."""
    found = clinics(tmp_path)
    asked: list[dict[str, Any]] = []
    found.wire.before = lambda site, request: asked.append(request) if site == "clinic-b" else None
    found.serve(configs(tmp_path)[1])
    site, refused = found.restart("clinic-b"), f"refused: {REFUSED}"
    (request,) = (one for one in asked if one["kind"] == "prepare")
    assert read_answer(site.handle(wire.encode(request))) == refused
    assert read_answer(site.handle(wire.encode({**request, "run": "another"}))) == {}
    reversed_ = {**request, "run": "reversed", "columns": request["columns"][::-1]}
    sums = [{**one, "run": "another"} for one in asked if one.get("verb") in ("sum_columns", "histogram")]
    for one in sums:
        assert not isinstance(read_answer(site.handle(wire.encode(one))), str)
    for other in ("another", "reversed"):
        for one in sums:
            wider = {**one, "run": other, "call": 90, "common": {**one["common"], "high": one["common"]["high"] * 2}}
            assert read_answer(site.handle(wire.encode(wider))) == refused
        assert read_answer(site.handle(wire.encode(reversed_))) == {}


@pytest.mark.parametrize("secure", [False, True])
def test_the_same_tables_again_are_the_same_fit(tmp_path: Path, secure: bool) -> None:
    """Another run, with another seed or algorithm, needs nobody's permission."""
    found = clinics(tmp_path, signed=secure)
    values = {"rounds": 1, "secure": str(secure), **({"secure_min": 3} if secure else {})}
    one = found.serve(configs(tmp_path, **values)[1])
    other = found.serve(configs(tmp_path, "fedprox", **values)[1], "again")
    first, second = (site_encodings(found, result.memory["run"]) for result in (one, other))
    assert all(plain(first[name]) == plain(second[name]) for name in CLINICS)


def test_a_run_asks_no_more_than_a_fit_does(tmp_path: Path) -> None:
    """Also after a restart of the site; the same call again is answered the same."""
    found = clinics(tmp_path)
    ask, request = prepared(found)
    first = ask("histogram", 2, **ranges(ask, 0, -1e5, 1e5))
    for call in range(3, 2 + MAX_CALLS["histogram"]):
        assert not isinstance(ask("histogram", call, **ranges(ask, 0, -1e5 - call, 1e5)), str)
    assert ask("histogram", 9, **ranges(ask, 0, -1e5, 2e5)) == f"refused: {REFUSED}"
    found.restart("clinic-b").handle(wire.encode(request))
    assert ask("histogram", 9, **ranges(ask, 0, -1e5, 2e5)) == f"refused: {REFUSED}"
    assert torch.equal(ask("histogram", 2, **ranges(ask, 0, -1e5, 1e5))["counts"], first["counts"])
    assert not isinstance(ask("count_columns"), str)
    assert ask("count_columns", 2) == f"refused: {REFUSED}"
    assert "takes no argument" in ask("count_columns", 1, low=torch.zeros(4))
    assert "cannot be answered" in ask("histogram", 2, low=torch.zeros(1), high=torch.ones(1))
    many = torch.zeros(5000, dtype=torch.int64)
    assert "cannot be answered" in ask("refine_categories", 3, columns=many, buckets=many)
    assert "cannot be answered" in ask("split_categories", 3, columns=many[:1], prefixes=many[:1] - 1)
    assert "has no verb 'fit'" in ask("fit", 3)
    record = tmp_path / "kits" / "clinic-b" / "runs" / "another-run" / "preparation.json"
    record.write_text("{")
    assert "is damaged" in str(read_answer(found.restart("clinic-b").handle(wire.encode(request))))


def test_what_the_fit_asks_is_limited_as_often(tmp_path: Path) -> None:
    """Every verb has its limit, and no fit of any table exceeds it."""
    asked = {name for name in TableCohort.verbs() if not name.startswith("secure_")}
    assert MAX_CALLS.keys() == asked - {*agreements.VERBS}


def test_a_site_that_insists_on_noise_does_not_count(tmp_path: Path) -> None:
    """These counts are exact."""
    found = clinics(tmp_path)
    noise = {"dp.verb": "fit", "dp.clip": 1.0, "dp.noise": 1.0, "dp.evaluation_noise": 1.0, "dp.noise_source": "system"}
    there = configs(tmp_path, **noise)[1]
    found.restart("clinic-a", SitePolicy(dp_epsilon=5.0))
    with pytest.raises(AtollError, match=r"clinic-a cannot take part: it refused: Noise \(dp\) does not cover the counts"):
        found.serve(there)
    with pytest.raises(AtollError, match="insists on differential privacy"):
        found.serve(configs(tmp_path)[1], "again")


NUMBERS: dict[str, tuple[float, float, float, float]] = {
    "a tiny deviation": (100.0, 100.001, 100.0, 5e-324),
    "a small deviation": (0.0, 100.0, 50.0, 1e-6),
    "a mean outside": (0.0, 100.0, -1e30, 10.0),
    "a deviation beyond the range": (0.0, 100.0, 50.0, 1e9),
    "a huge range": (0.0, 1e300, 50.0, 1.0),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_an_encoding_that_no_fit_gives_is_refused_whatever_the_data(tmp_path: Path, name: str) -> None:
    """The attack: features that are infinite just where a value exceeds a bound. The answer follows from the document alone."""
    found = clinics(tmp_path)
    begun: list[dict[str, Any]] = []
    found.wire.before = lambda site, request: begun.append(request) if request["kind"] == "begin" and site == "clinic-b" else None
    found.serve(configs(tmp_path, rounds=1)[1])
    answers = set()
    for run, shift in enumerate((0.0, 1e6)):  # below, and above all values
        bad = wire.decode(wire.encode({**begun[0], "run": f"run-{run}"}))
        place = next(place for place, column in enumerate(bad["encoding"][0]["columns"]) if column["kind"] == "number")
        low, high, mean, std = NUMBERS[name]
        bad["encoding"][0]["numbers"][place][1:5] = [low + shift, high + shift, mean + shift, std]
        answers.add(read_answer(found.wire.sites["clinic-b"].handle(wire.encode(bad))))
    assert answers == {f"refused: {IMPLAUSIBLE}"}


def test_secure_totals_need_one_encoding_everywhere(tmp_path: Path) -> None:
    """The attack: one site is sent another encoding than the others. No total opens, and what it says does not depend on data."""
    found = clinics(tmp_path, signed=True)
    site = found.wire.sites["clinic-b"]
    honest: Callable[[bytes], bytes] = site.handle
    heard: list[tuple[Any, Any]] = []

    def handle(data: bytes) -> bytes:
        request = wire.decode(data)
        if request["kind"] == "begin":
            request["encoding"][0]["numbers"][-1][3] *= 1.0 + 1e-9
            assert request["encoding"][0]["columns"][-1]["kind"] == "number"
            data = wire.encode(request)
        answer = honest(data)
        heard.append((request.get("verb"), read_answer(answer)))
        return answer

    site.handle = handle  # type: ignore[method-assign]
    with pytest.raises(AtollError):
        found.serve(configs(tmp_path, rounds=1, secure="True", secure_min=3, on_missing="stop")[1])
    assert not [verb for verb, answer in heard if verb in ("fit", "evaluate") and not isinstance(answer, str)]


def test_a_server_cannot_try_names_of_categories(tmp_path: Path) -> None:
    """The attack: shift a sealed code from one name of a dictionary to another. Right or wrong, the answer is the same."""
    found = clinics(tmp_path)
    begun: list[dict[str, Any]] = []
    found.wire.before = lambda site, request: begun.append(request) if request["kind"] == "begin" and site == "clinic-a" else None
    found.serve(configs(tmp_path, rounds=1)[1])
    document = begun[0]["encoding"][0]
    place = next(place for place, values in enumerate(document["numbers"]) if len(values[6]) >= 4)
    names = ("icu", "surgery", "general", "secret-ward", "oncology")
    opens = codes_of("ward", names).tolist()
    answers: list[Any] = []
    for index in range(len(document["sealed"][place])):
        for one, other in itertools.permutations(opens, 2):
            bad = wire.decode(wire.encode({**begun[0], "run": f"run-{len(answers)}"}))
            sealed = bad["encoding"][0]["sealed"][place]
            sealed[index] = sealed[index] // CODES * CODES + (sealed[index] - one + other) % CODES
            answers.append(read_answer(found.wire.sites["clinic-a"].handle(wire.encode(bad))))
    assert set(answers) == {f"refused: {FOREIGN}"}


def test_every_run_is_announced(tmp_path: Path) -> None:
    """A site does not repeat itself, but another run is something else."""
    found = clinics(tmp_path)
    _, request = prepared(found)
    for run in range(3):
        found.wire.sites["clinic-b"].handle(wire.encode({**request, "run": f"again-{run}"}))
    assert all(any(f"run again-{run}: counting" in text for text in found.said["clinic-b"]) for run in range(3))


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no list": lambda document: document.update(columns="x"),
    "a column twice": lambda document: document["columns"].append(document["columns"][0]),
    "another kind": lambda document: document["columns"][0].update(kind="text"),
    "an unknown option": lambda document: document["columns"][0].update(secret=1),
    "no number": lambda document: document["numbers"][0].__setitem__(3, "1"),
    "a negative deviation": lambda document: document["numbers"][0].__setitem__(4, -1.0),
    "a code too large": lambda document: document["numbers"][1][6].__setitem__(0, 1 << 40),
    "buckets of a number": lambda document: document["numbers"][0].__setitem__(6, [1]),
    "a code twice": lambda document: document["numbers"][1][6].__setitem__(0, document["numbers"][1][6][1]),
    "a tag too large": lambda document: document["tags"][1].__setitem__(0, 1 << 40),
    "too few": lambda document: document["sealed"].pop(),
}


def test_a_damaged_encoding_is_refused(tmp_path: Path) -> None:
    """By the site, as what it is; a good one is still taken."""
    found = clinics(tmp_path)
    begun: list[dict[str, Any]] = []
    found.wire.before = lambda site, request: begun.append(request) if request["kind"] == "begin" and site == "clinic-a" else None
    found.serve(configs(tmp_path, rounds=1)[1])
    request = {**begun[0], "run": "another-run"}
    for name, damage in DAMAGE.items():
        bad = wire.decode(wire.encode(request))
        damage(bad["encoding"][0])
        answer = read_answer(found.wire.sites["clinic-a"].handle(wire.encode(bad)))
        assert answer == "refused: the columns of the tables could not be read.", name
    assert read_answer(found.wire.sites["clinic-a"].handle(wire.encode(request))) == {}
