"""What `koordra explain` costs in a cluster of 10,000 nodes with eight GPUs and eight NICs each, no two of
which are in the same state: seconds of CPU, and their ratios to a plain implementation.

command     one answer of the controller as the command gets and prints it: its start, an HTTP client that
            knows kubeconfigs, and the text; against the import of the HTTP client alone
controller  the leader's answer from its indices: of a request that nobody has asked for yet, and again
objects     the same answer worked out from all objects. They are taken in page by page while the next ones
            are on their way (`taking`), so that what a person waits for when the last one is read is the
            rest (`after`); against `json.loads` of them
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from benchmarks import _results
from benchmarks.controller import device_classes, machine_slices, node, pod
from koordra.api.kinds import DEVICE_CLASSES, Kind
from koordra.api.objects import Object
from koordra.controller.cache.changes import NEEDED, OPTIONAL, in_order
from koordra.controller.cache.groups import Group
from koordra.controller.cache.kept_fields import kept_of
from koordra.controller.explain.forecast.forecast import Forecast, foretold
from koordra.controller.explain.forecast.intake import Intake, Terms
from koordra.controller.explain.question import Question, Subject
from koordra.kube.client import PAGE
from koordra.process.lifecycle import collect_seldom

NODES = 10_000
WAITING = 8
NAMESPACE = "team"
_UUID = "koordra.io/uuid"
_START = """
import time
began = time.process_time()
{code}
print(time.process_time() - began)
"""
_COMMAND = """
import koordra.cli.main
from koordra.cli.cluster.cluster_answers import Cluster, of_cluster
from koordra.cli.cluster.explain import _show
from koordra.cli.options import Scope
import koordra.kube.kubeconfig
class Client:
    authorization = "Bearer token"
    def read(self, path, **_):
        return {"claim": dict(namespace="team", name="c", uid="1", status="DoesNotFit", told=["why"] * 12)}
    def list(self, kind, **_):
        return [{"metadata": {"namespace": "team", "name": "c"}}], ""
client = Client()
_show((of_cluster(client, ["c"], "team", Scope(), Cluster(client)), {}, ""), "text")
"""
_PLAIN = "import kubernetes.config, urllib3"

Found = TypeVar("Found")


def main() -> None:
    collect_seldom()
    found: dict[str, Any] = {"nodes": NODES, **_command()}
    objects = _read(found)
    pages = _pages(objects)
    last = pages.pop()
    taken, found["taking_s"] = timed(lambda: _taken(pages))
    ahead, found["rest_s"] = timed(lambda: _foretold(taken, last))
    for name, number in (("first", 0), ("again", 0), ("other", 1)):
        asked, found[f"{name}_s"] = timed(partial(_asked, ahead, number))
        found["told"] = asked["claim"]["told"]
    new = Group((), _claim("new", 78))
    for name in ("new", "again"):
        _, found[f"leader_{name}_s"] = timed(lambda: ahead.view.placer.place(new, {}))
    found["after_s"] = found["rest_s"] + found["first_s"]
    found["objects_ratio"] = (found["taking_s"] + found["after_s"]) / found["plain_read_s"]
    written = _markdown(found)
    _results.write("explain", found, written)
    print(written)


def _read(found: dict[str, Any]) -> list[Object]:
    text = json.dumps(list(full_cluster(NODES)), separators=(",", ":"))
    gc.collect()
    objects, found["plain_read_s"] = timed(lambda: json.loads(text))
    found |= {"objects": len(objects), "mib": len(text) >> 20}
    return list(objects)


def timed(make: Callable[[], Found]) -> tuple[Found, float]:
    began = time.process_time()
    found = make()
    return found, round(time.process_time() - began, 3)


def _command() -> dict[str, float]:
    def least(code: str) -> float:
        times = []
        for _ in range(5):
            done = subprocess.run(
                [sys.executable, "-c", _START.format(code=code)], capture_output=True, check=True
            )
            times.append(float(done.stdout.split()[-1]))
        return round(min(times), 3)

    ours, plain = least(_COMMAND), least(_PLAIN)
    return {"command_s": ours, "plain_command_s": plain, "command_ratio": ours / plain}


def _pages(objects: list[Object]) -> list[tuple[Kind, list[Object]]]:
    """As a command reads them, the last ones last."""
    of_kind = {kind.kind: kind for kind in in_order((*NEEDED, *OPTIONAL))}
    found: dict[Kind, list[Object]] = {kind: [] for kind in of_kind.values()}
    for one in objects:
        found[of_kind[one["kind"]]].append(one)
    return [
        (kind, every[start : start + PAGE])
        for kind, every in found.items()
        for start in range(0, len(every), PAGE)
    ]


def _taken(pages: list[tuple[Kind, list[Object]]]) -> Intake:
    taken, before = Intake(Terms(datetime.now(UTC))), DEVICE_CLASSES
    for kind, page in pages:
        if kind is not before:
            taken.complete(before, (), ())
        before = kind
        taken.take(kind, list(map(kept_of(kind), page)))
    gc.freeze()
    return taken


def _foretold(taken: Intake, last: tuple[Kind, list[Object]]) -> Forecast:
    taken.take(last[0], list(map(kept_of(last[0]), last[1])))
    taken.complete(last[0], (), ())
    return foretold(taken)


def _asked(ahead: Forecast, number: int) -> Object:
    return ahead.answer(Question(Subject.CLAIM, NAMESPACE, f"wait-{number}"))


def full_cluster(nodes: int) -> Iterator[Object]:
    """Every card has a tenant; their amounts are the digits of the node's number. Some claims wait, each for
    another amount, and fit nowhere."""
    for one in device_classes():
        yield {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", **one}
    published = [_of_one_port(entry) for entry in machine_slices()]
    cards = [
        one["name"]
        for entry in published
        for one in entry["spec"]["devices"]
        if one["name"].startswith("gpu")
    ]
    for number in range(nodes):
        name = f"node-{number:05d}"
        made = node(name)
        yield {**made, "apiVersion": "v1", "kind": "Node", "metadata": {**made["metadata"], "uid": name}}
        for part, entry in enumerate(published):
            yield _slice(entry, name, part)
        for at, card in enumerate(cards):
            yield from _tenant(name, card, f"{number:05d}-{at}", 45 + number // 35**at % 35)
    for number in range(WAITING):
        yield from _waiting(f"wait-{number}", 60 + number)


def _of_one_port(entry: Object) -> Object:
    kept = [one for one in entry["spec"]["devices"] if not one["name"].endswith("-1")]
    return {**entry, "spec": {**entry["spec"], "devices": kept}}


def _slice(entry: Object, name: str, part: int) -> Object:
    devices = [
        {**one, "attributes": {**one["attributes"], _UUID: {"string": f"{name}-{one['name']}"}}}
        for one in entry["spec"]["devices"]
    ]
    pool = {**entry["spec"]["pool"], "name": name}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name}-{part}", "uid": f"{name}-{part}", "resourceVersion": "1"},
        "spec": {**entry["spec"], "nodeName": name, "pool": pool, "devices": devices},
    }


def _claim(name: str, gib: int) -> Object:
    exactly = {
        "deviceClassName": "gpu.koordra.io",
        "count": 1,
        "capacity": {"requests": {"memory": f"{gib}Gi"}},
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name, "resourceVersion": "1"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def _pod(name: str, at: str = "") -> Object:
    made = pod(name, name)
    meta = {**made["metadata"], "namespace": NAMESPACE, "uid": f"pod-{name}"}
    found = {**made, "apiVersion": "v1", "kind": "Pod", "metadata": meta}
    return (
        {**found, "spec": {**found["spec"], "nodeName": at}, "status": {"phase": "Running"}} if at else found
    )


def _tenant(at: str, card: str, name: str, gib: int) -> Iterator[Object]:
    result = {"request": "gpu", "driver": "koordra.io", "pool": at, "device": card, "shareID": name}
    taken = {"consumedCapacity": {"memory": f"{gib}Gi", "cores": "50", "slots": "1"}}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [at]}]}
    allocation = {
        "devices": {"results": [{**result, **taken}]},
        "nodeSelector": {"nodeSelectorTerms": [term]},
    }
    reserved = [{"resource": "pods", "name": name, "uid": f"pod-{name}"}]
    yield {**_claim(name, gib), "status": {"allocation": allocation, "reservedFor": reserved}}
    yield _pod(name, at)


def _waiting(name: str, gib: int) -> Iterator[Object]:
    yield _claim(name, gib)
    yield _pod(name)


def _markdown(found: dict[str, Any]) -> str:
    rows = [
        (
            "command, where the controller answers",
            found["command_s"],
            f"{found['command_ratio']:.1f}x the HTTP client's import",
        ),
        ("controller, a request that is new to it", found["leader_new_s"], ""),
        ("controller, again", found["leader_again_s"], ""),
        ("while the objects come: json.loads", found["plain_read_s"], ""),
        ("while the objects come: taking them in", found["taking_s"], ""),
        ("after the last page: that page, and what becomes of all", found["rest_s"], ""),
        ("after the last page: the first answer", found["first_s"], ""),
        (
            "from the last page to the answer",
            round(found["after_s"], 2),
            f"in all {found['objects_ratio']:.1f}x json.loads of them",
        ),
        ("the same again", found["again_s"], ""),
        ("another claim", found["other_s"], ""),
    ]
    head = (
        f"{found['nodes']:,} nodes, {found['objects']:,} objects, {found['mib']} MiB of JSON; seconds of CPU."
    )
    return "\n".join(
        [
            "# koordra explain in a large cluster",
            "",
            head,
            "",
            _results.table(("what", "s", "ratio"), rows),
            "",
            *found["told"],
        ]
    )
