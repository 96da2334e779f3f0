"""Label and field selectors."""

from __future__ import annotations

import pytest

from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage import selectors

RED = {"metadata": {"labels": {"team": "red", "tier": "gold"}}}
BARE: dict[str, object] = {"metadata": {}}


@pytest.mark.parametrize(
    ("text", "red", "bare"),
    [
        ("team=red", True, False), ("team==red", True, False), ("team!=red", False, True), ("team", True, False),
        ("!team", False, True), ("team in (red, blue)", True, False), ("team notin (red)", False, True),
        ("team=red,tier=gold", True, False), ("team=red,tier!=gold", False, False), ("team in (blue)", False, False),
        ("example.com/x=", False, False), ("", True, True), ("team , tier", True, False),
    ],
)  # fmt: skip
def test_labels(text: str, red: bool, bare: bool) -> None:
    assert (selectors.labels(text)(RED), selectors.labels(text)(BARE)) == (red, bare)


@pytest.mark.parametrize("text", ["=x", "a in red", "a b", "a,,b", "a=b c"])
def test_what_is_not_a_label_selector(text: str) -> None:
    with pytest.raises(Refusal):
        selectors.labels(text)


@pytest.mark.parametrize(
    ("resource", "text", "expected"),
    [
        ("pods", "spec.nodeName=n1", True), ("pods", "spec.nodeName=", False), ("pods", "spec.nodeName!=n2", True),
        ("pods", "metadata.name=p,status.phase=Running", True), ("pods", "status.phase!=Running", False),
        ("nodes", "spec.unschedulable=false", True), ("events", "involvedObject.name=p", True),
        ("events", "source=kubelet", True),
    ],
)  # fmt: skip
def test_fields(resource: str, text: str, expected: bool) -> None:
    obj = {
        "metadata": {"name": "p"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"},
        "involvedObject": {"name": "p"}, "source": {"component": "kubelet"},
    }  # fmt: skip
    assert selectors.fields(resource, text)(obj) is expected


def test_fields_that_a_real_server_does_not_index_are_refused() -> None:
    with pytest.raises(Refusal, match=r"field label not supported: spec.containers"):
        selectors.fields("pods", "spec.containers=x")
    with pytest.raises(Refusal):
        selectors.fields("pods", "nonsense")
