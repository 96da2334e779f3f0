"""A server of GPUs behind the network, as far as it keeps sessions: a process that says its port on stdout,
and answers lines on loopback.

    open SESSION DEVICE BYTES    done
    close SESSION                done, also for one that is not open
    use SESSION                  DEVICE BYTES, for a program that has the session; or `unknown session`
"""

from __future__ import annotations

import socketserver
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SESSIONS: dict[str, str] = {}


class Lines(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(f"{answer(*line.decode().split())}\n".encode())


def answer(command: str, session: str, *said: str) -> str:
    match command:
        case "open":
            if SESSIONS.setdefault(session, " ".join(said)) != " ".join(said):
                return "the session has another device"
            return "done"
        case "close":
            SESSIONS.pop(session, None)
            return "done"
        case "use":
            return SESSIONS.get(session, "unknown session")
    return "unknown command"


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


@contextmanager
def running() -> Iterator[str]:
    """The address of one that runs meanwhile."""
    with subprocess.Popen([sys.executable, "-S", __file__], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Lines) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
