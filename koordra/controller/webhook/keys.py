"""Which keys the webhook should have now. Pure: the present keys and the time in, the wanted keys out.

    nothing, or unreadable          a new authority, a serving certificate from it
    serving certificate, 2/3 over   a new one from the same authority
    authority, 2/3 over             a successor is made and put into the bundle; it signs nothing yet
    successor in the bundle, and    it becomes the authority; its predecessor stays in the bundle until it ends
      every API server trusts it

The API server has to trust a certificate before it meets it, so a successor signs only once the bundle with it has been
injected (`trusted`) and a while (`SETTLE`) has passed. Replicas share the keys through one Secret; what this function makes
is written conditionally, and the replica that comes second takes what the first has written.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from koordra.controller.webhook import certificates
from koordra.controller.webhook.certificates import Pair
from koordra.errors import InvalidInput

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
    """The keys there should be; the very same ones where nothing is due."""
    if present is None or not _is_sound(present, now):
        authority = certificates.new_authority("koordra-webhook", now=now, lifetime=AUTHORITY_LIFETIME)
        return Keys(_serving(authority, names, now), authority)
    keys = _with_authority(present, now=now, trusted=trusted)
    serving = keys.serving.certificate
    current = (
        certificates.is_signed_by(serving, keys.authority.certificate)
        and certificates.names_of(serving) == frozenset(names)
        and not _is_due(serving, now)
    )
    return keys if current else replace(keys, serving=_serving(keys.authority, names, now))


def _with_authority(keys: Keys, *, now: datetime, trusted: bool) -> Keys:
    if keys.predecessor and certificates.ends(keys.predecessor) <= now:
        keys = replace(keys, predecessor=b"")
    if keys.successor is None:
        if not _is_due(keys.authority.certificate, now):
            return keys
        made = certificates.new_authority("koordra-webhook", now=now, lifetime=AUTHORITY_LIFETIME)
        return replace(keys, successor=made)
    if trusted and certificates.begins(keys.successor.certificate) + SETTLE <= now:
        return replace(keys, authority=keys.successor, successor=None, predecessor=keys.authority.certificate)
    return keys


def _is_sound(keys: Keys, now: datetime) -> bool:
    """Readable, matching, and the authority not over."""
    return (
        certificates.fits(keys.authority)
        and certificates.fits(keys.serving)
        and certificates.ends(keys.authority.certificate) > now
    )


def _is_due(certificate: bytes, now: datetime) -> bool:
    begins, ends = certificates.begins(certificate), certificates.ends(certificate)
    return now >= begins + (ends - begins) * 2 / 3


def _serving(authority: Pair, names: Sequence[str], now: datetime) -> Pair:
    return certificates.issue(authority, names, now=now, lifetime=SERVING_LIFETIME)


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
        keys = Keys(
            Pair(parts["tls.crt"], parts["tls.key"]),
            Pair(parts["authority.crt"], parts["authority.key"]),
            Pair(parts[f"{_SUCCESSOR}.crt"], parts[f"{_SUCCESSOR}.key"])
            if f"{_SUCCESSOR}.crt" in parts
            else None,
            parts.get(_PREDECESSOR, b""),
        )
        certificates.ends(keys.serving.certificate)
        certificates.ends(keys.authority.certificate)
        if keys.predecessor:
            certificates.ends(keys.predecessor)
        if keys.successor is not None and not certificates.fits(keys.successor):
            return None
    except (KeyError, ValueError, binascii.Error, InvalidInput):
        return None
    return keys
