"""A share with isolation `limiter`, in a real container: the program in it cannot allocate past its share.

The driver is the fake one of native/test: real enough that a program opens libcuda.so.1, as a statically
linked runtime does, and has its requests refused or granted. The image has no C library, so the loader and
its libraries are mounted from here.
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, names
from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import Conflict
from koordra.evictions import OF_PLUGIN, decode
from koordra.kubelet_plugin.isolation.limiter import usage as limiter_usage
from koordra.kubelet_plugin.sampling.host_processes import HostProcesses
from tests.e2e.containerd import Containerd, wait_until
from tests.e2e.cri import ContainerSpec, HostMount
from tests.e2e.node import NAMESPACE, KoordraNode, Prepared
from tests.e2e.test_containers import pod, prepare, share_of  # noqa: F401  fixtures
from tests.fakes import nvml_library
from tests.fakes.nvml_library import FakeNvml
from tests.unit.limiter.native_build import build

pytestmark = pytest.mark.e2e

OWN = "koordra-system"
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
    with fake_driver(node, made.card):
        yield made


@contextlib.contextmanager
def fake_driver(node: KoordraNode, card: Path) -> Iterator[None]:
    """In place of the machine's; `card` is the folder of its memory, which containers mount."""
    out, gpu = build(), node.machine.gpus[0]
    subprocess.run(
        [str(out / "test" / "tenant"), "--world", str(card), str(gpu.uuid), str(gpu.memory_bytes)], check=True
    )
    (card / "world").chmod(0o666)
    libraries = {name: _library(node, name) for name in ("libcuda", "libnvidia-ml")}
    before = {name: path.read_bytes() for name, path in libraries.items()}
    libraries["libcuda"].write_bytes((out / "test" / "driver" / "libcuda.so.1").read_bytes())
    node.restart_plugin("--allowed-isolation", "limiter")
    yield
    node.plugin.stop()
    for name, path in libraries.items():
        path.write_bytes(before[name])
    node.restart_plugin()


def _library(node: KoordraNode, name: str) -> Path:
    """The file of the machine's driver."""
    folder = node.root / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    return folder / f"{name}.so.{node.machine.driver_version}"


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


@pytest.fixture
def nvml(node: KoordraNode, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNvml:
    """What the plugin loads as the machine's NVML; the test tells it who uses how much."""
    fake = FakeNvml(tmp_path, nvml_library.build())
    fake.describe(node.machine)
    fake.order()
    for name, value in fake.environment.items():
        if name.startswith("KOORDRA_FAKE_NVML"):
            monkeypatch.setenv(name, value)
    library = _library(node, "libnvidia-ml")
    library.unlink()
    shutil.copy(fake.library / "libnvidia-ml.so.1", library)
    for kind, place in (
        (kinds.NAMESPACES, {"name": OWN}),
        (CONFIG_MAPS, {"name": OF_PLUGIN, "namespace": OWN}),
    ):
        with contextlib.suppress(Conflict):
            node.api.create(kind, {**kind.type_meta, "metadata": place})
    node.restart_plugin("--allowed-isolation", "limiter", "--on-overuse", "evict")
    return fake


PAST_THE_LIMITER: dict[str, str] = {
    "a program of its own": "/bin/sleep {time}",
    "under another root": "mkdir -p /tmp/r/bin && cp /bin/busybox /tmp/r/bin/sleep && exec chroot /tmp/r /bin/sleep {time}",
    "in another mount namespace": "exec unshare -m /bin/sh -c 'umount -l /run/koordra/limiter/* && exec /bin/sleep {time}'",
}


@pytest.mark.skipif(
    not HostProcesses(Path("/")).all_seen, reason="NVML's pids are the host's, and these tests see others"
)
@pytest.mark.parametrize("way", PAST_THE_LIMITER)
def test_who_goes_past_the_limiter_is_told_and_evicted(
    containerd: Containerd,
    node: KoordraNode,
    tenant: Tenant,
    nvml: FakeNvml,
    way: str,
) -> None:
    """The program asks the card itself, so that NVML alone knows of it."""
    name = f"past-the-limiter-{list(PAST_THE_LIMITER).index(way)}"
    uid = node.make_pod(name, namespace=NAMESPACE, priority=0)
    claim = node.prepare(name, [share_of(node.machine.gpus[0])], config=limited(), pods={name: uid})
    sandbox = containerd.cri.run_pod(name, uid=uid)
    try:
        spec = ContainerSpec(cdi=claim.all_cdi, mounts=tenant.mounts, capabilities=("SYS_ADMIN",))
        container = containerd.cri.run(sandbox, "c", spec)
        seconds = str(int(uid[:6], 16) + 1_000_000)
        script = PAST_THE_LIMITER[way].format(time=seconds)
        containerd.cri.shell(container, f"/bin/sh -c {shlex.quote(script)} >/dev/null 2>&1 &")
        wait_until(lambda: _processes(container, seconds), "the program")
        (pid,) = _processes(container, seconds)
        nvml.processes((str(node.machine.gpus[0].uuid), "compute", pid, 1 << 30))
        wait_until(lambda: limited_condition(node, claim) == ("False", "OutsideLimiter"), "who is outside")
        nvml.processes((str(node.machine.gpus[0].uuid), "compute", pid, 2 * SHARE))
        wait_until(lambda: limited_condition(node, claim) == ("False", "OverLimit"), "what it has")
        wait_until(lambda: _to_go(node) == [(name, uid)], "whom the controller is to evict")
        (told,) = _told(node, uid)
        assert "its processes have 20480Mi" in told
        nvml.processes()
        wait_until(lambda: limited_condition(node, claim) == ("Unknown", "NoProcessYet"), "its end")
        wait_until(lambda: not _to_go(node), "that nobody has to go any more")
    finally:
        containerd.cri.remove_pod(sandbox)
        node.unprepare(claim)


def _processes(container: str, argument: str) -> list[int]:
    """Those of the container with this last argument, by their pids on the host."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            if words[-1] == argument and container in (process / "cgroup").read_text(errors="replace"):
                found.append(int(process.name))
    return found


def _to_go(node: KoordraNode) -> list[tuple[str, str]]:
    found = node.api.get(CONFIG_MAPS, OF_PLUGIN, namespace=OWN).get("data") or {}
    return [(each.name, each.uid) for entry in found.values() for each in decode(entry)]


def _told(node: KoordraNode, uid: str) -> list[str]:
    events, _ = node.api.list(kinds.EVENTS, namespace=NAMESPACE)
    return [
        event["message"]
        for event in events
        if event["reason"] == "OverLimit" and event["involvedObject"]["uid"] == uid
    ]


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
