"""What left a site: a line for every answer, before it leaves; a chain that shows changes; a command that tells an auditor."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll import algorithms, wire
from atoll.cli import main
from atoll.data.federated import federate
from atoll.deploy import audit
from atoll.deploy import kit as kits
from atoll.deploy.journal import MAX_FIELDS, MAX_TEXT, Journal
from atoll.deploy.site import Site
from atoll.engines.remote import RemoteEngine, read_answer
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.version import __version__
from small import ALGORITHMS, small, tensor_bytes

Lines = list[dict[str, Any]]


class Tap:
    """A carrier that calls the sites directly and keeps every answer."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = dict(sites)
        self.seen: dict[str, list[tuple[bytes, bytes]]] = {name: [] for name in sites}

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """Ask every site in turn."""
        answers: dict[str, bytes | str] = {}
        for site, data in requests.items():
            answer = self.sites[site].handle(data)
            self.seen[site].append((data, answer))
            answers[site] = answer
        return answers


def tapped(config: Config, folder: Path, journal: Journal | None = None) -> Tap:
    """A run over sites that share its parties, from the first message to the last; `journal` is the first site's."""
    data = federate(config, None, algorithms.find(config.algorithm).SCENARIOS)
    parties = data.parts.parties
    cuts = [round(parties * place / 3) for place in range(4)]
    roster = {f"site-{place}": range(cuts[place], cuts[place + 1]) for place in range(3) if cuts[place] < cuts[place + 1]}
    tap = Tap({name: Site(folder / name, journal=journal if name == "site-0" else None) for name in roster})
    schema = runner.schema_of(data)
    engine = RemoteEngine(tap, roster, config.to_dict(), schema, timeout=5.0)  # type: ignore[arg-type]
    runner.rounds(runner.build_experiment(config, engine, schema, data, data.scenario))
    engine.finish()
    return tap


def lines_of(path: Path) -> Lines:
    """Every line, which must be whole."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def naive_chain(path: Path) -> bool:
    """Whether each line holds the hash of the one before, as plainly as it can be said."""
    raw = path.read_bytes().splitlines()
    previous = [json.loads(line)["previous"] for line in raw]
    return previous == ["", *(hashlib.sha256(line).hexdigest() for line in raw[:-1])]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_byte_that_leaves_is_in_the_journal(algorithm: str, tmp_path: Path) -> None:
    """Whatever the algorithm: a line per answer in order, with its bytes, digest, fields and their bytes; nothing else leaves."""
    tap = tapped(small(algorithm, rounds=2), tmp_path)
    for site, seen in tap.seen.items():
        path = tmp_path / site / "journal.jsonl"
        lines = lines_of(path)
        assert len(lines) == len(seen) > 0
        assert sum(line["bytes"] for line in lines) == sum(len(answer) for _, answer in seen)
        assert naive_chain(path)
        assert audit.verify(path).broken == ()
        for line, (question, answer) in zip(lines, seen, strict=True):
            request, reply = wire.decode(question), wire.decode(answer)
            assert line["sha256"] == hashlib.sha256(answer).hexdigest()
            assert line["kind"] == request["kind"]
            assert line["run"] == request["run"]
            told = {name: line.get(name) for name in ("verb", "round", "call")}
            assert told == {name: request.get(name) for name in ("verb", "round", "call")}
            if request["kind"] == "ask":
                assert line["purpose"] == ("training" if request["training"] else "evaluation")
            there = {name.split("/[")[0] for name, _ in wire.leaves(reply.get("fields", {}))}
            assert {field["name"] for field in line["fields"]} == there
            sizes = {field["name"]: field["bytes"] for field in line["fields"]}
            assert sum(sizes.values()) == tensor_bytes(reply.get("fields", {}))


def question(**request: Any) -> bytes:
    """A message of the server."""
    return wire.encode({"atoll": __version__, "run": "", "kind": "echo", **request})


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b"",
        question(kind="shell"),
        question(kind=["a"], run=7, round="x" * 10_000, verb={"a": 1}),
        question(kind="ask", run="x", verb="\x1b[2J", round=10**30, call=True, training=3, common=5),
        question(kind="describe"),
        question(kind="begin"),
        question(kind="ask", run=torch.zeros(3), verb=torch.zeros(2), common=torch.zeros(1)),
        wire.encode({"atoll": "9.9", "kind": "ask"}),
    ],
)
def test_refusals_leave_a_line_too(data: bytes, tmp_path: Path) -> None:
    """Nonsense and what is refused: the reason that is told leaves the site, so it is in the journal."""
    site = Site(tmp_path)
    answer = site.handle(data)
    (line,) = lines_of(tmp_path / "journal.jsonl")
    assert line["bytes"] == len(answer) > 0
    assert line["status"] == "failed"
    assert line["reason"] == wire.decode(answer)["reason"][:MAX_TEXT] or line["reason"].endswith("…")
    assert line["fields"] == []
    assert len(json.dumps(line)) < 3000


def test_a_full_disk_keeps_the_answer_here(tmp_path: Path) -> None:
    """Where the line cannot be written, not a byte leaves, no refusal either; the site's owner and the server are told."""
    said: list[str] = []
    site = Site(tmp_path, notify=said.append, journal=Journal(Path("/dev/full")))
    assert site.handle(question()) == b""
    assert site.handle(b"garbage") == b""
    assert said[0] == "/dev/full cannot be written (No space left on device); no message is answered until it can"
    assert "sent an empty answer" in str(read_answer(b""))


@pytest.mark.parametrize("how", ["short", "write", "sync"])
def test_a_line_that_could_not_be_written_does_not_stay(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line, none, or one that is not safely on disk: the answer stays here and the line is taken back."""
    site, path = Site(tmp_path), tmp_path / "journal.jsonl"
    site.handle(question())
    before = path.read_bytes()
    write = os.write

    def refuse(*anything: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        if how == "short":
            broken.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        else:
            broken.setattr(os, "write" if how == "write" else "fdatasync", refuse)
        assert site.handle(b"garbage") == b""
    assert path.read_bytes() == before
    assert site.handle(question()) != b""
    assert [line["line"] for line in lines_of(path)] == [1, 2]
    assert audit.verify(path).broken == ()


def test_the_line_is_on_disk_before_the_answer_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before an answer with anything of the site leaves, the file is synchronized with its line in it; an echo need not wait."""
    synchronized: list[str] = []
    monkeypatch.setattr(
        os, "fdatasync", lambda file: synchronized.append(Path(f"/proc/self/fd/{file}").read_text().splitlines()[-1])
    )
    tap = tapped(small("fedavg", rounds=2), tmp_path)
    own = []
    for asked, answer in tap.seen["site-1"]:
        if wire.decode(answer).get("fields"):
            own.append(hashlib.sha256(answer).hexdigest())
            assert wire.decode(asked)["kind"] == "ask"
    refusal = tap.sites["site-1"].handle(b"garbage")
    tap.sites["site-1"].handle(question(common={"x": torch.zeros(3)}))
    lines = [json.loads(line) for line in synchronized]
    here = {line["sha256"] for line in lines_of(tmp_path / "site-1" / "journal.jsonl")}
    assert [line["sha256"] for line in lines if line["sha256"] in here] == [*own, hashlib.sha256(refusal).hexdigest()]
    assert len(own) == 4  # fit and evaluate, twice


def test_the_owner_alone_may_read_it(tmp_path: Path) -> None:
    """The journal names runs and shapes: nobody else's business."""
    Site(tmp_path).handle(question())
    assert (tmp_path / "journal.jsonl").stat().st_mode & 0o077 == 0


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A journal of five lines."""
    site = Site(tmp_path)
    for number in range(5):
        site.handle(question(common={"x": torch.zeros(number)}))
    return tmp_path / "journal.jsonl"


def changed(lines: list[bytes], how: str) -> list[bytes]:
    """What somebody makes of five lines."""
    if how == "edited":
        return [*lines[:2], lines[2].replace(b'"bytes":8', b'"bytes":4'), *lines[3:]]
    if how == "removed":
        return [*lines[:2], *lines[3:]]
    if how == "first removed":
        return lines[1:]
    if how == "swapped":
        return [lines[0], lines[2], lines[1], *lines[3:]]
    if how == "repeated":
        return [*lines[:3], lines[2], *lines[3:]]
    if how == "blanked":
        return [*lines[:2], b"", *lines[3:]]
    assert how == "put in"
    return [*lines[:2], json.dumps(json.loads(lines[2]) | {"sha256": "0" * 64}).encode(), *lines[2:]]


@pytest.mark.parametrize("how", ["edited", "removed", "first removed", "swapped", "repeated", "blanked", "put in"])
def test_a_change_breaks_the_chain(how: str, written: Path) -> None:
    """Whatever is done to a line that has one after it is found, and where; the naive check agrees."""
    assert audit.verify(written).broken == ()
    lines = changed(written.read_bytes().splitlines(), how)
    assert lines != written.read_bytes().splitlines()
    written.write_bytes(b"".join(line + b"\n" for line in lines))
    assert audit.verify(written).broken != ()
    if how != "blanked":
        assert not naive_chain(written)


def test_a_cut_end_is_found_with_the_head_alone(written: Path) -> None:
    """Without the last lines the chain is whole: only who noted its head notices; one that grew since still holds it."""
    head = audit.verify(written).head
    whole = written.read_bytes()
    Site(written.parent).handle(question())
    assert audit.verify(written, head).broken == ()
    written.write_bytes(b"".join(line + b"\n" for line in whole.splitlines()[:3]))
    assert audit.verify(written).broken == ()
    assert "was truncated or rewritten" in audit.verify(written, head).broken[0]


def test_a_line_that_a_crash_cut_off(written: Path) -> None:
    """Its answer never left. It stays as it is, named, and the chain goes on over it; while it is last it is passed over."""
    written.write_bytes(written.read_bytes()[:-20])
    assert [line.number for line in audit.read(written)] == [1, 2, 3, 4]
    Site(written.parent).handle(question())
    chain = audit.verify(written)
    assert (chain.lines, chain.broken) == (6, ())
    assert chain.damaged == ("line 5 is not JSON: cut off by a crash, or overwritten",)


@pytest.mark.parametrize("over", [b"#", b"[1]", b"{}"])
def test_an_overwritten_last_line_is_no_crash(written: Path, over: bytes) -> None:
    """A crash leaves a line without its end: of a whole line that cannot be read nobody says that its answer did not leave."""
    lines = written.read_bytes().splitlines(keepends=True)
    written.write_bytes(b"".join([*lines[:-1], over + b"\n"]))
    chain = audit.verify(written)
    assert chain.damaged == ()
    assert chain.broken[0].startswith("line 5 ")
    assert chain.broken[0].endswith("and no line after it confirms it")


def test_a_journal_goes_on_where_it_was(written: Path) -> None:
    """A site that is started again, and two that write at once: one chain, no number twice."""
    one, two = Site(written.parent), Site(written.parent)
    for site in (one, two, two, one, two):
        site.handle(question())
    assert [line["line"] for line in lines_of(written)] == list(range(1, 11))
    assert naive_chain(written)
    assert audit.verify(written).broken == ()


@pytest.mark.parametrize("how", ["moved", "cut", "cut within a line"])
def test_what_is_done_to_it_while_the_site_runs_shows(how: str, tmp_path: Path) -> None:
    """A journal that is moved away or cut under a running site: the next answers are journaled, and the chain tells."""
    site, path = Site(tmp_path), tmp_path / "journal.jsonl"
    for _ in range(3):
        site.handle(question())
    if how == "moved":
        path.rename(tmp_path / "old.jsonl")
    else:
        os.truncate(path, path.read_bytes().index(b"\n") + (1 if how == "cut" else 30))
    site.handle(question())
    assert json.loads(path.read_text().splitlines()[-1])["line"] == 4 + (how == "cut within a line")
    assert audit.verify(path).broken != ()


def test_masked_and_noised(tmp_path: Path) -> None:
    """Under secure aggregation every model is masked, the protocol's own steps are told; noise is told field by field."""
    tapped(small("fedavg", secure="true"), tmp_path / "secure")
    lines = lines_of(tmp_path / "secure" / "site-1" / "journal.jsonl")
    assert {line["verb"] for line in lines if "verb" in line} >= {
        "secure_keys",
        "secure_shares",
        "secure_reveal",
        "fit",
        "evaluate",
    }
    assert {line["masked"] for line in lines if line.get("verb") in ("fit", "evaluate")} == {True}
    assert {line["masked"] for line in lines if line.get("verb") not in ("fit", "evaluate")} == {False}
    tapped(small("fedavg", **{"dp.verb": "fit", "dp.clip": 1, "dp.noise": 2.0}), tmp_path / "noised")
    lines = lines_of(tmp_path / "noised" / "site-1" / "journal.jsonl")
    fits = [line for line in lines if line.get("verb") == "fit"]
    models = {field["name"] for field in fits[0]["fields"] if field["name"].startswith("model/")}
    assert models
    assert [set(line["noised"]) for line in fits] == [models] * 3
    assert {tuple(line["noised"]) for line in lines if line.get("verb") != "fit"} == {()}
    tapped(small("fedavg"), tmp_path / "plain")
    lines = lines_of(tmp_path / "plain" / "site-1" / "journal.jsonl")
    assert not any(line["masked"] or line["noised"] for line in lines)


def test_epsilon_so_far(tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    """The party's own count, in every line and in the summary; without a clip it is infinite, and said to be."""
    path = tmp_path / "journal.jsonl"
    request, answer = {"kind": "ask", "run": "r", "verb": "fit"}, {"status": "ok", "fields": {"x": torch.zeros(1)}}
    for epsilon in (0.5, 1.25, math.inf):
        Journal(path).record(request, answer, b"x", noised=["x"], epsilon=epsilon)
        told = "infinite" if epsilon == math.inf else f"{epsilon:g}"
        assert f"ε so far {told}\n" in call("journal", path)[1]
        assert f" {told} " in call("journal", path, "--lines")[1].splitlines()[-2]
    assert [line["epsilon"] for line in lines_of(path)] == [0.5, 1.25, "infinite"]
    for clip in (1, 0):
        config = small("fedavg", **{"dp.verb": "fit", "dp.clip": clip, "dp.noise": 20.0})
        result = tapped(config, tmp_path / str(clip))
        lines = lines_of(tmp_path / str(clip) / "site-1" / "journal.jsonl")
        told = [line["epsilon"] for line in lines if line.get("verb") == "fit"]
        releases = result.sites["site-1"].releases
        assert releases is not None
        assert told[-1] == (releases.epsilon() if clip else "infinite")
        assert told == (sorted(set(told)) if clip else ["infinite"] * 3)
        assert len(told) == 3


def test_what_the_server_chose_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long names and thousands of fields that the server has echoed do not blow the journal up; their bytes are told."""
    monkeypatch.setattr(wire, "decode_message", wire.decode)  # which refuses such names
    fields = {f"{'x' * 500}{number}": torch.zeros(2) for number in range(3)}
    fields |= {f"y{number}": torch.zeros(1, dtype=torch.uint8) for number in range(2 * MAX_FIELDS)}
    answer = Site(tmp_path).handle(question(common=fields, run="r" * 5000))
    (line,) = lines_of(tmp_path / "journal.jsonl")
    listed = sum(field["bytes"] for field in line["fields"])
    assert len(line["fields"]) == MAX_FIELDS
    assert listed + line["left_out"]["bytes"] == tensor_bytes(wire.decode(answer)["fields"])
    assert max(len(field["name"]) for field in line["fields"]) == len(line["run"]) == MAX_TEXT


def test_values_that_are_no_tensors(tmp_path: Path) -> None:
    """Numbers and names, as in a description of the graph, are listed with the bytes of their text."""
    Site(tmp_path).handle(question(common={"features": 12, "names": ["fine", "fraud"]}))
    (line,) = lines_of(tmp_path / "journal.jsonl")
    assert line["fields"] == [
        {"name": "features", "dtype": "json", "shape": [], "bytes": 2},
        {"name": "names", "dtype": "json", "shape": [], "bytes": 16},
    ]
    assert "fraud" not in (tmp_path / "journal.jsonl").read_text()  # names and shapes, no values


def test_the_page_tells_what_a_line_holds(tmp_path: Path) -> None:
    """Every key of a line stands in the table of docs/deployment.md, and the growth it tells is that of a FedAvg run."""
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    section = page.split("## What left my site?")[1].split("\n## ")[0]
    told = {name for row in section.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    tap = tapped(small("fedavg", rounds=10, **{"dp.verb": "fit", "dp.noise": 2.0}), tmp_path)
    tap.sites["site-1"].handle(b"garbage")
    lines = (tmp_path / "site-1" / "journal.jsonl").read_text().splitlines()
    assert told == {key for line in lines for key in json.loads(line)}
    (growth,) = re.findall(r"about ([\d.]+) kB per message", section)
    assert sum(map(len, lines)) / len(lines) == pytest.approx(1000 * float(growth), rel=0.3)


# The command


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Exit code, stdout and stderr of a command, run in this process."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["atoll", *map(str, arguments)])
        code = 0
        try:
            main.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site's kit whose journal tells of a run and of a second one under secure aggregation."""
    pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")
    folder = tmp_path_factory.mktemp("journal")
    kits.provision(["bank-a", "bank-b"], "localhost", folder / "kits")
    path = folder / "kits" / "bank-a"
    for place, values in enumerate(({}, {"secure": "true"})):
        journal = Journal(path / "journal.jsonl", "atoll-server at localhost:8102")
        tapped(small("fedavg", rounds=2, **values), folder / str(place), journal)
    return path


def runs_of(kit: Path) -> list[str]:
    """The runs that a journal tells of."""
    return list(dict.fromkeys(line["run"] for line in lines_of(kit / "journal.jsonl")))


def test_the_summary(kit: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    """A table per run: what left, when, how often, in which fields and how protected; all bytes, and to whom."""
    code, out, err = call("journal", kit)
    assert (code, err) == (0, "")
    lines = lines_of(kit / "journal.jsonl")
    plain, secure = out.split("Run ")[1:]
    assert plain.startswith(runs_of(kit)[0])
    assert secure.startswith(runs_of(kit)[1])
    fits = [line for line in lines if line["run"] == runs_of(kit)[0] and line.get("verb") == "fit"]
    (row,) = [row for row in plain.splitlines() if row.split()[:1] == ["fit"]]
    assert row.split()[:4] == ["fit", "training", "1–2", "2"]
    assert row.split()[-2:] == [f"{sum(line['bytes'] for line in fits):,}", "–"]
    assert "model/layers.0.weight float32 1×12×" in plain
    assert "masked" not in plain
    (row,) = [row for row in secure.splitlines() if row.split()[:1] == ["fit"]]
    assert row.split()[-1] == "masked"
    own = [line for line in lines if line["run"] == runs_of(kit)[0]]
    total = sum(line["bytes"] for line in own)
    assert (
        f"{len(own)} messages, {total:,} bytes to atoll-server at localhost:8102, {own[0]['time']} to {own[-1]['time']}" in plain
    )


def test_every_line_raw_lines_and_some_of_them(kit: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    """`--lines` is a row per message, `--json` the lines themselves; `--run` and `--since` choose."""
    lines = lines_of(kit / "journal.jsonl")
    code, out, _ = call("journal", kit, "--lines")
    assert code == 0
    assert all(line["time"] in out and line["sha256"][:16] in out for line in lines)
    assert [json.loads(line) for line in call("journal", kit, "--json")[1].splitlines()] == lines
    second = runs_of(kit)[1]
    chosen = [json.loads(line) for line in call("journal", kit, "--json", "--run", second)[1].splitlines()]
    assert chosen == [line for line in lines if line["run"] == second]
    since = lines[7]["time"]
    assert [json.loads(line) for line in call("journal", kit, "--json", "--since", since)[1].splitlines()] == lines[7:]
    assert call("journal", kit, "--json", "--since", "2999-01-01")[:2] == (0, "")
    assert call("journal", kit / "journal.jsonl", "--json")[1] == call("journal", kit, "--json")[1]


def test_the_check(kit: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    """`--verify` says that the chain is whole, and its head; a copy with an edited line is refused in one sentence."""
    head = audit.verify(kit / "journal.jsonl").head
    code, out, _ = call("journal", kit, "--verify", "--head", head)
    assert code == 0
    assert f"The chain is whole: {len(lines_of(kit / 'journal.jsonl'))} lines, head {head}" in out
    copy = tmp_path / "copy.jsonl"
    copy.write_text((kit / "journal.jsonl").read_text().replace('"masked":true', '"masked":false', 1))
    code, out, err = call("journal", copy, "--verify")
    assert (code, out) == (2, "")
    assert "is broken: line" in err
    assert len(err.splitlines()) == 1


def test_nothing_in_a_time_is_said(kit: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    """An empty answer could be a failure."""
    assert call("journal", kit, "--since", "2999-01-01")[:2] == (0, "Nothing has left this site in that time.\n")


def test_damaged_lines_are_named(kit: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    """What cannot be read is named by number with the reason, and the rest is told all the same."""
    good = (kit / "journal.jsonl").read_text().splitlines()
    odd = [good[0], "nonsense", "[1]", '{"line": 1}', good[1].replace('"bytes":', '"bytes":true,"b":'), "\xff", "[" * 100_000, ""]
    (tmp_path / "copy.jsonl").write_text("\n".join(odd) + '\n{"line": 2, "ti', encoding="latin-1")
    for form in ([], ["--lines"], ["--json"]):
        code, out, err = call("journal", tmp_path / "copy.jsonl", *form)
        assert code == 0
        assert runs_of(kit)[0] in out
        assert [line.split("copy.jsonl: ")[1].split(" ")[1] for line in err.splitlines()] == ["2", "3", "4", "5", "6", "7", "8"]
        assert "line 5 has no readable bytes" in err


def test_foreign_text_is_shown_as_text(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escape sequences and rich's markup that a server put into its messages do nothing in the auditor's terminal."""
    monkeypatch.setattr(wire, "decode_message", wire.decode)  # which refuses such names
    site = Site(tmp_path)
    site.handle(question(run="\x1b[2Jrun[bold]", common={"\x1b]0;title\x07[red]field\nfit": torch.zeros(1)}))
    site.handle(question(kind="\x9b31m[link=http://x]", run="\x1b[2Jrun[bold]"))
    for form in ([], ["--lines"], ["--json"]):
        code, out, err = call("journal", tmp_path / "journal.jsonl", *form)
        assert code == 0
        assert not {"\x1b", "\x9b", "\x07"} & set(out + err)
        assert "[bold]" in out
        assert "[red]field" in out
        assert "[link=http://x]" in out
        assert "[red]field\\nfit" in out  # a line break does not make a row
    code, out, err = call("journal", tmp_path / "journal.jsonl", "--run", "none")
    assert code == 2
    assert "\x1b" not in err


def test_mistakes_are_one_sentence(kit: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    """Not a kit, the server's, an unknown run, a time that is not one: one sentence, exit code 2. No journal yet: no error."""
    for arguments, sentence in (
        ((tmp_path,), "is not a kit: it holds no atoll.toml"),
        ((tmp_path / "nowhere",), "is not a kit"),
        ((kit.parent / "server",), "is the server's kit, and only sites keep a journal"),
        ((kit, "--run", "other"), "tells of no run 'other'; there is fedavg-"),
        ((kit, "--since", "yesterday"), "--since is 'yesterday' but must be a date or a time"),
        ((kit, "--head", "abc"), "--head is for --verify"),
        ((kit, "--verify", "--head", "abc"), "no line has the head abc"),
    ):
        code, out, err = call("journal", *arguments)
        assert (code, out) == (2, ""), arguments
        assert sentence in err
        assert len(err.splitlines()) == 1
    code, out, _ = call("journal", kit.parent / "bank-b")
    assert (code, out) == (0, "Nothing has left this site yet: it has no journal.\n")
