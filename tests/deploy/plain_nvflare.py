"""NVFlare's own server and client programs, as atoll started them once, and what they register: a list that cannot go stale.

`python plain_nvflare.py FILE server|client ARGUMENTS` starts one end and notes in FILE whatever it can be asked.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from atoll.deploy import kit

HERE = Path(__file__).parent


def record(out: Path) -> None:
    """Note every channel and topic that NVFlare registers in this process, whatever for."""
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.streaming.byte_receiver import ByteReceiver
    from nvflare.private.aux_runner import AuxRunner
    from nvflare.private.fed.client.admin import FedAdminAgent

    lock = threading.Lock()

    def note(channel: str, topic: str) -> None:
        with lock, out.open("a") as file:
            file.write(json.dumps([channel, topic]) + "\n")

    request, stream, aux, processor = (
        CoreCell.register_request_cb,
        ByteReceiver.register_callback,
        AuxRunner.register_aux_message_handler,
        FedAdminAgent.register_processor,
    )

    def register_request_cb(self: Any, channel: str, topic: str, cb: Any, *args: Any, **kwargs: Any) -> Any:
        note(channel, topic)
        return request(self, channel, topic, cb, *args, **kwargs)

    def register_callback(self: Any, channel: str, topic: str, cb: Any, *args: Any, **kwargs: Any) -> Any:
        note(channel, topic)
        return stream(self, channel, topic, cb, *args, **kwargs)

    def register_aux(self: Any, topic: str, *args: Any, **kwargs: Any) -> Any:
        note("aux_communication", topic)
        return aux(self, topic, *args, **kwargs)

    def register_processor(self: Any, item: Any) -> Any:
        for topic in item.get_topics():
            note("admin", topic)
        return processor(self, item)

    CoreCell.register_request_cb = register_request_cb
    ByteReceiver.register_callback = register_callback
    AuxRunner.register_aux_message_handler = register_aux
    FedAdminAgent.register_processor = register_processor


def workspaces(sites: list[str], port: int, folder: Path) -> Path:
    """NVFlare's workspaces of a server and some clients on this machine; the folder they are in."""
    made = kit._make_workspaces(sites, "localhost", port, folder)
    server = made / kit.SERVER_IDENTITY / "startup" / "fed_server.json"
    server.write_text(server.read_text().replace(f"{kit.SERVER_IDENTITY}:{port}", f"localhost:{port}"))
    for name in (kit.SERVER_IDENTITY, *sites):
        resources = _server(made / name) if name == kit.SERVER_IDENTITY else _client()
        for file, document in (("resources.json", resources), ("comm_config.json", {"allow_adhoc_conns": False})):
            (made / name / "local" / file).write_text(json.dumps(document))
        permissions = {"format_version": "1.0", "permissions": {"project_admin": "none"}}
        (made / name / "local" / "authorization.json").write_text(json.dumps(permissions))
    return made


def add_component(workspace: Path, path: str) -> None:
    """What a member does to its own kit."""
    file = workspace / "local" / "resources.json"
    resources = json.loads(file.read_text())
    resources["components"].append({"id": "own", "path": path, "args": {}})
    file.write_text(json.dumps(resources))


def start(end: str, workspace: Path, recorded: Path, **env: str) -> subprocess.Popen[bytes]:
    """One end as a process."""
    settings = ["secure_train=true", "org=atoll", "config_folder=config"]
    if end == "client":
        settings += [f"uid={workspace.name}", "heart_beat_interval=2.0"]
    words = ["-m", str(workspace), "-s", f"fed_{end}.json", "--set", *settings]
    path = os.pathsep.join([str(HERE), *sys.path])
    with (workspace / "console.txt").open("w") as console:
        return subprocess.Popen(
            [sys.executable, __file__, str(recorded), end, *words],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            env={**os.environ, "PYTHONPATH": path, **env},
            start_new_session=True,
        )


def _client() -> dict[str, Any]:
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [],
        "client": {"retry_timeout": 30, "client_register_interval": 0.2},
        "components": [],
    }


def _server(folder: Path) -> dict[str, Any]:
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    persistor = "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor"
    jobs = {"root_dir": str(folder / "jobs" / "snapshots"), "uri_root": "/"}
    scheduler = "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler"
    manager = "nvflare.apis.impl.job_def_manager.SimpleJobDefManager"
    return {
        "format_version": 2,
        "servers": [{"admin_storage": "transfer", "max_num_clients": 100, "heart_beat_timeout": 60, "admin_timeout": 10.0}],
        "snapshot_persistor": {"path": persistor, "args": {"uri_root": "/", "storage": {"path": storage, "args": jobs}}},
        "components": [
            {"id": "job_scheduler", "path": scheduler, "args": {"max_jobs": 1}},
            {"id": "job_manager", "path": manager, "args": {"uri_root": str(folder / "jobs"), "job_store_id": "job_store"}},
            {"id": "job_store", "path": storage},
        ],
    }


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    end, sys.argv = sys.argv[2], [sys.argv[0], *sys.argv[3:]]
    runpy.run_module(f"nvflare.private.fed.app.{end}.{end}_train", run_name="__main__")
