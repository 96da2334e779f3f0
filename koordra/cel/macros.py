"""What Kubernetes' CEL has and the library's has not, written with what it has: rewriting on lexemes. Pure.

    X.all(i, v, E)                cel.bind(r, X, r.koordraKeys().all(i, cel.bind(v, r[i], E)))      also exists, existsOne
    X.transformList(i, v, F, E)   cel.bind(r, X, r.koordraKeys().filter(i, <F>).map(i, <E>))        F may be left out
    X.transformMap(k, v, F, E)    ... cel.bind(s, r.koordraKeys().filter(k, <F>), s.koordraMapTo(s.map(k, <E>)))
    X.transformMapEntry(k, v, E)  ... r.koordraKeys().map(k, <E>).koordraMerged()
    X.sortBy(x, E)                cel.bind(r, X, r.koordraSortedBy(r.map(x, E)))
    X.validate(S)                 X.validate(S)[?0]                  functions here cannot give optionals, but lists
    format.named(S)               format.named(S)[?0]
    X.format(L), X.indexOf(S), X.lastIndexOf(S), X.reverse()         functions of koordra's under names of their own
    string(X), where ip or cidr occurs                               a function of koordra's, which knows these two

`koordraKeys` are the indices of a list or the keys of a map; what is bound keeps its type, so that the type checker sees what
Kubernetes' sees. X is found by going back from the dot over names, calls, indices and brackets. Names that begin with `koordra` are
koordra's own, so an expression that uses one as a variable or a function is refused.

`refusal` finds what the library takes and Kubernetes does not: literals of several types in one list or map, and types that
Kubernetes does not name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from koordra.cel.tokens import closing

OWN: Final = "koordra"

_RENAMED: Final = {
    "format": "koordraFormat",
    "indexOf": "koordraIndexOf",
    "lastIndexOf": "koordraLastIndexOf",
    "reverse": "koordraReversed",
}
_QUANTIFIERS: Final = {
    "all": "all",
    "exists": "exists",
    "existsOne": "exists_one",
    "exists_one": "exists_one",
}
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPENING: Final = {"(": ")", "[": "]", "{": "}"}
_TEXT: Final = re.compile(r"[rR]?(?:'|\")")
_BYTES: Final = re.compile(r"(?:[bB][rR]?|[rR][bB])(?:'|\")")


def rewritten(tokens: Sequence[str]) -> tuple[str, ...]:
    """The same expression for the library."""
    addresses = "ip" in tokens or "cidr" in tokens
    out: list[str] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        called = at + 1 < len(tokens) and tokens[at + 1] == "("
        method = bool(out) and out[-1] == "."
        end = closing(tokens, at + 1) if called else -1
        if end < 0:
            out.append(token)
            at += 1
            continue
        inside = [rewritten(argument) for argument in arguments(tokens[at + 2 : end])]
        call = ["(", *rewritten(tokens[at + 2 : end]), ")"]
        made = _macro(token, inside, depth=len(out)) if method else None
        if made is not None:
            begin = receiver(out, len(out) - 1)
            out[begin:] = [*_bind(_bound(len(out)), out[begin:-1], made)]
        elif token in _RENAMED and method:
            out += [_RENAMED[token], *call]
        elif token == "string" and addresses and not method:
            out += ["koordraString", *call]
        elif method and (token == "validate" or (token == "named" and out[-2:] == ["format", "."])):
            out += [token, *call, "[", "?", "0", "]"]
        else:
            out.append(token)
            at += 1
            continue
        at = end + 1
    return tuple(out)


def _bound(depth: int) -> str:
    return f"{OWN}R{depth}"


def _bind(name: str, value: Sequence[str], body: Sequence[str]) -> list[str]:
    return ["cel", ".", "bind", "(", name, ",", *value, ",", *body, ")"]


def _call(of: Sequence[str], method: str, *arguments: Sequence[str]) -> list[str]:
    inside = [token for argument in arguments for token in (",", *argument)]
    return [*of, ".", method, "(", *inside[1:], ")"]


def _macro(name: str, inside: list[tuple[str, ...]], *, depth: int) -> list[str] | None:
    """What a macro of two variables, or sortBy, is of the bound receiver; None where it is none of them."""
    bound = [_bound(depth)]
    if name == "sortBy" and len(inside) == 2 and _variable(inside[0]):
        return _call(bound, "koordraSortedBy", _call(bound, "map", *inside))
    two = 3 <= len(inside) <= 4 and _variable(inside[0]) and _variable(inside[1]) and inside[0] != inside[1]
    if not two:
        return None
    first = inside[0]

    def with_both(body: Sequence[str]) -> list[str]:
        return _bind(inside[1][0], [*bound, "[", *first, "]"], body)

    keys = _call(bound, "koordraKeys")
    if name in _QUANTIFIERS:
        return _call(keys, _QUANTIFIERS[name], first, with_both(inside[2])) if len(inside) == 3 else None
    if len(inside) == 4:
        keys = _call(keys, "filter", first, with_both(inside[2]))
    made = with_both(inside[-1])
    if name == "transformList":
        return _call(keys, "map", first, made)
    if name == "transformMapEntry":
        return _call(_call(keys, "map", first, made), "koordraMerged")
    if name == "transformMap":
        kept = [f"{OWN}S{depth}"]
        return _bind(kept[0], keys, _call(kept, "koordraMapTo", _call(kept, "map", first, made)))
    return None


def receiver(tokens: Sequence[str], dot: int) -> int:
    """Where the operand begins that the dot belongs to."""
    at = dot
    while True:
        if tokens[at - 1] in _OPENING.values():
            at = opening(tokens, at - 1)
            if at and tokens[at] != "{" and _is_operand(tokens[at - 1]):
                if tokens[at] == "(" and _IDENTIFIER.fullmatch(tokens[at - 1]):
                    at -= 1  # a call's name
                else:
                    continue  # an index, or a call of what an index gave
        else:
            at -= 1
        if at < 2 or tokens[at - 1] != ".":
            return at
        at -= 1


def opening(tokens: Sequence[str], closed: int) -> int:
    """Where the bracket was opened that is closed at `closed`."""
    depth = 0
    for index in range(closed, -1, -1):
        depth += (tokens[index] in _OPENING.values()) - (tokens[index] in _OPENING)
        if depth == 0:
            return index
    return 0


def _variable(tokens: tuple[str, ...]) -> bool:
    return len(tokens) == 1 and _IDENTIFIER.fullmatch(tokens[0]) is not None


def arguments(tokens: Sequence[str], separator: str = ",") -> list[tuple[str, ...]]:
    """The parts between commas that stand in no inner bracket."""
    found: list[tuple[str, ...]] = []
    begin = depth = 0
    for index, token in enumerate(tokens):
        depth += (token in _OPENING) - (token in _OPENING.values())
        if token == separator and depth == 0:
            found.append(tuple(tokens[begin:index]))
            begin = index + 1
    last = tuple(tokens[begin:])
    return [*found, last] if last or found else []


def refusal(tokens: Sequence[str]) -> str | None:
    """Why Kubernetes does not take the expression, though the library might."""
    formatted = _inside_format(tokens)
    for at, token in enumerate(tokens):
        before = tokens[at - 1] if at else ""
        after = tokens[at + 1] if at + 1 < len(tokens) else ""
        if token.startswith(OWN) and (before != "." or after == "(" or token == f"{OWN}_exact"):
            return f"undeclared reference to '{token}'"
        if token == "kubernetes" and before != "." and after == ".":
            return "undeclared reference to 'kubernetes'"
        if token in ("IP", "CIDR") and before == "." and after == "{":
            return f"undeclared reference to 'net.{token}'"
        if token in ("[", "{") and at not in formatted and not _is_operand(before):
            mixed = _mixed(tokens, at)
            if mixed is not None:
                return mixed
    return None


def _inside_format(tokens: Sequence[str]) -> frozenset[int]:
    """Where the arguments of `format` are, which may be of any type."""
    found: set[int] = set()
    for at in range(len(tokens) - 2):
        if tokens[at] == "." and tokens[at + 1 : at + 3] in (("format", "("), ["format", "("]):
            found.update(range(at + 2, closing(tokens, at + 2)))
    return frozenset(found)


def _is_operand(token: str) -> bool:
    """Whether a bracket behind it is an index or a message."""
    word = _IDENTIFIER.fullmatch(token) is not None and token not in ("in", "true", "false", "null")
    return word or token in (")", "]", "}") or _kind((token,)) in ("string", "bytes")


def _mixed(tokens: Sequence[str], opening: int) -> str | None:
    """Kubernetes wants one type in the elements of a literal; here only those that are literals themselves are compared."""
    end = closing(tokens, opening)
    items = arguments(tokens[opening + 1 : end]) if end > 0 else []
    if tokens[opening] == "{":
        entries = [arguments(item, ":") for item in items]
        columns = [[entry[n] for entry in entries if len(entry) == 2] for n in (0, 1)]
    else:
        columns = [list(items)]
    for column in columns:
        kinds = [kind for kind in map(_kind, column) if kind]
        for kind in kinds:
            if kind != kinds[0]:
                return f"expected type '{kinds[0]}' but found '{kind}'"
    return None


def _kind(tokens: tuple[str, ...]) -> str | None:
    """The type of a literal; None for everything else."""
    text = "".join(tokens).strip()
    if tokens and tokens[0] == "[" and closing(tokens, 0) == len(tokens) - 1:
        items = arguments(tokens[1:-1])
        inner = _kind(items[0]) if items else "dyn"
        return f"list({inner})" if inner not in (None, "dyn") else None
    if not tokens or len(tokens) > 2 or (len(tokens) == 2 and tokens[0] != "-"):
        return None
    word = tokens[-1]
    if _BYTES.match(word):
        return "bytes"
    if _TEXT.match(word):
        return "string"
    if word in ("true", "false"):
        return "bool"
    if word == "null":
        return "null"
    if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|[0-9]+)[uU]", text):
        return "uint"
    if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|[0-9]+)", text):
        return "int"
    return "double" if re.fullmatch(r"-?[0-9.][0-9.eE]*", text) else None
