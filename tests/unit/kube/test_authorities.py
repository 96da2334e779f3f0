"""Which certificates of an API server are believed: those that kubectl believes, on every Python."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
import urllib3.util.ssl_ as urllib3_ssl
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from koordra.errors import ApiUnreachable
from koordra.kube.kubeconfig import new_client

NOW = datetime.now(UTC)


def certificate(
    name: str, *, signed_by: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """An authority of the simplest sort, which says no more than that it is one; or a server's."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer = signed_by[0].subject if signed_by else subject
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=signed_by is None, path_length=None), critical=True)
    )
    if signed_by:
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signed_by[1] if signed_by else key, hashes.SHA256()), key


class Version(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"gitVersion": "v1.36.2"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """Of a server whose certificate is an authority's that names no key usage and no key identifier."""
    authority = certificate("an authority")
    own, key = certificate("a server", signed_by=authority)
    pem = serialization.Encoding.PEM
    (tmp_path / "ca.crt").write_bytes(authority[0].public_bytes(pem))
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, encryption_algorithm=serialization.NoEncryption()
    )
    (tmp_path / "server.pem").write_bytes(own.public_bytes(pem) + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Version)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    cluster = {
        "server": f"https://127.0.0.1:{server.server_port}",
        "certificate-authority": str(tmp_path / "ca.crt"),
    }
    document = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "c",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    yield path
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_authority_that_says_little_is_believed(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Python whose own clients are strict."""
    monkeypatch.setattr(urllib3_ssl.sys, "version_info", (3, 13, 0))
    assert urllib3_ssl.create_urllib3_context().verify_flags & ssl.VERIFY_X509_STRICT
    assert new_client(str(kubeconfig)).version() == "v1.36.2"


def test_another_authoritys_server_is_not(kubeconfig: Path, tmp_path: Path) -> None:
    other, _ = certificate("another authority")
    (tmp_path / "ca.crt").write_bytes(other.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(ApiUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        new_client(str(kubeconfig)).version()


def test_a_server_of_another_name_is_not(kubeconfig: Path) -> None:
    kubeconfig.write_text(kubeconfig.read_text().replace("127.0.0.1", "localhost"))
    with pytest.raises(ApiUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        new_client(str(kubeconfig)).version()
