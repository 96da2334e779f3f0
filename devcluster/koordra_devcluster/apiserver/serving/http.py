"""HTTP on loopback: connections, bearer token, chunked watch streams. One thread a connection.

Everything but health and version needs `Authorization: Bearer <token>`, or the token as a Basic password:
kubectl sends bearer tokens over TLS only, and basic credentials from the server's URL always. An error of the
server itself is a 500 Status and one log line; the connection goes on.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from koordra.errors import ClusterError
from koordra.logs import get_logger
from koordra_devcluster.apiserver.requests import Request, Response
from koordra_devcluster.apiserver.serving.routes import Api
from koordra_devcluster.apiserver.serving.users import ANONYMOUS, User
from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage.store import encode

log = get_logger(__name__)

MAX_BODY: Final = 3 * 1024 * 1024
_OPEN_PATHS: Final = ("/healthz", "/readyz", "/livez", "/version")
_PHRASES: Final = {
    200: "OK",
    201: "Created",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    409: "Conflict",
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def serve(self) -> None:
        """One request of any method."""
        body = self._body()
        if body is None:
            return
        response = self._answer(body)
        try:
            if response.stream is None:
                self._send(response)
            else:
                self._stream(response)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True

    def _body(self) -> bytes | None:
        """The request's body; None when it is too large and the connection is given up."""
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY:
            refusal = Refusal(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY}")
            self.close_connection = True
            self._send(Response(413, encode(refusal.to_status())))
            return None
        return self.rfile.read(length) if length else b""

    def _answer(self, body: bytes) -> Response:
        url = urlsplit(self.path)
        user = self._user()
        if url.path not in _OPEN_PATHS and user is None:
            refusal = Refusal(401, "Unauthorized", "Unauthorized")
            return Response(401, encode(refusal.to_status()))
        request = Request(
            self.command,
            url.path,
            dict(parse_qsl(url.query, keep_blank_values=True)),
            {name.lower(): value for name, value in self.headers.items()},
            body,
            user or ANONYMOUS,
        )
        try:
            return self.server.api.handle(request)
        except Exception as error:
            log.exception("request_failed", method=self.command, path=self.path)
            refusal = Refusal(500, "InternalError", f"Internal error occurred: {error}")
            return Response(500, encode(refusal.to_status()))

    def _user(self) -> User | None:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "basic":
            given = _password(given)
        return self.server.api.tokens.user(given)

    def _send(self, response: Response) -> None:
        head = self._head(response) + f"Content-Length: {len(response.body)}\r\n\r\n"
        self.wfile.write(head.encode() + (b"" if self.command == "HEAD" else response.body))

    def _stream(self, response: Response) -> None:
        self.wfile.write((self._head(response) + "Transfer-Encoding: chunked\r\n\r\n").encode())
        lines = response.stream or iter(())
        try:
            for line in lines:
                if line:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                elif not self._is_connected():
                    self.close_connection = True
                    return
            self.wfile.write(b"0\r\n\r\n")
        finally:
            _close(lines)

    def _is_connected(self) -> bool:
        """False once the client has closed: a quiet watch has no other way to notice."""
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _head(self, response: Response) -> str:
        head = f"HTTP/1.1 {response.code} {_PHRASES.get(response.code, 'Status')}\r\n"
        head += f"Content-Type: {response.content_type}\r\nCache-Control: no-cache, private\r\n"
        if self.close_connection:
            head += "Connection: close\r\n"
        return head + "".join(f"{name}: {value}\r\n" for name, value in response.headers)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("http", message=format % args)


for _method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler.serve)


def _password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _close(lines: Iterator[bytes]) -> None:
    close = getattr(lines, "close", None)
    if close is not None:
        close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], api: Api) -> None:
        self.api = api
        self._connections: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.discard(request)

    def hang_up(self) -> None:
        """End every open connection: their threads serve a store that is about to close."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("connection_failed", client=str(client_address))


class HttpServer:
    """The API on 127.0.0.1. `port` 0 takes any free one."""

    def __init__(self, api: Api, port: int = 0) -> None:
        self._closing = False
        try:
            self._server = _Server(("127.0.0.1", port), api)
        except OSError as error:
            raise ClusterError(f"port {port} on 127.0.0.1 cannot be opened: {error.strerror}") from error

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        threading.Thread(target=self._accept, name="http", daemon=True).start()

    def _accept(self) -> None:
        """Sleeps in accept; `close` wakes it with a connection of its own."""
        while not self._closing:
            self._server.handle_request()

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        self._server.server_close()
        self._server.hang_up()
