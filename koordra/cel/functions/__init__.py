"""The functions that Kubernetes adds to CEL: which there are.

They raise ValueError for what is a run-time error in Kubernetes. Functions and methods whose name begins with
`koordra` stand for what translation.py rewrites.

What DRA has of Kubernetes' CEL (1.36): url, ip, cidr, format, quantity, semver, regex, sets, lists, strings,
optionals, comprehensions of two variables, cel.bind and includes; neither math, base64 nor protos.

Source: k8s.io/apiserver/pkg/cel/environment/base.go and library, cel-go's extensions,
k8s.io/dynamic-resource-allocation/cel.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final

from koordra.cel.functions import conversions, formatting, lists, urls
from koordra.cel.functions.formats import FORMATS
from koordra.cel.functions.values import (
    FORMAT_MESSAGE,
    URL_MESSAGE,
    about_cidr,
    about_ip,
    about_url,
    add,
    cidr_message,
    compare,
    contains_cidr,
    contains_ip,
    find,
    find_all,
    includes,
    ip_message,
    is_canonical,
    is_global_unicast,
    is_integer,
    is_link_local_multicast,
    is_valid,
    named_format,
    quantity_message,
    read_cidr,
    read_ip,
    semver,
    subtract,
    text_of,
    to_int,
    validate,
    version_part,
)
from koordra.quantity import parse

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
    """A method of a list, for each type of its elements: so the type checker knows what comes of it. In
    `result` and in the further arguments `*` is that type.

    At run time a list is a list, and an implementation returns one type: so one overload of another element
    type stands for all, with an implementation for each kind of a further argument and a result of any type.
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


def _overload(result: str, implementation: Callable[..., Any], *arguments: str) -> tuple[Overload, ...]:
    return ((arguments, result, implementation),)


def _returning(implementation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: lists.returned(implementation(*arguments))


READ: Final = {kind: f"koordra{kind.title()}" for kind in conversions.READ_FROM}
"""Conversions -> what their argument goes through before."""

# The library registers one implementation per kind of value, and both message types are of one kind: the
# first overload of a method brings the implementation for both, the second (None) only informs the type
# checker.
METHODS: Final[dict[str, tuple[Overload, ...]]] = {
    "isGreaterThan": (((_Q, _Q), "bool", lambda a, b: compare(a, b) > 0), ((_S, _S), "bool", None)),
    "isLessThan": (((_Q, _Q), "bool", lambda a, b: compare(a, b) < 0), ((_S, _S), "bool", None)),
    "compareTo": (((_Q, _Q), "int", compare), ((_S, _S), "int", None)),
    "isInteger": _overload("bool", is_integer, _Q),
    "asInteger": _overload("int", to_int, _Q),
    "asApproximateFloat": _overload("double", lambda q: float(q.koordra_exact), _Q),
    "add": _overload(_Q, add, _Q, _Q) + _overload(_Q, add, _Q, "int"),
    "sub": _overload(_Q, subtract, _Q, _Q) + _overload(_Q, subtract, _Q, "int"),
    **{
        name: _overload("int", version_part(number), _S)
        for number, name in enumerate(("major", "minor", "patch"))
    },
    "find": _overload("string", find, "string", "string"),
    "findAll": _overload("list:string", find_all, "string", "string")
    + _overload("list:string", find_all, "string", "string", "int"),
    "isSorted": _for_each(_COMPARABLE, "bool", lists.is_sorted),
    "sum": _for_each(("int", "uint", "double", "duration"), "*", lists.total),
    "min": _for_each(_COMPARABLE, "*", lists.extreme("min", min)),
    "max": _for_each(_COMPARABLE, "*", lists.extreme("max", max)),
    "koordraFlatten": (
        ((f"list:list:{_FORMAT}",), "list", _returning(lists.flattened)),
        *(((f"list:list:{each}",), f"list:{each}", None) for each in _ELEMENTS if each != _FORMAT),
        (("list", "int"), "list", _returning(lists.flattened)),
    ),
    "koordraReversed": _for_each(_ELEMENTS, "list:*", lists.backwards),
    "koordraMerged": (
        (("list:bytes",), "map", _returning(lists.merged)),
        *(((f"list:map:{key}:{each}",), f"map:{key}:{each}", None) for key in _KEYS for each in _ELEMENTS),
    ),
    "koordraSplit": _overload("list:string", conversions.split, "string", "string")
    + _overload("list:string", conversions.split, "string", "string", "int"),
    "koordraFormat": _overload("string", formatting.formatted, "string", "list"),
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
    "family": _overload("int", about_ip(attrgetter("version")), _IP),
    **{
        name: _overload("bool", about_ip(ask), _IP)
        for name, ask in (
            ("isUnspecified", attrgetter("is_unspecified")),
            ("isLoopback", attrgetter("is_loopback")),
            ("isLinkLocalMulticast", is_link_local_multicast),
            ("isLinkLocalUnicast", attrgetter("is_link_local")),
            ("isGlobalUnicast", is_global_unicast),
        )
    },
    "containsIP": _overload("bool", contains_ip, _CIDR, _IP)
    + _overload("bool", contains_ip, _CIDR, "string"),
    "containsCIDR": _overload("bool", contains_cidr, _CIDR, _CIDR)
    + _overload("bool", contains_cidr, _CIDR, "string"),
    "ip": _overload(_IP, about_cidr(lambda network: ip_message(network.ip)), _CIDR),
    "prefixLength": _overload("int", about_cidr(lambda network: network.network.prefixlen), _CIDR),
    "masked": _overload(_CIDR, about_cidr(lambda network: cidr_message(network.network)), _CIDR),
    **{
        f"get{name}": _overload("string", about_url(attrgetter(part)), _URL)
        for name, part in (
            ("Scheme", "scheme"),
            ("Host", "host"),
            ("Hostname", "hostname"),
            ("Port", "port"),
            ("EscapedPath", "path"),
        )
    },
    "getQuery": _overload("map:string:list:string", about_url(lambda url: url.parameters()), _URL),
    "validate": _overload("list:list:string", validate, _FORMAT, "string"),
}

FUNCTIONS: Final[dict[str, tuple[Overload, ...]]] = {
    "quantity": _overload(_Q, lambda text: quantity_message(parse(text)), "string"),
    "isQuantity": _overload("bool", is_valid(parse), "string"),
    "semver": _overload(_S, semver, "string") + _overload(_S, semver, "string", "bool"),
    "sign": _overload("int", lambda q: compare(q, quantity_message(Decimal(0))), _Q),
    "koordraRange": _overload("list:int", lists.counted, "int"),
    "ip": _overload(_IP, lambda text: ip_message(read_ip(text)), "string"),
    "isIP": _overload("bool", is_valid(read_ip), "string"),
    "ip.isCanonical": _overload("bool", is_canonical, "string"),
    "cidr": _overload(_CIDR, lambda text: cidr_message(read_cidr(text)), "string"),
    "isCIDR": _overload("bool", is_valid(read_cidr), "string"),
    "url": _overload(
        _URL, lambda text: URL_MESSAGE(koordra_exact=urls.url_exactly(urls.read_url(text))), "string"
    ),
    "isURL": _overload("bool", urls.is_url, "string"),
    "format.named": _overload("list:format", named_format, "string"),
    **{
        f"format.{name}": _overload(_FORMAT, lambda name=name: FORMAT_MESSAGE(koordra_exact=name))
        for name in FORMATS
    },
    "koordraString": tuple(
        ((kind,), "string", text_of if kind != _CIDR else None)
        for kind in ("bool", "int", "uint", "double", "string", "bytes", "duration", "timestamp", _IP, _CIDR)
    ),
    **{
        READ[kind]: _overload("string", conversions.readable(kind), "string")
        + tuple(((other,), other, lists.returned) for other in others)
        for kind, others in conversions.READ_FROM.items()
    },
    "koordraPattern": _overload("string", conversions.pattern, "string"),
    "isSemver": _overload("bool", is_valid(semver), "string")
    + _overload("bool", is_valid(semver), "string", "bool"),
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
    "flatten": "koordraFlatten",
    "split": "koordraSplit",
    "reverse": "koordraReversed",
}
"""Methods that the library has, and Kubernetes' are not: under which names they are declared here."""
