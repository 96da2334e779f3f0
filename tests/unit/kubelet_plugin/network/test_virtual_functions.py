"""Virtual functions that the operator wants: made where there are none, and nothing of others is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordra.cli.node.make_vfs import make_vfs
from koordra.node_state.layout import StateFolder
from koordra.topology.presets.tree import MachineWriter
from tests.fakes.node_claims import NODE, uid
from tests.machines import catalogue

PREPARED = Path(__file__).parents[2] / "node_state/written/prepared.json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two Broadcom NICs with 16 functions each, and one of Intel that has none."""
    MachineWriter(tmp_path / "root").write(catalogue.load("broadcom-nic").machine(serial=NODE))
    return tmp_path / "root"


def numbers(root: Path) -> dict[str, int]:
    functions = (root / "sys/bus/pci/devices").iterdir()
    return {
        each.name: int((each / "sriov_numvfs").read_text())
        for each in sorted(functions)
        if (each / "sriov_numvfs").exists()
    }


def made(root: Path, *more: str) -> str:
    arguments = ["--root", str(root), "--per-nic", "8", "--state-dir", str(root.parent / "state"), *more]
    result = CliRunner().invoke(make_vfs, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_functions_are_made_where_there_are_none(root: Path) -> None:
    said = made(root)
    assert "nic-0000-1a-00-0 (bnxt_re0): 8 virtual functions made" in said
    assert "(irdma0): left alone: it has no virtual functions" in said
    assert numbers(root) == {"0000:1a:00.0": 8, "0000:9a:00.0": 8}
    # Nobody's number is ever changed, one's own neither.
    assert "left alone: it has 8 already" in made(root, "--per-nic", "4")
    assert numbers(root) == {"0000:1a:00.0": 8, "0000:9a:00.0": 8}


@pytest.mark.parametrize(("only", "second"), [("0000:1a:00.0", 0), ("*", 8), ("0000:?a:00.0", 8)])
def test_the_operator_may_name_the_nics(root: Path, only: str, second: int) -> None:
    """Beside another operator whose notes a new node has not yet."""
    said = made(root, "--only", only, "--only", "absent")
    assert numbers(root) == {"0000:1a:00.0": 8, "0000:9a:00.0": second}
    assert ("(bnxt_re1): left alone: --only names others" in said) is (second == 0)


def test_a_nic_has_no_more_than_it_can(root: Path) -> None:
    made(root, "--per-nic", "64")
    assert numbers(root) == {"0000:1a:00.0": 16, "0000:9a:00.0": 16}


@pytest.mark.parametrize(("note", "left"), [({"numVfs": 4}, 0), ({"externallyManaged": True}, 8), (None, 0)])
def test_what_the_sriov_network_operator_configures_is_its_own(
    root: Path, note: dict[str, object] | None, left: int
) -> None:
    folder = root / "etc/sriov-operator/pci"
    folder.mkdir(parents=True)
    (folder / "0000:1a:00.0").write_text("{" if note is None else json.dumps(note))
    made(root)
    assert numbers(root) == {"0000:1a:00.0": left, "0000:9a:00.0": 8}


def test_a_part_of_a_bond_is_left_alone(root: Path) -> None:
    (interface,) = (root / "sys/bus/pci/devices/0000:1a:00.0/net").iterdir()
    (interface / "master").symlink_to("../../../../virtual/net/bond0")
    assert "(bnxt_re0): left alone: it is part of bond0" in made(root)


def test_a_nic_of_a_claim_is_left_alone(root: Path) -> None:
    file = StateFolder(root.parent / "state").prepared_file(uid(1))
    file.parent.mkdir(parents=True)
    file.write_bytes(PREPARED.read_bytes().replace(b"nic-0000-0c-00-0", b"nic-0000-1a-00-0"))
    assert "(bnxt_re0): left alone: a claim has it" in made(root)
    file.write_text("{")
    arguments = ["--root", str(root), "--per-nic", "8", "--state-dir", str(root.parent / "state")]
    result = CliRunner().invoke(make_vfs, arguments)
    assert "it is not known which NICs claims have" in str(result.exception)
    assert numbers(root)["0000:1a:00.0"] == 0


def test_a_sysfs_that_takes_nothing_is_said(root: Path) -> None:
    numvfs = root / "sys/bus/pci/devices/0000:1a:00.0/sriov_numvfs"
    numvfs.unlink()
    numvfs.mkdir()
    arguments = ["--root", str(root), "--per-nic", "8", "--state-dir", str(root.parent / "state")]
    result = CliRunner().invoke(make_vfs, arguments)
    assert "8 virtual functions cannot be made" in str(result.exception)
    shutil.rmtree(numvfs)
