"""The arguments of the CDI hook."""

from __future__ import annotations

from koordra.kubelet_plugin.cdi.container_hook import container_hook
from koordra.kubelet_plugin.claims.claim_record import ContainerEdits, Hook, Link, Mount
from koordra.kubelet_plugin.isolation.hami_core import LIBRARY
from koordra.kubelet_plugin.isolation.limiter.backend import DRIVER_FOLDER, LIMITER_FOLDER

PROGRAM = "/var/lib/koordra/hook/koordra-cdi-hook-0123456789abcdef"
DEBIAN, OTHERS = "/usr/lib/x86_64-linux-gnu", "/usr/lib64"


def mounts(*paths: str) -> ContainerEdits:
    return ContainerEdits(mounts=tuple(Mount(f"/host{path}", path) for path in paths))


def options(hook: Hook, name: str) -> list[str]:
    return [
        value for option, value in zip(hook.arguments, hook.arguments[1:], strict=False) if option == name
    ]


def test_the_hook_is_told_the_folders_and_the_links() -> None:
    hook = container_hook(
        PROGRAM,
        [
            mounts(
                f"{DEBIAN}/libcuda.so.1",
                f"{DEBIAN}/libGLX_nvidia.so.580.95.05",
                f"{OTHERS}/libcuda.so.1",
                f"{OTHERS}/libcuda.so",
                "/usr/bin/nvidia-smi",
                "/run/koordra/limiter/uid",
            ),
            mounts(f"{DRIVER_FOLDER}/libcuda.so.1", LIMITER_FOLDER),
            ContainerEdits(
                links=(
                    Link("libcuda.so.1", f"{DEBIAN}/libcuda.so"),
                    Link("libcuda.so.1", f"{OTHERS}/libcuda.so"),
                )
            ),
        ],
        driver_version="580.95.05",
    )
    assert hook is not None
    assert (hook.name, hook.path, hook.arguments[:2]) == (
        "createContainer",
        PROGRAM,
        ("koordra-cdi-hook", "container"),
    )
    assert options(hook, "--folder") == [DEBIAN, OTHERS]
    assert options(hook, "--link") == [
        f"libcuda.so.1::{DEBIAN}/libcuda.so",
        f"libcuda.so.1::{OTHERS}/libcuda.so",
    ]
    assert options(hook, "--compat") == ["580.95.05"]
    assert options(hook, "--limiter") == [LIMITER_FOLDER]
    assert options(hook, "--fabric") == ["/run/koordra.io/fabric"]


def test_nics_alone_have_the_hook_where_their_class_says_something_to_nccl() -> None:
    """It writes nothing of a driver that this claim does not bring."""
    hook = container_hook(
        PROGRAM, [mounts("/run/koordra.io/fabric/uid/nccl.conf")], driver_version="580.95.05"
    )
    assert hook is not None
    arguments = ("--limiter", LIMITER_FOLDER, "--fabric", "/run/koordra.io/fabric")
    assert hook.arguments == ("koordra-cdi-hook", "container", *arguments)
    assert (
        container_hook(PROGRAM, [mounts("/run/koordra.io/fabric/uid/ucx.conf")], driver_version=None) is None
    )


def test_the_hook_is_told_of_hamis_library_where_the_claim_brings_it() -> None:
    """By its path: the loader needs no folder of it. Also where nothing of the driver comes with it."""
    for driver in ((), (f"{DEBIAN}/libcuda.so.1",)):
        hook = container_hook(PROGRAM, [mounts(LIBRARY, "/etc/ld.so.preload", *driver)], driver_version=None)
        assert hook is not None
        assert options(hook, "--preloaded") == ["/usr/local/vgpu/libvgpu.so"]
        assert options(hook, "--folder") == [DEBIAN] * len(driver)
    hook = container_hook(PROGRAM, [mounts(f"{DEBIAN}/libcuda.so.1")], driver_version=None)
    assert hook is not None
    assert options(hook, "--preloaded") == []


def test_a_claim_without_libraries_has_no_hook() -> None:
    assert container_hook(PROGRAM, [mounts("/dev/infiniband/uverbs0")], driver_version="580.95.05") is None
