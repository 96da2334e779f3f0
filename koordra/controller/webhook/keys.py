"""The webhook's keys: X.509 authorities of its own and a serving certificate from them, and which of them
there should be now. Pure.

    nothing, or unreadable          a new authority, a serving certificate from it
    serving certificate, 2/3 over   a new one from the same authority
    newest authority, 2/3 over      a successor is made and put into the bundle; it signs nothing yet
    successor in the bundle, and    it signs; its predecessor stays in the bundle
      every API server trusts it
    successor has signed, a while   its predecessor goes, certificate and key

The API server has to trust a certificate before it meets it, so a successor signs only once the bundle with
it has been injected (`trusted`) and a while (`SETTLE`) has passed; a predecessor is trusted until the
replicas, which look every few seconds, have long served what the successor signed. Replicas share the keys
through one Secret; new keys are written conditionally, and the replica that comes second uses what the first
has written.

Keys are P-256. The only importer of `cryptography`.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SKEW: Final = timedelta(minutes=5)
"""Clocks differ: a certificate is valid from a little before it was made."""
_PEM: Final = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(compare=False)

    @classmethod
    def of_pem(cls, certificate: bytes, key: bytes) -> Pair:
        """Raises ValueError, TypeError or UnsupportedAlgorithm for what koordra cannot have made, or where
        one does not belong to the other."""
        pair = x509.load_pem_x509_certificate(certificate), serialization.load_pem_private_key(key, None)
        if (
            not isinstance(pair[1], ec.EllipticCurvePrivateKey)
            or pair[0].public_key() != pair[1].public_key()
        ):
            raise ValueError("the key does not belong to the certificate")
        return cls(pair[0], pair[1])

    def to_pem(self) -> tuple[bytes, bytes]:
        """Certificate and key."""
        plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self.certificate.public_bytes(_PEM), self.key.private_bytes(_PEM, *plain)


def issue(authority: Pair | None, names: Sequence[str], *, now: datetime, lifetime: timedelta) -> Pair:
    """A serving certificate for DNS names and IP addresses. Without an authority a new one of the first name,
    self-signed, that signs serving certificates and nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    signs = authority is None
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    signer = authority.key if authority else key
    usage = x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
    )
    if signs:
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
    else:
        builder = (
            builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(list(map(_general_name, names))), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
            )
        )
    return Pair(builder.sign(signer, hashes.SHA256()), key)


def end_of(certificates: bytes) -> float:
    """When the first of them (PEM), the server's own, ends, in Unix time; 0 where that cannot be read."""
    try:
        return x509.load_pem_x509_certificates(certificates)[0].not_valid_after_utc.timestamp()
    except ValueError:
        return 0.0


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    """DNS names and IP addresses that the certificate is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    dns = found.get_values_for_type(x509.DNSName)
    return frozenset(dns) | {str(address) for address in found.get_values_for_type(x509.IPAddress)}


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority's key made the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


SERVING_LIFETIME: Final = timedelta(days=90)
AUTHORITY_LIFETIME: Final = timedelta(days=3650)
SETTLE: Final = timedelta(minutes=10)
_AUTHORITY: Final = "authority-"


@dataclass(frozen=True, slots=True)
class Keys:
    """`authorities`, the oldest first: one, and while it is replaced its successor."""

    serving: Pair
    authorities: tuple[Pair, ...]

    @property
    def bundle(self) -> bytes:
        """What the API server has to trust (`caBundle`)."""
        return b"".join(one.to_pem()[0] for one in self.authorities)


def wanted(present: Keys | None, names: Sequence[str], *, now: datetime, trusted: bool) -> Keys:
    """The keys there should be; the very same ones where nothing is due. `trusted`: whether the bundle of the
    present ones is in every configuration."""
    before = present.authorities if present else ()
    living = tuple(one for one in before if one.certificate.not_valid_after_utc > now)
    if not living or _is_due(living[-1].certificate, now):
        living += (issue(None, ["koordra-webhook"], now=now, lifetime=AUTHORITY_LIFETIME),)
    serving = present.serving if present else None
    served = serving.certificate if serving else None
    signer = living[0]
    for one in living[1:]:
        settled = trusted and one.certificate.not_valid_before_utc + SETTLE <= now
        if settled or (served and is_signed_by(served, one.certificate)):
            signer = one
    if served and is_signed_by(served, signer.certificate) and served.not_valid_before_utc + SETTLE <= now:
        living = living[living.index(signer) :]
    if (
        serving is None
        or not is_signed_by(serving.certificate, signer.certificate)
        or names_of(serving.certificate) != frozenset(names)
        or _is_due(serving.certificate, now)
    ):
        serving = issue(signer, names, now=now, lifetime=SERVING_LIFETIME)
    keys = Keys(serving, living)
    return present if present == keys else keys


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= start + (end - start) * 2 / 3


def to_secret_data(keys: Keys) -> dict[str, str]:
    """`data` of the Secret: tls.crt and tls.key as everywhere, ca.crt as the bundle, the authorities beside
    them."""
    pairs = {"tls": keys.serving} | {f"{_AUTHORITY}{n}": one for n, one in enumerate(keys.authorities)}
    parts = {"ca.crt": keys.bundle}
    for name, pair in pairs.items():
        parts[f"{name}.crt"], parts[f"{name}.key"] = pair.to_pem()
    return {name: base64.b64encode(value).decode() for name, value in parts.items()}


def from_secret_data(data: Mapping[str, str]) -> Keys | None:
    """None where the Secret holds no keys that can be read: new ones are made then."""
    names = [
        "tls.crt",
        *sorted(name for name in data if name.startswith(_AUTHORITY) and name.endswith(".crt")),
    ]
    try:
        parts = {name: base64.b64decode(value, validate=True) for name, value in data.items()}
        serving, *authorities = (
            Pair.of_pem(parts[name], parts[f"{name.removesuffix('.crt')}.key"]) for name in names
        )
    except (KeyError, ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return Keys(serving, tuple(authorities)) if authorities else None
