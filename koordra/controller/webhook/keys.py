"""The webhook's keys: an X.509 authority of its own and serving certificates from it, and which of them there should be now. Pure.

    nothing, or unreadable          a new authority, a serving certificate from it
    serving certificate, 2/3 over   a new one from the same authority
    authority, 2/3 over             a successor is made and put into the bundle; it signs nothing yet
    successor in the bundle, and    it becomes the authority; its predecessor stays in the bundle until it ends
      every API server trusts it

The API server has to trust a certificate before it meets it, so a successor signs only once the bundle with it has been
injected (`trusted`) and a while (`SETTLE`) has passed. Replicas share the keys through one Secret; new keys are written
conditionally, and the replica that comes second uses what the first has written.

Keys are P-256, everything is PEM bytes. The only importer of `cryptography`.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from koordra.errors import InvalidInput

_SKEW: Final = timedelta(minutes=5)
"""Clocks differ: a certificate is valid from a little before it was made."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes


def issue(authority: Pair | None, names: Sequence[str], *, now: datetime, lifetime: timedelta) -> Pair:
    """A serving certificate for DNS names and IP addresses. Without an authority a new one of the first name, self-signed, that signs
    serving certificates and nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    signs = authority is None
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    issuer = _certificate(authority.certificate).subject if authority else subject
    signer = _key(authority.key) if authority else key
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
        .issuer_name(issuer)
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
    return Pair(
        builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def ends(certificate: bytes) -> datetime:
    """When the (first) certificate stops being valid. Raises InvalidInput for what is no certificate."""
    return _certificate(certificate).not_valid_after_utc


def begins(certificate: bytes) -> datetime:
    return _certificate(certificate).not_valid_before_utc


def names_of(certificate: bytes) -> frozenset[str]:
    """DNS names and IP addresses that the certificate is for."""
    extensions = _certificate(certificate).extensions
    try:
        found = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    dns = found.get_values_for_type(x509.DNSName)
    return frozenset(dns) | {str(address) for address in found.get_values_for_type(x509.IPAddress)}


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    """Whether the authority's key made the certificate."""
    try:
        _certificate(certificate).verify_directly_issued_by(_certificate(authority))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def fits(pair: Pair) -> bool:
    """Whether the private key belongs to the certificate."""
    try:
        return _certificate(pair.certificate).public_key() == _key(pair.key).public_key()
    except (InvalidInput, ValueError, TypeError):
        return False


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise InvalidInput(f"not a PEM certificate: {error}") from error


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        found = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"not a PEM private key: {error}") from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise InvalidInput("the private key is of another kind than koordra makes")
    return found


SERVING_LIFETIME: Final = timedelta(days=90)
AUTHORITY_LIFETIME: Final = timedelta(days=3650)
SETTLE: Final = timedelta(minutes=10)

_SUCCESSOR: Final = "next-ca"
_PREDECESSOR: Final = "previous-ca.crt"


@dataclass(frozen=True, slots=True)
class Keys:
    """`successor`: an authority that is announced and signs nothing yet. `predecessor`: the certificate of the last one."""

    serving: Pair
    authority: Pair
    successor: Pair | None = None
    predecessor: bytes = b""

    @property
    def bundle(self) -> bytes:
        """What the API server has to trust (`caBundle`)."""
        parts = [self.authority.certificate, self.predecessor]
        if self.successor is not None:
            parts.append(self.successor.certificate)
        return b"".join(part if part.endswith(b"\n") else part + b"\n" for part in parts if part)


def wanted(present: Keys | None, names: Sequence[str], *, now: datetime, trusted: bool) -> Keys:
    """The keys there should be; the very same ones where nothing is due. `trusted`: whether the bundle of the present ones is
    in every configuration."""
    if present is None or ends(present.authority.certificate) <= now:
        authority = _new_authority(now)
        return Keys(_serving(authority, names, now), authority)
    keys, successor = present, present.successor
    if keys.predecessor and ends(keys.predecessor) <= now:
        keys = replace(keys, predecessor=b"")
    if successor is None and _is_due(keys.authority.certificate, now):
        keys = replace(keys, successor=_new_authority(now))
    elif successor is not None and trusted and begins(successor.certificate) + SETTLE <= now:
        keys = replace(keys, authority=successor, successor=None, predecessor=keys.authority.certificate)
    serving = keys.serving.certificate
    if (
        is_signed_by(serving, keys.authority.certificate)
        and names_of(serving) == frozenset(names)
        and not _is_due(serving, now)
    ):
        return keys
    return replace(keys, serving=_serving(keys.authority, names, now))


def _is_due(certificate: bytes, now: datetime) -> bool:
    start = begins(certificate)
    return now >= start + (ends(certificate) - start) * 2 / 3


def _new_authority(now: datetime) -> Pair:
    return issue(None, ["koordra-webhook"], now=now, lifetime=AUTHORITY_LIFETIME)


def _serving(authority: Pair, names: Sequence[str], now: datetime) -> Pair:
    return issue(authority, names, now=now, lifetime=SERVING_LIFETIME)


def to_secret_data(keys: Keys) -> dict[str, str]:
    """`data` of the Secret: tls.crt and tls.key as everywhere, ca.crt as the bundle, the authorities beside them."""
    parts = {
        "tls.crt": keys.serving.certificate,
        "tls.key": keys.serving.key,
        "ca.crt": keys.bundle,
        "authority.crt": keys.authority.certificate,
        "authority.key": keys.authority.key,
    }
    if keys.successor is not None:
        parts |= {f"{_SUCCESSOR}.crt": keys.successor.certificate, f"{_SUCCESSOR}.key": keys.successor.key}
    if keys.predecessor:
        parts[_PREDECESSOR] = keys.predecessor
    return {name: base64.b64encode(value).decode() for name, value in parts.items()}


def from_secret_data(data: Mapping[str, str]) -> Keys | None:
    """None where the Secret holds no keys that can be read: new ones are made then."""
    try:
        parts = {name: base64.b64decode(value, validate=True) for name, value in data.items()}
        serving, authority, successor = (
            Pair(parts[f"{name}.crt"], parts[f"{name}.key"]) if f"{name}.crt" in parts else None
            for name in ("tls", "authority", _SUCCESSOR)
        )
        predecessor = parts.get(_PREDECESSOR, b"")
        if predecessor:
            ends(predecessor)
    except (KeyError, ValueError, InvalidInput):
        return None
    if serving is None or authority is None:
        return None
    keys = Keys(serving, authority, successor, predecessor)
    return keys if all(fits(pair) for pair in (serving, authority, successor) if pair) else None
