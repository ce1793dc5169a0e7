"""Engines carry messages between the server and the parties; each is registered under a name.

An engine is a module, or any object, with one of two functions. `connect(make, parties, settings)` gives an `Engine` to a
server in this process. `launch(config, given, out=…, watch=…, resume=…)` runs the whole federation elsewhere and returns
the `Result`.
"""

from __future__ import annotations

from typing import Any

from atoll.registry import Registry

ENGINES: Registry[Any] = Registry("engine", {"inprocess": "atoll.engines.inprocess", "nvflare": "atoll.deploy.launch"})
