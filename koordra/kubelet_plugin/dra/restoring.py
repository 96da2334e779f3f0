"""What vanished of the plugin on its node is there again within seconds: the sockets, the list of guarded
devices, the files of prepared claims."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.dra.plugin_servers import PluginServers
from koordra.kubelet_plugin.prepare.device_guard import DeviceGuardFile
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.logs import get_logger
from koordra.process.progress import step, watched

log = get_logger(__name__)
CHECK_INTERVAL: Final = 2.0
FILE_CHECK_INTERVAL: Final = 5.0
"""Seconds between two checks for missing sockets, and for changed files of claims, which cost more."""


@watched("restore")
def keep_restoring(
    stop: threading.Event,
    *,
    servers: PluginServers,
    guarded: DeviceGuardFile,
    state: DeviceState,
    checked: Callable[[], object],
) -> None:
    """Until `stop`; `checked` is called after each round."""
    files_at = time.monotonic() + FILE_CHECK_INTERVAL
    while not stop.wait(CHECK_INTERVAL):
        checks = [*servers.checks, guarded.ensure]
        if time.monotonic() >= files_at:
            files_at = time.monotonic() + FILE_CHECK_INTERVAL
            checks.append(state.restore_files)
        for check in checks:  # a failed check does not stop the others
            step()
            try:
                check()
            except (NodeError, OSError) as error:  # a disk that cannot be read is no reason to end
                log.error("plugin_check_failed", error=str(error))
        checked()
