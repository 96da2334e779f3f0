"""How values of Kubernetes' types travel through the library, and what its functions do with them.

Quantities, semantic versions, addresses, CIDRs, URLs and named formats go through the library as messages;
the one field holds the exact value as text and cannot be named by an expression. Functions raise ValueError
for what is a run-time error in Kubernetes.

    semver("1.2.3")         semantic versions 2.0.0 as Kubernetes reads and orders them (blang/semver)
    ip("10.0.0.7")          family, isUnspecified, isLoopback, isLinkLocalMulticast, isLinkLocalUnicast,
                            isGlobalUnicast
    cidr("10.0.0.0/8")      containsIP, containsCIDR, ip, prefixLength, masked (bits behind the prefix are
                            kept until then)

Addresses have neither zones nor the form of an IPv4 address in IPv6; a prefix is digits without a leading
zero.

Source: k8s.io/apiserver/pkg/cel/library (ip, cidr, semver), Go's net/netip; what Python's ipaddress calls
loopback, link-local and so on is what Go does.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from koordra.cel.functions import conversions, formatting, lists, urls
from koordra.cel.functions.formats import FORMATS
from koordra.errors import InvalidInput

try:
    import re2
except ImportError:  # no wheel for this platform: `find` and `findAll` are refused
    re2 = None

EXACT_FIELD: Final = "koordra_exact"
_MAX_INCLUDES: Final = 48


_TYPES: Final = {
    "kubernetes": ("Quantity", "Semver", "URL", "NamedFormat"),
    "net": ("IP", "CIDR"),
}


def _message_classes() -> tuple[Any, dict[str, Any]]:
    pool = descriptor_pool.DescriptorPool()
    for package, types in _TYPES.items():
        file = descriptor_pb2.FileDescriptorProto(
            name=f"koordra/{package}.proto", package=package, syntax="proto3"
        )
        for name in types:
            file.message_type.add(name=name).field.add(
                name=EXACT_FIELD,
                number=1,
                type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
                label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
            )
        pool.Add(file)
    return pool, {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for package, types in _TYPES.items()
        for name in types
    }


POOL, _CLASSES = _message_classes()
_Quantity, _Semver = _CLASSES["Quantity"], _CLASSES["Semver"]
URL_MESSAGE, FORMAT_MESSAGE, _Ip, _Cidr = (_CLASSES[name] for name in ("URL", "NamedFormat", "IP", "CIDR"))


_STRICT: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)


class Semver(NamedTuple):
    """Compared as semantic versions are: a release is above its pre-releases, whose numeric identifiers are
    below words.

    Build metadata takes no part in order or equality, so it is not kept.
    """

    numbers: tuple[int, int, int]
    is_release: bool
    prerelease: tuple[tuple[bool, int, str], ...]
    """Of each identifier whether it is a word, its number, its spelling."""

    @classmethod
    def parse(cls, text: str, *, normalize: bool = False) -> Semver:
        """`normalize` strips a leading v, leading zeros and fills up missing numbers. Raises ValueError."""
        found = _STRICT.fullmatch(_normalized(text) if normalize else text)
        if found is None:
            raise ValueError(f"{text!r} is not a semantic version")
        major, minor, patch, prerelease, _build = found.groups()
        parts = prerelease.split(".") if prerelease else ()
        identifiers = ((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts)
        return cls((int(major), int(minor), int(patch)), not parts, tuple(identifiers))

    def __str__(self) -> str:
        core = ".".join(str(number) for number in self.numbers)
        return core if self.is_release else f"{core}-{'.'.join(part for _, _, part in self.prerelease)}"


def _normalized(text: str) -> str:
    core, mark, rest = re.fullmatch(r"([^-+]*)([-+]?)(.*)", text.removeprefix("v"), re.DOTALL).groups()  # type: ignore[union-attr]
    numbers = [part.lstrip("0") or "0" if part.isdigit() else part for part in core.split(".")]
    # Without all three numbers there can be no pre-release or build part, as in Kubernetes.
    if len(numbers) < 3 and not mark:
        numbers += ["0"] * (3 - len(numbers))
    return ".".join(numbers) + mark + rest


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Interface | ipaddress.IPv6Interface
"""An address with a prefix, whose bits behind the prefix are kept."""


def read_ip(text: str) -> Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise ValueError(f"IP Address {text!r} parse error during conversion from string") from error
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise ValueError(f"IP address {text!r} with zone value is not allowed")
        if address.ipv4_mapped is not None:
            raise ValueError(f"IPv4-mapped IPv6 address {text!r} is not allowed")
    return address


def read_cidr(text: str) -> Network:
    where, slash, bits = text.rpartition("/")
    if not slash or not re.fullmatch(r"0|[1-9][0-9]{0,2}", bits, re.ASCII):
        raise ValueError(f"network address parse error during conversion from string: {text!r}")
    address = read_ip(where)
    if int(bits) > address.max_prefixlen:
        raise ValueError(
            f"network address parse error during conversion from string: {text!r}: too many bits"
        )
    return ipaddress.ip_interface((str(address), int(bits)))


def is_canonical(text: str) -> bool:
    return str(read_ip(text)) == text


def is_link_local_multicast(address: Address) -> bool:
    if address.version == 6:
        return int(address) >> 112 & 0xFF0F == 0xFF02
    return address in ipaddress.IPv4Network("224.0.0.0/24")


def is_global_unicast(address: Address) -> bool:
    """Private addresses count; broadcast, multicast and what does not leave the link do not."""
    return not (
        (address.version == 4 and int(address) == 2**32 - 1)
        or address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
    )


def quantity_message(amount: Decimal) -> Any:
    return _Quantity(koordra_exact=f"{amount.normalize():f}" if amount else "0")


def cel_value(kind: str, value: Any) -> Any:
    if kind == "version":
        return semver(value)
    if kind == "versions":
        return [semver(item) for item in value]
    return list(value) if isinstance(value, tuple) else value


def semver(text: str, normalize: bool = False) -> Any:
    return _Semver(koordra_exact=str(Semver.parse(text, normalize=normalize)))


_ORDERED: Final[dict[Any, Callable[[str], Any]]] = {_Quantity: Decimal, _Semver: Semver.parse}


def compare(left: Any, right: Any) -> int:
    read = _ORDERED.get(type(left))
    if read is None or type(left) is not type(right):
        raise ValueError("no such overload: only two quantities or two versions compare")
    a, b = read(left.koordra_exact), read(right.koordra_exact)
    return int(a > b) - int(a < b)


def is_valid(read: Callable[..., object]) -> Callable[..., bool]:
    """Whether something can be read."""

    def valid(*given: Any) -> bool:
        try:
            read(*given)
        except (InvalidInput, ValueError):
            return False
        return True

    return valid


def find(text: str, pattern: str) -> str:
    found = _regex(pattern).search(text)
    return str(found.group()) if found else ""


def find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    """As Go finds them: an empty match right behind another one does not count."""
    found: list[str] = []
    last = -1
    for match in _regex(pattern).finditer(text):
        if match.end() > match.start() or match.start() != last:
            found.append(str(match.group()))
        last = match.end()
    return found if limit < 0 else found[:limit]


@lru_cache(maxsize=32)
def _regex(pattern: str) -> Any:
    """Its time is in proportion to pattern and text, whatever they are; a compiled one has up to 8 MiB."""
    if re2 is None:
        raise ValueError("regular expressions need the package google-re2")
    conversions.pattern(pattern)
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"error parsing regexp: {error.args[0].decode()}") from error


def includes(value: Any, wanted: Any) -> bool:
    if not isinstance(value, list):
        return lists.equal(value, wanted)
    if len(value) > _MAX_INCLUDES:
        raise ValueError("'includes' function cannot be applied to lists longer than 48 values")
    return any(lists.equal(item, wanted) for item in lists.plain(value))


def _certain(message: Any) -> Decimal:
    """From 19 digits on Kubernetes' answer depends on how the quantity was spelled, which is not kept."""
    value = Decimal(message.koordra_exact)
    if abs(value) >= 10**18:
        raise ValueError(f"{value} is too large for its answer to be certain")
    return value


def is_integer(message: Any) -> bool:
    return _certain(message) % 1 == 0


def to_int(message: Any) -> int:
    if not is_integer(message):
        raise ValueError("cannot convert value to integer")
    return int(Decimal(message.koordra_exact))


def version_part(number: int) -> Callable[[Any], int]:
    return lambda message: int(Semver.parse(str(message.koordra_exact)).numbers[number])


def add(left: Any, right: Any, sign: int = 1) -> Any:
    other = Decimal(right if isinstance(right, int) else right.koordra_exact)
    return quantity_message(Decimal(left.koordra_exact) + sign * other)


def subtract(left: Any, right: Any) -> Any:
    return add(left, right, sign=-1)


def _of(kind: Any, message: Any) -> str:
    """The text of a message that has to be of this kind: several share a method."""
    if not isinstance(message, kind):
        raise ValueError(f"no such overload for {type(message).__name__}")
    return str(message.koordra_exact)


def ip_message(address: object) -> Any:
    return _Ip(koordra_exact=str(address))


def cidr_message(network: object) -> Any:
    return _Cidr(koordra_exact=str(network))


_Method = Callable[[Any], Any]


def about_ip(ask: Callable[[Address], Any]) -> _Method:
    return lambda message: ask(read_ip(_of(_Ip, message)))


def about_cidr(ask: Callable[[Network], Any]) -> _Method:
    return lambda message: ask(read_cidr(_of(_Cidr, message)))


def about_url(ask: Callable[[urls.Url], Any]) -> _Method:
    return lambda message: ask(urls.url_from(_of(URL_MESSAGE, message)))


def contains_ip(network: Any, address: Any) -> bool:
    inner = read_ip(address if isinstance(address, str) else _of(_Ip, address))
    return inner in read_cidr(_of(_Cidr, network)).network


def contains_cidr(network: Any, other: Any) -> bool:
    inner = read_cidr(other if isinstance(other, str) else _of(_Cidr, other))
    outer = read_cidr(_of(_Cidr, network)).network
    return outer.prefixlen <= inner.network.prefixlen and inner.ip in outer


def validate(format: Any, text: str) -> list[list[str]]:
    found = FORMATS[_of(FORMAT_MESSAGE, format)](text)
    return [found] if found else []


def named_format(name: str) -> list[Any]:
    return [FORMAT_MESSAGE(koordra_exact=name)] if name in FORMATS else []


def text_of(value: Any) -> str:
    if isinstance(value, _Ip | _Cidr):
        return str(value.koordra_exact)
    if isinstance(value, bytes):
        return value.decode()
    return formatting.text_of(value)
