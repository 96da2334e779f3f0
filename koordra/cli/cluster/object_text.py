"""What `koordra explain` says to people of a pod, a gang and a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from koordra.allocator.reasons import Reason
from koordra.api.objects import Fields
from koordra.cli.cluster.claim_text import claim_lines, last_word, wrapped
from koordra.cli.cluster.device_text import amount_shown, device_text
from koordra.cli.output import render_table

_MOST_REASONS: Final = 24
"""Of a member, told where much is asked for."""
_MOST_NAMED: Final = 4
"""Members that lack the same."""


def pod_text(found: Fields, *, wide: bool = False) -> str:
    return "\n".join(_pod(found, wide=wide))


def _pod(found: Fields, *, wide: bool) -> Iterator[str]:
    place = f" on {found['node']}" if found["node"] else ""
    gates = f", held by the gate {', '.join(found['gates'])}" if found["gates"] else ""
    yield from wrapped(f"pod {found['namespace']}/{found['name']}: {found['phase']}{place}{gates}", 0)
    if found["gang"]:
        yield from wrapped(f"a member of gang {found['gang']} (koordra explain gang/NAME)", 2)
    yield from _asked(found["asked"], has_claims=bool(found["claims"] or found["lacks"]))
    if found["waits"]:
        yield from wrapped(found["waits"], 2)
    if found["lacks"]:
        yield from wrapped(f"it needs claims that do not exist: {', '.join(found['lacks'])}", 2)
    if found.get("controller") not in [entry.get("controller") for entry in found["claims"]]:
        yield from last_word(found, 2)
    for entry in found["claims"]:
        said = bool(found["waits"]) and found["waits"].removeprefix("it ") in entry.get("waits", "")
        told = {**entry, "waits": "the pod waits, as told above"} if said else entry
        yield from (f"  {line}" for line in claim_lines(told, wide=wide))


def _asked(asked: Fields | None, *, has_claims: bool) -> Iterator[str]:
    """In the words of the stack that the pod was written for."""
    if asked is None:
        return
    words = "; ".join(
        f"{container}: {', '.join(f'{name} {amount}' for name, amount in sorted(resources.items()))}"
        for container, resources in sorted(asked["containers"].items())
    )
    yield from wrapped(f"asked in the words of {asked['dialect'] or 'another stack'}: {words}", 2)
    if asked["rewritten"]:
        units = ", ".join(f"{name} {amount}" for name, amount in asked["units"].items())
        yield from wrapped(
            f"which the webhook turned into the claims below{f'; 1Gi of a card is {units}' if units else ''}",
            2,
        )
    elif has_claims:
        yield from wrapped(
            "besides its claims: it runs only where the other stack gives these, too. If its manifest was converted, "
            "they are left over (kubectl apply keeps what it did not make): kubectl replace takes them out",
            2,
        )
    else:
        yield from wrapped(
            "which nobody turned into a claim: the controller's webhook rewrites such pods when they are created, with "
            "--legacy-pods; create the pod anew once that is on (koordra convert shows what becomes of it)",
            2,
        )


def gang_text(found: Fields, *, wide: bool = False) -> str:
    least = f", {found['least']} have to start together" if found["least"] is not None else ""
    lines = wrapped(f"gang {found['gang']}: {found['stage']}, {found['members']} members{least}", 0)
    lines += wrapped(found["text"], 2)
    lines += wrapped(found["later"]["told"], 2) if found.get("later") else []
    shown = _MOST_REASONS if wide else 2
    if found.get("pods"):
        rows = [
            (one["name"], one["state"], one["node"] or "-", ", ".join(one["claims"]) or "-")
            for one in found["pods"]
        ]
        table = render_table(("MEMBER", "STATE", "NODE", "CLAIMS"), rows)
        lines += [f"  {line}" for line in table.splitlines()]
    for told, members in _alike(found).items():
        left = len(told) - shown
        more = f" (and {left} more {'reason' if left == 1 else 'reasons'})" if left > 0 else ""
        lines += wrapped(f"{_who(members)}: {'; '.join(told[:shown])}{more}", 4)
    waiting: dict[str, list[str]] = {}
    for one in found.get("pods") or ():
        waiting.setdefault(one.get("waits") or "", []).append(one["name"])
    for words, members in waiting.items():
        lines += wrapped(f"{_who(members)}: {words}", 4) if words else []
    return "\n".join(lines)


def _who(members: Sequence[str]) -> str:
    others = f" and {len(members) - _MOST_NAMED} more" if len(members) > _MOST_NAMED else ""
    return ", ".join(members[:_MOST_NAMED]) + others


def _alike(found: Fields) -> dict[tuple[str, ...], list[str]]:
    """The members by what they lack, without what is told of the gang already."""
    members: dict[tuple[str, ...], list[str]] = {}
    for member, reasons in found["lacking"].items():
        rest = [one for one in reasons if one["detail"] != f"gang {found['gang']}: {found['text']}"]
        if rest:
            members.setdefault(tuple(map(str, map(_reason, rest))), []).append(member)
    return members


def _reason(told: Fields) -> Reason:
    fields = ("node", "device", "request", "reason", "detail")
    return Reason(*(told[name] for name in fields), nodes=told["nodes"], devices=told["devices"])


def node_text(found: Fields, *, wide: bool = False) -> str:
    return "\n".join(_node(found, wide=wide))


def _node(found: Fields, *, wide: bool) -> Iterator[str]:
    state = ["ready" if found["ready"] else "not ready"] + ([] if found["schedulable"] else ["cordoned"])
    yield from wrapped(f"node {found['name']}: {found['mode']}, {', '.join(state)}", 0)
    for title, words in (("taints", found["taints"]), ("isolation of GPU shares", found["isolation"])):
        if words is not None and (words or title != "taints"):
            yield from wrapped(f"{title}: {', '.join(words) or 'no shares are given out'}", 2)
    yield from _devices(found["devices"])
    if wide:
        rows = [
            (
                row["name"] or f"pool {row['pool']}",
                row["model"] or "-",
                row["state"],
                row["reason"] or _free(row),
            )
            for row in found["devices"]
        ]
        yield from (
            f"    {line}" for line in render_table(("DEVICE", "MODEL", "STATE", "FREE"), rows).splitlines()
        )
    if found["holders"]:
        yield "  held by"
    for one in found["holders"]:
        pods = (
            f" (pod {', '.join(one['pods'][:3])}{' ...' if one['pods'][3:] else ''})" if one["pods"] else ""
        )
        yield from wrapped(f"{one['claim']}{pods}", 4)
        for result in one["devices"]:
            yield from wrapped(device_text(result), 6)
    yield from _could_run(found["waiting"], found["waitingMore"])


def _devices(rows: Sequence[Fields]) -> Iterator[str]:
    states: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        key = (row["type"] or "pool", row["model"] or "")
        states.setdefault(key, Counter())[row["state"].lower()] += 1
    for (kind, model), counted in states.items():
        told = ", ".join(f"{number} {state}" for state, number in sorted(counted.items()))
        yield from wrapped(f"{sum(counted.values())} {kind}{f' {model}' if model else ''}: {told}", 2)
    for row in rows:
        if row["state"] in ("Unusable", "Tainted"):
            why = row["reason"] or ", ".join(row["taints"])
            yield from wrapped(f"{row['name'] or row['pool']}: {row['state'].lower()}: {why}", 4)
    if not rows:
        yield "  no device of koordra's"


def _free(row: Fields) -> str:
    return ", ".join(amount_shown(name, entry["free"]) for name, entry in row["capacity"].items()) or "-"


def _could_run(waiting: Sequence[Fields], more: int) -> Iterator[str]:
    """Who waits, by whether the node could take it."""
    kinds = (
        ("waits, and fits here now", [one for one in waiting if one["fits"]]),
        (
            "waits, and would fit were the node empty",
            [one for one in waiting if one["fitsWhenEmpty"] and not one["fits"]],
        ),
    )
    for title, groups in kinds:
        found = [", ".join(one["pods"]) or f"claim {', '.join(one['claims'])}" for one in groups]
        if found:
            yield from wrapped(f"{title}: {', '.join(found)}", 2)
    never = [one for one in waiting if not one["fitsWhenEmpty"]]
    if never:
        who = "one more waits" if len(never) == 1 else f"{len(never)} more wait"
        yield from wrapped(f"{who}, and would not fit even were the node empty", 2)
    if more:
        yield from wrapped(f"{more} more wait, of which it was not looked whether they fit", 2)
