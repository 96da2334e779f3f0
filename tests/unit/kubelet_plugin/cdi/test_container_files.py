"""What a container can read about its claim, and what a person can dump of a node."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koordra.cli.debug import command
from koordra.errors import CheckpointError
from koordra.kubelet_plugin.cdi.container_files import cpu_mask, topology_file
from koordra.kubelet_plugin.claims.claim_record import CLAIM_RECORD, ClaimRecord
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.kubelet_plugin.status.dump import SCHEMA, dump
from koordra.topology import overlay
from koordra.topology.problems import Discovery
from tests.fakes.node_claims import GPU_0, GPU_1, GPU_2, NIC_0, claim, gpu, nic, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of


def claims_of(raw: Mapping[str, Any]) -> tuple[ClaimRecord, ...]:
    """The claims of a dump. Raises CheckpointError for one of another version."""
    if raw.get("schema") != SCHEMA:
        raise CheckpointError(f"schema {raw.get('schema')!r}; this program reads {SCHEMA}")
    return tuple(CLAIM_RECORD.read(claim, "claim") for claim in raw["claims"])


@pytest.mark.parametrize(
    ("cpus", "mask"),
    [
        ("0-3", "0000000f"),
        ("0", "00000001"),
        ("31-32", "00000001,80000000"),
        ("0-3,64-67", "0000000f,00000000,0000000f"),
        ("0-3,2,1-1", "0000000f"),
    ],
)
def test_cpu_masks_are_the_kernels(cpus: str, mask: str) -> None:
    assert cpu_mask(cpus) == mask


def test_the_nccl_file_holds_the_claims_devices_where_they_are(
    inventory: NodeInventory, tmp_path: Path
) -> None:
    machine = inventory.machine
    devices = [machine.device(name) for name in (NIC_0, GPU_0, GPU_2)]
    text = topology_file([device for device in devices if device], machine)
    assert text is not None
    found = {
        element.get("busid")
        for element in ET.fromstring(text).iter("pci")
        if element.get("class") != "0x060400"
    }
    assert found == {device.location.bus_id for device in devices if device}
    # The reader of operators' overlays, which reads cloud providers' NCCL files, sees the same tree.
    file = tmp_path / "topology.xml"
    file.write_bytes(text)
    places = overlay.load(file).places
    for device in devices:
        assert device is not None
        assert places[device.location.bus_id].switches == device.location.switches
        assert places[device.location.bus_id].numa == device.location.numa


def test_there_is_no_nccl_file_where_there_is_nothing_to_say(inventory: NodeInventory) -> None:
    machine = inventory.machine
    one, two, near = (machine.device(name) for name in (GPU_0, GPU_1, NIC_0))
    assert one
    assert two
    assert near
    assert topology_file([one], machine) is None
    assert topology_file([near], machine) is None
    nowhere = replace(one, location=replace(one.location, numa=None))
    assert topology_file([nowhere, two], machine) is None


def test_metadata_of_a_template_claim_and_of_alternatives(node: PluginNode) -> None:
    obj = claim(1, gpu("gpu/a100", GPU_0), gpu("gpu/a100", GPU_1), nic("nic", NIC_0))
    obj["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "accelerators"}
    prepare(node, obj)
    folder = node.paths.claim_folder(uid(1))
    assert {path.name for path in folder.iterdir()} == {
        "gpu.metadata.json",
        "nic.metadata.json",
        "nccl-topology.xml",
    }
    mounted = {
        mount["containerPath"]: mount["hostPath"]
        for device in node.spec(uid(1))["devices"]
        for mount in device["containerEdits"].get("mounts", ())
    }
    root = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/accelerators"
    path = f"{root}/gpu/koordra.io-metadata.json"
    assert mounted[path] == str(folder / "gpu.metadata.json")
    newest, _ = json.JSONDecoder().raw_decode((folder / "gpu.metadata.json").read_text())
    assert newest["podClaimName"] == "accelerators"
    assert [(request["name"], len(request["devices"])) for request in newest["requests"]] == [("gpu/a100", 2)]
    attributes = newest["requests"][0]["devices"][0]["attributes"]
    assert set(attributes["koordra.io/driverVersion"]) == {"version"}
    assert set(attributes["koordra.io/numaNode"]) == {"int"}
    # Somebody removes one: it comes back, as all files of the claim do.
    (folder / "gpu.metadata.json").unlink()
    node.plugin().restore_files()
    assert (folder / "gpu.metadata.json").exists()
    node.plugin().unprepare(ref_of(obj))
    assert not folder.exists()


def test_a_dump_has_everything_but_secrets(node: PluginNode, discovery: Discovery) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0), nic("nic", NIC_0)))
    nonce = node.record(uid(1))["nonce"]
    found = dump(node.paths, discovery, version="1")
    text = json.dumps(found)
    assert nonce not in text
    assert GPU_0 in text
    (record,) = claims_of(found)
    before = node.checkpoint().claims[0]
    assert replace(record, nonce=before.nonce) == before
    # The same nonce looks the same everywhere, so that a marker that does not match its record still shows.
    spec = found["files"]["cdi"][f"koordra.io-claim_{uid(1)}.json"]
    assert any(entry.endswith(f"={record.nonce}") for entry in spec["containerEdits"]["env"])
    with pytest.raises(CheckpointError):
        claims_of({**found, "schema": "other"})


def test_a_dump_of_a_damaged_node_says_what_is_wrong(node: PluginNode, discovery: Discovery) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    node.paths.checkpoint.write_text("{")
    node.paths.prepared_file(uid(1)).write_text("[")
    found = dump(node.paths, discovery, version="1")
    assert any("is unreadable" in problem.get("problem", "") for problem in found["problems"])
    assert "problem" in found["files"]["prepared"][f"{uid(1)}.json"]
    assert found["claims"] == []


def test_the_command_prints_the_document_of_the_folders_that_are_named(
    node: PluginNode, machine_root: Path
) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    folders = {"--root": machine_root, "--state-dir": node.paths.state, "--cdi-dir": node.paths.cdi}
    ran = CliRunner().invoke(command, ["dump", *(f"{name}={path}" for name, path in folders.items())])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert found["schema"] == "koordra.io/dump/v1"
    assert len(claims_of(found)) == 1
    assert found["files"]["cdi"].keys() == {f"koordra.io-claim_{uid(1)}.json"}
    assert GPU_0 in json.dumps(found["machine"])
