"""The shared region: the same layout as in C, and what Python reads is what a limited process did."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from pathlib import Path

import pytest

from koordra.errors import NodeError, PrepareError
from koordra.kubelet_plugin.isolation.limiter import open_region, region
from koordra.kubelet_plugin.isolation.limiter import region as limiter_layout
from koordra.kubelet_plugin.isolation.limiter import usage as limiter_usage
from tests.unit.limiter.native_build import environment
from tests.unit.limiter.test_report import REFUSED_AT

UUID = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
GIB = 1 << 30


def test_the_layout_is_that_of_the_header(built: Path) -> None:
    layout = json.loads(
        subprocess.run([str(built / "test" / "layout")], check=True, capture_output=True).stdout
    )
    assert layout["version"] == limiter_layout.VERSION
    assert layout["policy_magic"] == limiter_layout.POLICY_MAGIC
    assert layout["usage_magic"] == limiter_layout.USAGE_MAGIC
    assert layout["devices_max"] == limiter_layout.DEVICES_MAX
    assert layout["slots_max"] == limiter_layout.SLOTS_MAX
    assert layout["alive_files"] == limiter_layout.ALIVE_FILES
    assert layout["usage.refused_at"] == REFUSED_AT
    assert layout["kinds"] == len(limiter_layout.KINDS)
    assert layout["policy"] == limiter_layout.POLICY_BYTES
    assert layout["usage"] == limiter_layout.USAGE_BYTES
    assert layout["slot"] == limiter_layout.SLOT.size
    assert layout["policy_device"] == limiter_layout.DEVICE.size
    assert layout["account"] == limiter_layout.ACCOUNT.size
    assert layout["policy.device_count"] == limiter_layout.DEVICE_COUNT
    assert layout["policy.sequence"] == limiter_layout.SEQUENCE
    assert layout["policy.outside"] == limiter_layout.OUTSIDE
    assert layout["policy.devices"] == limiter_layout.POLICY.size
    assert layout["policy_device.limit"] == limiter_layout.LIMIT
    assert layout["policy_device.unseen"] == limiter_layout.UNSEEN
    assert layout["policy_device.context_bytes"] == limiter_layout.CONTEXT
    assert layout["usage.denied"] == limiter_layout.DENIED
    assert layout["usage.bitmap"] == limiter_layout.BITMAP
    assert layout["usage.accounts"] == limiter_layout.ACCOUNTS
    assert layout["usage.slots"] == limiter_layout.SLOTS
    assert layout["slot.host_pid"] == limiter_layout.HOST_PID
    assert layout["slot.pid"] == 12
    assert layout["slot.name"] == 48
    assert layout["slot.acknowledged"] == 64
    assert layout["slot.kinds"] == 72
    assert layout["usage.paces"] == limiter_layout.PACES
    assert layout["pace"] == limiter_layout.PACE.size
    assert [layout[f"pace.{name}"] for name in ("charged", "waited", "active")] == [
        8,
        48,
        limiter_layout.ACTIVE,
    ]
    device = "cores rate lent lent_until device_time seen_until neighbours"
    assert [layout[f"policy_device.{name}"] for name in device.split()] == [40, 48, 52, 56, 64, 72, 80]


def test_a_process_is_limited_by_and_seen_in_the_region(built: Path, tmp_path: Path) -> None:
    claim = tmp_path / "regions" / "claim"
    region.allow(claim, claim="claim", uuid=UUID, limit=GIB)
    tenant = str(built / "test" / "tenant")
    subprocess.run([tenant, "--world", str(tmp_path), UUID, str(8 * GIB)], check=True)
    assert limiter_usage.read(claim).handshake == "waiting"
    with subprocess.Popen(
        [tenant, str(GIB), "stay"],
        env=environment(built, regions=tmp_path / "regions", world=tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said == {"opened": True, "init": 0, "past": 2, "within": 0, "free": 0, "total": GIB}
        use = limiter_usage.read(claim)
        assert use.handshake == "enforcing"
        assert [(device.uuid, device.used, device.limit, device.denied) for device in use.devices] == [
            (UUID, GIB, GIB, 1)
        ]
        (seen,) = use.processes
        assert (seen.pid, seen.name, seen.enforcing) == (process.pid, "tenant", True)
        assert dict(seen.kinds[0])["plain"] == GIB
        process.kill()
    assert limiter_usage.read(claim).processes == ()
    (left,) = limiter_usage.read(claim).ended
    assert (left.pid, left.held) == (seen.pid, (GIB,)), "nobody has given its slot back yet"
    assert limiter_usage.read(claim).devices[0].used == 0


def test_a_limit_is_changed_in_place(tmp_path: Path) -> None:
    claim = tmp_path / "claim"
    other = UUID.replace("01020304", "a1020304")
    for limit in (GIB, 2 * GIB):
        region.allow(claim, claim="c", uuid=UUID, limit=limit)
    region.allow(claim, claim="c", uuid=other, limit=GIB)
    assert limiter_usage.read(claim).devices[0].limit == GIB, "an allocation is written once"
    before = limiter_usage.read(claim).change
    assert region.change(claim, UUID, limit=None, cores=0, time=None) == before + 1
    assert region.change(claim, UUID, limit=None, cores=0, time=None) == before + 1, "nothing has changed"
    assert region.change(claim, UUID, limit=None, cores=0, time=None, again=True) == before + 2
    with pytest.raises(NodeError, match="no share of"):
        region.change(claim, UUID.replace("01020304", "b1020304"), limit=1, cores=0, time=None)
    region.write_unaccounted(claim, other, 5)
    use = limiter_usage.read(claim)
    assert [(device.uuid, device.limit, device.used) for device in use.devices] == [
        (UUID, None, 0),
        (other, GIB, 5),
    ]


@pytest.mark.parametrize("ahead", [-1, 1])
def test_a_region_of_another_version_is_neither_read_nor_written(tmp_path: Path, ahead: int) -> None:
    """After an update, and after going back: the containers keep the library and the layout that they started
    with, whose fields may lie elsewhere."""
    claim = tmp_path / "claim"
    region.allow(claim, claim="c", uuid=UUID, limit=GIB)
    for name in ("policy", "usage"):
        data = bytearray((claim / name).read_bytes())
        data[8:12] = struct.pack("=I", region.VERSION + ahead)
        (claim / name).write_bytes(data)
    before = {name: (claim / name).read_bytes() for name in ("policy", "usage")}
    words = "another koordra made it.*start once all of its pods have ended"
    for reaches in (
        lambda: limiter_usage.read(claim),
        lambda: open_region.OpenRegion(claim),
        lambda: region.allow(claim, claim="c", uuid=UUID, limit=2 * GIB),
        lambda: region.change(claim, UUID, limit=2 * GIB, cores=0, time=None),
        lambda: region.write_unaccounted(claim, UUID, 5),
        lambda: region.write_outside(claim, 1),
    ):
        with pytest.raises(NodeError, match=words):
            reaches()
    assert not region.write_host_pid(claim, slot=0, generation=0, pid=1)
    assert {name: (claim / name).read_bytes() for name in before} == before


def test_figures_that_no_card_can_have_are_not_believed(tmp_path: Path) -> None:
    """Which would turn the sum over; what the process really has is then unseen."""
    claim = tmp_path / "claim"
    region.allow(claim, claim="c", uuid=UUID, limit=GIB)
    with (claim / "usage").open("r+b") as usage:
        usage.seek(192)
        usage.write(b"\x01")  # slot 0 is taken
        usage.seek(4416 + 8)
        usage.write((2**64 - GIB).to_bytes(8, "little"))
    (liar,) = limiter_usage.read(claim).ended
    assert liar.held == (0,)
    region.write_unaccounted(claim, UUID, 2**64)
    assert limiter_usage.read(claim).devices[0].unseen == limiter_layout.PLAUSIBLE


def test_too_many_gpus_and_odd_uuids_are_refused(tmp_path: Path) -> None:
    for number in range(limiter_layout.DEVICES_MAX):
        uuid = UUID.replace("01020304", f"{number:08x}")
        region.allow(tmp_path / "c", claim="c", uuid=uuid, limit=GIB)
    with pytest.raises(PrepareError, match="16 GPUs"):
        region.allow(tmp_path / "c", claim="c", uuid=UUID, limit=GIB)
    with pytest.raises(PrepareError, match="not the UUID"):
        limiter_layout.uuid_bytes("GPU-7")
    assert limiter_layout.uuid_bytes("MIG-" + UUID[4:]) == limiter_layout.uuid_bytes(UUID)


@pytest.mark.parametrize("damage", ["cut", "version", "gone"])
def test_what_a_tenant_does_to_the_file_harms_nobody(tmp_path: Path, damage: str) -> None:
    claim = tmp_path / "c"
    region.allow(claim, claim="c", uuid=UUID, limit=GIB)
    usage = claim / "usage"
    if damage == "cut":
        os.truncate(usage, 100)
    elif damage == "version":
        with usage.open("r+b") as file:
            file.seek(8)
            file.write(b"\xff")
    else:
        usage.unlink()
    with pytest.raises(NodeError):
        limiter_usage.read(claim)


def test_the_host_pid_is_written_for_the_right_owner_only(tmp_path: Path) -> None:
    claim = tmp_path / "c"
    region.allow(claim, claim="c", uuid=UUID, limit=GIB)
    assert region.write_host_pid(claim, slot=3, generation=0, pid=77)
    assert not region.write_host_pid(claim, slot=3, generation=1, pid=78)
    assert not region.write_host_pid(claim, slot=4096, generation=0, pid=78)


@pytest.mark.parametrize("left", [0, 8, 20, 64, 300, limiter_layout.ACCOUNTS - 1])
def test_a_file_that_is_cut_short_while_it_is_read_is_no_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """The tenant cuts it between the two questions: how long it is, and what is in it."""
    claim = tmp_path / "claim"
    region.allow(claim, claim="claim", uuid=UUID, limit=GIB)
    ask = os.fstat

    def asked_before(file: int) -> os.stat_result:
        found = ask(file)
        return os.stat_result((*found[:6], limiter_layout.USAGE_BYTES, *found[7:]))

    os.truncate(claim / "usage", left)
    monkeypatch.setattr(limiter_usage.os, "fstat", asked_before)
    with pytest.raises(NodeError, match="usage: not a region"):
        limiter_usage.read(claim)
