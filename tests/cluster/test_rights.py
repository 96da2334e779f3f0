"""Every right that koordra's accounts have was used, by the audit log of API servers against which all of
tests/cluster has run: KOORDRA_AUDIT=FILE[:FILE...], of the accounts of koordra-system, level Metadata. Run by
itself, after the others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from koordra.api import objects
from koordra.api.objects import Object
from tests.cluster.installation import documents

pytestmark = pytest.mark.cluster

AUDIT: Final = "KOORDRA_AUDIT"
PREFIX: Final = "system:serviceaccount:koordra-system:"
NO_OBJECTS: Final = {"resourceclaims/binding", "resourceclaims/driver", "allocations"}
"""What the API server and admission policies ask for by themselves: in no request."""
NOT_SERVED: Final = {("compositepodgroups", "watch"), ("workloads", "watch")}
"""Kinds of Kubernetes 1.37 and of 1.35: listed, to see whether they are there, and watched where they are."""
REVIEWED: Final = {"koordra-explain"}
"""Accounts that ask nothing themselves: the controller asks in SubjectAccessReviews what they may."""


class Right(NamedTuple):
    """`namespace`: None is all of them; `names`: none is every object."""

    account: str
    namespace: str | None
    group: str
    resource: str
    verb: str
    names: tuple[str, ...] = ()

    def covers(self, request: Right) -> bool:
        """`request`: of one object, or of none by name."""
        named = not self.names or not request.names or request.names[0] in self.names
        same = (self.account, *self[2:5]) == (request.account, *request[2:5])
        return same and self.namespace in (None, request.namespace) and named


def granted() -> Iterator[Right]:
    shipped = [obj for _, obj in documents() if str(obj["apiVersion"]).startswith("rbac.")]
    roles = {_key(obj["kind"], obj): obj for obj in shipped if not obj["kind"].endswith("Binding")}
    for binding in shipped:
        if not binding["kind"].endswith("Binding"):
            continue
        place = objects.metadata(binding).get("namespace")
        kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        role = roles[kind, place if kind == "Role" else None, name]
        for subject in binding["subjects"]:
            for rule in role["rules"]:
                for group, resource, verb in _each(rule):
                    names = tuple(rule.get("resourceNames") or ())
                    yield Right(subject["name"], place, group, resource, verb, names)


def _key(kind: str, obj: Object) -> tuple[str, str | None, str]:
    return kind, objects.metadata(obj).get("namespace"), objects.name(obj)


def _each(rule: Object) -> Iterator[tuple[str, str, str]]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield group, resource, verb


def asked(line: str) -> Right | None:
    """The request of an Event of the log; None for what RBAC refused, and for what asks for no object."""
    event: Any = json.loads(line)
    user, on = str(event["user"]["username"]), event.get("objectRef") or {}
    allowed = (event.get("annotations") or {}).get("authorization.k8s.io/decision") == "allow"
    if not allowed or not user.startswith(PREFIX) or not on.get("resource"):
        return None
    resource = "/".join(filter(None, (on["resource"], on.get("subresource"))))
    names = tuple(filter(None, [on.get("name")]))
    group, place = on.get("apiGroup", ""), on.get("namespace")
    return Right(user.removeprefix(PREFIX), place, group, resource, event["verb"], names)


def test_every_right_was_used() -> None:
    if AUDIT not in os.environ:
        pytest.skip(f"no audit log of all other tests is lent ({AUDIT}=FILE[:FILE...])")
    logs = map(Path, os.environ[AUDIT].split(os.pathsep))
    requests = {found for log in logs for line in log.read_text().splitlines() if (found := asked(line))}
    unused = {
        right
        for right in granted()
        if right.account not in REVIEWED
        and right.resource not in NO_OBJECTS
        and (right.resource, right.verb) not in NOT_SERVED
        and not any(map(right.covers, requests))
    }
    assert unused == set()
