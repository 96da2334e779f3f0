"""What an operator says about groups of nodes, and how they are asked for. Pure but for the machines, which
`slices_of` reads.

    after: 30        # seconds for which something has waited before a node is asked for
    within: 900      # seconds in which a node has to come
    cooldown: 600    # seconds in which a claim, for which a node came, counts as a failure if it still waits
    image: registry.k8s.io/pause:3.10               # of placeholders
    groups:
    - name: h100
      machine: hgx-h100            # as for koordra plan --machine
      max: 16                      # nodes, with those that are there
      labels: {cloud.google.com/gke-nodepool: h100}   # which every node of the group has, and no other
      taints: [{key: example.com/gpu, value: "true", effect: NoSchedule}]
      resources: {cpu: "190", memory: 1800Gi}         # what a new node has for pods
      namespaceMax: 4              # nodes of the group that the claims of one namespace may have

The first groups are preferred.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.api import names
from koordra.api.objects import Fields
from koordra.api.reader import Reader
from koordra.controller.autoscale.node_groups import NodeGroup

SlicesOf = Callable[[str, bool], Sequence[Fields]]
"""(machine, whether the node is in native mode) -> the ResourceSlices of such a node. Raises InvalidInput."""

MOST_NODES: Final = 1_000
MOST_GROUPS: Final = 50
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
IMAGE: Final = "registry.k8s.io/pause:3.10"
LONGEST: Final = 24 * 3600
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_KEY: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True, slots=True)
class AutoscaleSettings:
    """Times in seconds, as above."""

    groups: Sequence[NodeGroup] = ()
    after: float = 30.0
    within: float = 900.0
    cooldown: float = 600.0
    image: str = IMAGE


def settings_in(read: Reader, slices_of: SlicesOf) -> AutoscaleSettings:
    """Of a document that says how groups are asked for. None may be named. Raises as groups_in does, and for
    groups of which no placeholder can be made."""
    read.only("after", "within", "cooldown", "image", "groups")
    default = AutoscaleSettings()
    groups = groups_in(read, slices_of) if read.sequence("groups") else []
    for one, group in zip(read.each("groups"), groups, strict=True):
        if not group.labels:
            text = "name what every node of the group has, and no other"
            raise one.wrong("are missing: nodes of the group are known by them", text, at="labels")
        if not {"cpu", "memory"} & group.resources.keys():
            text = "say what a new node has for pods, cpu or memory at least"
            raise one.wrong("are missing: a placeholder is as large as a node", text, at="resources")
    return AutoscaleSettings(
        groups,
        _seconds(read, "after", default.after),
        _seconds(read, "within", default.within, least=1),
        _seconds(read, "cooldown", default.cooldown),
        read.text("image") or default.image,
    )


def groups_in(read: Reader, slices_of: SlicesOf) -> list[NodeGroup]:
    """Of a document that has `groups`. Raises InvalidManifest, and InvalidInput for an unknown machine."""
    found: list[NodeGroup] = []
    for one in read.each("groups"):
        group = group_of(one, slices_of)
        if any(group.name == other.name for other in found):
            raise one.wrong(f"there is another group {group.name!r}", "name each once", at="name")
        found.append(group)
    if not found:
        raise read.wrong("names no group", "describe one", at="groups")
    if len(found) > MOST_GROUPS:
        raise read.wrong(f"{len(found)} groups are more than {MOST_GROUPS}", "describe fewer", at="groups")
    return found


def group_of(read: Reader, slices_of: SlicesOf) -> NodeGroup:
    read.only("name", "machine", "max", "labels", "taints", "resources", "namespaceMax")
    name, machine = read.required("name"), read.required("machine")
    if not _NAME.fullmatch(name):
        text = "lower-case letters, digits and dashes, 40 at most"
        raise read.wrong(f"{name!r} is not a name of a group", text, at="name")
    most = read.between("max", 1, MOST_NODES)
    if most is None:
        raise read.wrong("is missing", "say how many nodes the group may have", at="max")
    labels = _labels(read)
    read.amounts("resources")  # refused where one is no amount
    is_native = labels.get(names.MODE_LABEL) == names.MODE_NATIVE
    return NodeGroup(
        name,
        machine,
        slices_of(machine, is_native),
        most,
        labels,
        [_taint(one) for one in read.each("taints")],
        {key: str(value) for key, value in read.inner("resources").data.items()},
        read.between("namespaceMax", 1, MOST_NODES),
    )


def _seconds(read: Reader, name: str, default: float, *, least: int = 0) -> float:
    found = read.between(name, least, LONGEST)
    return default if found is None else float(found)


def _labels(read: Reader) -> Mapping[str, str]:
    found = read.inner("labels")
    for key, value in found.data.items():
        if not _KEY.fullmatch(str(key)):
            raise found.wrong(f"{key!r} is not the key of a label", "as kubectl label takes it")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise found.wrong(
                f"{value!r} is not the value of a label", "as kubectl label takes it", at=str(key)
            )
    return {str(key): value for key, value in found.data.items()}


def _taint(read: Reader) -> Fields:
    read.only("key", "value", "effect")
    read.required("key"), read.required("effect")
    read.matching("key", _KEY, "the key of a taint")
    read.matching("value", _VALUE, "the value of a taint")
    read.choice("effect", EFFECTS)
    return dict(read.data)
