"""Discovery: which groups and resources there are, in the plain and in the aggregated form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from koordra.api.objects import Object
from koordra_devcluster.apiserver.resources import VERBS, Served

AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
VERSION: Final = "v1.37.0"
_BODIES: Final = {"Scale": ("autoscaling", "v1"), "Eviction": ("policy", "v1")}


def version() -> Object:
    """/version. The build metadata says what this is."""
    return {
        "major": "1",
        "minor": "37",
        "gitVersion": f"{VERSION}+koordra-devcluster",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }


def core_versions() -> Object:
    """/api."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(kinds: Sequence[Served]) -> Object:
    """/apis."""
    groups = [_group(name, kinds) for name in dict.fromkeys(one[0] for one in groups_of(kinds)) if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def groups_of(kinds: Sequence[Served]) -> tuple[tuple[str, str], ...]:
    """(group, version) of the kinds, each once."""
    return tuple(dict.fromkeys((one.kind.group, one.kind.version) for one in kinds))


def group(name: str, kinds: Sequence[Served]) -> Object | None:
    """/apis/<group>."""
    known = bool(name) and any(one[0] == name for one in groups_of(kinds))
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, kinds)} if known else None


def _group(name: str, kinds: Sequence[Served]) -> Object:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version} for version in _versions(name, kinds)
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _versions(group: str, kinds: Sequence[Served]) -> list[str]:
    """The preferred one first."""
    return [version for name, version in groups_of(kinds) if name == group]


def resource_list(group: str, version: str, kinds: Sequence[Served]) -> Object | None:
    """/api/v1 and /apis/<group>/<version>."""
    if (group, version) not in groups_of(kinds):
        return None
    entries: list[Object] = []
    for served in _of(group, version, kinds):
        kind = served.kind
        entry: Object = {
            "name": kind.plural,
            "singularName": served.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list(VERBS),
        }
        if served.short_names:
            entry["shortNames"] = list(served.short_names)
        if served.categories:
            entry["categories"] = list(served.categories)
        entries.append(entry)
        for name, body, verbs in served.subresources:
            entries.append(
                {
                    "name": f"{kind.plural}/{name}",
                    "singularName": "",
                    "namespaced": kind.namespaced,
                    "kind": body,
                    "verbs": list(verbs),
                }
                | _group_of_body(body)
            )
    place = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": place, "resources": entries}


def aggregated(kinds: Sequence[Served], *, core: bool) -> Object:
    """/api or /apis as APIGroupDiscoveryList: everything in one answer."""
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            _aggregated_group(group, kinds)
            for group in dict.fromkeys(one[0] for one in groups_of(kinds))
            if bool(group) is not core
        ],
    }


def _group_of_body(body: str) -> Object:
    """Where the kind of a subresource's body lives, when it is another group's."""
    group, version = _BODIES.get(body, ("", ""))
    return {"group": group, "version": version} if group else {}


def _aggregated_group(group: str, kinds: Sequence[Served]) -> Object:
    return {
        "metadata": {"name": group} if group else {},
        "versions": [
            {
                "version": version,
                "resources": [_aggregated_resource(served) for served in _of(group, version, kinds)],
                "freshness": "Current",
            }
            for version in _versions(group, kinds)
        ],
    }


def _aggregated_resource(served: Served) -> Object:
    kind = served.kind
    entry: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": served.singular,
        "verbs": list(VERBS),
    }
    if served.short_names:
        entry["shortNames"] = list(served.short_names)
    if served.categories:
        entry["categories"] = list(served.categories)
    if served.subresources:
        entry["subresources"] = [
            {
                "subresource": name,
                "responseKind": {"group": kind.group, "version": kind.version}
                | _group_of_body(body)
                | {"kind": body},
                "verbs": list(verbs),
            }
            for name, body, verbs in served.subresources
        ]
    return entry


def _of(group: str, version: str, kinds: Sequence[Served]) -> list[Served]:
    return [served for served in kinds if (served.kind.group, served.kind.version) == (group, version)]
