"""Logs are read by more people than claims are: no log line holds a claim's body."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from koordra import logs
from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.errors import Invalid
from koordra.kube import wire
from tests.fakes.joint_cluster import JointCluster, claim

SECRET = "do-not-print-this-token"


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    yield
    logs.configure(level="warning")


def with_secret(name: str) -> Object:
    body = claim(name)
    parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "token": SECRET}
    body["spec"]["devices"]["config"] = [{"opaque": {"driver": "koordra.io", "parameters": parameters}}]
    return body


@pytest.mark.parametrize("json_lines", [False, True])
def test_tracebacks_hold_no_local_values(capsys: pytest.CaptureFixture[str], json_lines: bool) -> None:
    logs.configure(level="debug", json=json_lines)

    def fail(body: Object) -> None:
        raise RuntimeError(f"defect with {len(body)} fields")

    try:
        fail(with_secret("a"))
    except RuntimeError:
        logs.get_logger("koordra.controller.run").exception("pass_failed")
    printed = capsys.readouterr().err
    assert "defect with" in printed
    assert "Traceback" in printed
    assert SECRET not in printed


def test_what_the_server_refuses_is_not_repeated() -> None:
    value = json.dumps(with_secret("a")["spec"])
    told = f'ResourceClaim "a" is invalid: status.allocation: Invalid value: {value}: field is immutable'
    error = wire.status_error(422, {"message": told, "reason": "Invalid"})
    assert isinstance(error, Invalid)
    assert str(error).startswith(
        'ResourceClaim "a" is invalid: status.allocation: Invalid value: {...}: field is immutable'
    )


def test_a_whole_course_of_things_logs_no_body(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure(level="debug")
    cluster = JointCluster()
    cluster.api.create(RESOURCE_CLAIMS, with_secret("refused"))
    cluster.pod("p", "refused")
    cluster.claim("a")
    cluster.pod("q", "a")
    cluster.settle()
    cluster.scheduler_erases("a")
    cluster.settle()

    def broken(*_args: object, **_how: object) -> None:
        raise RuntimeError("a defect inside the allocator")

    monkeypatch.setattr(cluster.reconciler.allocation.placer.engine, "decide", broken)
    body = with_secret("broken")
    body["spec"]["devices"]["config"] = []
    cluster.api.create(
        RESOURCE_CLAIMS, {**body, "metadata": {**claim("broken")["metadata"], "labels": {"x": SECRET}}}
    )
    cluster.pod("r", "broken")
    cluster.settle()
    printed = capsys.readouterr().err
    assert "claim_allocated" in printed
    assert "allocator_defect" in printed
    assert SECRET not in printed
