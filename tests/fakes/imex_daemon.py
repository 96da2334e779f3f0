"""nvidia-imex and nvidia-imex-ctl, as far as koordra uses them: a double that is strict about what it reads.

    python imex_daemon.py FOLDER nvidia-imex -c /mnt/imexd.cfg
    python imex_daemon.py FOLDER nvidia-imex-ctl -c /mnt/imexd.cfg -q

FOLDER is what the real one has at /mnt, and `hosts` there its /etc/hosts. Each daemon has an address of the
loopback of its own (IMEX_ADDRESS), so that many run on one machine. As the real one it ends where it cannot
make sense of its files, where no name or several are its own, and where a peer has another list of nodes; it
resolves names when it starts and at SIGUSR1, and at no other time. It answers INITIALIZING for IMEX_DELAY
seconds.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

KNOWN = {
    "LOG_LEVEL",
    "LOG_FILE_NAME",
    "STATS_FILE_NAME",
    "LOG_USE_SYSLOG",
    "DAEMONIZE",
    "BIND_INTERFACE_IP",
    "SERVER_PORT",
    "IMEX_NODE_CONFIG_FILE",
    "NETWORK_INTERFACE",
    "IMEX_WAIT_FOR_QUORUM",
    "IMEX_ENABLE_AUTH_ENCRYPTION",
    "IMEX_CMD_ENABLED",
    "IMEX_CMD_BIND_INTERFACE_IP",
    "IMEX_CMD_PORT",
    "IMEX_CMD_UNIX_DOMAIN_PATH",
    "IMEX_NODE_DISCONNECTED_GRACE_TIME",
}


def fail(why: str) -> None:
    print(f"imex double: {why}", file=sys.stderr, flush=True)
    os._exit(2)


def main() -> None:
    folder, program, *arguments = sys.argv[1:]
    here = Path(folder)
    if arguments[:1] != ["-c"] or len(arguments) < 2:
        fail(f"arguments {arguments}")
    settings = read_settings(inside(here, arguments[1]))
    if program == "nvidia-imex-ctl":
        if arguments[2:] != ["-q"]:
            fail(f"arguments {arguments}")
        control(inside(here, settings["IMEX_CMD_UNIX_DOMAIN_PATH"]))
    elif program == "nvidia-imex" and len(arguments) == 2:
        Daemon(here, settings).run()
    else:
        fail(f"program {program} {arguments}")


def inside(folder: Path, path: str) -> Path:
    if not path.startswith("/mnt/"):
        fail(f"{path} is not below /mnt")
    return folder / path.removeprefix("/mnt/")


def read_settings(file: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in file.read_text().splitlines():
        name, equals, value = line.partition("=")
        if not equals or name not in KNOWN or name in found:
            fail(f"{file.name}: {line!r}")
        found[name] = value
    if found["DAEMONIZE"] != "0" or found["IMEX_WAIT_FOR_QUORUM"] not in {"RECOVERY", "NONE"}:
        fail("it would leave its supervisor, or wait for ever")
    return found


def control(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            peer.connect(str(path))
        except OSError as error:
            print(f"cannot connect: {error.strerror}")
            sys.exit(1)
        print(peer.makefile().readline(), end="")


class Daemon:
    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder = folder
        self.names = inside(folder, settings["IMEX_NODE_CONFIG_FILE"]).read_text().split()
        self.digest = hashlib.sha256(" ".join(self.names).encode()).hexdigest()
        self.port = int(settings["SERVER_PORT"])
        self.socket = inside(folder, settings["IMEX_CMD_UNIX_DOMAIN_PATH"])
        self.address = os.environ["IMEX_ADDRESS"]
        self.ready_at = time.monotonic() + float(os.environ.get("IMEX_DELAY", "0"))
        self.resolved: dict[str, str] = {}
        if len(set(self.names)) != len(self.names) or not self.names:
            fail("a name is there twice, or there is none")

    def resolve(self) -> None:
        addresses: dict[str, str] = {}
        for line in (self.folder / "hosts").read_text().splitlines():
            address, *names = line.split()
            addresses |= dict.fromkeys(names, address)
        self.resolved = {name: addresses[name] for name in self.names if name in addresses}
        own = [name for name, address in self.resolved.items() if address == self.address]
        if len(own) != 1:
            fail(f"own names {own} at {self.address}")
        (self.folder / "resolved").write_text(" ".join(sorted(self.resolved.values())))

    def run(self) -> None:
        self.resolve()
        signal.signal(signal.SIGUSR1, lambda *_: self.resolve())
        signal.signal(signal.SIGTERM, lambda *_: self.end())
        self.socket.unlink(missing_ok=True)
        threading.Thread(target=self.serve_control, daemon=True).start()
        threading.Thread(target=self.serve_peers, daemon=True).start()
        while True:
            for name, address in list(self.resolved.items()):
                if address != self.address:
                    self.greet(name, address)
            time.sleep(0.1)

    def end(self) -> None:
        (self.folder / "ended").write_text("SIGTERM")
        os._exit(0)

    def serve_control(self) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.socket))
            server.listen()
            while True:
                peer, _ = server.accept()
                with peer:
                    ready = time.monotonic() >= self.ready_at
                    peer.sendall(b"READY\n" if ready else b"INITIALIZING\n")

    def serve_peers(self) -> None:
        with socket.create_server((self.address, self.port)) as server:
            while True:
                peer, _ = server.accept()
                with peer:
                    peer.settimeout(1.0)
                    try:
                        said = peer.makefile().readline().strip()
                    except OSError:
                        continue
                    if said and said != self.digest:
                        fail("a peer has another list of nodes")

    def greet(self, name: str, address: str) -> None:
        try:
            with socket.create_connection((address, self.port), timeout=0.5) as peer:
                peer.sendall(f"{self.digest}\n".encode())
        except OSError:
            return


if __name__ == "__main__":
    main()
