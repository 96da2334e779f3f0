"""The backend: what a container gets, and what is on the node for it."""

from __future__ import annotations

import json
import platform
import struct
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordra.api.opaque.parameters import CoresPolicy, GpuConfig
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import ContainerEdits, Mount
from koordra.kubelet_plugin.isolation.backend import Share
from koordra.kubelet_plugin.isolation.limiter import region as layout
from koordra.kubelet_plugin.isolation.limiter import region as limiter_region
from koordra.kubelet_plugin.isolation.limiter import usage as limiter_usage
from koordra.kubelet_plugin.isolation.limiter.backend import (
    DRIVER_FOLDER,
    LIMITER_FOLDER,
    LimiterIsolation,
    override_driver_mounts,
)
from tests.fakes.isolation import keep_nothing
from tests.patience import PATIENCE
from tests.unit.limiter.native_build import environment

UUID = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
CLAIM = "8d0c3a52-5b0e-4b57-9d2b-4a3f6f1d2c11"
GIB = 1 << 30
SHARE = Share(claim_uid=CLAIM, index=0, device="gpu-0000-1f-00-0", uuid=UUID, memory_bytes=GIB, cores=30)
FOLDER = f"/usr/lib/{platform.machine()}-linux-gnu"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    folder = tmp_path / "installed"
    folder.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize(
    ("cores", "policy", "rate"),
    [(True, CoresPolicy.HARD, 3000), (True, None, 0), (False, CoresPolicy.HARD, 0)],
)
def test_device_time_is_limited_where_operator_and_claim_say_so(
    tmp_path: Path, installed: Path, cores: bool, policy: CoresPolicy | None, rate: int
) -> None:
    backend = LimiterIsolation(tmp_path / "state", installed=[installed], cores=cores)
    backend.prepare(SHARE, GpuConfig(cores_policy=policy), keep_nothing)
    assert limiter_usage.read(backend.claims / CLAIM).devices[0].rate == rate


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have one name for $PLATFORM")
def test_every_loader_finds_the_same_file_for_its_platform_and_32_bit_ones_another(
    tmp_path: Path, installed: Path
) -> None:
    (installed / "limiter-i386").mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (installed / "limiter-i386" / name).write_text("32")
    backend = LimiterIsolation(tmp_path / "state", installed=[installed])
    backend.prepare(SHARE, GpuConfig(), keep_nothing)
    mounts = backend.prepare(SHARE, GpuConfig(), keep_nothing).edits.mounts
    folder = Path(next(each.host_path for each in mounts if each.container_path == LIMITER_FOLDER))
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        front = Path(next(each.host_path for each in mounts if each.container_path.endswith(f"64/{name}")))
        for platform_name in ("x86_64", "haswell", "xeon_phi"):
            assert (folder / platform_name / name).samefile(front)
        for platform_name in ("i386", "i486", "i586", "i686"):
            assert (folder / platform_name / name).read_text() == "32"
    backend.prepare(SHARE, GpuConfig(), keep_nothing)


def test_a_container_gets_the_library_and_its_region(tmp_path: Path, installed: Path) -> None:
    backend = LimiterIsolation(tmp_path / "state", installed=[installed])
    edits = backend.prepare(SHARE, GpuConfig(), keep_nothing).edits
    paths = {mount.container_path: mount for mount in edits.mounts}
    region = f"/run/koordra/limiter/{CLAIM}"
    assert set(paths) == {
        f"{folder}/{name}"
        for folder in (FOLDER, "/usr/lib64")
        for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    } | {region, f"{region}/usage", LIMITER_FOLDER}
    assert "ro" in paths[region].options
    assert "rw" in paths[f"{region}/usage"].options
    assert [value for name, value in edits.env if name.startswith("KOORDRA_MEMORY_LIMIT_")] == [str(GIB)]
    backend.prepare(SHARE, GpuConfig(), keep_nothing)
    for mount in edits.mounts:
        assert Path(mount.host_path).exists(), mount


def test_libraries_built_anew_meanwhile_change_nothing(tmp_path: Path, installed: Path) -> None:
    backend = LimiterIsolation(tmp_path / "state", installed=[installed])
    edits = backend.prepare(SHARE, GpuConfig(), keep_nothing).edits
    (installed / "libcuda.so.1").write_text("another")
    backend.prepare(SHARE, GpuConfig(), keep_nothing)
    for mount in edits.mounts:
        assert Path(mount.host_path).exists(), mount
    assert backend.prepare(SHARE, GpuConfig(), keep_nothing).edits == edits


def test_the_region_has_all_its_blocks(tmp_path: Path) -> None:
    """A hole in it would be filled by a program's store, which on a full disk is SIGBUS."""
    limiter_region.allow(tmp_path, claim=CLAIM, uuid=UUID, limit=GIB)
    for name in ("policy", "usage"):
        known = (tmp_path / name).stat()
        assert known.st_blocks * 512 >= known.st_size


def test_start_and_stop_can_be_repeated(tmp_path: Path, installed: Path) -> None:
    backend = LimiterIsolation(tmp_path, installed=[installed])
    backend.unprepare(SHARE)
    for _ in range(2):
        backend.prepare(SHARE, GpuConfig(), keep_nothing)
    assert limiter_usage.read(backend.claims / CLAIM).devices[0].limit == GIB
    for _ in range(2):
        backend.unprepare(SHARE)
    assert list(backend.claims.iterdir()) == []


def test_without_the_library_nothing_is_prepared(tmp_path: Path) -> None:
    with pytest.raises(PrepareError, match="this node has no libcuda"):
        LimiterIsolation(tmp_path, installed=[tmp_path]).prepare(SHARE, GpuConfig(), keep_nothing)


def test_the_drivers_library_moves_behind_the_limiters() -> None:
    real = "/host/libcuda.so.570.1"
    libraries = (f"{FOLDER}/libcuda.so.1", f"{FOLDER}/libcuda.so.570.1", "/usr/lib64/libcuda.so.1")
    other_file = Mount("/host/libnvidia-nvvm.so.4", f"{FOLDER}/libnvidia-nvvm.so.4")
    driver = ContainerEdits(mounts=(*(Mount(real, path) for path in libraries), other_file))
    limiter = ContainerEdits(
        mounts=(
            Mount("/state/libcuda.so.1", f"{FOLDER}/libcuda.so.1"),
            Mount("/state/libcuda.so.1", "/usr/lib64/libcuda.so.1"),
        )
    )
    limited, other = override_driver_mounts([driver + limiter, driver], isolation=[limiter])
    for edits in (limited, other):
        assert {(mount.host_path, mount.container_path) for mount in edits.mounts} == {
            ("/state/libcuda.so.1", f"{FOLDER}/libcuda.so.1"),
            ("/state/libcuda.so.1", f"{FOLDER}/libcuda.so.570.1"),
            ("/state/libcuda.so.1", "/usr/lib64/libcuda.so.1"),
            (real, f"{DRIVER_FOLDER}/libcuda.so.1"),
            ("/host/libnvidia-nvvm.so.4", f"{FOLDER}/libnvidia-nvvm.so.4"),
        }
        paths = [mount.container_path for mount in edits.mounts]
        assert len(paths) == len(set(paths))
    assert override_driver_mounts([driver], isolation=[ContainerEdits()]) == [driver]


def test_the_node_learns_the_host_pid(built: Path, tmp_path: Path) -> None:
    backend = LimiterIsolation(tmp_path / "state", installed=[built])
    backend.prepare(SHARE, GpuConfig(), keep_nothing)
    tenant = str(built / "test" / "tenant")
    subprocess.run([tenant, "--world", str(tmp_path), UUID, str(8 * GIB)], check=True)
    with subprocess.Popen(
        [tenant, str(GIB), "stay"],
        env=environment(built, regions=backend.claims, world=tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["past"] == 2
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            (seen,) = limiter_usage.read(backend.claims / CLAIM).processes
            if seen.host_pid:
                break
            time.sleep(0.01)
        assert seen.host_pid == process.pid
        process.kill()
    backend.unprepare(SHARE)


@pytest.mark.parametrize("strict", [False, True])
def test_strictness_and_the_context_reserve_are_in_the_policy(
    tmp_path: Path, installed: Path, strict: bool
) -> None:
    backend = LimiterIsolation(
        tmp_path, installed=[installed], strict=strict, context_bytes=lambda uuid: len(uuid) << 20
    )
    backend.prepare(SHARE, GpuConfig(), keep_nothing)
    flags = struct.unpack_from("=I", (backend.claims / CLAIM / "policy").read_bytes(), 16)[0]
    assert flags == (layout.STRICT if strict else 0)
    assert limiter_usage.read(backend.claims / CLAIM).devices[0].context_bytes == len(UUID) << 20


def test_claims_of_an_earlier_plugin_are_served_again(tmp_path: Path, installed: Path) -> None:
    LimiterIsolation(tmp_path, installed=[installed]).prepare(SHARE, GpuConfig(), keep_nothing)
    later = LimiterIsolation(tmp_path, installed=[installed])
    (later.claims / CLAIM / "broker.sock").unlink()
    later.resume(None)
    assert (later.claims / CLAIM / "broker.sock").is_socket()
    later.unprepare(SHARE)


@pytest.mark.parametrize("text", ["banana", "-1", "1.5", "2Ti"])
def test_a_context_of_no_size_is_refused(text: str) -> None:
    from koordra.cli.processes.kubelet_plugin import command

    result = CliRunner().invoke(command, ["--node-name", "n", "--limiter-context", text])
    assert result.exit_code == 2
    assert "--limiter-context" in result.output
