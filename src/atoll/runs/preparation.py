"""Before the first round: the encoding of the parties' tables, fitted from sums that pass through the federation.

Every verb's reply is whole numbers, and the server only sees their totals (masked under secure aggregation). What it learns is
the encoding itself: counts of rows and missing values, histograms of numbers and dates, counts of hashed category names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from atoll import algorithms
from atoll.data.encoding import BUCKETS, CODES, PARTS, PREFIXES, Encoding
from atoll.data.encoding_counts import CELLS, EXPONENT_CELLS, FIXED_POINT, PartyCounts, hashed, numeric
from atoll.data.encoding_fit import FittedEncoding, fit, named
from atoll.data.federated import federate
from atoll.data.federated_data import FederatedData
from atoll.data.script_data import ScriptData
from atoll.engines import connecting
from atoll.errors import AtollError
from atoll.federation.bounds import Limits, Rules
from atoll.federation.cohort import Cohort, Fields, Schema
from atoll.federation.declarations import Case, Forms, real, whole
from atoll.federation.federation import Engine, Federation
from atoll.federation.ledger import Ledger
from atoll.federation.messages import verb
from atoll.graphs.graph import Graph
from atoll.graphs.table import Column
from atoll.privacy.identities import Identities, simulated_identities
from atoll.privacy.masking import min_total_parties
from atoll.privacy.secrets import Secrets
from atoll.runs.config import Config
from atoll.runs.model_files import folder_of, read_description

MAX_REPLY_NUMBERS = 1 << 27  # of all parties to one verb, in this process
BOUND = 2.0**1021
RANGE = real("numerics", low=-BOUND, high=BOUND, double=True)


@dataclass(frozen=True)
class TableSettings:
    """How many columns there are of each kind, and the key of the digests of category names."""

    columns: int
    numerics: int
    categories: int
    key: bytes = b""

    @classmethod
    def of(cls, columns: Sequence[Column], key: bytes = b"") -> TableSettings:
        """The settings for these columns."""
        return cls(len(columns), len(numeric(columns)), len(hashed(columns)), key)


class TableCohort(Cohort):
    """The parties while their tables are being encoded: they count, and remember nothing."""

    @property
    def _counts(self) -> PartyCounts:
        table = self.graph.table
        assert table is not None
        return PartyCounts(table, self.graph.party.numpy(), self.graph.parties, self.settings.key)

    @verb(
        takes={},
        gives={
            "rows": whole(high="max_weight"),
            "present": whole("columns", high="max_weight"),
            "unlisted": whole("columns", high="max_weight"),
        },
    )
    def count_columns(self) -> Fields:
        """Rows, values that are present, and categories that are not among the given ones."""
        return self._counts.count_columns()

    @verb(takes={}, gives={"counts": whole("numerics", EXPONENT_CELLS, high="max_weight")})
    def count_exponents(self) -> Fields:
        """Numbers by sign and power of 16."""
        return self._counts.count_exponents()

    @verb(takes={"low": RANGE, "high": RANGE}, gives={"counts": whole("numerics", CELLS + 2, high="max_weight")})
    def histogram(self, low: Tensor, high: Tensor) -> Fields:
        """Numbers in equal cells of an agreed range."""
        return self._counts.histogram(low, high)

    @verb(
        takes={"low": RANGE, "high": RANGE},
        gives={"sums": whole("numerics", 2, high=lambda case: case.max_weight * int(FIXED_POINT))},
    )
    def sum_columns(self, low: Tensor, high: Tensor) -> Fields:
        """Sums and sums of squares of the clipped numbers."""
        return self._counts.sum_columns(low, high)

    @verb(takes={}, gives={"counts": whole("categories", BUCKETS, high="max_weight")})
    def count_categories(self) -> Fields:
        """Rows by bucket of the category's name."""
        return self._counts.count_categories()

    @verb(
        takes=lambda case: _pairs(case, "buckets", BUCKETS),
        gives=lambda case: {"counts": whole(case.length("columns"), PARTS, high="max_weight")},
    )
    def refine_categories(self, columns: Tensor, buckets: Tensor) -> Fields:
        """Rows by part of some buckets."""
        return self._counts.refine_categories(columns, buckets)

    @verb(
        takes=lambda case: _pairs(case, "prefixes", PREFIXES),
        gives=lambda case: {"counts": whole(case.length("columns"), PARTS, high="max_weight")},
    )
    def split_categories(self, columns: Tensor, prefixes: Tensor) -> Fields:
        """Rows by part of some parts of buckets."""
        return self._counts.split_categories(columns, prefixes)

    @verb(
        takes=lambda case: _pairs(case, "codes", CODES),
        gives=lambda case: {name: whole(case.length("columns"), high=case.max_weight * CODES) for name in ("sealed", "tags")},
    )
    def seal_categories(self, columns: Tensor, codes: Tensor) -> Fields:
        """Rows with each of some keyed codes, times its code without a key, which is sealed under the key, and times its tag."""
        return self._counts.seal_categories(columns, codes)


def _pairs(case: Case, name: str, below: int) -> Forms:
    """Pairs of a category, by its index, and a bucket, part or code of it; no more than there are buckets."""
    length = min(case.length("columns"), case.settings.categories * BUCKETS)
    return {"columns": whole(length, high=case.settings.categories - 1), name: whole(length, high=below - 1)}


def load_parties(
    config: Config,
    given: Graph | ScriptData | None = None,
    encoding: Encoding | None = None,
    *,
    held: Sequence[int] | None = None,
) -> tuple[FederatedData, Ledger | None]:
    """The parties' data, and what passed to fit the encoding of their tables; a given encoding is applied instead.

    `held`: the parties that live in this process (`federate`).
    """
    scenarios, unlabeled = algorithms.find(config.algorithm).SCENARIOS, algorithms.takes_unlabeled(config.algorithm)
    data = federate(config, given, scenarios, unlabeled=unlabeled, held=held)
    if data.parts.table is None:
        return data, None
    if encoding is None and config.start_from is not None:  # a run that begins with a trained model takes its encoding
        encoding = read_preprocessing(read_description(folder_of(Path(config.start_from))).get("preprocessing"))[0]
    if encoding is not None:
        return encoded(data, encoding, normalize=config.data.normalize_features), None
    return encode_parties(config, data)


def encode_parties(config: Config, data: FederatedData) -> tuple[FederatedData, Ledger | None]:
    """The data with every table encoded, and what passed to fit the encoding; as it is where nothing needs one."""
    table = data.parts.table
    if table is None:
        return data, None
    settings, schema = TableSettings.of(table.columns), table_schema(data.parts.num_classes, data.parts.parties)
    check_fit(config, settings, schema.parties)
    identities = simulated_identities(schema.parties) if config.run.secure else None
    least = min_total_parties(config.run.secure_min, schema.parties)
    secrets = Secrets(identities, min_parties=least) if identities is not None else None

    def make(parties: Sequence[int], blank: bool) -> Cohort:
        return table_cohort(config, data.parts.select(parties), settings, schema, parties, secrets=secrets, blank=blank)

    engine = connecting(config.engine, hosted=False).connect(make, schema.parties, config.run)
    fitted, ledger = fit_columns(config, table.columns, engine, schema, data.scenario, data.names, identities)
    return encoded(data, named(fitted, table), normalize=config.data.normalize_features), ledger


def encoded(data: FederatedData, encoding: Encoding, *, normalize: bool = False) -> FederatedData:
    """The data with features in place of tables."""
    return replace(
        data,
        parts=encoding.encode(data.parts, normalize=normalize),
        load_whole=lambda: encoding.encode(data.whole, normalize=normalize),
        load_source=lambda: encoding.encode(data.source, normalize=normalize),
        encoding=encoding,
    )


def preprocessing_document(data: FederatedData) -> dict[str, Any] | None:
    """What model.json keeps of the encodings; None where the columns are used as they are."""
    if data.encoding is not None:
        return data.encoding.to_dict()
    if any(each is not None for each in data.party_encodings):
        return {"version": 1, "parties": [None if each is None else each.to_dict() for each in data.party_encodings]}
    return None


def read_preprocessing(document: Any) -> tuple[Encoding | None, tuple[Encoding | None, ...]]:
    """The encoding of all parties, and each party's own, from model.json."""
    if not isinstance(document, dict):
        return None, ()
    if isinstance(parties := document.get("parties"), list):
        return None, tuple(None if each is None else Encoding.from_dict(each) for each in parties)
    return Encoding.from_dict(document), ()


def table_schema(classes: int, parties: int) -> Schema:
    """The schema before there are features."""
    return Schema(0, classes, parties)


def refuse_noise(config: Config) -> None:
    """Refuse to count for a run whose replies are to be noised: these counts are exact."""
    if config.dp.active:
        raise AtollError(
            "Noise (dp) does not cover the counts by which the table's columns are encoded; "
            "encode the columns before, as numbers without missing values, or leave dp out."
        )


def check_fit(config: Config, settings: TableSettings, parties: int) -> None:
    """Refuse a fit whose counts noise would have to cover, or that needs too much memory."""
    refuse_noise(config)
    widest = max(settings.numerics * EXPONENT_CELLS, settings.categories * BUCKETS, 1)
    if parties * widest > MAX_REPLY_NUMBERS:
        needed = parties * widest * 8 / 2**30
        raise AtollError(
            f"Encoding {settings.columns} columns of {parties:,} parties would take {needed:.0f} GB; "
            "give low, high, mean and std of numbers and the values of categories in features.toml."
        )


def table_cohort(
    config: Config,
    graph: Graph,
    settings: TableSettings,
    schema: Schema,
    parties: Sequence[int],
    *,
    secrets: Secrets | None = None,
    blank: bool = False,
) -> TableCohort:
    """Some parties while their tables are being encoded."""
    cohort = TableCohort(graph, settings, schema, config.seed, parties, secrets=secrets, blank=blank)
    cohort.limits = _limits(config, settings, schema)
    return cohort


def _limits(config: Config, settings: TableSettings, schema: Schema) -> Limits:
    return Limits(TableCohort, settings, schema, Rules(config.run.max_weight, config.run.max_share, config.run.max_nodes))


def fit_columns(
    config: Config,
    columns: Sequence[Column],
    engine: Engine,
    schema: Schema,
    scenario: str,
    names: Sequence[str] = (),
    identities: Identities | None = None,
) -> tuple[FittedEncoding, Ledger]:
    """The encoding of the columns, fitted over the parties behind an engine, and what passed for it."""
    settings = TableSettings.of(columns)
    federation = Federation(
        engine,
        schema,
        verbs=TableCohort.verbs(),
        seed=config.seed,
        missing_is_fatal=True,
        secure=config.run.secure,
        secure_min=min_total_parties(config.run.secure_min, schema.parties),
        identities=identities,
        scenario=scenario,
        names=names,
        limits=_limits(config, settings, schema),
    )
    federation.begin(0)
    max_buckets = MAX_REPLY_NUMBERS // (schema.parties * PARTS)
    return fit(columns, federation.total, max_buckets), federation.ledger
