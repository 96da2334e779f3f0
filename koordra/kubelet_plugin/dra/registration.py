"""Registers the driver with the kubelet: a socket in <kubelet root>/plugins_registry that names the driver
and its DRA socket.

The kubelet watches that directory, dials each new socket, calls GetInfo, dials the DRA socket named there,
and reports the outcome. So the DRA server must be serving before the registration socket appears, and stops
after it.

An instance that is killed leaves its sockets. One that starts under the same pod uid binds them again; if the
pod is gone, the next instance removes them (`remove_abandoned`), or the kubelet would dial them at each of
its starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordra._proto.dra import pluginregistration_pb2 as messages
from koordra._proto.dra import pluginregistration_pb2_grpc as services
from koordra.api import names
from koordra.kubelet_plugin.dra.instance_lock import abandoned
from koordra.logs import get_logger

log = get_logger(__name__)

PLUGIN_TYPE: Final = "DRAPlugin"

_REGISTRATION: Final = "-reg.sock"
_INSTANCE: Final = ".lock"


@dataclass(frozen=True, slots=True)
class PluginSockets:
    """The paths of the two sockets. With a pod uid the names are the instance's own, so that two instances of
    the plugin can serve side by side during an update; the kubelet then uses the one that registered last."""

    registration: Path
    dra: Path

    @classmethod
    def below(cls, kubelet_root: Path, *, pod_uid: str | None = None) -> PluginSockets:
        mark = f"-{pod_uid}" if pod_uid else ""
        return cls(
            registration=kubelet_root / "plugins_registry" / f"{names.DRIVER}{mark}{_REGISTRATION}",
            dra=kubelet_root / "plugins" / names.DRIVER / f"dra{mark}.sock",
        )

    def instance(self, state: Path) -> Path:
        """The lock file by which an instance owns these names (instance_lock.sole_instance)."""
        return state / f"{self.registration.name}{_INSTANCE}"


def remove_abandoned(kubelet_root: Path, state: Path) -> None:
    """Remove the sockets of instances that were killed and did not come back. What cannot be removed is
    logged."""
    for lock in sorted(state.glob(f"{names.DRIVER}*{_REGISTRATION}{_INSTANCE}")):
        mark = lock.name.removeprefix(names.DRIVER).removesuffix(f"{_REGISTRATION}{_INSTANCE}")
        sockets = PluginSockets.below(kubelet_root, pod_uid=mark.removeprefix("-") or None)
        try:
            with abandoned(lock) as found:
                if found:
                    sockets.registration.unlink(missing_ok=True)
                    sockets.dra.unlink(missing_ok=True)
                    log.info("stale_sockets_removed", socket=str(sockets.registration))
        except OSError as error:
            log.warning("stale_sockets_not_removed", socket=str(sockets.registration), error=str(error))


class RegistrationService:
    """pluginregistration.Registration for this driver."""

    def __init__(self, *, endpoint: Path, supported_versions: Sequence[str]) -> None:
        self._info = messages.PluginInfo(
            type=PLUGIN_TYPE,
            name=names.DRIVER,
            endpoint=str(endpoint),
            supported_versions=supported_versions,
        )

    def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802  the service's name
        del request, context
        return self._info

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A refusal is only logged: the kubelet retries."""
        del context
        if request.plugin_registered:
            log.info("registered_with_kubelet", driver=names.DRIVER)
        else:
            log.error("kubelet_refused_registration", driver=names.DRIVER, error=request.error)
        return messages.RegistrationStatusResponse()


def add_service(service: RegistrationService) -> Callable[[Any], None]:
    """Puts registration onto a gRPC server."""

    def add(server: Any) -> None:
        services.add_RegistrationServicer_to_server(service, server)  # type: ignore[no-untyped-call]

    return add
