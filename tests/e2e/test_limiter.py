"""A share with isolation `limiter`, in a real container: the program in it cannot allocate past its share.

The driver is the fake one of native/test: real enough that a program opens libcuda.so.1, as a statically
linked runtime does, and has its requests refused or granted. The image has no C library, so the loader and
its libraries are mounted from here.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, names
from koordra.kubelet_plugin.isolation.limiter import usage as limiter_usage
from tests.e2e.containerd import Containerd, wait_until
from tests.e2e.cri import ContainerSpec, HostMount
from tests.e2e.node import NAMESPACE, KoordraNode, Prepared
from tests.e2e.test_containers import pod, prepare, share_of  # noqa: F401  fixtures
from tests.unit.limiter.native_build import build

pytestmark = pytest.mark.e2e

SHARE = 10 << 30


@dataclass(frozen=True)
class Tenant:
    """The program, its loader, and the fake driver's machine, in one folder that containers mount."""

    folder: Path
    card: Path

    @property
    def mounts(self) -> list[HostMount]:
        return [HostMount(str(self.folder), "/tenant"), HostMount(str(self.card), "/run/koordra-fake-cuda")]

    def command(self, share: int) -> str:
        return f"/tenant/loader --library-path /tenant/lib /tenant/tenant {share}"


@pytest.fixture
def tenant(node: KoordraNode, tmp_path: Path) -> Iterator[Tenant]:
    """The fake driver takes the place of the machine's for one test; the machine has one of our cards."""
    out = build()
    made = Tenant(tmp_path / "tenant", tmp_path / "card")
    (made.folder / "lib").mkdir(parents=True)
    made.card.mkdir()
    made.card.chmod(0o777)
    shutil.copy(out / "test" / "tenant", made.folder / "tenant")
    linked = subprocess.run(
        ["ldd", str(out / "cuda" / "libcuda.so.1")], check=True, capture_output=True, text=True
    ).stdout
    for path in re.findall(r"(/\S+)", linked):
        name = Path(path).name
        shutil.copy(path, made.folder / ("loader" if name.startswith("ld-") else f"lib/{name}"))
    gpu = node.machine.gpus[0]
    subprocess.run(
        [str(out / "test" / "tenant"), "--world", str(made.card), str(gpu.uuid), str(gpu.memory_bytes)],
        check=True,
    )
    (made.card / "world").chmod(0o666)
    driver = (
        node.root
        / "usr"
        / "lib"
        / f"{platform.machine()}-linux-gnu"
        / f"libcuda.so.{node.machine.driver_version}"
    )
    before = driver.read_bytes()
    driver.write_bytes((out / "test" / "driver" / "libcuda.so.1").read_bytes())
    node.restart_plugin("--allowed-isolation", "limiter")
    yield made
    driver.write_bytes(before)
    node.restart_plugin()


def limited(**more: Any) -> list[dict[str, Any]]:
    parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "isolation": "limiter", **more}
    return [
        {"source": "FromClaim", "requests": [], "opaque": {"driver": names.DRIVER, "parameters": parameters}}
    ]


def answer(containerd: Containerd, container: str, command: str) -> dict[str, Any]:
    output = containerd.cri.shell(container, command)
    assert output.text.startswith("{"), output.text
    said: dict[str, Any] = json.loads(output.text)
    return said


def room(node: KoordraNode, claim: Prepared) -> int:
    """What the share leaves beside a context."""
    (device,) = limiter_usage.read(node.state / "limiter" / "claims" / claim.uid).devices
    assert device.context_bytes > 0
    return SHARE - device.context_bytes


def limited_condition(node: KoordraNode, claim: Prepared) -> tuple[str, str] | None:
    """Status and reason of the condition `Limited` of the claim's GPU."""
    found = node.api.get(kinds.RESOURCE_CLAIMS, claim.name, namespace=NAMESPACE)
    for entry in (found.get("status") or {}).get("devices") or ():
        for condition in entry.get("conditions") or ():
            if condition["type"] == "Limited":
                return condition["status"], condition["reason"]
    return None


def test_a_program_cannot_allocate_past_its_share(
    containerd: Containerd,
    node: KoordraNode,
    pod: str,  # noqa: F811
    prepare: Callable[..., Prepared],  # noqa: F811
    tenant: Tenant,
) -> None:
    claim = prepare(share_of(node.machine.gpus[0]), config=limited())
    container = containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi, mounts=tenant.mounts))
    region = node.state / "limiter" / "claims" / claim.uid
    assert limiter_usage.read(region).handshake == "waiting"
    wait_until(lambda: limited_condition(node, claim) == ("Unknown", "NoProcessYet"), "the claim's condition")

    said = answer(containerd, container, tenant.command(room(node, claim)))
    assert said == {"opened": True, "init": 0, "past": 2, "within": 0, "free": 0, "total": SHARE}

    use = limiter_usage.read(region)
    assert use.handshake == "enforcing"
    assert use.devices[0].denied == 1
    assert use.devices[0].limit == SHARE
    wait_until(lambda: limited_condition(node, claim) == ("True", "Enforcing"), "the claim's condition")


def test_nothing_in_the_container_lifts_the_limit(
    containerd: Containerd,
    node: KoordraNode,
    pod: str,  # noqa: F811
    prepare: Callable[..., Prepared],  # noqa: F811
    tenant: Tenant,
) -> None:
    claim = prepare(share_of(node.machine.gpus[0]), config=limited())
    container = containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi, mounts=tenant.mounts))
    region = f"/run/koordra/limiter/{claim.uid}"
    for script in (
        f"echo x > {region}/policy",
        f"dd if=/dev/zero of={region}/new count=1",
        f"rm {region}/policy",
    ):
        assert "Read-only file system" in containerd.cri.shell(container, script).text
    environment = (
        "KOORDRA_LIMITER_FOLDER=/tmp KOORDRA_DRIVER_FOLDER=/usr/lib/koordra/driver CUDA_DISABLE_CONTROL=true"
    )
    said = answer(containerd, container, f"{environment} {tenant.command(room(node, claim))}")
    assert (said["past"], said["total"]) == (2, SHARE)
    # A process that is started with no environment at all, as some launchers do.
    said = answer(containerd, container, f"env -i {tenant.command(room(node, claim))}")
    assert (said["past"], said["total"]) == (2, SHARE)
    # Who lives is told by files that the container cannot write, remove or lock for itself alone.
    for script in (f"rm {region}/alive.0", f"echo x > {region}/alive.0", f"echo x > {region}/refused"):
        assert "Read-only file system" in containerd.cri.shell(container, script).text


def test_a_share_without_the_limiter_is_not_limited(
    containerd: Containerd,
    node: KoordraNode,
    pod: str,  # noqa: F811
    prepare: Callable[..., Prepared],  # noqa: F811
    tenant: Tenant,
) -> None:
    """The same program and driver, where the operator allows it: it is the limiter that made the
    difference."""
    node.restart_plugin("--allowed-isolation", "none")
    claim = prepare(share_of(node.machine.gpus[0]))
    container = containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi, mounts=tenant.mounts))
    said = answer(containerd, container, tenant.command(SHARE))
    assert (said["past"], said["total"]) == (0, node.machine.gpus[0].memory_bytes)
