"""What nvidia-imex reads, as NVIDIA's ComputeDomain writes it. Pure.

    imexd.cfg    the daemon's settings; what is left out has NVIDIA's default
    nodes.cfg    18 names, one a line, the same on all nodes of all domains: the daemons refuse each other if
                 their lists differ, so that addresses cannot stand in it while nodes come and go
    hosts        addresses of the names that have one now; the daemon resolves them again when it gets SIGUSR1
                 (driver 570.158.01 and newer)

    run/         what the daemon keeps across its restarts: who had imported memory when it was killed, whom
    it              then waits for. It belongs to one domain, whose nodes its numbers mean

The daemon sees them below IN_ROOT, and `hosts` as its /etc/hosts (daemon.py). Sources: NVIDIA, "IMEX Service
for NVLink Networks" (configuration, signals, quorum); kubernetes-sigs/dra-driver-nvidia-gpu,
compute-domain-daemon.
"""

from __future__ import annotations

from typing import Final

from koordra.api.opaque.imex import MOST_NODES
from koordra.node_state.imex import NodeDomain

IN_ROOT: Final = "/mnt"
"""Where the daemon's folder is bound in its root, which every root has."""
PORT: Final = 50000
CONFIG, NODES, HOSTS, SOCKET, RUN = "imexd.cfg", "nodes.cfg", "hosts", "imexd.sock", "run"

_SETTINGS: Final = {
    "LOG_LEVEL": "4",
    "LOG_FILE_NAME": "",  # standard error
    "STATS_FILE_NAME": "",
    "LOG_USE_SYSLOG": "0",
    "DAEMONIZE": "0",
    "BIND_INTERFACE_IP": "",  # which name in nodes.cfg is the node's own, its addresses say
    "SERVER_PORT": str(PORT),
    "IMEX_NODE_CONFIG_FILE": f"{IN_ROOT}/{NODES}",
    "NETWORK_INTERFACE": "",
    "IMEX_WAIT_FOR_QUORUM": "RECOVERY",
    "IMEX_ENABLE_AUTH_ENCRYPTION": "0",
    "IMEX_CMD_ENABLED": "1",
    # A socket that root alone opens, in place of a port that every pod of the node reaches.
    "IMEX_CMD_BIND_INTERFACE_IP": "",
    "IMEX_CMD_PORT": "",
    "IMEX_CMD_UNIX_DOMAIN_PATH": f"{IN_ROOT}/{SOCKET}",
    "IMEX_NODE_DISCONNECTED_GRACE_TIME": "-1",
}


def host_name(number: int) -> str:
    return f"koordra-imex-{number:04d}"


def config_file() -> str:
    return "".join(f"{name}={value}\n" for name, value in _SETTINGS.items())


def nodes_file() -> str:
    return "".join(f"{host_name(number)}\n" for number in range(MOST_NODES))


def hosts_file(domain: NodeDomain) -> str:
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost"]
    lines += [f"{node.address}\t{host_name(node.number)}" for node in sorted(domain.nodes)]
    return "\n".join(lines) + "\n"
