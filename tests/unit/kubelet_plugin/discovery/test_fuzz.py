"""Trees with broken files: discovery never raises, and never offers a device that is not the one it says.

The rule that is checked: whatever is broken, every device that is still offered has exactly the identity and
the device node of the unbroken machine. A broken tree may hide devices, and must then say so.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.prepare.device_guard import guard_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.topology.machine import Gpu, Machine
from koordra.topology.pictures.text import matrix, text_tree
from koordra.topology.presets.facts import preset
from koordra.topology.presets.tree import MachineWriter
from koordra.topology.problems import Discovery
from tests.long import examples

KIND = preset(
    {
        "schema": "koordra.io/machine/v1",
        "driver": {"version": "550.54.15", "cuda": 12040},
        "numa": [
            {"id": n, "socket": n, "cpus": f"{4 * n}-{4 * n + 3}", "distances": [10, 21]} for n in range(2)
        ],
        "gpu": {
            "product": "NVIDIA H100 80GB HBM3",
            "memory_mib": 81559,
            "architecture": "Hopper",
            "mig": False,
        },
        "nic": {"vendor": "15b3", "device": "1021", "link_layer": "InfiniBand", "rate": 400, "vfs": 1},
        "gpus": [
            {"path": "pci0000:10/10:01.0/11:00.0/12:00.0/13:00.0", "numa": 0},
            {"path": "pci0000:20/20:01.0/21:00.0/22:00.0/23:00.0", "numa": 1},
            {"path": "pci0000:20/20:01.0/21:00.0/22:02.0/25:00.0", "numa": 1, "mig": True}
            | {"mig_profiles": "H100-SXM5-80GB", "mig_instances": [["3g.40gb", 4], ["1g.10gb", 0]]},
        ],
        "nics": [
            {
                "path": "pci0000:10/10:01.0/11:00.0/12:01.0/14:00.0",
                "numa": 0,
                "ib": "mlx5_0",
                "netdev": "ib0",
            },
            {"path": "pci0000:20/20:01.0/21:00.0/22:01.0/24:00.0", "numa": 1, "ib": "mlx5_1"},
            {"path": "pci0000:20/20:01.0/21:00.0/22:01.0/24:00.1", "numa": 1, "ib": "mlx5_2", "mad": False}
            | {"parent": "pci0000:20/20:01.0/21:00.0/22:01.0/24:00.0", "vfs": 0},
        ],
    },
    name="small",
)
MACHINE = KIND.machine(serial="small")


def entries(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def identity(machine: Machine) -> dict[str, tuple[object, ...]]:
    return {
        device.name: (device.uuid, device.memory_bytes, device.node)
        if isinstance(device, Gpu)
        else (device.guid, device.ib_device, device.verbs)
        for device in machine.devices()
        if device.publishable
    }


EXPECTED = identity(MACHINE)


def assert_sane(found: Discovery) -> None:
    offered = identity(found.machine)
    assert offered.items() <= EXPECTED.items()
    if len(offered) < len(EXPECTED):
        hidden = set(EXPECTED) - set(offered)
        named_directly = {device.name for device in found.machine.devices()}
        assert found.problems or hidden - named_directly
    for problem in found.problems:
        assert problem.object
        assert problem.field
        assert problem.problem
        assert problem.remedy
    for mode in ("joint", "native"):
        build_slices(found.machine, node_name="n", node_uid=None, mode=mode, generation=1)
    assert_parts_are_true(found.machine)
    guard_of(found.machine, node_name="n")
    assert matrix(found.machine)
    assert text_tree(found.machine)


def parts(machine: Machine) -> dict[str, object]:
    """What a name stands for, of everything that the most generous policy publishes."""
    slices = build_slices(
        machine,
        node_name="n",
        node_uid=None,
        mode="native",
        generation=1,
        offering=Offering(mig=True, vfs=True),
    )
    return {
        device["name"]: (
            device["attributes"]["koordra.io/uuid"],
            device["attributes"].get("koordra.io/parent"),
        )
        for one in slices
        for device in one["spec"].get("devices", ())
    }


EXPECTED_PARTS = parts(MACHINE)


def assert_parts_are_true(machine: Machine) -> None:
    assert parts(machine).items() <= EXPECTED_PARTS.items()
    true = {gpu.location.bus_id: gpu for gpu in MACHINE.gpus}
    for gpu in machine.gpus:
        known = {each.uuid: each for each in true[gpu.location.bus_id].mig_instances}
        for instance in gpu.mig_instances:
            assert not instance.publishable or instance == known[instance.uuid]


GARBAGE = [
    b"",
    b"\x00\xff\xfe\x80",
    b"\n\n",
    b"-1",
    b"99999999999999999999999",
    b"0x",
    b"x" * 70000,
    b"[]",
    b"{}",
]
BREAKAGES = ["remove", "garbage", "loop", "directory", "pipe", "unreadable", "dangling"]


def break_entry(path: Path, how: str, garbage: bytes) -> None:
    if not os.path.lexists(path):
        return
    if how == "unreadable" and not path.is_symlink():
        path.chmod(0)
        return
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)
    match how:
        case "garbage":
            path.write_bytes(garbage)
        case "loop":
            path.symlink_to(path.name)
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "dangling":
            path.symlink_to("../../../devices/pci0000:10/0000:10:01.0/../../nowhere")


@pytest.fixture(scope="module")
def pristine() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "machine"
        MachineWriter(root).write(MACHINE)
        for node in [path for path in (root / "dev").rglob("*") if not path.is_dir()]:
            numbers = os.lstat(node).st_rdev
            if numbers:
                node.unlink()
                node.write_text(f"c {os.major(numbers)}:{os.minor(numbers)}\n")
        yield root


@pytest.fixture(scope="module")
def working(pristine: Path) -> Path:
    """A copy that every example breaks and that is mended afterwards."""
    root = pristine.with_name("working")
    shutil.copytree(pristine, root, symlinks=True)
    return root


def mend(pristine: Path, root: Path, path: str) -> None:
    """Put one entry back as it was; an entry that went with its directory comes back with it."""
    here, original = root / path, pristine / path
    if here.is_dir() and not here.is_symlink():
        here.chmod(0o700)
        shutil.rmtree(here)
    else:
        here.unlink(missing_ok=True)
    if original.is_dir() and not original.is_symlink():
        shutil.copytree(original, here, symlinks=True)
    else:
        shutil.copy2(original, here, follow_symlinks=False)


def broken(pristine: Path, root: Path, breakages: list[tuple[str, str, bytes]]) -> Discovery:
    chosen = [path for path, _, _ in breakages]
    # What lies below another chosen entry is broken with it, and mended with it.
    tops = {path for path in chosen if not any(path.startswith(f"{other}/") for other in chosen)}
    for path, how, garbage in breakages:
        if path in tops or how != "unreadable":
            break_entry(root / path, how, garbage)
    try:
        return discover(root)
    finally:
        for path in tops:
            mend(pristine, root, path)


def test_the_pristine_tree_is_the_machine(pristine: Path) -> None:
    found = discover(pristine)
    assert found.machine == MACHINE
    assert not found.problems


@examples(60)
@given(data=st.data())
def test_any_few_broken_entries(pristine: Path, working: Path, data: st.DataObject) -> None:
    breakage = st.tuples(
        st.sampled_from(entries(pristine)),
        st.sampled_from(BREAKAGES),
        st.one_of(st.sampled_from(GARBAGE), st.binary(max_size=64)),
    )
    assert_sane(broken(pristine, working, data.draw(st.lists(breakage, min_size=1, max_size=6))))


@pytest.mark.parametrize("how", ["remove", "loop", "pipe", "directory"])
def test_every_single_broken_file_under_the_rdma_class_and_dev(
    pristine: Path, working: Path, how: str
) -> None:
    for path in entries(pristine):
        if path.startswith(("sys/class/infiniband", "dev/", "nvml.json", "proc/driver", "proc/devices")):
            assert_sane(broken(pristine, working, [(path, how, b"")]))


@examples(60)
@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "schema",
                        "gpus",
                        "busId",
                        "uuid",
                        "minor",
                        "memoryBytes",
                        "nvlinks",
                        "errors",
                        "migEnabled",
                        "migProfiles",
                        "migInstances",
                        "placements",
                        "id",
                        "name",
                        "fabric",
                    ]
                ),
                inner,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_in_place_of_nvml(pristine: Path, working: Path, document: object) -> None:
    import json

    if isinstance(document, dict):
        document["schema"] = "koordra.io/nvml/v1"
    text = json.dumps(document).encode()
    assert_sane(broken(pristine, working, [("nvml.json", "garbage", text)]))


def test_every_example_was_mended(working: Path) -> None:
    found = discover(working)
    assert found.machine == MACHINE
    assert not found.problems


def test_files_that_vanish_while_they_are_read(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every n-th read fails as it does when a device is unplugged between listing and reading."""
    real_open = os.open
    for step in range(2, 12):
        counter = iter(range(1_000_000))

        def flaky(path: str, flags: int, counter: Iterator[int] = counter, step: int = step) -> int:
            if next(counter) % step == 0:
                raise OSError(19, "No such device")
            return real_open(path, flags)

        monkeypatch.setattr(os, "open", flaky)
        found = discover(pristine)
        monkeypatch.setattr(os, "open", real_open)
        assert_sane(found)
