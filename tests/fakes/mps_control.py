"""nvidia-cuda-mps-control and nvidia-smi, as far as koordra uses them: doubles that are strict about what
they are asked, over cards that outlive them.

    python mps_control.py FOLDER nvidia-smi -i UUID -c EXCLUSIVE_PROCESS
    python mps_control.py FOLDER nvidia-cuda-mps-control -d

FOLDER has a file for each card, named by its UUID: how it is set. A daemon is a process of its own, which
listens on `control` in its pipe directory and ends at `quit`; where another one listens there it does not
start. It knows the commands that the MPS documentation has of the version of its protocol, and none of the
other's; the third is there where FOLDER has a file `mps-v3` (driver 615). One command more is a test's, which
is a client: `client PID UID` (`client PID NAMESPACE` of the third) answers with the limits that it has.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

MODES = {"DEFAULT": "Default", "EXCLUSIVE_PROCESS": "Exclusive_Process", "PROHIBITED": "Prohibited"}


def fail(why: str, code: int = 1) -> None:
    print(why, file=sys.stderr, flush=True)
    os._exit(code)


def card(folder: Path, uuid: str) -> dict[str, object]:
    file = folder / uuid
    if not file.exists():
        fail(f"No devices were found: {uuid}", 6)
    found: dict[str, object] = json.loads(file.read_text())
    return found


def put(folder: Path, uuid: str, found: dict[str, object]) -> None:
    temporary = folder / f".{uuid}.{os.getpid()}"
    temporary.write_text(json.dumps(found))
    temporary.rename(folder / uuid)


def smi(folder: Path, arguments: list[str]) -> None:
    match arguments:
        case ["-i", uuid, "--query-gpu=compute_mode", "--format=csv,noheader"]:
            print(MODES[str(card(folder, uuid)["mode"])])
        case ["-i", uuid, "-c", mode] if mode in MODES:
            found = card(folder, uuid)
            if found.get("refuses"):
                fail(f"Unable to set compute mode for GPU {uuid}: {found['refuses']}")
            put(folder, uuid, {**found, "mode": mode})
        case ["compute-policy", "-i", uuid, "--set-timeslice", number] if number in {"0", "1", "2", "3"}:
            put(folder, uuid, {**card(folder, uuid), "timeslice": int(number)})
        case _:
            fail(f"Invalid combination of input arguments: {arguments}")


def connected(pipe: Path) -> socket.socket | None:
    found = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(pipe)  # a socket's path may not be longer than 107 bytes
        found.connect("control")
    except OSError:
        return None
    return found


def control(folder: Path, arguments: list[str]) -> None:
    third = (folder / "mps-v3").exists()
    if arguments == ["-h"]:
        print("usage: nvidia-cuda-mps-control [-d] [-f] [--multiuser-server]")
        return
    if arguments == ["-p", "3", "-h"] and third:
        print("Modules:\n  server  Manage servers\n  namespace  Manage namespaces\n  client  Manage clients")
        return
    pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    if arguments[:1] == ["-d"]:
        if arguments[1:] not in ([], ["--multiuser-server"], *([["-p", "3", "-m"]] if third else [])):
            fail(f"unknown option: {arguments}")
        if not Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]).is_dir() or not pipe.is_dir():
            fail("Failed to create the pipe or log directory")
        uuid = os.environ["CUDA_VISIBLE_DEVICES"]
        card(folder, uuid)
        if connected(pipe):
            fail("An instance of this daemon is already running")
        start(folder, uuid, pipe, Third if "3" in arguments else Daemon)
        return
    if arguments[:1] == ["-p"] or (arguments and not third):
        fail(f"unknown option: {arguments}")
    for line in [" ".join(arguments)] if arguments else sys.stdin.read().splitlines():
        connection = connected(pipe)
        if connection is None:
            fail("Cannot find MPS control daemon process")
            return
        connection.sendall(line.encode())
        connection.shutdown(socket.SHUT_WR)
        said = b""
        while block := connection.recv(4096):
            said += block
        text = said.decode()
        if text.startswith("error: "):
            fail(text)
        print(text, end="")


def start(folder: Path, uuid: str, pipe: Path, made: type[Daemon]) -> None:
    (pipe / "control").unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    os.chdir(pipe)
    listening.bind("control")
    listening.listen(16)
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    (pipe / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    made(folder, uuid).run(listening)


class Daemon:
    quit = "quit"

    def __init__(self, folder: Path, uuid: str) -> None:
        self.folder, self.uuid = folder, uuid
        self.threads, self.memory = 100, ""
        self.servers: dict[int, dict[str, object]] = {}

    def run(self, listening: socket.socket) -> None:
        while True:
            connection, _ = listening.accept()
            said = b""
            while block := connection.recv(4096):
                said += block
            answer = self.answer(said.decode().split())
            connection.sendall(answer.encode())
            connection.close()
            if said.decode() == self.quit:
                os._exit(0)

    def answer(self, words: list[str]) -> str:
        match words:
            case ["get_server_list"]:
                return "".join(f"{server}\n" for server in self.servers)
            case ["get_server_status", server] if int(server) in self.servers:
                return f"{self.servers[int(server)]['state']}\n"
            case ["set_default_active_thread_percentage", value] if 0 < float(value) <= 100:
                self.threads = int(value)
                return f"{float(value)}\n"
            case ["set_active_thread_percentage", server, value] if int(server) in self.servers:
                self.servers[int(server)]["threads"] = int(value)
                return f"{float(value)}\n"
            case ["set_default_device_pinned_mem_limit", "0", value] if value[-1] in "GM":
                self.memory = value
                return ""
            case ["set_device_pinned_mem_limit", server, "0", value] if int(server) in self.servers:
                self.servers[int(server)]["memory"] = value
                return ""
            case ["quit"]:
                return ""
            case ["client", client, user]:
                return self.client(client, user)
            case ["fault"]:
                for server in self.servers.values():
                    server["state"] = "FAULT"
                return ""
        return f"error: unknown command {words}"

    def client(self, client: str, user: str) -> str:
        if card(self.folder, self.uuid)["mode"] != "EXCLUSIVE_PROCESS":
            return "error: the card is not exclusive"
        server = 1000 + int(user)
        found = self.servers.setdefault(
            server, {"state": "ACTIVE", "clients": [], "threads": self.threads, "memory": self.memory}
        )
        if found["state"] != "ACTIVE":
            return "error: MPS_SERVER_NOT_READY"
        found["clients"].append(client)  # type: ignore[attr-defined]
        return f"{found['threads']} {found['memory']}\n"


class Third(Daemon):
    """`module verb` commands. A namespace is a folder with a socket, without limits before it gets some."""

    quit = "-q"

    def __init__(self, folder: Path, uuid: str) -> None:
        super().__init__(folder, uuid)
        self.namespaces: dict[str, dict[str, str]] | None = None
        self.state, self.listening = "Ready", dict[str, socket.socket]()

    def answer(self, words: list[str]) -> str:
        options = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
        plain = [word for word in words if not word.startswith("--")]
        flags = {word for word in words if word.startswith("--") and "=" not in word}
        match plain:
            case ["-q"]:
                return ""
            case ["server", "list"] if options == {"format": "csv,noheader"}:
                row = f"k,0,4711,{self.state},{Path.cwd()}/k,{self.uuid},-\n"
                return "" if self.namespaces is None else row
            case ["server", "create", "k"] if options == {"uid": "0", "allowed-devices": self.uuid}:
                if self.namespaces is not None:
                    return "error: the server exists"
                if card(self.folder, self.uuid)["mode"] != "PROHIBITED":  # else it ends at once
                    self.namespaces = {}
                    self.listen("default")
                return ""
            case ["fault"]:
                self.state = "Fault"
                return ""
            case ["ends"]:
                self.namespaces = None
                for name in [*self.listening]:
                    self.forget(name)
                return ""
            case ["namespace", *_] if self.namespaces is not None and options.pop("server", "") == "k":
                return self.of_namespaces(plain[1:], options, flags, self.namespaces)
            case ["client", _, name] if self.namespaces is not None and name in self.namespaces:
                if card(self.folder, self.uuid)["mode"] != "EXCLUSIVE_PROCESS":
                    return "error: the card is not exclusive"
                found = self.namespaces[name]
                threads, memory = (
                    found.get(of, "") for of in ("active-thread-percentage", "pinned-memory-limit")
                )
                return f"{threads or 100} {memory}\n"
        return f"error: unknown command {words}"

    def of_namespaces(
        self, plain: list[str], options: dict[str, str], flags: set[str], there: dict[str, dict[str, str]]
    ) -> str:
        match plain:
            case ["list"] if options == {"format": "csv,noheader"}:
                rows = [
                    f"{name},k,{self.state},-,-,0,{Path.cwd()}/k/{name}\n" for name in ("default", *there)
                ]
                return "".join(rows)
            case ["create", name] if name not in there and not options and is_name(name):
                there[name] = {}
                self.listen(name)
                return ""
            case ["set", name] if name in there and options and (self.folder / "refuses-limits").exists():
                return "error: Not Supported"
            case ["set", name] if name in there and options:
                if options.keys() <= {"active-thread-percentage", "pinned-memory-limit"}:
                    there[name] |= options
                    return ""
            case ["delete", name] if name in there and flags == {"--force"}:
                del there[name]
                self.forget(name)
                return ""
        return f"error: unknown namespace command {plain} {options}"

    def listen(self, name: str) -> None:
        folder = Path("k", name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "control").unlink(missing_ok=True)
        self.listening[name] = socket.socket(socket.AF_UNIX)
        self.listening[name].bind(str(folder / "control"))

    def forget(self, name: str) -> None:
        self.listening.pop(name).close()
        Path("k", name, "control").unlink()
        Path("k", name).rmdir()


def is_name(name: str) -> bool:
    return len(name) <= 64 and all(sign.islower() or sign.isdigit() or sign == "_" for sign in name)


if __name__ == "__main__":
    where, program, *rest = sys.argv[1:]
    {"nvidia-smi": smi, "nvidia-cuda-mps-control": control}[program](Path(where), rest)
