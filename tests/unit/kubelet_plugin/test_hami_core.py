"""Shares that HAMi's library keeps. What it is told is looked at where it looks, in a process that has loaded
a double of it (tests/fakes/hami_core.c); the real one is in no file of this project."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koordra.api.opaque.isolation import node_policy
from koordra.kubelet_plugin.dra.node_readings import inventory_source
from koordra.kubelet_plugin.isolation import hami_core
from koordra.kubelet_plugin.isolation.hami_core import HamiCore, faults
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.nvidia_driver.homes import HostRoot
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.settings import Settings
from tests.fakes import hami_core as hami
from tests.fakes.node_claims import GPU_0, GPU_1, claim, gpu, parameters, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, refusal

FOLDER = "/usr/local/vgpu"


@pytest.fixture
def host(node: PluginNode, tmp_path: Path) -> Path:
    """The host's root, with HAMi's folder; the plugin sees it elsewhere than the runtime."""
    root = tmp_path / "host"
    hami.install(root / FOLDER[1:])
    own = HamiCore(HostRoot(root, Path("/")))
    node.backends, node.hook = backends(own), "/hook/koordra-cdi-hook"
    node.inventory = replace(node.inventory, offering=Offering(isolation=node_policy(["hami-core"])))
    return root


def share(number: int = 1, memory: str = "2Gi", cores: str = "30", **config: Any) -> dict[str, Any]:
    result = gpu("gpu", GPU_0, memory, cores=cores, share="s")
    return claim(number, result, config=[parameters("GpuConfig", isolation="hami-core", **config)])


@pytest.mark.usefixtures("host")
def test_a_share_gets_what_hamis_device_plugin_gives(
    node: PluginNode, golden: Callable[[str, str], None]
) -> None:
    prepare(node, share(coresPolicy="Hard"))
    golden("kubelet_plugin/hami_core.cdi.json", node.shown(node.paths.cdi_file(uid(1))))


@pytest.mark.usefixtures("host")
def test_without_the_hook_it_is_refused(node: PluginNode) -> None:
    """Nobody would refuse an image of musl, whose loader passes the library over."""
    node.hook = None
    assert "isolation limiter and hami-core need it" in refusal(node, share())


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"memory": "2Gi", "coresPolicy": "Hard"}, "memory=2048m memory_0=2048m cores=30 policy=force"),
        (
            {"memory": "1536Mi", "coresPolicy": "Elastic"},
            "memory=1536m memory_0=1536m cores=30 policy=disable",
        ),
        ({"cores": "7"}, "memory=2048m memory_0=2048m cores=7 policy=-"),
        ({"cores": "0"}, "memory=2048m memory_0=2048m cores=- policy=-"),
    ],
)
def test_what_the_library_is_told(
    host: Path, node: PluginNode, tmp_path: Path, asked: dict[str, Any], told: str
) -> None:
    edits = prepare(node, share(**asked)).devices[0].edits
    cache = tmp_path / "cache"
    own = {hami_core._SHARED: str(cache), "LD_PRELOAD": str(host / FOLDER[1:] / "libvgpu.so")}
    subprocess.run(["/bin/true"], env={**dict(edits.env), **own}, check=True)
    found, _, _lock = cache.read_text().rpartition(" lock=")
    assert found == f"true {told}"


@pytest.mark.usefixtures("host")
def test_containers_count_by_themselves_and_cards_by_one_limit(node: PluginNode) -> None:
    """The numbers of a claim's cards; of containers with two sizes the hook refuses the variables."""
    both = claim(
        1,
        gpu("gpu", GPU_0, "2Gi", share="s"),
        gpu("other", GPU_1, "3Gi", share="t"),
        config=[parameters("GpuConfig", isolation="hami-core")],
    )
    first, second = (dict(device.edits.env) for device in prepare(node, both).devices)
    limits = [name for name in first if name.startswith("CUDA_DEVICE_MEMORY_LIMIT")]
    assert sorted(limits) == [f"CUDA_DEVICE_MEMORY_LIMIT{number}" for number in ("", "_0", "_1")]
    assert {first[name] for name in limits} == {"2048m"}
    assert {second[name] for name in limits} == {"3072m"}
    (mount,) = (one for one in node.spec(uid(1))["devices"][0]["containerEdits"]["mounts"] if "type" in one)
    assert (mount["type"], mount["containerPath"]) == ("tmpfs", "/tmp/vgpulock")


@pytest.mark.usefixtures("host")
def test_shares_of_one_card_in_one_claim_are_one(node: PluginNode) -> None:
    twice = claim(
        1,
        gpu("gpu", GPU_0, "2Gi", cores="10", share="s"),
        gpu("other", GPU_0, "3Gi", cores="20", share="t"),
        config=[parameters("GpuConfig", isolation="hami-core")],
    )
    for device in prepare(node, twice).devices:
        env = dict(device.edits.env)
        assert (env["CUDA_DEVICE_MEMORY_LIMIT"], env["CUDA_DEVICE_SM_LIMIT"]) == ("5120m", "30")
        assert "CUDA_DEVICE_MEMORY_LIMIT_1" not in env


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def mode(name: str, bits: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).chmod(bits)


def foreign(folder: Path) -> None:
    library = folder / "libvgpu.so"
    found = bytearray(library.read_bytes())
    found[18:20] = (8).to_bytes(2, "little")
    library.write_bytes(found)


def older(folder: Path) -> None:
    library = folder / "libvgpu.so"
    library.write_bytes(library.read_bytes().replace(b"GPU_CORE_UTILIZATION_POLICY", b"X" * 27))


@pytest.mark.parametrize(
    ("change", "problem", "remedy"),
    [
        (remove("libvgpu.so"), "libvgpu.so is not on this node", "HAMi's DaemonSet"),
        (write("libvgpu.so", b""), "libvgpu.so is not on this node, or empty", "HAMi's DaemonSet"),
        (write("libvgpu.so", b"#!/bin/sh\n"), "is no library for", "HAMi's DaemonSet"),
        (foreign, "is no library for", "HAMi's DaemonSet"),
        (older, "does not know GPU_CORE_UTILIZATION_POLICY", "HAMi's DaemonSet"),
        (mode("libvgpu.so", 0o757), "everybody may write", "chmod o-w"),
        (mode(".", 0o777), f"everybody may write {FOLDER}", f"chmod o-w {FOLDER}"),
        (mode("libvgpu.so", 0o700), "not everybody may read", "chmod a+rX"),
        (mode(".", 0o700), "not everybody may read", "chmod a+rX"),
        (remove("ld.so.preload"), "does not name", f"echo {FOLDER}/libvgpu.so > "),
        (write("ld.so.preload", b"/lib/x.so /usr/local/vgpu/libvgpu.so\n"), "does not name", "echo "),
    ],
)
def test_a_folder_that_cannot_be_used_is_offered_to_nobody(
    host: Path, node: PluginNode, change: Callable[[Path], object], problem: str, remedy: str
) -> None:
    change(host / FOLDER[1:])
    own = node.backends["hami-core"]
    assert problem in str(own.unavailable)
    assert remedy in str(own.unavailable)
    text = refusal(node, share())
    assert "BackendUnavailable" in text
    assert problem in text


def test_the_node_publishes_it_where_it_is_and_says_why_not(
    host: Path, tmp_path: Path, node: PluginNode
) -> None:
    settings = Settings(
        "n",
        tmp_path,
        node.paths,
        offering=Offering(isolation=node_policy(["limiter", "hami-core"])),
        host=HostRoot(host, Path("/")),
    )
    own = HamiCore(settings.homes.host)
    known = {"hami-core": own, "limiter": HamiCore(HostRoot(tmp_path / "nowhere", Path("/")))}
    with capture_logs() as lines:
        source = inventory_source(settings, known)
    assert source._offering.isolation.allowed == ("hami-core",)
    (line,) = [line for line in lines if line["event"] == "isolation_backend_unavailable"]
    assert (line["backend"], "is not on this node" in line["why"]) == ("limiter", True)


def test_links_are_followed_below_the_hosts_root(host: Path, node: PluginNode) -> None:
    """HAMi's DaemonSet may keep several releases."""
    folder = host / FOLDER[1:]
    (folder / "libvgpu.so").rename(folder / "libvgpu.so.v2.10")
    (folder / "libvgpu.so").symlink_to("libvgpu.so.v2.10")
    assert not list(faults(host, FOLDER))
    mounts = {one.container_path: one.host_path for one in prepare(node, share()).devices[0].edits.mounts}
    assert mounts[f"{FOLDER}/libvgpu.so"] == f"{FOLDER}/libvgpu.so.v2.10"
