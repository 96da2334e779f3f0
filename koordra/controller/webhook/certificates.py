"""X.509 for the webhook: an authority of our own and serving certificates from it. The only importer of `cryptography`.

Keys are P-256; everything goes in and out as PEM bytes. Nothing here knows about Secrets or when to renew.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
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


def new_authority(name: str, *, now: datetime, lifetime: timedelta) -> Pair:
    """A self-signed authority that signs serving certificates and nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key.public_key(), now=now, lifetime=lifetime)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Pair, names: Sequence[str], *, now: datetime, lifetime: timedelta) -> Pair:
    """A serving certificate for DNS names and IP addresses."""
    signer, signer_key = _certificate(authority.certificate), _key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    builder = _builder(subject, signer.subject, key.public_key(), now=now, lifetime=lifetime)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
    )
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False
    )
    return _pair(builder.sign(signer_key, hashes.SHA256()), key)


def ends(certificate: bytes) -> datetime:
    """When the (first) certificate stops being valid. Raises InvalidInput for what is no certificate."""
    return _certificate(certificate).not_valid_after_utc


def begins(certificate: bytes) -> datetime:
    return _certificate(certificate).not_valid_before_utc


def names_of(certificate: bytes) -> frozenset[str]:
    """DNS names and IP addresses that the certificate is for."""
    try:
        found = (
            _certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        )
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
        public = _key(pair.key).public_key()
        return _certificate(pair.certificate).public_key() == public
    except (InvalidInput, ValueError, TypeError):
        return False


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    *,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + lifetime)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
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


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
