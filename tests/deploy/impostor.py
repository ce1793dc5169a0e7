"""A member that pretends to be the server: it stands where a site looks for it, with its own certificate, and asks.

`python impostor.py KIT PORT`, and it tells on its output what it got out of a site that connected.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import CellChannel
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message

from atoll import wire
from atoll.deploy.carrier import ECHO_REQUEST

if __name__ == "__main__":
    startup, port = Path(sys.argv[1]) / "startup", sys.argv[2]
    CommConfigurator._configuration, CommConfigurator._config_loaded = {}, True
    files = {"ca_cert": "rootCA.pem", "server_cert": "client.crt", "server_key": "client.key"}
    cell = Cell(
        fqcn="server",
        root_url=f"https://localhost:{port}",
        secure=True,
        credentials={DriverParams(key).value: str(startup / file) for key, file in files.items()},
    )
    cell.core_cell.start()
    while True:
        for site in list(cell.core_cell.agents):
            print("connected", site, flush=True)
            reply = cell.send_request(
                channel=CellChannel.AUX_COMMUNICATION,
                topic="atoll",
                target=site,
                request=Message({}, wire.encode(ECHO_REQUEST)),
                timeout=1.0,
                optional=True,
            )
            if reply.payload:
                print("answered", site, flush=True)
        time.sleep(0.05)
