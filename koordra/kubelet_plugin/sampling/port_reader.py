"""The ports of a node's RDMA devices, wherever these are: also in a pod's network namespace, where the host
does not see them (`rdma system set netns exclusive`).

The kernel shows the devices of a namespace in a sysfs that is mounted in it, so one is mounted there, by a
thread that ends with its work, and not the pod's own, which the pod may have made of anything. MOST
namespaces are looked into for one sample, in turn; a port that is not read now has what was read before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from koordra.errors import KoordraError
from koordra.kubelet_plugin.network.roce_gid import in_pods_sysfs
from koordra.kubelet_plugin.sampling.nic_counters import Port, PortCounters, read_ports
from koordra.logs import get_logger
from koordra.node_state.claim_network import AttachedNetwork

MOST: Final = 8

InSysfs = Callable[[str, Callable[[Path], dict[Port, PortCounters]]], dict[Port, PortCounters]]
log = get_logger(__name__)


def _read(ports: Iterable[Port], sys: Path) -> dict[Port, PortCounters]:
    return read_ports(sys.parent, ports)


class PortReader:
    """`root` stands for `/`; `attached`: what is in pods now. For one thread."""

    def __init__(
        self,
        root: Path,
        *,
        attached: Callable[[], Iterable[AttachedNetwork]] = tuple,
        in_sysfs: InSysfs = in_pods_sysfs,
    ) -> None:
        self._root = root
        self._attached = attached
        self._in_sysfs = in_sysfs
        self._last = ""

    def read(self, ports: Mapping[Port, str]) -> dict[Port, PortCounters]:
        """Those of the ports (of devices by their names on this node) that can be read now."""
        found = read_ports(self._root, ports)
        for netns, there in self._turn(self._in_pods(ports)):
            try:
                found |= self._in_sysfs(netns, partial(_read, there))
            except (KoordraError, OSError) as error:  # its pod ends
                log.debug("ports_of_pod_not_read", netns=netns, error=str(error))
            self._last = netns
        return found

    def _in_pods(self, ports: Mapping[Port, str]) -> dict[str, list[Port]]:
        """By namespace."""
        try:
            places = {
                device.device: claim.netns
                for claim in self._attached()
                for device in claim.devices
                if device.rdma_moved and claim.netns
            }
        except KoordraError as error:  # a disk that is not readable, which others tell
            log.debug("ports_of_pods_not_read", error=str(error))
            return {}
        found = defaultdict[str, list[Port]](list)
        for port, device in ports.items():
            if device in places:
                found[places[device]].append(port)
        return found

    def _turn(self, places: Mapping[str, list[Port]]) -> list[tuple[str, list[Port]]]:
        names = sorted(places)
        after = [name for name in names if name > self._last]
        return [
            (name, places[name]) for name in (*after, *(name for name in names if name not in after))[:MOST]
        ]
