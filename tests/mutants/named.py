"""Errors that must be noticed, one by one: each has lived once, or would cost a tenant a device.

Those that are a table's number or a bound are found by where they stand; the others are a text and what
becomes of it. A text that is not there exactly once in its area is a LookupError: whoever changes the code
says here what the error looks like now.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from tests.mutants.areas import files
from tests.mutants.operators import Mutant, definitions

TEXTS: Final = (
    (
        "checkpoint",
        "Unprepare strikes the record off before the files are gone",
        (
            "            self._files.remove(ref.uid)\n"
            "            if record is not None:\n"
            "                self._checkpoint.save(checkpoint.without(ref.uid))\n"
        ),
        (
            "            if record is not None:\n"
            "                self._checkpoint.save(checkpoint.without(ref.uid))\n"
            "            self._files.remove(ref.uid)\n"
        ),
    ),
    (
        "checkpoint",
        "Unprepare stops the isolation after the record is gone",
        (
            "            if record is not None:\n"
            "                self._stop_isolation(record)\n"
            "            self._files.remove(ref.uid)\n"
            "            if record is not None:\n"
            "                self._checkpoint.save(checkpoint.without(ref.uid))\n"
        ),
        (
            "            self._files.remove(ref.uid)\n"
            "            if record is not None:\n"
            "                self._checkpoint.save(checkpoint.without(ref.uid))\n"
            "            if record is not None:\n"
            "                self._stop_isolation(record)\n"
        ),
    ),
    (
        "checkpoint",
        "Unprepare takes no lock",
        "        with self._lock.held():\n            self._release_network(ref)\n",
        "        with suppress():\n            self._release_network(ref)\n",
    ),
    (
        "checkpoint",
        "Prepare takes no lock",
        "            with self._lock.held():\n                require_wanted(",
        "            with suppress():\n                require_wanted(",
    ),
    (
        "writer",
        "a watch goes on from the version of its list",
        "            self._version = resource_version(obj) or self._version\n",
        "            self._version = self._version or resource_version(obj)\n",
    ),
    (
        "writer",
        "410 Gone never lists again",
        '                self._version = ""\n                stop.wait(',
        '                self._version = self._version if isinstance(error, Gone) else ""\n                stop.wait(',
    ),
    (
        "writer",
        "an error never lists again",
        '                self._version = ""\n                stop.wait(',
        "                pass\n                stop.wait(",
    ),
    (
        "writer",
        "a second silent write is forgotten",
        "        self._pending[objects.uid(claim)] = PendingWrite(claim, allocation)\n",
        "        self._pending.pop(objects.uid(claim), None) or self._pending.update({objects.uid(claim): PendingWrite(claim, allocation)})\n",
    ),
    (
        "writer",
        "a give-back that does not depend on the claim's version",
        "        return self._patch_claim(claim, _no_allocation(claim))\n",
        '        return self._send(RESOURCE_CLAIMS, claim, _no_allocation(claim), subresource="status")\n',
    ),
    (
        "writer",
        "no write of a claim depends on its version",
        '    return {"resourceVersion": objects.resource_version(obj), "uid": objects.uid(obj)}\n',
        '    return {"uid": objects.uid(obj)}\n',
    ),
)

WEIGHTS: Final = (
    "RELAXATION",
    "ALTERNATIVE",
    "NEARNESS",
    "NVLINK",
    "UNLINKED",
    "COMPACTNESS",
    "BROKEN",
    "COMPACT",
    "_WHOLE",
    "PARTITION_WEIGHTS",
    "CARD",
)

FEASIBILITY: Final = "koordra.allocator.search.feasibility"


def named() -> Iterator[Mutant]:
    for area, title, text, becomes in TEXTS:
        yield _of_text(area, title, text, becomes)


def is_named(mutant: Mutant) -> bool:
    """Every number of the weights of the score, and every bound that is off by one."""
    if mutant.area == "score":
        return mutant.constant in WEIGHTS and isinstance(mutant.value, ast.Constant)
    return mutant.module == FEASIBILITY and mutant.moves_a_bound


def _of_text(area: str, title: str, text: str, becomes: str) -> Mutant:
    found = [(module, source) for module, source in _sources(area) if text in source]
    if len(found) != 1 or found[0][1].count(text) != 1:
        raise LookupError(f"tests/mutants/named.py: {title}: not found once in {area}: {text!r}")
    ((module, source),) = found
    first = source[: source.index(text)].count("\n") + 1
    lines = range(first, first + max(1, text.rstrip("\n").count("\n") + 1))
    tree = ast.parse(source.replace(text, becomes + "\n" * (text.count("\n") - becomes.count("\n"))))
    ((where, constant),) = {
        (where, constant)
        for where, statement, constant in definitions(tree.body)
        if statement.lineno <= first <= (statement.end_lineno or 0)
    }
    return Mutant(area, module, where, title, lines, tree, constant)


def _sources(area: str) -> Iterable[tuple[str, str]]:
    return ((module, path.read_text()) for module, path in files(area).items())
