"""What a pod asked for of a GPU, in the words of whoever wrote it, and a smaller share in the same words.

A pod in the words of another device stack carries them after it was rewritten (compat/original_request); a
claim has the names of its capacities. The words of a smaller share are worked out of how the dialect counts
them, then read again as the dialect reads them: what does not come out as that share is not said.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Final

from koordra.api import names, objects
from koordra.api.classic.notes import Notes
from koordra.api.objects import Fields, Object
from koordra.api.pods import SIDES, amounts, with_containers
from koordra.compat.detection import asks, dialect_of
from koordra.compat.dialect import Dialect
from koordra.compat.dialect.charges import Charge, Charged
from koordra.compat.dialect.pod_view import view_of
from koordra.compat.dialects import DIALECTS
from koordra.compat.normalized_request import MIB, WHOLE, Memory, Share, Sharing
from koordra.compat.original_request import as_written
from koordra.compat.quota_charges import charged_of
from koordra.compat.settings import Settings
from koordra.errors import KoordraError
from koordra.profiles.share import AskedShare
from koordra.quantity import canonical, to_int

_WRONG: Final = (
    KoordraError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""Users write all of it, and may have changed the words since."""
ALL_CORES: Final = 100
MOST_NAMES: Final = 3
"""By which a dialect asks for a share."""


def asked_of(
    pod: Object, claims: Mapping[str, Fields], settings: Settings, *, card: int = 0
) -> AskedShare | None:
    """The one share of GPUs that a pod has; None where it has none or several, which cannot be told apart by
    what the pod used, MIG instances, or amounts that are no share (TFLOPS). `claims`: the specs of its claims
    by name; `card`: bytes of such a GPU, 0 where that is not known."""
    written = as_written(pod)
    try:
        found = _of_dialect(written, settings)
        if found is not None:
            dialect, share = found
            words = _words(written, share, dialect, settings)
            return replace(_asked(share, dialect.name, card), words=words)
        return _of_claims(claims, settings, card)
    except _WRONG:
        return None


def words_for(
    pod: Object, asked: AskedShare, settings: Settings, *, memory: int, cores: int
) -> dict[str, str]:
    """The same names, with the amounts of a share with `memory` bytes and `cores` percent on each GPU; with
    names beside where it asked for whole GPUs. Empty where the dialect has no words for it."""
    if not asked.dialect:
        return {
            name: text
            for name, text in ((names.CAPACITY_MEMORY, canonical(memory)), (names.CAPACITY_CORES, str(cores)))
            if name in asked.words or asked.memory is None
        }
    written = as_written(pod)
    with suppress(*_WRONG):
        found = _of_dialect(written, settings)
        if found is None:
            return {}
        dialect, share = found
        wanted = replace(share, memory=_memory(share, memory, asked.card), cores=cores, exclusive=False)
        for words in _ways(dialect, asked.words, settings, before=share, wanted=wanted):
            with suppress(*_WRONG):
                means = _of_dialect(_with_words(written, share.container, asked.words, words), settings)
                if means is not None and _is_between(means[1], wanted, share, card=asked.card):
                    return words
    return {}


def _of_dialect(written: Object, settings: Settings) -> tuple[Dialect, Share] | None:
    """None where the pod speaks none, or its share is not one. Raises Refused."""
    view = view_of(written, settings, Notes.about(written))
    if not asks(view):
        return None
    dialect = dialect_of(view)
    asked = dialect.normalized(view)
    if len(asked.shares) != 1 or not _is_share(asked.shares[0]):
        return None
    share = asked.shares[0]
    return dialect, replace(share, container="") if asked.together is Sharing.POD else share


def _is_share(share: Share) -> bool:
    return not share.partition and not share.tflops


def _asked(share: Share, dialect: str, card: int) -> AskedShare:
    memory, percent = share.memory.bytes, share.memory.percent
    if percent is not None:
        memory = card * percent // 100 if card else None
    return AskedShare(dialect, share.container, {}, share.count, memory, _cores(share), card)


def _cores(share: Share) -> int:
    return ALL_CORES if share.whole else share.cores


def _words(written: Object, share: Share, dialect: Dialect, settings: Settings) -> dict[str, str]:
    """In the dialect's order."""
    known = [settings.name(key, dialect.name) for key, charge in dialect.resources.items() if charge]
    said = _asking(written, share, known)
    return {name: said[name] for name in known if name in said}


def _asking(written: Object, share: Share, known: Collection[str]) -> dict[str, str]:
    """What the share's container says under these names; one of the pod's, where all see the same devices."""
    for raw in objects.mappings(objects.spec_of(written).get("containers")):
        sides = [amounts(raw, side) for side in reversed(SIDES)]
        said = {str(name): str(amount) for side in sides for name, amount in side.items() if name in known}
        if said and share.container in (str(raw.get("name")), ""):
            return said
    return {}


def _memory(share: Share, memory: int, card: int) -> Memory:
    """In percent where it was asked so."""
    if share.memory.percent is None:
        return Memory(bytes=-(-memory // MIB) * MIB)
    if not card:
        raise ValueError("percent of an unknown card")
    return Memory(percent=min(100, -(-memory * 100 // card)))


def _ways(
    dialect: Dialect, words: Mapping[str, str], settings: Settings, *, before: Share, wanted: Share
) -> Iterator[dict[str, str]]:
    """Of the dialect, then of others that have all of these names, which stand beside theirs: other amounts
    of the same names, with all names beside that are about the size where it asked for all of the memory;
    there also other names in their place, as few as will do."""
    for one in (dialect, *(other for other in DIALECTS if other is not dialect)):
        if set(words) <= {settings.name(key, one.name) for key in one.resources}:
            whole = before.memory.whole
            yield _said(one, words, settings, before=before, wanted=wanted, more=whole)
            if whole:
                yield from _in_place_of(one, words, settings, before=before, wanted=wanted)
            yield _said(one, words, settings, before=before, wanted=wanted, more=not whole)


def _said(
    dialect: Dialect,
    words: Mapping[str, str],
    settings: Settings,
    *,
    before: Share,
    wanted: Share,
    more: bool,
) -> dict[str, str]:
    found = {}
    for key, (name, charge) in _charges(dialect, settings).items():
        old, new = (charge(Charged(settings, [one])) for one in (before, wanted))
        each = -(-(new or 0) // wanted.count)
        if name in words:
            amount = to_int(words[name])
            scaled = amount if old == new or new is None else -(-amount * new // old) if old else each
            found[name] = canonical(scaled) if key in dialect.bytes else str(scaled)
        elif more and new and _tells(charge, settings, wanted):
            found[name] = canonical(each) if key in dialect.bytes else str(each)
    return found


def _charges(dialect: Dialect, settings: Settings) -> dict[str, tuple[str, Charge]]:
    """By the tables' name, with the cluster's."""
    return {
        key: (settings.name(key, dialect.name), charge)
        for key, charge in dialect.resources.items()
        if charge is not None and "*" not in key
    }


def _in_place_of(
    dialect: Dialect, words: Mapping[str, str], settings: Settings, *, before: Share, wanted: Share
) -> Iterator[dict[str, str]]:
    charges = _charges(dialect, settings)
    of_cards = {name for name, charge in charges.values() if charge(Charged(settings, [before]))}
    beside = {name: said for name, said in words.items() if name not in of_cards}
    amounts = {
        name: canonical(amount) if key in dialect.bytes else str(amount)
        for key, (name, charge) in charges.items()
        if (amount := charge(Charged(settings, [wanted])))
    }
    for number in range(1, MOST_NAMES + 1):
        for chosen in combinations(amounts, number):
            yield {**{name: amounts[name] for name in chosen}, **beside}


def _tells(charge: Charge, settings: Settings, share: Share) -> bool:
    """Whether the name is about the size of a share."""
    larger = replace(
        share, memory=WHOLE if share.memory.bytes is None else Memory(bytes=2 * share.memory.bytes)
    )
    other = replace(share, cores=share.cores + 1)
    return any(
        charge(Charged(settings, [one])) != charge(Charged(settings, [share])) for one in (larger, other)
    )


def _with_words(
    written: Object, container: str, before: Mapping[str, str], words: Mapping[str, str]
) -> Object:
    def changed(raw: Object) -> Object:
        if container not in (str(raw.get("name")), ""):
            return raw
        sides = {
            side: {**{name: said for name, said in there.items() if name not in before}, **words}
            for side in SIDES
            if (there := amounts(raw, side))
        }
        return {**raw, "resources": {**objects.fields(raw.get("resources")), **sides}}

    return {**written, "spec": with_containers(objects.spec_of(written), changed)}


def _is_between(means: Share, wanted: Share, before: Share, *, card: int) -> bool:
    """Not less than was wanted, which a dialect of large units cannot say exactly, and less than before."""
    had = _cores(before)
    if means.count != wanted.count or not wanted.cores <= means.cores <= had:
        return False
    least, found, most = (_size(one.memory, card) for one in (wanted, means, before))
    return least <= found <= most and (found, means.cores) != (most, had)


def _size(memory: Memory, card: int) -> float:
    """Bytes; all of the memory is more than any part."""
    if memory.percent is not None:
        return card * memory.percent / 100
    return math.inf if memory.bytes is None else memory.bytes


def _of_claims(claims: Mapping[str, Fields], settings: Settings, card: int) -> AskedShare | None:
    found = list(_claimed(claims, settings))
    if len(found) != 1 or not _is_share(found[0][1]):
        return None
    where, share = found[0]
    asked = _asked(share, "", card)
    words = {}
    if share.memory.bytes is not None:
        words[names.CAPACITY_MEMORY] = canonical(share.memory.bytes)
    if share.cores and not share.memory.whole:
        words[names.CAPACITY_CORES] = str(share.cores)
    return replace(asked, where=f"{where}/{share.container}", words=words)


def _claimed(claims: Mapping[str, Fields], settings: Settings) -> Iterator[tuple[str, Share]]:
    for name, spec in claims.items():
        yield from ((name, share) for share in charged_of(spec, settings).shares)
