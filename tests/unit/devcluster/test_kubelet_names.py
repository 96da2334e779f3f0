"""Names of pods in the hosts file: those that the cluster's DNS would answer."""

from __future__ import annotations

from typing import Any

import pytest

from koordra_devcluster.kubelet.names import hosts


def pod(name: str, ip: str = "127.20.0.1", *, ready: bool = True, **spec: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"podIP": ip, "phase": "Running", "conditions": conditions}
    return {
        "metadata": {"name": name, "namespace": "team", "labels": {"job-name": "train"}},
        "spec": spec,
        "status": status,
    }


def service(name: str = "train", namespace: str = "team", **spec: Any) -> dict[str, Any]:
    body = {"clusterIP": "None", "selector": {"job-name": "train"}, **spec}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": body}


def known(pods: list[dict[str, Any]], *services: dict[str, Any]) -> dict[str, str]:
    lines = [line.split() for line in hosts(pods, services, "team").splitlines()]
    return {name: ip for ip, *names in lines for name in names if name != "localhost"}


def test_a_pod_is_known_by_host_name_and_service() -> None:
    found = known([pod("train-0-x", hostname="train-0", subdomain="train")], service())
    assert found.keys() == {
        "train-0",
        *(f"train-0.train{more}" for more in ("", ".team", ".team.svc", ".team.svc.cluster.local")),
        *(f"train{more}" for more in ("", ".team", ".team.svc", ".team.svc.cluster.local")),
    }


@pytest.mark.parametrize(
    "services",
    [
        (),
        (service("other"),),
        (service(clusterIP="10.0.0.1"),),
        (service(selector={"job-name": "other"}),),
        (service(selector=None),),
        (service(namespace="else"),),
    ],
)
def test_without_its_service_a_pod_is_not_known_there(services: tuple[dict[str, Any], ...]) -> None:
    assert "train-0.train" not in known([pod("p", hostname="train-0", subdomain="train")], *services)


def test_who_is_not_ready_is_known_where_the_service_says_so() -> None:
    early = pod("p", ready=False, hostname="train-0", subdomain="train")
    assert "train-0.train" not in known([early], service())
    assert "train-0.train" in known([early], service(publishNotReadyAddresses=True))


def test_who_has_ended_or_has_no_address_is_not_known() -> None:
    ended = pod("p", hostname="train-0", subdomain="train")
    ended["status"]["phase"] = "Succeeded"
    assert known([ended, pod("q", ip="", hostname="q", subdomain="train")], service()) == {}
