"""The functions that Kubernetes adds to CEL: which there are, and how values of its types travel.

Quantities, semantic versions, addresses, CIDRs, URLs and named formats go through the CEL library as messages; the one field
holds the exact value as text and cannot be named by an expression. Functions raise ValueError for what is a run-time error in
Kubernetes. Functions and methods whose name begins with `koordra` stand for what macros.py rewrites.

What DRA has of Kubernetes' CEL (1.36): url, ip, cidr, format, quantity, semver, regex, sets, lists, strings, optionals,
comprehensions of two variables, cel.bind and includes; neither math, base64 nor protos.

Source: k8s.io/apiserver/pkg/cel/environment/base.go and library, cel-go's extensions, k8s.io/dynamic-resource-allocation/cel.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from koordra.cel import addresses, formatting, lists, urls
from koordra.cel.formats import FORMATS
from koordra.cel.semver import Semver
from koordra.errors import InvalidInput
from koordra.quantity import parse

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
            message = file.message_type.add(name=name)
            message.field.add(
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
_Url, _Format, _Ip, _Cidr = (_CLASSES[name] for name in ("URL", "NamedFormat", "IP", "CIDR"))


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


def _exact(message: Any) -> Decimal | Semver:
    if isinstance(message, _Quantity):
        return Decimal(message.koordra_exact)
    if isinstance(message, _Semver):
        return Semver.parse(message.koordra_exact)
    raise ValueError(f"no such overload for {type(message).__name__}")


def compare(left: Any, right: Any) -> int:
    if type(left) is not type(right):
        raise ValueError("no such overload: cannot compare a quantity with a version")
    a: Any
    b: Any
    a, b = _exact(left), _exact(right)
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


def is_integer(message: Any) -> bool:
    _require_small(Decimal(message.koordra_exact))
    return is_valid(lambda: to_int(message))


def _require_small(value: Decimal) -> None:
    """From 19 digits on Kubernetes' answer depends on how the quantity was spelled, which is not kept."""
    if abs(value) >= 10**18:
        raise ValueError(f"{value} is too large for its answer to be certain")


def to_int(message: Any) -> int:
    value = Decimal(message.koordra_exact)
    _require_small(value)
    if value != value.to_integral_value() or not -(2**63) <= value < 2**63:
        raise ValueError("cannot convert value to integer")
    return int(value)


def _part(number: int) -> Callable[[Any], int]:
    return lambda message: int(Semver.parse(str(message.koordra_exact)).numbers[number])


def _add(left: Any, right: Any, sign: int = 1) -> Any:
    other = Decimal(right) if isinstance(right, int) else Decimal(right.koordra_exact)
    return quantity_message(Decimal(left.koordra_exact) + sign * other)


def _subtract(left: Any, right: Any) -> Any:
    return _add(left, right, sign=-1)


def _of(kind: Any, message: Any) -> str:
    """The text of a message that has to be of this kind: several share a method."""
    if not isinstance(message, kind):
        raise ValueError(f"no such overload for {type(message).__name__}")
    return str(message.koordra_exact)


def _ip(address: addresses.Address) -> Any:
    return _Ip(koordra_exact=str(address))


def _cidr(network: addresses.Network) -> Any:
    return _Cidr(koordra_exact=addresses.cidr_text(network))


def _about_ip(ask: Callable[[addresses.Address], Any]) -> Callable[[Any], Any]:
    return lambda message: ask(addresses.read_ip(_of(_Ip, message)))


def _about_cidr(ask: Callable[[addresses.Network], Any]) -> Callable[[Any], Any]:
    return lambda message: ask(addresses.read_cidr(_of(_Cidr, message)))


def _about_url(ask: Callable[[urls.Url], Any]) -> Callable[[Any], Any]:
    return lambda message: ask(urls.url_from(_of(_Url, message)))


def _contains_ip(network: Any, address: Any) -> bool:
    text = address if isinstance(address, str) else _of(_Ip, address)
    return addresses.contains_ip(addresses.read_cidr(_of(_Cidr, network)), addresses.read_ip(text))


def _contains_cidr(network: Any, other: Any) -> bool:
    text = other if isinstance(other, str) else _of(_Cidr, other)
    return addresses.contains_cidr(addresses.read_cidr(_of(_Cidr, network)), addresses.read_cidr(text))


def _validate(format: Any, text: str) -> list[list[str]]:
    found = FORMATS[_of(_Format, format)](text)
    return [found] if found else []


def _named(name: str) -> list[Any]:
    return [_Format(koordra_exact=name)] if name in FORMATS else []


def _text(value: Any) -> str:
    if isinstance(value, _Ip | _Cidr):
        return str(value.koordra_exact)
    if isinstance(value, bytes):
        return value.decode()
    return formatting.text_of(value)


Overload = tuple[tuple[str, ...], str, Callable[..., Any] | None]
"""Kinds of the arguments, kind of the result, implementation."""

_Q, _S = "quantity", "semver"
_IP, _CIDR, _URL, _FORMAT = "ip", "cidr", "url", "format"
_MESSAGES: Final = frozenset({_Q, _S, _IP, _CIDR, _URL, _FORMAT})

_COMPARABLE: Final = ("bool", "int", "uint", "double", "string", "bytes", "duration", "timestamp")
_KEYS: Final = ("string", "int", "uint", "bool")
_ELEMENTS: Final = (*_COMPARABLE, "list", "map", _Q, _S, _IP, _CIDR, _URL, _FORMAT)


def _for_each(
    elements: tuple[str, ...], result: str, implementation: Callable[..., Any], *more: str
) -> tuple[Overload, ...]:
    """A method of a list, for each type of its elements: so the type checker knows what comes of it. In `result` and in the
    further arguments `*` is that type.

    At run time a list is a list, and an implementation returns one type: so one overload of another element type stands for
    all, with an implementation for each kind of a further argument and a result of any type.
    """
    typed: list[Overload] = []
    at_run_time: dict[tuple[str, ...], None] = {}
    for element in elements:
        arguments = tuple(each.replace("*", element) for each in more)
        typed.append(((f"list:{element}", *arguments), result.replace("*", element), None))
        at_run_time[tuple(_FORMAT if each in _MESSAGES else each for each in arguments)] = None
    anything = {"*": "dyn", "list:*": "list"}.get(result, result)
    bodies = [
        ((f"list:{_FORMAT}", *arguments), anything, _returning(implementation)) for arguments in at_run_time
    ]
    return (*bodies, *(each for each in typed if each[0] not in {body[0] for body in bodies}))


def _returning(implementation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: lists.returned(implementation(*arguments))


# The library registers one implementation per kind of value, and both message types are of one kind: the first overload of
# a method brings the implementation for both, the second (None) only informs the type checker.
METHODS: Final[dict[str, tuple[Overload, ...]]] = {
    "isGreaterThan": (((_Q, _Q), "bool", lambda a, b: compare(a, b) > 0), ((_S, _S), "bool", None)),
    "isLessThan": (((_Q, _Q), "bool", lambda a, b: compare(a, b) < 0), ((_S, _S), "bool", None)),
    "compareTo": (((_Q, _Q), "int", compare), ((_S, _S), "int", None)),
    "isInteger": (((_Q,), "bool", is_integer),),
    "asInteger": (((_Q,), "int", to_int),),
    "asApproximateFloat": (((_Q,), "double", lambda q: float(q.koordra_exact)),),
    "add": (((_Q, _Q), _Q, _add), ((_Q, "int"), _Q, _add)),
    "sub": (((_Q, _Q), _Q, _subtract), ((_Q, "int"), _Q, _subtract)),
    "major": (((_S,), "int", _part(0)),),
    "minor": (((_S,), "int", _part(1)),),
    "patch": (((_S,), "int", _part(2)),),
    "find": ((("string", "string"), "string", find),),
    "findAll": (
        (("string", "string"), "list:string", find_all),
        (("string", "string", "int"), "list:string", find_all),
    ),
    "isSorted": _for_each(_COMPARABLE, "bool", lists.is_sorted),
    "sum": _for_each(("int", "uint", "double", "duration"), "*", lists.total),
    "min": _for_each(_COMPARABLE, "*", lists.extreme("min", min)),
    "max": _for_each(_COMPARABLE, "*", lists.extreme("max", max)),
    "slice": _for_each(_ELEMENTS, "list:*", lists.cut, "int", "int"),
    "flatten": (
        ((f"list:list:{_FORMAT}",), "list", _returning(lists.flattened)),
        *(((f"list:list:{each}",), f"list:{each}", None) for each in _ELEMENTS if each != _FORMAT),
        (("list", "int"), "list", _returning(lists.flattened)),
    ),
    "sort": _for_each(_COMPARABLE, "list:*", lists.in_order),
    "distinct": _for_each(_ELEMENTS, "list:*", lists.distinct),
    "koordraSortedBy": _for_each(_ELEMENTS, "list:*", lists.sorted_by, "list"),
    "koordraReversed": _for_each(_ELEMENTS, "list:*", lists.backwards),
    "koordraKeys": (
        (("list",), "list:int", lists.indices),
        ((f"map:dyn:{_FORMAT}",), "list", lists.keys_of),
        *(((f"map:{key}:dyn",), f"list:{key}", None) for key in _KEYS),
    ),
    "koordraMapTo": (
        (("list:bytes", "list"), "map", _returning(lists.map_to)),
        *(
            ((f"list:{key}", f"list:{each}"), f"map:{key}:{each}", None)
            for key in _KEYS
            for each in _ELEMENTS
        ),
    ),
    "koordraMerged": (
        (("list:bytes",), "map", _returning(lists.merged)),
        *(((f"list:map:{key}:{each}",), f"map:{key}:{each}", None) for key in _KEYS for each in _ELEMENTS),
    ),
    "koordraFormat": ((("string", "list"), "string", formatting.formatted),),
    "koordraIndexOf": (
        (("string", "string"), "int", lists.text_index_of),
        (("string", "string", "int"), "int", lists.text_index_of),
        *_for_each(_ELEMENTS, "int", lists.index_of, "*"),
    ),
    "koordraLastIndexOf": (
        (("string", "string"), "int", lists.text_last_index_of),
        (("string", "string", "int"), "int", lists.text_last_index_of),
        *_for_each(_ELEMENTS, "int", lists.last_index_of, "*"),
    ),
    "family": (((_IP,), "int", _about_ip(lambda address: address.version)),),
    "isUnspecified": (((_IP,), "bool", _about_ip(addresses.is_unspecified)),),
    "isLoopback": (((_IP,), "bool", _about_ip(addresses.is_loopback)),),
    "isLinkLocalMulticast": (((_IP,), "bool", _about_ip(addresses.is_link_local_multicast)),),
    "isLinkLocalUnicast": (((_IP,), "bool", _about_ip(addresses.is_link_local_unicast)),),
    "isGlobalUnicast": (((_IP,), "bool", _about_ip(addresses.is_global_unicast)),),
    "containsIP": (((_CIDR, _IP), "bool", _contains_ip), ((_CIDR, "string"), "bool", _contains_ip)),
    "containsCIDR": (((_CIDR, _CIDR), "bool", _contains_cidr), ((_CIDR, "string"), "bool", _contains_cidr)),
    "ip": (((_CIDR,), _IP, _about_cidr(lambda network: _ip(network[0]))),),
    "prefixLength": (((_CIDR,), "int", _about_cidr(lambda network: network[1])),),
    "masked": (((_CIDR,), _CIDR, _about_cidr(lambda network: _cidr(addresses.masked(network)))),),
    "getScheme": (((_URL,), "string", _about_url(lambda url: url.scheme)),),
    "getHost": (((_URL,), "string", _about_url(lambda url: url.host)),),
    "getHostname": (((_URL,), "string", _about_url(lambda url: url.hostname)),),
    "getPort": (((_URL,), "string", _about_url(lambda url: url.port)),),
    "getEscapedPath": (((_URL,), "string", _about_url(lambda url: url.path)),),
    "getQuery": (((_URL,), "map:string:list:string", _about_url(lambda url: url.parameters())),),
    "validate": (((_FORMAT, "string"), "list:list:string", _validate),),
}

FUNCTIONS: Final[dict[str, tuple[Overload, ...]]] = {
    "quantity": ((("string",), _Q, lambda text: quantity_message(parse(text))),),
    "isQuantity": ((("string",), "bool", lambda text: is_valid(lambda: parse(text))),),
    "semver": ((("string",), _S, semver), (("string", "bool"), _S, semver)),
    "sign": (((_Q,), "int", lambda q: compare(q, quantity_message(Decimal(0)))),),
    "sets.contains": ((("list", "list"), "bool", lists.contains),),
    "sets.equivalent": (
        (("list", "list"), "bool", lambda a, b: lists.contains(a, b) and lists.contains(b, a)),
    ),
    "sets.intersects": ((("list", "list"), "bool", lists.intersects),),
    "lists.range": ((("int",), "list:int", lists.counted),),
    "ip": ((("string",), _IP, lambda text: _ip(addresses.read_ip(text))),),
    "isIP": ((("string",), "bool", lambda text: is_valid(lambda: addresses.read_ip(text))),),
    "ip.isCanonical": ((("string",), "bool", addresses.is_canonical),),
    "cidr": ((("string",), _CIDR, lambda text: _cidr(addresses.read_cidr(text))),),
    "isCIDR": ((("string",), "bool", lambda text: is_valid(lambda: addresses.read_cidr(text))),),
    "url": (
        (
            ("string",),
            _URL,
            lambda text: _Url(koordra_exact=urls.url_exactly(urls.read_url(text))),
        ),
    ),
    "isURL": ((("string",), "bool", urls.is_url),),
    "format.named": ((("string",), "list:format", _named),),
    **{f"format.{name}": (((), _FORMAT, lambda name=name: _Format(koordra_exact=name)),) for name in FORMATS},
    "koordraString": tuple(
        ((kind,), "string", _text if kind != _CIDR else None)
        for kind in ("bool", "int", "uint", "double", "string", "bytes", "duration", "timestamp", _IP, _CIDR)
    ),
    "isSemver": (
        (("string",), "bool", lambda text: is_valid(lambda: semver(text))),
        (("string", "bool"), "bool", lambda text, loose: is_valid(lambda: semver(text, loose))),
    ),
}

# Implementations are found by kind and there is no wildcard: every pairing of kinds is registered.
_INCLUDED: Final = ("bool", "int", "uint", "double", "string", "bytes", "list", "map", _S)
INCLUDES: Final[tuple[Overload, ...]] = tuple(
    ((left, right), "bool", includes) for left in _INCLUDED for right in _INCLUDED
)

RENAMED: Final = {
    "format": "koordraFormat",
    "indexOf": "koordraIndexOf",
    "lastIndexOf": "koordraLastIndexOf",
    "reverse": "koordraReversed",
}
"""Methods that the library has, and Kubernetes' are not: under which names they are declared here."""
