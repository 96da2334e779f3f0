"""What a node writes to ask for evictions, and what is read of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from koordra.errors import ApiError, ApiUnreachable, NotFound
from koordra.evictions import (
    COMPONENTS,
    LONGEST_ENTRY,
    MOST,
    OF_HOOK,
    EvictionRequest,
    EvictionRequests,
    decode,
    encode,
)
from koordra.kube.client import KubeClient

ROOT = Path(__file__).resolve().parents[2] / "deploy" / "kustomize"


def request(number: int = 0, **fields: str) -> EvictionRequest:
    given = {"namespace": "team", "name": f"pod-{number}", "uid": f"uid-{number}", "reason": "OverLimit"}
    return EvictionRequest(**{**given, **fields})


class Api:
    def __init__(self) -> None:
        self.entry: str | None = ""
        self.writes = 0
        self.down = False

    def patch(self, kind: Any, name: str, body: Any, **where: Any) -> None:
        if self.down:
            raise ApiUnreachable("no route")
        self.writes += 1
        self.entry = body["data"]["node"]


def requests(api: Api) -> EvictionRequests:
    return EvictionRequests(cast(KubeClient, api), OF_HOOK, node="node", namespace="koordra-system")


def test_what_is_written_is_read() -> None:
    longest = request(namespace="n" * 63, name="p" * 253, uid="u" * 64, reason="r" * 64)
    for wanted in ((), (request(),), tuple(longest for _ in range(MOST))):
        assert decode(encode(wanted)) == wanted
        assert len(encode(wanted)) <= LONGEST_ENTRY


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "{",
        "{}",
        "null",
        "[1]",
        "[[]]",
        "[{}]",
        '[{"namespace": "n", "name": "p", "uid": "u"}]',
        '[{"namespace": "n", "name": "p", "uid": "u", "reason": "r", "more": "m"}]',
        '[{"namespace": "n", "name": "p", "uid": "u", "reason": 1}]',
        '[{"namespace": "n", "name": "", "uid": "u", "reason": "r"}]',
        encode([request(reason="r" * 65)]),
        encode([request(name="p" * 254)]),
        encode(request(number) for number in range(MOST + 1)),
        encode([request()]) + " " * LONGEST_ENTRY,
        "[" * 8000,
    ],
    ids=lambda entry: entry[:60],
)
def test_what_no_node_writes_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(entry)


def test_the_bounds() -> None:
    assert (MOST, LONGEST_ENTRY) == (10, 8192)
    assert decode(" " * (LONGEST_ENTRY - 2) + "[]") == ()
    longest = {"namespace": 63, "name": 253, "uid": 64, "reason": 64}
    for field, length in longest.items():
        assert decode(encode([request(**{field: "x" * length})]))
        with pytest.raises(ValueError, match=f"{field} is no text of 1 to {length} characters"):
            decode(encode([request(**{field: "x" * (length + 1)})]))


def test_a_missing_component_is_named() -> None:
    class Without(Api):
        def patch(self, kind: Any, name: str, body: Any, **where: Any) -> None:
            raise NotFound(name, code=404)

    with pytest.raises(ApiError, match="add the component deploy/kustomize/nri/evict"):
        requests(Without()).want([request()])


def test_only_changes_are_written_and_the_first_call_always() -> None:
    api = Api()
    ours = requests(api)
    for wanted, writes in (([], 1), ([], 1), ([request()], 2), ([request()], 2), ([], 3)):
        ours.want(wanted)
        assert api.writes == writes
        assert api.entry == (encode(wanted) if wanted else None)


def test_what_could_not_be_written_is_written_later() -> None:
    api = Api()
    ours = requests(api)
    api.down = True
    with pytest.raises(ApiUnreachable):
        ours.want([request()])
    api.down = False
    ours.want([request()])
    assert api.entry == encode([request()])


def test_those_asked_for_already_stay_and_others_follow_when_there_is_room() -> None:
    api = Api()
    ours = requests(api)
    many = [request(number) for number in range(MOST + 2)]
    ours.want(many[2:])
    ours.want(many)
    assert decode(api.entry or "") == tuple(many[2:])
    ours.want([*many[:4], *many[6:]])
    assert decode(api.entry or "") == (*many[2:4], *many[6:], *many[:2])


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_components_bound_what_a_node_writes_as_the_code_does(name: str) -> None:
    text = (ROOT / COMPONENTS[name] / "requests.yaml").read_text()
    documents = list(yaml.safe_load_all(text))
    assert documents[0]["kind"] == "ConfigMap"
    assert documents[0]["metadata"]["name"] == name
    assert "data" not in documents[0]
    assert f"<= {LONGEST_ENTRY}" in (ROOT / "policies" / "evictions.yaml").read_text()
    assert json.dumps(encode([request()]))  # a text, as the ConfigMap's values are
