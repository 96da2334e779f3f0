"""Containers' commands as processes of this machine, for manifests that say what their programs do.

A command runs with this machine's programs, in namespaces of its own (command_init.py): its volumes are where
the manifest puts them, its host name is the pod's, and /etc/hosts knows the pods of its namespace. There is
no image, no limit of any resource, and the network is this machine's loopback. Device nodes and the driver's
files of the machines are made up, so that no command sees them.

    <dir>/output/<container id>.log    standard output and error

Commands end with the kubelet that started them; after its restart their containers are found exited.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from koordra.errors import NRIError
from koordra_devcluster.container_runtime.records import Record

INIT: Final = Path(__file__).with_name("command_init.py")
KILLED: Final = 137
OUTPUT: Final = "output"


class Commands:
    """`directory`: the node's; `hidden`: where the made-up machine lies, of which nothing is mounted;
    `hosts(namespace)`: the file with the names of a namespace's pods."""

    def __init__(self, directory: Path, *, hidden: Path, hosts: Callable[[str], Path]) -> None:
        self._directory = directory
        self._hidden = hidden
        self._hosts = hosts
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, record: Record, pod: Mapping[str, Any]) -> None:
        """Raises NRIError where no process can be made."""
        root, output = self._directory / "root", self._directory / OUTPUT
        plan = {
            "root": str(root),
            "argv": record["command"],
            "environment": _environment(record["env"]),
            "hostname": pod["hostname"],
            "mounts": [
                [mount["source"], mount["destination"]]
                for mount in record["mounts"]
                if mount["type"] == "bind" and not Path(mount["source"]).is_relative_to(self._hidden)
            ]
            + [[str(self._hosts(pod["namespace"])), "/etc/hosts"]],
        }
        try:
            for folder in (root, output):
                folder.mkdir(parents=True, exist_ok=True)
            with (output / f"{record['id']}.log").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-I", str(INIT)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            assert process.stdin is not None
            with process.stdin as told:
                told.write(json.dumps(plan).encode())
        except OSError as error:
            raise NRIError(f"cannot start a process: {error.strerror}") from error
        with self._lock:
            self._running[record["id"]] = process

    def ended(self, container: str) -> int | None:
        """The exit code of its process, None while it runs."""
        with self._lock:
            process = self._running.get(container)
        if process is None:
            return KILLED
        code = process.poll()
        return code if code is None or code >= 0 else 128 - code

    def stop(self, container: str) -> None:
        """Its process ends, with all that it has started."""
        with self._lock:
            process = self._running.pop(container, None)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def close(self) -> None:
        for container in list(self._running):
            self.stop(container)


def _environment(told: Mapping[str, str]) -> dict[str, str]:
    """With the Python of this program before the machine's."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "HOME": "/", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", **told}
