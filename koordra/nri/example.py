"""An example of a plugin made with this library: it prints the node's containers, and annotates new ones.

    python -m koordra.nri.example --socket /var/run/nri/nri.sock --index 50 --count 3

It needs nothing else of koordra. For every container it prints one line; to every new one it adds an
annotation with its place in the order of creation. A pod with the annotation `example.org/forbidden` is
refused, to show how a plugin rejects a container. `--count` ends the program after so many containers;
without it, it runs until it is interrupted.

Launched by the runtime (an executable `50-example` in its plugin directory) it takes the socket that it
inherits, and the options' text from `50-example.conf`.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from koordra.errors import NRIError, RemoteError
from koordra.nri import messages
from koordra.nri.stub import DEFAULT_SOCKET, Plugin, Stub
from koordra.nri.transport.ttrpc import Call, Code

FORBIDDEN = "example.org/forbidden"
ORDER = "example.org/order"


class Example(Plugin):
    """Handlers run on several threads at once, so what they share has a lock. Events are subscribed to by
    defining them."""

    def __init__(self, *, count: int | None, stop: threading.Event) -> None:
        self._lock = threading.Lock()
        self._created = 0
        self._count = count
        self._stop = stop

    def configure(self, request: messages.ConfigureRequest) -> None:
        say(f"runtime {request.runtime_name} {request.runtime_version}, configuration {request.config!r}")

    def synchronize(
        self, pods: Sequence[messages.PodSandbox], containers: Sequence[messages.Container]
    ) -> Sequence[messages.ContainerUpdate]:
        say(f"{len(containers)} containers in {len(pods)} pods")
        return ()

    def create_container(
        self, request: messages.CreateContainerRequest, _call: Call
    ) -> messages.CreateContainerResponse:
        who = f"{request.pod.namespace}/{request.pod.name}/{request.container.name}"
        if FORBIDDEN in request.pod.annotations:
            raise RemoteError(Code.PERMISSION_DENIED, f"{who}: the pod says that it is forbidden")
        with self._lock:
            self._created += 1
            number = self._created
        say(f"created {who}")
        answer = messages.CreateContainerResponse()
        answer.adjust.annotations[ORDER] = str(number)
        if self._count is not None and number >= self._count:
            self._stop.set()  # the stub sends this answer before it leaves
        return answer

    def remove_container(self, request: messages.RemoveContainerRequest, _call: Call) -> None:
        say(f"removed {request.container.name}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until interrupted; 1 when the runtime launched us with a socket that is none."""
    parser = argparse.ArgumentParser(prog="koordra.nri.example")
    parser.add_argument("--socket", type=Path, default=DEFAULT_SOCKET)
    parser.add_argument("--index", default="50")
    parser.add_argument("--count", type=int)
    options = parser.parse_args(arguments)
    stop = threading.Event()
    stub = Stub(
        Example(count=options.count, stop=stop),
        name="example",
        index=options.index,
        socket_path=options.socket,
    )
    try:
        stub.run(stop)
    except KeyboardInterrupt:
        stop.set()
    except NRIError as error:
        sys.stderr.write(f"example: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
