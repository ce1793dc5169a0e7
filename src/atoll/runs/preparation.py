"""Before the first round: the encoding of the parties' tables, fitted from sums that pass through the federation.

Every verb's reply is whole numbers, and the server only sees their totals (masked under secure aggregation). What it learns is
the encoding itself: counts of rows and missing values, histograms of numbers and dates, counts of hashed category names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from atoll.data.encoding import BUCKETS, SUB_BUCKETS, Encoding
from atoll.data.encoding_fit import CELLS, EXPONENT_CELLS, FIXED_POINT, PartyCounts, fit, hashed, named, numeric
from atoll.data.federated import FederatedData
from atoll.engines import ENGINES
from atoll.errors import AtollError
from atoll.federation.bounds import Limits, Rules
from atoll.federation.cohort import Cohort, Fields, Schema
from atoll.federation.declarations import real, whole
from atoll.federation.federation import Federation
from atoll.federation.ledger import Ledger
from atoll.federation.messages import verb
from atoll.graphs.table import Column
from atoll.privacy.identities import simulated_identities
from atoll.privacy.masking import min_total_parties
from atoll.privacy.secrets import Secrets
from atoll.runs.config import Config

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

    @verb(gives=lambda case: {"counts": whole(case.length("columns"), SUB_BUCKETS, high="max_weight")})
    def refine_categories(self, columns: Tensor, buckets: Tensor) -> Fields:
        """Rows by part of some buckets."""
        return self._counts.refine_categories(columns, buckets)


def encode_parties(config: Config, data: FederatedData) -> tuple[FederatedData, Ledger | None]:
    """The data with every table encoded, and what passed to fit the encoding; as it is where nothing needs one."""
    table = data.parts.table
    if table is None:
        return data, None
    federation = _federation(config, data, TableSettings.of(table.columns))
    federation.begin(0)
    encoding = named(fit(table.columns, federation.total), table)
    return encoded(data, encoding, normalize=config.data.normalize_features), federation.ledger


def encoded(data: FederatedData, encoding: Encoding, *, normalize: bool = False) -> FederatedData:
    """The data with features in place of tables."""
    parts, whole_graph, source = (encoding.encode(one, normalize=normalize) for one in (data.parts, data.whole, data.source))
    return replace(data, parts=parts, whole=whole_graph, source=source, encoding=encoding)


def _federation(config: Config, data: FederatedData, settings: TableSettings) -> Federation:
    parts, run = data.parts, config.run
    if config.dp.active:
        raise AtollError(
            "Noise (dp) does not cover the counts by which the table's columns are encoded; "
            "encode the columns before, as numbers without missing values, or leave dp out."
        )
    widest = max(settings.numerics * EXPONENT_CELLS, settings.categories * BUCKETS, 1)
    if parts.parties * widest > MAX_REPLY_NUMBERS:
        needed = parts.parties * widest * 8 / 2**30
        raise AtollError(
            f"Encoding {settings.columns} columns of {parts.parties:,} parties would take {needed:.0f} GB; "
            "give low, high, mean and std of numbers and the values of categories in features.toml."
        )
    schema = Schema(0, parts.num_classes, parts.parties)
    identities = simulated_identities(schema.parties) if run.secure else None
    least = min_total_parties(run.secure_min, schema.parties)
    secrets = Secrets(identities, min_parties=least) if identities is not None else None
    limits = Limits(TableCohort, settings, schema, Rules(run.max_weight, run.max_share, run.max_nodes))

    def make(parties: Sequence[int], blank: bool) -> Cohort:
        cohort = TableCohort(parts.select(parties), settings, schema, config.seed, parties, secrets=secrets, blank=blank)
        cohort.limits = limits
        return cohort

    kind: Any = ENGINES.find("inprocess" if hasattr(ENGINES.find(config.engine), "launch") else config.engine)
    return Federation(
        kind.connect(make, schema.parties, run),
        schema,
        verbs=TableCohort.verbs(),
        seed=config.seed,
        missing_is_fatal=True,
        secure=run.secure,
        secure_min=least,
        identities=identities,
        scenario=data.scenario,
        names=data.names,
        limits=limits,
    )
