"""How values of Kubernetes' types travel through the library, and what its functions do with them.

Quantities, semantic versions, addresses, CIDRs, URLs and named formats go through the library as messages; the one field holds the
exact value as text and cannot be named by an expression. Functions raise ValueError for what is a run-time error in Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from koordra.cel.functions import addresses, formatting, lists, urls
from koordra.cel.functions.formats import FORMATS
from koordra.cel.functions.semver import Semver
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


def is_valid(read: Callable[[], object]) -> bool:
    try:
        read()
    except (InvalidInput, ValueError):
        return False
    return True


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


@lru_cache(maxsize=512)
def _regex(pattern: str) -> Any:
    """RE2's syntax is Go's but for `\\C`; its time is in proportion to pattern and text, whatever they are."""
    if re2 is None:
        raise ValueError("regular expressions need the package google-re2")
    if re.search(r"(?<!\\)(?:\\\\)*\\C", pattern):
        raise ValueError("error parsing regexp: invalid escape sequence: `\\C`")
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


def about_ip(ask: Callable[[addresses.Address], Any]) -> Callable[[Any], Any]:
    return lambda message: ask(addresses.read_ip(_of(_Ip, message)))


def about_cidr(ask: Callable[[addresses.Network], Any]) -> Callable[[Any], Any]:
    return lambda message: ask(addresses.read_cidr(_of(_Cidr, message)))


def about_url(ask: Callable[[urls.Url], Any]) -> Callable[[Any], Any]:
    return lambda message: ask(urls.url_from(_of(URL_MESSAGE, message)))


def contains_ip(network: Any, address: Any) -> bool:
    inner = addresses.read_ip(address if isinstance(address, str) else _of(_Ip, address))
    return inner in addresses.read_cidr(_of(_Cidr, network)).network


def contains_cidr(network: Any, other: Any) -> bool:
    inner = addresses.read_cidr(other if isinstance(other, str) else _of(_Cidr, other))
    outer = addresses.read_cidr(_of(_Cidr, network)).network
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
