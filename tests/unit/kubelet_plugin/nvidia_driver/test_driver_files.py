"""What containers get of the driver: compared with what nvidia-ctk gives for the same trees, by the parts
that are asked for, and never from outside the root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.api.opaque.driver_capabilities import ALL, DriverCapability
from koordra.kubelet_plugin.claims.claim_record import READ_ONLY, ContainerEdits
from koordra.kubelet_plugin.nvidia_driver.driver_files import (
    AGE_S,
    DriverFilesSource,
    driver_files,
    in_default_folders,
)
from koordra.kubelet_plugin.nvidia_driver.driver_libraries import library_paths
from koordra.kubelet_plugin.nvidia_driver.driver_root import DriverRoot
from koordra.kubelet_plugin.nvidia_driver.homes import HostRoot, named_home
from tests.fakes.clock import Clock
from tests.fakes.driver_homes import VERSION as VERSION_580
from tests.fakes.driver_homes import ld_cache
from tests.fakes.driver_tree import X86_64, Layout, build, link, put, shared_object

FACTS = Path(__file__).parent / "nvidia-ctk"
VERSION = "550.54.15"
FOLDER = f"/usr/lib/{os.uname().machine}-linux-gnu"


def install(root: Path, folder: str, *names: str) -> None:
    """Libraries with their soname links."""
    for name in names:
        put(root, f"{folder}/{name}.{VERSION}", shared_object(f"{name}.1"))
        link(root, f"{folder}/{name}.1", f"{name}.{VERSION}")


def home(root: Path) -> DriverRoot:
    return named_home(root, HostRoot(root, root))


def given_to_containers(root: Path, version: str = VERSION) -> ContainerEdits:
    return driver_files(home(root), version).edits()


def libraries(root: Path) -> dict[str, str]:
    """Container path -> path below the root."""
    edits = given_to_containers(root)
    return {mount.container_path: f"/{os.path.relpath(mount.host_path, root)}" for mount in edits.mounts}


def facts(layout: Layout, kind: str) -> set[str]:
    lines = (FACTS / f"{layout}.txt").read_text().splitlines()
    return {line.removeprefix(f"common {kind} ") for line in lines if line.startswith(f"common {kind} ")}


def spelled(edits: ContainerEdits, root: Path) -> set[str]:
    found = set()
    for mount in edits.mounts:
        assert mount.options == READ_ONLY
        host = mount.host_path.removeprefix(str(root))
        found.add(mount.container_path + (f" from {host}" if host != mount.container_path else ""))
    return found


needs_x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the tree is that of an x86-64 host")


@needs_x86_64
@pytest.mark.parametrize("layout", Layout)
def test_everything_that_nvidia_ctk_gives(tmp_path: Path, layout: Layout) -> None:
    build(tmp_path, layout)
    edits = given_to_containers(tmp_path, VERSION_580)
    firmware = {f"/lib/firmware/nvidia/{VERSION_580}/gsp_{kind}10x.bin" for kind in ("ga", "tu")}
    sockets = {line for line in facts(layout, "mount") if line.endswith(")")}
    assert spelled(edits, tmp_path) ^ facts(layout, "mount") == sockets | firmware | {
        f"{path} from /usr{path}" for path in firmware
    }
    assert edits.library_folders == tuple(sorted(facts(layout, "folder")))
    links = {f"{link.path} to {link.target}" for link in edits.links}
    assert links >= facts(layout, "link")
    assert links - facts(layout, "link") == {
        # Its hook runs ldconfig, which makes these.
        f"{layout.libraries}/libnvidia-egl-{name}.so.1 to libnvidia-egl-{name}.so.{version}"
        for name, version in (("gbm", "1.1.2"), ("wayland", "1.1.20"), ("xcb", "1.0.3"), ("xlib", "1.0.3"))
    }


@needs_x86_64
@pytest.mark.parametrize("layout", Layout)
def test_32_bit_libraries_other_versions_and_others_files_are_left_out(
    tmp_path: Path, layout: Layout
) -> None:
    build(tmp_path, layout)
    put(tmp_path, f"{layout.libraries}/libcuda.so.570.86.15", shared_object("libcuda.so.1"))
    put(tmp_path, f"{layout.libraries}/libnvidia-glvkspirv.so.{VERSION_580}", shared_object("x", bits=32))
    edits = given_to_containers(tmp_path, VERSION_580)
    given = {mount.host_path.removeprefix(str(tmp_path)) for mount in edits.mounts}
    for name in (
        "libcudart",
        "570.86.15",
        "libnvidia-container",
        "glvkspirv",
        "libOpenCL",
        "modprobe",
        "50_mesa",
    ):
        assert not [path for path in given if name in path]
    assert not [path for path in given if path.startswith(f"{layout.libraries_32}/libcuda")]


def names(edits: ContainerEdits) -> set[str]:
    return {mount.container_path.rpartition("/")[2].partition(".")[0] for mount in edits.mounts}


@needs_x86_64
def test_only_the_parts_that_are_asked_for(tmp_path: Path) -> None:
    build(tmp_path, Layout.DEBIAN)
    files = driver_files(home(tmp_path), VERSION_580)
    compute = files.edits(frozenset({DriverCapability.COMPUTE}))
    assert {"libcuda", "libnvidia-ptxjitcompiler", "libnvidia-nvvm70", "nvidia-cuda-mps-control"} <= names(
        compute
    )
    assert not names(compute) & {"libnvidia-ml", "nvidia-smi", "libGLX_nvidia", "libnvcuvid", "nvidia_drv"}
    assert compute.library_folders == ("/usr/lib/x86_64-linux-gnu",)
    assert not [link for link in compute.links if "libnvidia-ml" in link.target]
    assert "libnvidia-ml" in names(files.edits(frozenset({DriverCapability.UTILITY})))
    graphics = names(files.edits(frozenset({DriverCapability.GRAPHICS})))
    assert {"libGLX_nvidia", "libnvidia-gpucomp", "10_nvidia", "nvidia_icd", "nvoptix"} <= graphics
    assert "nvidia_drv" in names(files.edits(frozenset({DriverCapability.DISPLAY})))
    assert {"libnvcuvid", "libvdpau_nvidia"} <= names(files.edits(frozenset({DriverCapability.VIDEO})))
    parts = [names(files.edits(frozenset({each}))) for each in ALL]
    assert set().union(*parts) == names(files.edits())


def test_a_library_that_nobody_knows_comes_with_any_part(tmp_path: Path) -> None:
    install(tmp_path, FOLDER, "libcuda.so", "libnvidia-of-tomorrow.so")
    files = driver_files(home(tmp_path), VERSION)
    for part in (DriverCapability.COMPUTE, DriverCapability.NGX):
        assert "libnvidia-of-tomorrow" in names(files.edits(frozenset({part})))


def test_bare_libcuda_although_the_host_has_no_such_link(tmp_path: Path) -> None:
    install(tmp_path, FOLDER, "libcuda.so")
    links = {link.path: link.target for link in given_to_containers(tmp_path).links}
    assert links == {
        f"{FOLDER}/libcuda.so": "libcuda.so.1",
        f"{FOLDER}/libcuda.so.1": f"libcuda.so.{VERSION}",
    }


def test_links_by_way_of_etc_alternatives(tmp_path: Path) -> None:
    """As Debian's own packages have them."""
    install(tmp_path, f"{FOLDER}/nvidia/current", "libcuda.so")
    link(tmp_path, "/etc/alternatives/glx--libcuda", f"{FOLDER}/nvidia/current/libcuda.so.1")
    link(tmp_path, f"{FOLDER}/libcuda.so.1", "/etc/alternatives/glx--libcuda")
    edits = given_to_containers(tmp_path)
    assert libraries(tmp_path).keys() == {f"{FOLDER}/nvidia/current/libcuda.so.{VERSION}"}
    assert edits.library_folders == (f"{FOLDER}/nvidia/current",)


def test_folders_that_only_the_cache_names(tmp_path: Path) -> None:
    install(tmp_path, "/opt/driver", "libcuda.so", "libnvidia-ml.so")
    assert libraries(tmp_path) == {}
    put(tmp_path, "/etc/ld.so.cache", ld_cache(("libcuda.so.1", "/opt/driver/libcuda.so.1", X86_64)))
    assert libraries(tmp_path).keys() == {
        f"/opt/driver/{name}.{VERSION}" for name in ("libcuda.so", "libnvidia-ml.so")
    }
    assert library_paths(home(tmp_path), "libnvidia-ml.so.1") == (f"/opt/driver/libnvidia-ml.so.{VERSION}",)


def test_a_library_in_two_folders_counts_once(tmp_path: Path) -> None:
    for folder in ("/usr/lib64", FOLDER):
        install(tmp_path, folder, "libcuda.so")
    assert libraries(tmp_path).keys() == {f"/usr/lib64/libcuda.so.{VERSION}"}


def test_a_link_that_carries_the_version(tmp_path: Path) -> None:
    """Some RPMs have the library under its SONAME, and the name with the version is the link."""
    install(tmp_path, FOLDER, "libcuda.so")
    put(tmp_path, f"{FOLDER}/libGLX_nvidia.so.0", shared_object("libGLX_nvidia.so.0"))
    link(tmp_path, f"{FOLDER}/libGLX_nvidia.so.{VERSION}", "libGLX_nvidia.so.0")
    edits = given_to_containers(tmp_path)
    assert f"{FOLDER}/libGLX_nvidia.so.0" in {mount.container_path for mount in edits.mounts}
    assert (f"{FOLDER}/libGLX_nvidia.so.{VERSION}", "libGLX_nvidia.so.0") in {
        (link.path, link.target) for link in edits.links
    }


def test_a_root_that_holds_nothing_but_the_driver(tmp_path: Path) -> None:
    """Google's Container-Optimized OS: lib64, bin and vulkan, and no cache."""
    install(tmp_path, "/lib64", "libcuda.so", "libnvidia-ml.so")
    put(tmp_path, "/bin/nvidia-smi", mode=0o755)
    put(tmp_path, "/vulkan/icd.d/nvidia_icd.json")
    assert libraries(tmp_path) == {
        **{
            f"/lib64/{name}.{VERSION}": f"/lib64/{name}.{VERSION}"
            for name in ("libcuda.so", "libnvidia-ml.so")
        },
        "/usr/bin/nvidia-smi": "/bin/nvidia-smi",
        "/etc/vulkan/icd.d/nvidia_icd.json": "/vulkan/icd.d/nvidia_icd.json",
    }


def test_links_stay_inside_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    install(root, "/real", "libcuda.so")
    link(root, "/usr/lib64", "/real")
    link(root, "/real/libnvidia-loop.so.1", "libnvidia-loop.so.1")
    link(root, f"/real/libnvidia-out.so.{VERSION}", "../../../../../../../../etc/passwd")
    assert libraries(root) == {f"/real/libcuda.so.{VERSION}": f"/real/libcuda.so.{VERSION}"}
    put(root, "/etc/passwd")
    assert "/etc/passwd" in libraries(root)  # the root's own


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    root, linked = tmp_path / "root", tmp_path / "linked"
    install(root, "/usr/lib64", "libcuda.so")
    linked.symlink_to(root)
    assert libraries(linked) == libraries(root) != {}


@pytest.mark.parametrize("version", [None, "", "550.*", "535.129.03"])
def test_no_driver_no_mounts(tmp_path: Path, version: str | None) -> None:
    install(tmp_path, "/usr/lib64", "libcuda.so")
    files = driver_files(home(tmp_path), version)
    assert files.files == ()


def test_every_name_of_a_library_in_both_default_folders(tmp_path: Path) -> None:
    install(tmp_path, "/opt/lib", "libcuda.so")
    put(tmp_path, "/etc/ld.so.cache", ld_cache(("libcuda.so.1", "/opt/lib/libcuda.so.1", X86_64)))
    edits = in_default_folders(given_to_containers(tmp_path))
    assert {mount.container_path for mount in edits.mounts} == {
        f"{folder}/libcuda.so{ending}"
        for folder in (FOLDER, "/usr/lib64")
        for ending in ("", ".1", f".{VERSION}")
    } | {f"/opt/lib/libcuda.so.{VERSION}"}
    assert {mount.host_path for mount in edits.mounts} == {str(tmp_path / f"opt/lib/libcuda.so.{VERSION}")}


def test_files_are_read_again_when_something_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, FOLDER, "libcuda.so")
    reads = []
    monkeypatch.setattr(
        "koordra.kubelet_plugin.nvidia_driver.driver_files.driver_files",
        lambda driver, version: reads.append(version) or driver_files(driver, version),
    )
    clock = Clock()
    source = DriverFilesSource(clock=clock.monotonic)
    assert source.files(home(tmp_path), VERSION) is source.files(home(tmp_path), VERSION)
    assert len(reads) == 1
    install(tmp_path, FOLDER, "libnvidia-ml.so")
    assert len(source.files(home(tmp_path), VERSION).files) == 2
    assert source.files(home(tmp_path), "535.129.03").files == ()
    clock.now += AGE_S
    source.files(home(tmp_path), "535.129.03")
    assert len(reads) == 4


@given(st.binary(max_size=200))
def test_a_damaged_cache_names_no_folder(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    root = tmp_path_factory.mktemp("root")
    install(root, "/usr/lib64", "libcuda.so")
    put(root, "/etc/ld.so.cache", noise)
    assert list(libraries(root)) == [f"/usr/lib64/libcuda.so.{VERSION}"]
