"""The door between server and parties: messages, cohorts, the federation, its ledger and its checks."""

from __future__ import annotations

from atoll.compat import old_names

__getattr__ = old_names(__name__)
