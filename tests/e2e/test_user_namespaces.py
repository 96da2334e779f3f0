"""A GPU's container in a pod with a user namespace of its own (`hostUsers: false`): its root is nobody on the
node, makes no device nodes and mounts, and the hook runs as it.

runc has such pods since 1.2 (idmapped mounts). Where the distribution's is older, `newer` (conftest.py) can
bring one in usr/sbin/runc.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.e2e.conftest import runtimes
from tests.e2e.containerd import Containerd, wait_until
from tests.e2e.cri import ContainerSpec, compile_proto
from tests.e2e.debian import Runtime
from tests.e2e.loader_images import COMPAT, DEBIAN
from tests.e2e.node import NAMESPACE, KoordraNode, Prepared
from tests.e2e.test_containers import ALLOWED, dns_label, node_of, whole
from tests.e2e.test_driver_cards import PARAMETERS, PROFILE, group_owned, loaded  # noqa: F401  fixtures
from tests.e2e.test_limiter import SHARE
from tests.e2e.test_loader import OUT_OF_MEMORY, Loaders, images, loaders  # noqa: F401  fixtures

pytestmark = pytest.mark.e2e

FIRST_USER = 300000


@pytest.fixture(scope="module", params=["sid", "newer"])
def containerd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    runtime = request.config.stash[runtimes][request.param]
    if not maps_users(runtime):
        pytest.skip("this runc cannot map the users of mounts; 1.2 and later can")
    modules = compile_proto(tmp_path_factory.mktemp("cri"))
    with tempfile.TemporaryDirectory(prefix="k") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the container's root has to pass
        running = Containerd(runtime, folder, modules)
        try:
            running.start()
            running.allow_own_networks()
            yield running
        finally:
            running.clean_up()


@pytest.fixture(scope="module")
def node(containerd: Containerd) -> Iterator[KoordraNode]:
    with tempfile.TemporaryDirectory(prefix="k") as name:
        Path(name).chmod(0o755)
        koordra = KoordraNode(Path(name), cdi=containerd.cdi, nri_socket=containerd.nri_socket)
        try:
            koordra.start()
            yield koordra
        finally:
            koordra.stop()


def maps_users(runtime: Runtime) -> bool:
    done = subprocess.run([runtime.runc, "features"], capture_output=True, text=True, check=False)
    linux = json.loads(done.stdout or "{}").get("linux") or {}
    return bool(((linux.get("mountExtensions") or {}).get("idmap") or {}).get("enabled"))


@pytest.fixture
def pod_uid(node: KoordraNode, request: pytest.FixtureRequest) -> str:
    """Of the pod in the API."""
    return node.make_pod(dns_label(request), namespace=NAMESPACE, own_users=True)


@pytest.fixture
def pod(
    containerd: Containerd, node: KoordraNode, pod_uid: str, request: pytest.FixtureRequest
) -> Iterator[str]:
    made: list[str] = []

    def can_run() -> bool:
        try:
            made.append(
                containerd.cri.run_pod(
                    dns_label(request), own_network=True, uid=pod_uid, first_user=FIRST_USER
                )
            )
        except grpc.RpcError as error:
            assert "cni plugin not initialized" in str(error), error
        return bool(made)

    wait_until(can_run, "containerd takes up its network", log=containerd.log)
    yield made[0]
    containerd.cri.remove_pod(made[0])


@pytest.fixture
def prepare(
    node: KoordraNode, pod_uid: str, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Prepared]]:
    """Claims of the test's pod."""
    name, claims = dns_label(request), []

    def make(*results: Any, config: Sequence[Any] = ()) -> Prepared:
        claims.append(node.prepare(f"{name}-{len(claims)}", results, config=config, pods={name: pod_uid}))
        return claims[-1]

    yield make
    for claim in claims:
        node.unprepare(claim)


@pytest.mark.usefixtures("group_owned")
def test_a_card_in_a_pod_with_users_of_its_own(
    containerd: Containerd,
    node: KoordraNode,
    pod: str,
    prepare: Callable[..., Prepared],
    loaded: str,  # noqa: F811
) -> None:
    card = node.machine.gpus[1]
    claim = prepare(whole(card))
    container = containerd.cri.run(pod, "c", ContainerSpec(cdi=[loaded, *claim.all_cdi], capabilities=()))

    def said(script: str) -> str:
        return containerd.cri.shell(container, script).text

    assert said("cat /proc/self/uid_map").split() == ["0", str(FIRST_USER), "65536"]
    assert ALLOWED in said(f"dd if={node_of(card).path} count=1")
    assert said("cat /proc/driver/nvidia/params") == PARAMETERS.format(0)
    assert f'"EGLVisibleDGPUDevices",{1 << node_of(card).minor:#x}]' in said(f"cat {PROFILE}")


@pytest.mark.usefixtures("group_owned")
def test_a_share_in_a_pod_with_users_of_its_own(loaders: Loaders) -> None:  # noqa: F811
    container = loaders.start(DEBIAN)
    said = loaders.tenant(container, LD_LIBRARY_PATH=COMPAT)
    assert (said["opened"], said["init"], said["past"], said["total"]) == (True, 0, OUT_OF_MEMORY, SHARE)
    assert "libcuda.so.1 (" in loaders.text(container, "/sbin/ldconfig -p")
    assert "Read-only" in loaders.text(container, "echo > /etc/ld.so.preload")
