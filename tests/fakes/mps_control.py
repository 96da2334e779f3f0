"""nvidia-cuda-mps-control and nvidia-smi, as far as koordra uses them: doubles that are strict about what
they are asked, over cards that outlive them.

    python mps_control.py FOLDER nvidia-smi -i UUID -c EXCLUSIVE_PROCESS
    python mps_control.py FOLDER nvidia-cuda-mps-control -d

FOLDER has a file for each card, named by its UUID: how it is set. A daemon is a process of its own, which
listens on `control` in its pipe directory and ends at `quit`; where another one listens there it does not
start. It knows the commands that the MPS documentation has, and one more, by which a test is a client:
`client PID UID` answers with the limits that the client has.
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
    if arguments == ["-h"]:
        print("usage: nvidia-cuda-mps-control [-d] [-f] [--multiuser-server]")
        return
    pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    if arguments[:1] == ["-d"]:
        if set(arguments[1:]) - {"--multiuser-server"}:
            fail(f"unknown option: {arguments}")
        if not Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]).is_dir() or not pipe.is_dir():
            fail("Failed to create the pipe or log directory")
        uuid = os.environ["CUDA_VISIBLE_DEVICES"]
        card(folder, uuid)
        if connected(pipe):
            fail("An instance of this daemon is already running")
        start(folder, uuid, pipe)
        return
    if arguments:
        fail(f"unknown option: {arguments}")
    for line in sys.stdin.read().splitlines():
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


def start(folder: Path, uuid: str, pipe: Path) -> None:
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
    Daemon(folder, uuid).run(listening)


class Daemon:
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
            if said == b"quit":
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


if __name__ == "__main__":
    where, program, *rest = sys.argv[1:]
    {"nvidia-smi": smi, "nvidia-cuda-mps-control": control}[program](Path(where), rest)
