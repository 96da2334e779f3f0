"""The worked examples of docs/extending.md. The dialect is run by tests/unit/compat/test_new_dialect.py, the
store of profiles by tests/unit/profiles/test_store.py, backends by test_third_party_isolation.py and
test_devices_on_no_node.py of tests/unit/kubelet_plugin, NRI plugins by tests/unit/nri/test_example.py."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from click.testing import CliRunner

from koordra.cli.main import cli
from koordra.placement import plan
from tests.unit.allocator.machines import device_classes, gpu, node, place, pod, slice_of
from tests.unit.docs.worked_examples import PAGE, worked_example

ROOT = PAGE.parents[1]


def test_a_machine(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text(worked_example("A machine", "yaml"))
    shown = CliRunner().invoke(cli, ["topology", "--machine", str(file)])
    assert shown.exit_code == 0, shown.output
    assert re.search(r"^NIC0 +PXB +PXB", shown.output, re.MULTILINE) or re.search(
        r"^NIC0 +PIX +PIX", shown.output, re.MULTILINE
    )


def test_a_device_kind() -> None:
    near, far = place(0), place(7)
    near = {**near, "resource.kubernetes.io/pcieRoot": "pci0000:3a"}
    cards = [gpu(0, place=far), gpu(1, place=near)]
    own = list(yaml.safe_load_all(worked_example("A device kind", "yaml")))
    found = plan([*device_classes(), node("node-1"), slice_of(cards), *own, pod("p", "one-of-each")])
    (allocation,) = found.allocations.values()
    assert [one["device"] for one in allocation["devices"]["results"]] == ["gpu-1", "fpga-0"]


def test_the_files_that_a_device_kind_changes_are_there() -> None:
    section = PAGE.read_text().partition("\n## A device kind\n")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:koordra|deploy)/[a-z_/.]+)`", section)
    assert len(named) > 5
    assert not [name for name in named if not (ROOT / name).exists()]


def test_every_section_with_code_is_run_by_a_test() -> None:
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    shown = {one.partition("\n")[0] for one in sections if "\n```" in one}
    assert len(shown) == 5
    sources = [path.read_text() for path in (ROOT / "tests" / "unit").rglob("test_*.py")]
    text = "\n".join(one for one in sources if "worked_example(" in one)
    assert not [heading for heading in shown if f'"{heading}"' not in text]
