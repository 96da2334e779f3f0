"""docs/reference/words.md: reasons, Events, exit codes, and the names that koordra writes into the API."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import koordra
from koordra import errors
from koordra.allocator.reasons import Cause
from koordra.api import names
from koordra.controller.allocation.reserved import ahead
from koordra.controller.allocation.reserved import status as reservations
from koordra.controller.gangs import events as gang_events
from koordra.controller.gangs.declared import annotations
from koordra.controller.legacy import controller as legacy
from koordra.controller.reporting import claim_events
from koordra.controller.resource_class import expansion
from koordra.errors import KoordraError
from koordra.kube import stuck_event
from koordra.kubelet_plugin.isolation.limiter.overtime import OverTime
from koordra.kubelet_plugin.isolation.limiter.overuse import Overuse
from koordra.kubelet_plugin.network import network_decision
from koordra.kubelet_plugin.prepare import lost_devices
from koordra.nri.verify import api_reporter, drift
from koordra.topology.network_topology import LEVELS
from tests.reference.docstrings import documented, first_sentence, sentence, table

PACKAGE = Path(koordra.__path__[0])
WORD = re.compile(r"[A-Z][a-z]+[A-Za-z]*")
EVENTS: dict[str, tuple[ModuleType | type, ...]] = {
    "controller": (claim_events, gang_events, reservations, ahead, legacy, expansion),
    "kubelet plugin": (Overuse, OverTime, network_decision, lost_devices),
    "NRI hook": (api_reporter, drift),
    "each program of a node": (stuck_event,),
}
REASONS = """\
# Reasons

Why a claim waits, in the order in which it is told when several hold. The same words are the reasons of Events, the labels of metrics, and what
`koordra explain` and `koordra plan` print. Each comes with the node, the device, the request, the clause that failed, and both figures of it.

"""
EVENT_PAGE = """\
# Events

What koordra says in Events, besides the [reasons](reasons.md) why claims wait. One Event per object and reason, whose count goes up.

"""
EXITS = """\
# Exit codes

What `koordra` ends with. Results go to stdout, everything else to stderr.

"""
NAMES = """\
# Labels, annotations, taints

Every name under koordra's domain that it writes into the API, or reads there. Attributes and capacities: [devices.md](devices.md).

"""


GANGS_PAGE = PACKAGE.parent / "docs" / "gangs.md"
BEGIN = "<!-- pytest --regen tests/unit/docs/test_reference.py -->\n"
END = "<!-- end -->\n"


def gangs_page(text: str) -> str:
    """docs/gangs.md with the table of its annotations made anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, foot = rest.partition(END)
    rows = []
    for name, meaning in documented(annotations).items():
        value = getattr(annotations, name)
        if value in annotations.OWN:
            said, _, without = meaning.replace("](../", "](").partition(" Without it: ")
            said = sentence(re.sub(r"^Annotation(, or label,)? on a pod: ", "", said))
            rows.append((f"`{value}`", f"{said}.", without))
    assert {row[0].strip("`") for row in rows} == set(annotations.OWN)
    return f"{head}{BEGIN}\n{table(('annotation', 'meaning', 'without it'), rows)}\n{END}{foot}"


def reasons() -> str:
    words = documented(Cause)
    return REASONS + table(("reason", "meaning"), [(f"`{each}`", f"{words[each.name]}.") for each in Cause])


def events() -> str:
    rows = [
        (f"`{word}`", who, f"{meaning}.")
        for who, owners in EVENTS.items()
        for owner in owners
        for word, meaning in _words(owner)
    ]
    return EVENT_PAGE + table(("reason", "who says it", "meaning"), rows)


def _words(owner: ModuleType | type) -> Iterator[tuple[str, str]]:
    for name, meaning in documented(owner).items():
        value = getattr(owner, name)
        if isinstance(value, str) and WORD.fullmatch(value):
            yield value, meaning


def told_without_a_row() -> set[str]:
    """First arguments of ClaimEvent(...) that are constants, and stand in no row."""
    rows = {word for owners in EVENTS.values() for owner in owners for word, _ in _words(owner)}
    said = set()
    for module in _modules(re.compile(r"\bClaimEvent\(")):
        for node in ast.walk(ast.parse(Path(inspect.getsourcefile(module) or "").read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "ClaimEvent" and node.args:
                value = getattr(module, ast.unparse(node.args[0]), None)
                said |= {value} if isinstance(value, str) else set()
    return said - rows


def exit_codes() -> str:
    of: dict[int, list[str]] = {
        0: ["It was done."],
        1: [
            (
                "`koordra node check`, `selftest` and `release-driver`: "
                "done, and there is a problem. Otherwise an error that has no code of its own."
            )
        ],
    }
    for one in _tree(KoordraError):
        if one.exit_code != 1 and one.exit_code != getattr(one.__base__, "exit_code", None):
            of.setdefault(one.exit_code, []).append(f"{first_sentence(one)}.")
    of[2].append("A command or option that there is not.")
    of |= {130: ["Stopped by Ctrl-C."], 141: ["Who reads the output has closed it."]}
    assert errors.__doc__
    return EXITS + table(
        ("code", "meaning"), [(str(code), " ".join(texts)) for code, texts in sorted(of.items())]
    )


def _tree(root: type[KoordraError]) -> Iterator[type[KoordraError]]:
    yield root
    for each in root.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from _tree(each)


def api_names() -> str:
    rows = sorted({(f"`{value}`", f"{meaning}.") for value, meaning in _own_names()})
    return NAMES + table(("name", "what it is"), rows)


PLACES = re.compile(
    r"(Device taint|Node annotation|Node label|Annotation|Label|Finalizer|Pod scheduling gate|Name in a ResourceQuota)\b"
)


OF_MANIFESTS = {
    "koordra.io/devices": "Node label by an operator: `true` or `false` says whether koordra's DaemonSets go to the node",
    "koordra.io/exempt": "Label on a namespace, `true`: nothing is taken away from its containers ([nri.md](../nri.md))",
    "koordra.io/metrics": "Label on a namespace, `allowed`: its pods may read metrics, with the component metrics-policy",
    "koordra.io/tolerate-missing-hook": "Annotation on a pod, `true`: containerd starts it before the NRI hook is there "
    "([nri.md](../nri.md))",
    "koordra.io/distribution": "Label on the NRI hook's DaemonSet: for which distribution it is",
}
"""Names that stand in deploy/kustomize alone."""


def _own_names() -> Iterator[tuple[str, str]]:
    for module in _modules(re.compile(f'^"""{PLACES.pattern}', re.MULTILINE)):
        for name, meaning in documented(module).items():
            value = getattr(module, name)
            if isinstance(value, str) and names.DRIVER in value and PLACES.match(meaning):
                yield value, meaning
    for level, labels in LEVELS.items():
        yield labels[0], f"Node label: the node's {level} in the network ([gangs.md](../gangs.md))"
    yield from OF_MANIFESTS.items()


def _modules(where: re.Pattern[str]) -> Iterator[ModuleType]:
    """Those in whose source that stands: importing all of them takes half a minute."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if where.search(path.read_text()):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            yield importlib.import_module(".".join(parts).removesuffix(".__init__"))
