"""Encodings: the pooled pandas version gives the same numbers, whoever holds the rows; what is wrong is said with its line."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messy import patients, write

from atoll.data import load
from atoll.data.encoding import Encoding, codes_of
from atoll.data.encoding_counts import PartyCounts
from atoll.data.encoding_fit import MIN_CELLS, fit, fit_locally, named
from atoll.data.files import read
from atoll.errors import AtollError
from atoll.graphs.table import Column, Table, stack_tables

pytestmark = pytest.mark.filterwarnings("ignore::atoll.errors.AtollWarning")


def table_of(values: np.ndarray, **options: object) -> Table:
    """One column of numbers."""
    return Table((Column("v", "number", **options),), np.asarray(values, np.float64)[:, None], ((),))  # type: ignore[arg-type]


def fit_over(table: Table, owner: np.ndarray) -> Encoding:
    """The fit where row i belongs to party owner[i]."""
    counts = PartyCounts(table, owner, int(owner.max()) + 1)
    return named(
        fit(table.columns, lambda verb, **given: {name: v.sum(0) for name, v in getattr(counts, verb)(**given).items()}), table
    )


def test_pooled_pandas_gives_the_same_features(tmp_path: Path) -> None:
    """Names in order; one-hot, indicators, dates and standardized numbers as pandas computes them from all rows."""
    frame = patients()
    table = read(write(frame, tmp_path)).table
    assert table is not None
    encoding = fit_locally(table)
    x = pd.DataFrame(encoding.apply(table), columns=list(encoding.names))
    wards = frame["ward"].value_counts()
    kept = [f"ward={name}" for name in wards.index[wards >= 10]]
    assert list(encoding.names) == [
        *("age", "age=missing", "charge", "year", *kept),
        *(("ward=other",) if (wards < 10).any() else ()),
        *("ward=missing", "smoker", "smoker=missing", "admitted", "admitted=missing"),
    ]
    for name in kept:
        assert (x[name] == (frame["ward"] == name[5:])).all()
    assert (x["smoker"] == (frame["smoker"] == "yes")).all()
    days = (pd.to_datetime(frame["admitted"]) - pd.Timestamp("1970-01-01")).dt.days
    for name, values in (("age", frame["age"]), ("charge", frame["charge"]), ("admitted", days)):
        numbers = pd.to_numeric(values)
        known = numbers.dropna()
        low, high = np.quantile(known, [0.01, 0.99], method="inverted_cdf")
        clipped = known.clip(low, high)
        twin = (clipped - clipped.mean()) / clipped.std(ddof=0)
        assert np.abs(x[name][known.index] - twin).max() < 0.05  # bounds are exact to 1/256 of their distance
        assert (x[name][numbers.isna()] == 0).all()
        assert abs(x[name][known.index].mean()) < 1e-4
        assert abs(x[name][known.index].std(ddof=0) - 1) < 1e-4


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-1e300, 1e300, allow_nan=False) | st.integers(-5, 5).map(float), min_size=2, max_size=80),
    parties=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_the_fit_does_not_depend_on_who_holds_the_rows(values: list[float], parties: int, seed: int) -> None:
    """To the last bit, for numbers of any scale, and all features are finite."""
    table = table_of(np.array(values))
    owner = np.random.default_rng(seed).integers(0, parties, len(values))
    owner[0] = parties - 1
    encoding = fit_locally(table)
    assert fit_over(table, owner) == encoding
    assert np.isfinite(encoding.apply(table)).all()


@pytest.mark.parametrize("seed", range(6))
def test_quantiles_are_those_of_the_pooled_values(seed: int) -> None:
    """Each bound is outside the pooled quantile, by at most 1/256 of the distance between the bounds."""
    rng = np.random.default_rng(seed)
    scale = [1.0, 1e-6, 1e9, 1.0, 1.0, 1e100][seed]
    shift = [0.0, 0.0, 1e6, 2000.0, -1e5, 0.0][seed]
    values = np.exp(rng.normal(0, 2, 3000)) * scale + shift
    found = fit_locally(table_of(values)).columns[0]
    low, high = np.quantile(values, [0.01, 0.99], method="inverted_cdf")
    error = (found.high - found.low) / MIN_CELLS * (1 + 1e-6)
    assert 0 <= low - found.low + 1e-9 * abs(low) <= error + 2e-9 * abs(low)
    assert 0 <= found.high - high + 1e-9 * abs(high) <= error + 2e-9 * abs(high)


def test_a_rare_value_is_not_clipped_away() -> None:
    """Where nearly all values are equal, the quantiles are, too; the few others must stay visible."""
    values = np.zeros(1000)
    values[:5] = 1
    x = fit_locally(table_of(values)).apply(table_of(values))
    assert x[0, 0] > 5 * abs(x[-1, 0])


@pytest.mark.parametrize("names", [12, 300, 3000])
def test_the_key_of_the_digests_does_not_matter(names: int) -> None:
    """Many values are equally frequent, also where the last one is kept, and rare ones fill buckets: same columns, same order."""
    rng = np.random.default_rng(names)
    codes = np.concatenate([np.repeat(np.arange(names), 10), rng.integers(0, names // 3, names)]).astype(np.float64)
    table = Table((Column("c", "category", min_count=10),), codes[:, None], (tuple(f"n{name}" for name in range(names)),))
    counts = {name: int((codes == name).sum()) for name in range(names)}
    twin = sorted(counts, key=lambda name: (-counts[name], codes_of("c", (f"n{name}",))[0]))[:64]
    found = []
    for key in (b"", b"secret", b"key of a kit"):
        parties = PartyCounts(table, rng.integers(0, 3, len(codes)), 3, key)
        fitted = fit(
            table.columns,
            lambda verb, parties=parties, **given: {n: v.sum(0) for n, v in getattr(parties, verb)(**given).items()},
        )
        assert not key or not set(fitted.encoding.columns[0].buckets) & set(codes_of("c", table.names[0]).tolist())
        found.append(named(fitted, table, key))
    assert found[0] == found[1] == found[2]
    assert found[0].columns[0].labels == tuple(f"n{name}" for name in twin)


def test_a_million_categories_become_other() -> None:
    """Fixed buckets: names that occur once each are "other", beside the one that is frequent."""
    names = tuple(f"n{number}" for number in range(200_000))
    codes = np.concatenate([np.arange(200_000), np.zeros(5000)]).astype(np.float64)
    table = Table((Column("c", "category"),), codes[:, None], (names,))
    encoding = fit_locally(table)
    assert "c=n0" in encoding.names
    assert encoding.names[-1] == "c=other"
    assert len(encoding.names) <= 4


def test_given_values_and_statistics_are_used_as_they_are(tmp_path: Path) -> None:
    """Listed categories in their order, unlisted ones as other; low, high, mean and std are not fitted."""
    toml = (
        '[ward]\nkind = "category"\nvalues = ["surgery", "icu"]\n'
        '[age]\nkind = "number"\nlow = 0\nhigh = 100\nmean = 50\nstd = 10\n[charge]\nkind = "ignore"\n'
    )
    table = read(write(patients(), tmp_path, toml)).table
    assert table is not None
    encoding = fit_locally(table)
    assert [name for name in encoding.names if name.startswith("ward")] == [
        "ward=surgery",
        "ward=icu",
        "ward=other",
        "ward=missing",
    ]
    age = encoding.columns[0]
    assert (age.low, age.high, age.mean, age.std) == (0, 100, 50, 10)
    assert not any(name.startswith("charge") for name in encoding.names)


def test_an_encoding_survives_json(tmp_path: Path) -> None:
    """What a model stores gives the same features; unseen categories and missing values of later data have their place."""
    table = read(write(patients(), tmp_path)).table
    assert table is not None
    encoding = fit_locally(table)
    again = Encoding.from_dict(json.loads(json.dumps(encoding.to_dict())))
    assert again == encoding
    later = patients(50, seed=9)
    later["ward"] = "new ward"
    new = read(write(later, tmp_path / "later")).table
    assert new is not None
    assert np.isfinite(again.apply(new)).all()
    with pytest.raises(AtollError, match="no column `age`"):
        again.apply(Table((), np.empty((3, 0)), ()))
    with pytest.raises(AtollError, match="cannot be read"):
        Encoding.from_dict({"version": 2})


def test_tables_of_parties_must_agree() -> None:
    """A column that is lacking, or of another kind, is named with the parties; one that is empty fits."""
    one = Table((Column("a", "number"), Column("c", "category")), np.array([[1.0, 0], [2, 1]]), ((), ("x", "y")))
    other = Table((Column("c", "category"), Column("a", "empty")), np.array([[0.0, np.nan]]), (("y",), ()))
    both = stack_tables([one, other], ["north", "south"])
    assert both.values[:, 1].tolist() == [0, 1, 1]
    with pytest.raises(AtollError, match="South has no column `c`, which north has"):
        stack_tables([one, Table((Column("a", "number"),), np.ones((1, 1)), ((),))], ["north", "south"])
    with pytest.raises(AtollError, match="`a` is a number at north and a date at south"):
        stack_tables([one, Table((Column("a", "date"), other.columns[0]), np.ones((1, 2)), ((), ("x", "y")))], ["north", "south"])


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("id,x\na,1\nb,2\nc,red\n", r"Column `x` in line 4 of .* is 'red', which is not a finite number as 2 other"),
        ("id,x,c\na,1,k\nb,inf,k\n", "Column `x` in line 3 .* is 'inf'"),
        ("id,d\na,2025-01-01\nb,2025-01-02\nc,2025-02-30\n", "Column `d` in line 4 .* is '2025-02-30', which is not a date"),
        ("id,d\na,01/02/2025\nb,03/02/2025\n", "order of day and month is not clear"),
        ("id,c\na,k\na,k\n", "Node id 'a' in line 3 .* already used"),
        ("id,x\na,1e309\nb,\n", "Column `x` in line 2"),
    ],
)
def test_mistakes_name_row_and_column(tmp_path: Path, nodes: str, said: str) -> None:
    """One sentence each."""
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    with pytest.raises(AtollError, match=said):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('[nope]\nkind = "number"\n', "names the column 'nope'"),
        ('[x]\nkind = "numbr"\n', "unknown kind 'numbr'.*number"),
        ('[x]\nkind = "number"\nvalues = ["a"]\n', "a number has no option 'values'"),
        ('[x]\nkind = "number"\nclip = [0.9, 0.1]\n', "clip is"),
        ('[x]\nkind = "number"\nlow = 1\n', "both low and high"),
        ("x = 3\n", "must be a table with a kind"),
        ("[x\n", "cannot be read"),
    ],
)
def test_mistakes_in_features_toml(tmp_path: Path, toml: str, said: str) -> None:
    """One sentence each."""
    (tmp_path / "nodes.csv").write_text("id,x\na,1\nb,2\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    (tmp_path / "features.toml").write_text(toml)
    with pytest.raises(AtollError, match=said):
        load(str(tmp_path))


def test_files_as_spreadsheets_write_them(tmp_path: Path) -> None:
    """A byte order mark, semicolons, decimal commas, nan as text, an all-missing column, an id by another name."""
    text = "\ufeffPatient;dose;gone;flag\nann;1,5;;true\nbob;nan;;false\ncem;2,5;;NA\n"
    (tmp_path / "nodes.csv").write_text(text, encoding="utf-8")
    (tmp_path / "edges.csv").write_text("source;target\nann;bob\n")
    (tmp_path / "features.toml").write_text('[Patient]\nkind = "id"\n[dose]\nkind = "number"\nclip = false\n')
    table = read(tmp_path).table
    assert table is not None
    assert table.values[[0, 2], 0].tolist() == [1.5, 2.5]
    assert [column.kind for column in table.columns] == ["number", "empty", "boolean"]
    assert load(str(tmp_path)).feature_names == ("dose", "dose=missing", "flag", "flag=missing")


def test_plain_numbers_stay_as_they_are(tmp_path: Path) -> None:
    """No encoding unless asked for."""
    (tmp_path / "nodes.csv").write_text("id,x,label\na,1,0\nb,2,1\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    assert load(str(tmp_path)).x[:, 0].tolist() == [1, 2]
    assert load(str(tmp_path), encode="always").x[:, 0].tolist() == [-1, 1]


@pytest.mark.parametrize("values", [[1.5, 9999.0, 3.0, None], [1.5, "9999", "x", "9999.0"], [1, 9999, 3, 4]])
@pytest.mark.parametrize("missing", ['["9999", "x"]', '[9999, "x"]', '["9999.0", "x"]'])
def test_a_code_for_missing_numbers_is_compared_as_a_number(values: list[object], missing: str, tmp_path: Path) -> None:
    """9999 in features.toml is 9999.0 in the file, whatever else the column holds."""
    frame = pd.DataFrame({"id": list("abcd"), "crp": values})
    table = read(write(frame, tmp_path, f'[crp]\nkind = "number"\nmissing = {missing}\n')).table
    assert table is not None
    expected = [float(value) if value not in (9999, "9999", "9999.0", "x", None) else np.nan for value in values]  # type: ignore[arg-type]
    assert np.array_equal(table.values[:, 0], expected, equal_nan=True)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_booleans_are_one_kind_however_they_are_written(suffix: str, tmp_path: Path) -> None:
    """With or without missing values, so that parties agree on what the column is."""
    spellings = {
        "words": ["yes", "no", "no"],
        "full": [True, False, False],
        "partly": [True, None, False],
        "blank": [" Yes ", "NO", ""],
    }
    ward = {"ward": ["icu", " icu ", "surgery"]}
    tables = []
    for name, values in spellings.items():
        folder = write(pd.DataFrame({"id": list("abc"), "catheter": values, **ward}), tmp_path / name)
        if suffix == "parquet":
            pd.DataFrame({"id": list("abc"), "catheter": values, **ward}).convert_dtypes().to_parquet(folder / "nodes.parquet")
            (folder / "nodes.csv").unlink()
        table = read(folder).table
        assert table is not None
        assert table.columns[0].kind == "boolean"
        assert table.names[1] == ("icu", "surgery")
        tables.append(table)
    stacked = stack_tables(tables)
    expected = [1, 0, 0, 1, 0, 0, 1, np.nan, 0, 1, 0, np.nan]
    assert np.array_equal(stacked.values[:, 0], expected, equal_nan=True)


@pytest.mark.filterwarnings("default::atoll.errors.AtollWarning")
def test_large_numbers_lose_no_digits_where_they_are_scaled(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Cells per liter are standardized in double precision; only unscaled ones become float32 as they are."""
    frame = pd.DataFrame({"id": list("abc"), "cells": [7_470_000_001, 5_010_000_003, 9_990_000_007], "ward": ["x", "y", "x"]})
    read(write(frame, tmp_path / "a"))
    assert not [each for each in recwarn if "digits" in str(each.message)]
    read(write(frame, tmp_path / "b", '[cells]\nkind = "number"\nstandardize = false\n'))
    assert [each for each in recwarn if "`cells` has whole numbers" in str(each.message)]
