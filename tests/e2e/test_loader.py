"""What programs of real images load as CUDA's driver, and that the limiter is in front of it whatever their
image and environment say (native/cdi-hook).

The driver is the fake one of native/test; a program that gets past the limiter is granted more than its
share (`past` 0 instead of 2).
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.e2e.conftest import CACHE
from tests.e2e.containerd import Containerd
from tests.e2e.cri import ContainerSpec, HostMount
from tests.e2e.debian import Unavailable
from tests.e2e.loader_images import (
    CALLER,
    COMPAT,
    DEBIAN,
    DISTROLESS,
    GCOMPAT,
    MUSL,
    NEWER,
    STUBS,
    TRIPLET,
    WRAPPER,
    make_images,
)
from tests.e2e.node import KoordraNode, Prepared
from tests.e2e.test_containers import pod, prepare, share_of, whole  # noqa: F401  fixtures
from tests.e2e.test_limiter import SHARE, fake_driver, limited
from tests.fakes.hami_core import install
from tests.unit.limiter.native_build import build

pytestmark = pytest.mark.e2e

OUT_OF_MEMORY = 2
OURS = f"/usr/lib/{TRIPLET}"


@dataclass(frozen=True)
class Loaders:
    """Containers with a share or a card, of any image."""

    containerd: Containerd
    node: KoordraNode
    pod: str
    prepare: Callable[..., Prepared]
    card: Path
    made: list[str]

    def start(self, image: str, *, card: int | None = None, **more: Any) -> str:
        """With a share of the first card, or with all of the card of this number."""
        gpu = self.node.machine.gpus[card or 0]
        claim = (
            self.prepare(whole(gpu)) if card is not None else self.prepare(share_of(gpu), config=limited())
        )
        mounts = [HostMount(str(self.card), "/run/koordra-fake-cuda")]
        self.made.append(image)
        name = f"c{len(self.made)}"
        return self.containerd.cri.run(
            self.pod, name, ContainerSpec(cdi=claim.all_cdi, image=image, mounts=mounts, **more)
        )

    def text(self, container: str, command: str) -> str:
        return self.containerd.cri.shell(container, command).text

    def tenant(self, container: str, command: str = "/tenant", **env: str) -> dict[str, Any]:
        variables = " ".join(f"{name}={value}" for name, value in env.items())
        output = self.text(container, f"{variables} {command} {SHARE}")
        assert output.startswith("{"), output
        said: dict[str, Any] = json.loads(output)
        return said


@pytest.fixture(scope="module")
def images(containerd: Containerd, node: KoordraNode, tmp_path_factory: pytest.TempPathFactory) -> None:
    major = int(str(node.machine.driver_version).partition(".")[0])
    try:
        made = make_images(
            tmp_path_factory.mktemp("images"), cache=CACHE, built=build(), newer_version=f"{major + 10}.44.01"
        )
    except Unavailable as error:
        pytest.skip(f"no glibc of Debian's for images: {error}")
    containerd.import_images(made)


@pytest.fixture
def loaders(
    containerd: Containerd,
    node: KoordraNode,
    pod: str,  # noqa: F811
    prepare: Callable[..., Prepared],  # noqa: F811
    tmp_path: Path,
    images: None,
) -> Iterator[Loaders]:
    card = tmp_path / "card"
    card.mkdir()
    card.chmod(0o777)
    with fake_driver(node, card):
        yield Loaders(containerd, node, pod, prepare, card, [])


def libcuda_dirs(run: Callable[[str], str], environ: Mapping[str, str]) -> list[str]:
    """The folders of libcuda that Triton 3 links with (third_party/nvidia/backend/driver.py): what
    TRITON_LIBCUDA_PATH says; else those of every line of `/sbin/ldconfig -p` with the name; only if there is
    none, those of LD_LIBRARY_PATH that have the file. It gives up where none of them has it."""
    if environ.get("TRITON_LIBCUDA_PATH"):
        return [environ["TRITON_LIBCUDA_PATH"]]

    def has(folder: str) -> bool:
        return run(f"test -e {folder}/libcuda.so.1 && echo yes").strip() == "yes"

    lines = [line for line in run("/sbin/ldconfig -p").splitlines() if "libcuda.so.1" in line]
    folders = [line.split()[-1].rpartition("/")[0] for line in lines]
    if not folders:
        folders = [each for each in environ.get("LD_LIBRARY_PATH", "").split(":") if has(each)]
    assert any(map(has, folders)), "Triton gives up"
    return folders


def find_library(run: Callable[[str], str], name: str) -> str | None:
    """ctypes.util.find_library on Linux: `/sbin/ldconfig -p`, and this machine's kind of library."""
    kind = {"x86_64": "libc6,x86-64", "aarch64": "libc6,AArch64"}[platform.machine()]
    found = re.search(rf"\s+(lib{name}\.[^\s]+)\s+\({kind}", run("/sbin/ldconfig -p"))
    return found[1] if found else None


def test_programs_that_search_by_ldconfig_find_the_driver(loaders: Loaders) -> None:
    container = loaders.start(DEBIAN, card=0)
    lines = loaders.text(container, "/sbin/ldconfig -p").splitlines()
    listed = sorted(line.split()[-1] for line in lines if "libcuda.so" in line)
    assert listed == [f"{OURS}/libcuda.so", f"{OURS}/libcuda.so.1"]
    assert libcuda_dirs(lambda command: loaders.text(container, command), {}) == [OURS]
    assert find_library(lambda command: loaders.text(container, command), "cuda") == "libcuda.so.1"
    assert "libcuda.so.1 (" in loaders.text(container, "/sbin/ldconfig; /sbin/ldconfig -p"), (
        "after an ldconfig of the image's own"
    )


@pytest.mark.parametrize("card", [0, None], ids=["card", "share"])
def test_a_linker_finds_the_driver(loaders: Loaders, card: int | None) -> None:
    """As Triton and Numba call one: the folders that were found, and the bare name."""
    container = loaders.start(DEBIAN, card=card)
    if "yes" not in loaders.text(container, "test -x /usr/bin/ld && echo yes"):
        pytest.skip("there is no ld on this machine to copy into the image")
    (folder,) = libcuda_dirs(lambda command: loaders.text(container, command), {})
    for named in (f"-L{folder} -lcuda", "-lcuda", f"-L{folder} -l:libcuda.so.1"):
        linked = loaders.text(
            container, f"/usr/bin/ld -shared {CALLER} {named} -o /tmp/linked.so && echo linked"
        )
        assert linked == "linked\n", named
        # What it needs is the name of the library, and not of the link that was found.
        assert "libcuda.so.1" in loaders.text(container, "grep -a -o 'libcuda.so[.0-9]*' /tmp/linked.so")
    assert "cannot find" in loaders.text(
        container, f"/usr/bin/ld -shared {CALLER} -lno-such -o /tmp/linked.so"
    )


ACCIDENTS: tuple[dict[str, str], ...] = (
    {},
    {"LD_LIBRARY_PATH": COMPAT},
    {"TENANT_OPENS": "libcuda.so"},
    {"TENANT_OPENS": "libcuda.so", "LD_LIBRARY_PATH": COMPAT},
    {"TENANT_OPENS": f"{COMPAT}/libcuda.so.1"},
    {"TENANT_OPENS": f"{COMPAT}/libcuda.so.470.57.02"},
    {"TENANT_OPENS": "/usr/lib64/libcuda.so.1"},
    {"TENANT_OPENS": "/usr/local/lib/glibc-hwcaps/x86-64-v2/libcuda.so.1"},
    {"TENANT_OPENS": f"{STUBS}/libcuda.so", "LD_LIBRARY_PATH": STUBS},
    {"LD_PRELOAD": WRAPPER, "LD_LIBRARY_PATH": COMPAT},
    {"LD_PRELOAD": WRAPPER, "TENANT_OPENS": f"{COMPAT}/libcuda.so.1"},
)


def test_no_accident_of_an_image_gets_past_the_limiter(loaders: Loaders) -> None:
    container = loaders.start(DEBIAN)
    # Before and after the image makes its own cache anew, as entrypoints do.
    for script in ("true", f"/sbin/ldconfig; /sbin/ldconfig -n {COMPAT}"):
        loaders.text(container, script)
        for env in ACCIDENTS:
            for program in ("/tenant", "/tenant-rpath"):
                said = loaders.tenant(container, program, **env)
                found = said["opened"], said["init"], said["past"], said["total"]
                assert found == (True, 0, OUT_OF_MEMORY, SHARE), (script, env, program)


def test_a_program_with_more_rights_than_its_user_is_limited(loaders: Loaders) -> None:
    """Its loader ignores LD_PRELOAD and LD_LIBRARY_PATH, and reads /etc/ld.so.preload all the same."""
    container = loaders.start(DEBIAN, user=65534)
    for env in ({}, {"TENANT_OPENS": f"{COMPAT}/libcuda.so.1"}):
        said = loaders.tenant(container, "/tenant-setuid", **env)
        assert (said["opened"], said["past"], said["total"]) == (True, OUT_OF_MEMORY, SHARE)


def test_the_same_program_is_not_limited_on_a_whole_card(loaders: Loaders) -> None:
    container = loaders.start(DEBIAN, card=0)
    said = loaders.tenant(container)
    assert (said["opened"], said["past"]) == (True, 0)
    assert loaders.text(container, "cat /etc/ld.so.preload").strip().endswith("No such file or directory")


def test_the_preload_cannot_be_taken_away_by_accident(loaders: Loaders) -> None:
    container = loaders.start(DEBIAN)
    for script in ("echo > /etc/ld.so.preload", "rm -rf /etc/ld.so.preload"):
        assert re.search(r"Read-only file system|busy", loaders.text(container, script))


def test_an_images_newer_driver_stands_behind_the_limiter(loaders: Loaders) -> None:
    container = loaders.start(NEWER)
    said = loaders.tenant(container)
    assert (said["past"], said["total"]) == (OUT_OF_MEMORY, SHARE)
    assert COMPAT in loaders.text(container, "ls -l /usr/lib/koordra/compat/libcuda.so.1")
    card = loaders.start(NEWER, card=1)
    assert f"=> {COMPAT}/libcuda.so.1" in loaders.text(card, "/sbin/ldconfig -p")


@pytest.mark.parametrize("image", [DEBIAN, DISTROLESS], ids=["debian", "distroless"])
def test_every_kind_of_container(loaders: Loaders, image: str) -> None:
    little = 16 << 20
    kinds: tuple[dict[str, Any], ...] = ({}, {"read_only_root": True}, {"user": 65534}, {"memory": little})
    for more in kinds:
        said = loaders.tenant(loaders.start(image, **more))
        found = said["opened"], said["past"], said["total"]
        assert found == (True, OUT_OF_MEMORY, SHARE), more


def test_many_containers_of_one_image_start_at_once(loaders: Loaders) -> None:
    claim = loaders.prepare(share_of(loaders.node.machine.gpus[0]), config=limited())

    def start(number: int) -> str:
        spec = ContainerSpec(cdi=claim.all_cdi, image=DEBIAN)
        return loaders.containerd.cri.run(loaders.pod, f"at-once-{number}", spec)

    with ThreadPoolExecutor(6) as threads:
        started = list(threads.map(start, range(6)))
    for container in started:
        assert loaders.text(container, "grep -c koordra/limiter /etc/ld.so.preload") == "2\n"
        assert "libcuda.so.1 (" in loaders.text(container, "/sbin/ldconfig -p")


def test_a_share_for_an_image_of_musl_is_refused_in_words(loaders: Loaders) -> None:
    for card, image in enumerate((MUSL, GCOMPAT), start=1):
        with pytest.raises(grpc.RpcError, match="this image's C library is musl"):
            loaders.start(image)
        loaders.start(image, card=card)


def test_a_preloaded_driver_is_refused_in_words(loaders: Loaders) -> None:
    with pytest.raises(grpc.RpcError, match="remove it from the pod or its image"):
        loaders.start(DEBIAN, env={"LD_PRELOAD": f"{COMPAT}/libcuda.so.1"})


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a 32-bit program of x86")
def test_a_32_bit_program_starts_without_a_word(loaders: Loaders) -> None:
    container = loaders.start(DEBIAN)
    assert loaders.text(container, "/tenant32 2>&1; echo $?") == "0\n"


def test_two_claims_of_one_container_run_the_hook_twice(loaders: Loaders) -> None:
    first, second = loaders.node.machine.gpus[:2]
    claims = (
        loaders.prepare(share_of(first), config=limited()),
        loaders.prepare(share_of(second), config=limited()),
    )
    mounts = [HostMount(str(loaders.card), "/run/koordra-fake-cuda")]
    spec = ContainerSpec(
        cdi=[each for claim in claims for each in claim.all_cdi], image=DEBIAN, mounts=mounts
    )
    container = loaders.containerd.cri.run(loaders.pod, "both", spec)
    assert loaders.tenant(container)["past"] == OUT_OF_MEMORY


@pytest.mark.usefixtures("images")
def test_hamis_library_is_in_every_program_of_its_shares(
    containerd: Containerd,
    node: KoordraNode,
    pod: str,  # noqa: F811
    prepare: Callable[..., Prepared],  # noqa: F811
) -> None:
    """A double of it, which writes down what it is told where its processes would count."""
    install(node.root / "opt/vgpu")
    node.restart_plugin("--allowed-isolation", "hami-core", "--hami-core", "/opt/vgpu")
    try:
        claim = prepare(
            share_of(node.machine.gpus[0]), config=limited(isolation="hami-core", coresPolicy="Hard")
        )
        told: list[str] = []
        for number, user in enumerate((0, 1000)):
            spec = ContainerSpec(cdi=claim.all_cdi, image=DEBIAN, read_only_root=bool(user), user=user)
            container = containerd.cri.run(pod, f"c{number}", spec)
            for script in ("/usr/bin/getconf PAGE_SIZE", "LD_PRELOAD= /usr/bin/getconf PAGE_SIZE"):
                assert containerd.cri.shell(container, script).text.strip().isdigit()
            told.append(containerd.cri.shell(container, "cat /tmp/vgpulock/cudevshr.cache").text)
            assert (
                "Read-only" in containerd.cri.shell(container, "echo > /usr/local/vgpu/libvgpu.so").text
                or user
            )
        size = f"{SHARE >> 20}m"
        line = f"getconf memory={size} memory_0={size} cores=25 policy=force lock=held\n"
        assert told == [2 * line, 2 * line], "each container counts by itself"
        for number, image in enumerate((MUSL, GCOMPAT)):
            with pytest.raises(grpc.RpcError, match="this image's C library is musl"):
                containerd.cri.run(pod, f"musl{number}", ContainerSpec(cdi=claim.all_cdi, image=image))
    finally:
        node.restart_plugin()
