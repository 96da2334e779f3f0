"""HTTP for browsers: GET alone, a request a connection, compressed where the browser takes that.

Every answer forbids what a page does not need: scripts, anything from elsewhere, frames, being kept.
"""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

from koordra.cli.cluster.dashboard.access import CHALLENGE, Header
from koordra.cli.cluster.dashboard.live import Live
from koordra.cli.cluster.dashboard.markup import POLICY, page, tag
from koordra.cli.cluster.dashboard.pages.address import address_of
from koordra.errors import ApiError, InvalidInput, KoordraError
from koordra.logs import get_logger
from koordra.process.connections import (
    BoundedHTTPServer,
    ConnectionPhase,
    Connections,
    SecuredHTTPServer,
    tls,
)
from koordra.process.lifecycle import spawn

log = get_logger(__name__)

MOST_CONNECTIONS: Final = 64
HEADERS: Final = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_COMPRESSED_FROM: Final = 1024


class DashboardServer:
    """`require` raises Forbidden for who may see nothing. `certificate`: PEM files with chain and key."""

    def __init__(
        self,
        address: tuple[str, int],
        live: Live,
        *,
        require: Callable[[Header], None],
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        self.live, self.require = live, require
        self._closed = threading.Event()
        connections = Connections(most=MOST_CONNECTIONS)
        handler = partial(_Handler, self)
        try:
            if certificate is None:
                self._server = BoundedHTTPServer(address, handler, connections=connections)
            else:
                secured = _context(certificate)
                self._server = SecuredHTTPServer(address, handler, connections=connections, context=secured)
        except OSError as error:
            text = f"address {address[0]}:{address[1]}: {error.strerror or error}"
            raise InvalidInput(text, remedy="choose another with --address") from error

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        spawn(self._server.serve_forever, name="dashboard", until=self._closed)

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, target: str, header: Header) -> tuple[int, bytes]:
        """HTTP status and page."""
        try:
            self.require(header)
            return 200, self.live.page(address_of(target))
        except ApiError as error:
            return error.code or 502, _told(str(error.message))
        except KoordraError as error:
            return 422, _told(str(error))
        except Exception:  # a defect met in one page ends no other
            log.exception("page_failed", path=target[:200])
            return 500, _told("internal error; the log says more")


def _context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = tls()
    try:
        context.load_cert_chain(*certificate)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot be used: {error}", object=str(certificate[0].parent)) from error
    return context


def _told(words: str) -> bytes:
    return page("koordra", tag("p", words, class_="empty"), root="./")


class _Handler(BaseHTTPRequestHandler):
    server: BoundedHTTPServer
    wbufsize = -1  # head and body leave at once

    def __init__(self, dashboard: DashboardServer, *connection: Any) -> None:
        self._dashboard = dashboard
        super().__init__(*connection)

    def parse_request(self) -> bool:
        self._enter(ConnectionPhase.READING)
        if not super().parse_request():
            return False
        if self.command != "GET":
            self._send(405, _told("only GET is answered"), Allow="GET")
            return False
        return True

    def do_GET(self) -> None:
        self._enter(ConnectionPhase.ANSWERING)
        self._send(*self._dashboard.answer(self.path, self.headers.get))

    def send_response(self, code: int, message: str | None = None) -> None:
        """Without the versions of what serves."""
        self.send_response_only(code, message)

    def _send(self, code: int, body: bytes, **more: str) -> None:
        self._enter(ConnectionPhase.WRITING)
        headers = {**HEADERS, **more}
        if "gzip" in (self.headers.get("Accept-Encoding") or "") and len(body) >= _COMPRESSED_FROM:
            body = gzip.compress(body, 5, mtime=0)
            headers["Content-Encoding"] = "gzip"
        if code == 401:
            headers["WWW-Authenticate"] = CHALLENGE
        if code == 503:
            headers["Refresh"] = "3"
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _enter(self, phase: ConnectionPhase) -> None:
        self.server.connections.enter(self.connection, phase)

    def log_message(self, format: str, *args: object) -> None:
        del format, args
