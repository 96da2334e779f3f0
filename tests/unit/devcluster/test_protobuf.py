"""Bodies in protobuf: the few that kubectl sends."""

from __future__ import annotations

import pytest

from koordra_devcluster.apiserver.requests import Request
from koordra_devcluster.apiserver.serving import protobuf
from koordra_devcluster.apiserver.status import Refusal
from tests.unit.devcluster.calling import PODS, Caller
from tests.unit.devcluster.manifests import pod


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return bytes([number << 3]) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def body(kind: str, raw: bytes, version: str = "v1") -> bytes:
    return b"k8s\x00" + field(1, field(1, version) + field(2, kind)) + field(2, raw)


LABELS = field(11, field(1, "team") + field(2, "a"))


def test_a_namespace_is_created(api: Caller) -> None:
    metadata = field(1, "team") + LABELS + field(12, field(1, "note") + field(2, "x" * 200))
    request = Request(
        "POST",
        "/api/v1/namespaces",
        {},
        {"content-type": protobuf.CONTENT_TYPE},
        body("Namespace", field(1, metadata)),
    )
    assert api.api.handle(request).code == 201
    made = api.ok("GET", "/api/v1/namespaces/team")["metadata"]
    assert made["labels"]["team"] == "a"
    assert made["annotations"] == {"note": "x" * 200}


def test_a_pod_is_evicted(api: Caller) -> None:
    api.ok("POST", PODS, pod("p", nodeName="n1"))
    raw = field(1, field(1, "p") + field(3, "default")) + field(2, field(1, 5))
    request = Request(
        "POST",
        f"{PODS}/p/eviction",
        {},
        {"content-type": protobuf.CONTENT_TYPE},
        body("Eviction", raw, "policy/v1"),
    )
    assert api.api.handle(request).code == 201
    assert api.ok("GET", f"{PODS}/p")["metadata"]["deletionGracePeriodSeconds"] == 5


def test_deletion_options() -> None:
    raw = field(1, 0) + field(2, field(1, "u") + field(2, "7")) + field(4, "Background") + field(5, "All")
    assert protobuf.decode(body("DeleteOptions", raw)) == {
        "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "propagationPolicy": "Background",
        "preconditions": {"uid": "u", "resourceVersion": "7"}, "dryRun": ["All"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"{}", 400),
        (body("Namespace", field(1, field(1, "team")))[:-3], 400),
        (body("Namespace", field(1, b"\x0a\xff")), 400),
        (body("Namespace", field(1, 7)), 400),
        (body("Pod", b""), 415),
    ],
    ids=["no magic", "cut off", "cut off inside", "wrong type", "a pod"],
)
def test_what_is_not_understood(data: bytes, code: int) -> None:
    with pytest.raises(Refusal) as refused:
        protobuf.decode(data)
    assert refused.value.code == code
