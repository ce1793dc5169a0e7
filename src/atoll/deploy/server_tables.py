"""The server's part before the first round: the encoding of the sites' tables, fitted over the sites or restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atoll.data.encoding_fit import FittedEncoding, named
from atoll.data.federated_data import FederatedData
from atoll.deploy.compatibility import CommonForm
from atoll.deploy.table_forms import column_documents, digested, encoding_document, read_encoding, width
from atoll.engines.remote import RemoteEngine
from atoll.federation.cohort import Fields, Schema
from atoll.federation.ledger import Ledger
from atoll.graphs.table import Column
from atoll.privacy.identities import Identities
from atoll.runs.config import Config
from atoll.runs.experiment import schema_of
from atoll.runs.preparation import TableSettings, check_fit, encoded, fit_columns, table_schema

MakeEngine = Callable[..., RemoteEngine]  # (schema, columns=documents)


@dataclass(frozen=True)
class PreparedTables:
    """The encoding of the sites' tables, whose names the server does not know."""

    fitted: FittedEncoding
    ledger: Mapping[str, Any] | None = None  # what passed to fit it; None where it was restored, as the checkpoint's holds that
    run: str = ""  # under which the sites know the fit

    @property
    def document(self) -> Fields:
        """The encoding as the sites get it."""
        return encoding_document(self.fitted)

    def sent_before(self, parties: int) -> Ledger | None:
        """A ledger that begins with what the fit took."""
        if self.ledger is None:
            return None
        ledger = Ledger(parties)
        ledger.restore(self.ledger)
        return ledger


def restored(checkpoint: Mapping[str, Any] | None) -> PreparedTables | None:
    """The encoding that a checkpoint holds, if it holds one: it is never fitted again."""
    documents = (checkpoint or {}).get("memory", {}).get("encoding")
    return PreparedTables(read_encoding(documents[0])) if documents else None


def fit_over_sites(
    config: Config,
    form: CommonForm,
    parties: int,
    engine: MakeEngine,
    scenario: str,
    names: Sequence[str],
    identities: Identities | None,
) -> PreparedTables:
    """The encoding of the columns that the sites' tables have in common."""
    check_fit(config, TableSettings.of(form.columns), parties)
    schema = table_schema(form.classes, parties)
    carrier = engine(schema, columns=column_documents(form.columns))
    fitted, ledger = fit_columns(config, form.columns, carrier, schema, scenario, names, identities)
    return PreparedTables(fitted, ledger.state(), carrier.run)


def simulated_form(data: FederatedData) -> CommonForm:
    """The form of data that this process has: columns as simulated sites call them."""
    columns: Sequence[Column] = () if data.parts.table is None else digested(data.parts.table.columns, b"")
    return CommonForm(data.parts.num_features, data.parts.num_classes, columns=tuple(columns))


def simulated_data(data: FederatedData, prepared: PreparedTables | None, normalize: bool) -> FederatedData:
    """The data of a simulation with its tables encoded as the sites encode theirs."""
    table = data.parts.table
    if table is None or prepared is None:
        return data
    columns = zip(prepared.fitted.encoding.columns, table.columns, strict=True)
    renamed = tuple(replace(each, column=column, labels=column.values or each.labels) for each, column in columns)
    fitted = replace(prepared.fitted, encoding=replace(prepared.fitted.encoding, columns=renamed))
    return encoded(data, named(fitted, table), normalize=normalize)


def schema_for(form: CommonForm, data: FederatedData | None, prepared: PreparedTables | None, parties: int) -> Schema:
    """What all parties must know of the data: from the data in a simulation, otherwise from the sites' descriptions."""
    if data is not None:
        return schema_of(data)
    return Schema(form.features if prepared is None else width(prepared.fitted), form.classes, parties, form.nodes)
