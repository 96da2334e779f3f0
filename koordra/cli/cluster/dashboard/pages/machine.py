"""A node: how its devices lie, which are free, who has the others and what keeps them apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.cli.cluster.dashboard.markup import Html, joined, lines, link, page, table, tag
from koordra.cli.cluster.dashboard.snapshot import Snapshot
from koordra.cli.cluster.device_text import amount_shown
from koordra.controller.explain.claims import published
from koordra.controller.explain.isolation import isolation_of
from koordra.controller.explain.question import Question, Subject
from koordra.controller.explain.view import ClusterView
from koordra.errors import KoordraError
from koordra.topology.pictures.svg import svg
from koordra.topology.pictures.usage import usage_of_claims
from koordra.topology.published import machine_of_slices

ROOT: Final = "../"


def node_page(snapshot: Snapshot, name: str) -> bytes:
    """Raises NotFound."""
    forecast = snapshot.forecast
    found = forecast.answer(Question(Subject.NODE, "", name))[Subject.NODE]
    claims = [forecast.view.cache.claims.get(one["claim"]) for one in found["holders"]]
    held = [claim for claim in claims if claim is not None]
    return page(
        f"Node {name}",
        tag("p", _standing(found), class_="faint"),
        _picture(forecast.view, name, held),
        tag("h2", "Who has what"),
        _holders(forecast.view, found["holders"], held),
        tag("h2", "Devices"),
        _devices(found["devices"]),
        tag("h2", "Who waits, and could run here"),
        _could_run(found["waiting"], found["waitingMore"]),
        root=ROOT,
        at="Fleet",
        moment=snapshot.at,
    )


def _standing(found: Fields) -> str:
    words = [f"{found['mode']} mode", "ready" if found["ready"] else "not ready"]
    words += [] if found["schedulable"] else ["cordoned"]
    words += [f"taint {taint}" for taint in found["taints"]]
    if found["isolation"] is not None:
        words.append(f"isolation of GPU shares: {', '.join(found['isolation']) or 'no shares are given out'}")
    return ", ".join(words)


def _picture(view: ClusterView, name: str, held: Sequence[Object]) -> Html:
    own = view.cache.slice_index.published(name)
    try:
        machine, capacities = machine_of_slices(own)
        usage = usage_of_claims(held, pool=name, capacities=capacities)
        if not capacities:
            return tag("p", "it publishes no device of koordra's", class_="empty")
        drawn = svg(machine, usage, title=name, subtitle="as published in ResourceSlices")
    except (KoordraError, LookupError, ValueError) as error:
        return tag("p", f"cannot be drawn: {error}", class_="empty")
    return tag("div", Html(drawn), class_="picture")


def _holders(view: ClusterView, holders: Sequence[Fields], held: Iterable[Object]) -> Html:
    claims = {objects.key(claim): claim for claim in held}
    rows = [row for one in holders for row in _held(view, one, claims.get(one["claim"]))]
    if not rows:
        return tag("p", "Nobody has a device of it.", class_="empty")
    return table(("Claim", "Pod", "Device", "What it has", "Isolation"), rows)


def _held(view: ClusterView, holder: Fields, claim: Object | None) -> Iterable[Sequence[object]]:
    key = str(holder["claim"])
    namespace = key.partition("/")[0]
    who: object = key if claim is None else link(ROOT, key, "claim", *key.split("/", 1))
    pods = joined((link(ROOT, pod, "pod", namespace, pod) for pod in holder["pods"]), ", ") or "-"
    kept = {
        one["device"]: one
        for one in (
            isolation_of(claim, published(view, [str(each["pool"]) for each in holder["devices"]]))
            if claim
            else ()
        )
    }
    for number, result in enumerate(holder["devices"]):
        has = ", ".join(
            amount_shown(name, amount)
            for name, amount in sorted((result.get("consumedCapacity") or {}).items())
            if str(amount) != "0" and not name.endswith(names.CAPACITY_SLOTS)
        )
        told = kept.get(result.get("device"))
        first = number == 0
        yield (
            who if first else "",
            pods if first else "",
            result.get("device"),
            has or "all of it",
            _isolation(told),
        )


def _isolation(told: Fields | None) -> Html:
    if told is None:
        return Html("-")
    said = [*told["enforced"], *(f"only accounted for: {one}" for one in told["accounted"])]
    said += [f"{one['type']}: {one['status']} ({one['reason']})" for one in told["conditions"]]
    return lines(said)


def _devices(rows: Sequence[Fields]) -> Html:
    if not rows:
        return tag("p", "None is published.", class_="empty")
    return table(
        ("Device", "Model", "State", "Free", "NUMA node"),
        (
            (
                row["name"] or f"pool {row['pool']}",
                row["model"] or "-",
                row["state"],
                _left(row),
                "-" if row["numaNode"] is None else row["numaNode"],
            )
            for row in rows
        ),
    )


def _left(row: Fields) -> str:
    """What is free, or why nothing is."""
    match row["state"]:
        case "Unusable":
            return str(row["reason"])
        case "Tainted":
            return "; ".join(row["taints"])
        case "Taken" | "Blocked":
            return "-"
    shown = ((name, entry["free"]) for name, entry in row["capacity"].items() if name != names.CAPACITY_SLOTS)
    return ", ".join(amount_shown(name, free) for name, free in shown) or "-"


def _could_run(waiting: Sequence[Fields], more: int) -> Html:
    if not waiting:
        return tag("p", "Nobody waits.", class_="empty")
    rows = []
    for one in waiting:
        word = "now" if one["fits"] else "were it empty" if one["fitsWhenEmpty"] else "never"
        pods = joined((link(ROOT, key, "pod", *key.split("/", 1)) for key in one["pods"][:5]), ", ")
        claims = joined((link(ROOT, key, "claim", *key.split("/", 1)) for key in one["claims"][:5]), ", ")
        rows.append((pods or "-", claims, word, one["why"] or ""))
    rest = tag("p", f"{more:,} more wait, of which it was not looked whether they fit", class_="faint")
    return joined((table(("Pod", "Claim", "Fits here", ""), rows), rest if more else ""))
