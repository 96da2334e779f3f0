"""`koordra topology`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result

from koordra.cli.machine.topology import topology as command
from koordra.errors import DiscoveryError, InvalidInput
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.node_state import prepared_claim
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.prepared_claim import PreparedClaim, PreparedDevice
from koordra.topology import presets
from koordra.topology.pictures.text import gpu_nic_matrix, matrix
from koordra.topology.presets import write_machine
from tests.machines import catalogue


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.exception
    return result


def test_json_has_every_device_and_the_level_of_every_pair() -> None:
    document = json.loads(run("--machine", "hgx-h100", "-o", "json").stdout)
    assert document["problems"] == []
    assert len(document["devices"]) == 24
    names = [device["name"] for device in document["devices"]]
    assert set(document["levels"]) == set(names)
    for one in names:
        assert document["levels"][one][one] == "X"
        for other in names:
            assert document["levels"][one][other] == document["levels"][other][one]
    first = document["devices"][0]
    assert {
        key: first[key] for key in ("name", "type", "busId", "numaNode", "socket", "pcieRoot", "pcieSwitch")
    } == {
        "name": "gpu-0000-0f-00-0",
        "type": "gpu",
        "busId": "0000:0f:00.0",
        "numaNode": 0,
        "socket": 0,
        "pcieRoot": "pci0000:07",
        "pcieSwitch": "0000:08:00.0",
    }
    assert document["levels"]["gpu-0000-0f-00-0"]["nic-0000-0c-00-1"] == "PXB"
    assert document["levels"]["gpu-0000-0f-00-0"]["gpu-0000-d8-00-0"] == "NV18"
    inferred = {device["name"]: device["inferred"] for device in document["devices"]}
    assert inferred["nic-0000-0c-00-0"] == ["rail"]
    assert inferred["gpu-0000-0f-00-0"] == []


def test_a_root_shows_what_is_there_and_problems_go_to_stderr(tmp_path: Path) -> None:
    machine = write_machine("dgx-a100", tmp_path, serial="a")
    assert run("--root", str(tmp_path)).stdout == gpu_nic_matrix(machine, width=80)
    assert run("--root", str(tmp_path), "-o", "wide").stdout == matrix(machine)
    (tmp_path / "dev/nvidia3").unlink()
    (tmp_path / "proc/devices").unlink()  # else the kernel's numbers do
    result = run("--root", str(tmp_path), "-o", "json")
    assert [problem["field"] for problem in json.loads(result.stdout)["problems"]] == ["device node"]
    assert "/dev/nvidia3 does not exist" in result.stderr
    assert "[not offered]" in run("--root", str(tmp_path), "-o", "tree").stdout


@pytest.mark.long
@pytest.mark.parametrize("option", ["--machine", "--preset"])
def test_a_preset_and_a_path_are_machines(option: str) -> None:
    for name in ("dgx-a100", str(Path(presets.__file__).parent / "nps4.yaml")):
        kind = catalogue.load(Path(name).stem)
        gpus = len(kind.document["gpus"])
        assert run(option, name).stdout.count("\n  GPU") == gpus


@pytest.mark.parametrize("output", ["table", "tree", "json", "yaml", "svg", "dot"])
def test_what_is_laid_over_is_marked_in_every_output(output: str) -> None:
    result = run("--machine", "vm-flat", "-o", output)
    assert result.stderr == "", "the file answers what sysfs leaves open"
    marks = {
        "table": "PIX*",
        "tree": "* numaNode, pcieRoot, pcieSwitch",
        "json": '"pcieSwitch"\n      ],',
        "yaml": "inferred:\n  - numaNode",
        "svg": "switch ffff:ff:01.0*",
        "dot": "filled,rounded,dashed",
    }
    assert marks[output] in result.stdout


def test_an_overlay_can_be_given_for_any_machine(tmp_path: Path) -> None:
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(
        "schema: koordra.io/overlay/v1\ngroups:\n"
        "- {numa: 0, switch: 'ffff:ff:01.0', devices: ['0000:3b:00.0', '0000:18:00.0']}\n"
        "- {numa: 0, devices: ['0000:86:00.0']}\n"
    )
    result = run("--machine", "t4x4-1nic", "--overlay", str(overlay), "-o", "json")
    document = json.loads(result.stdout)
    assert document["levels"]["gpu-0000-3b-00-0"]["nic-0000-18-00-0"] == "PIX"
    assert ["gpu-0000-3b-00-0", "nic-0000-18-00-0"] in document["inferredLevels"]
    assert [problem["object"] for problem in document["problems"]] == ["gpu-0000-86-00-0"]
    assert "the machine says 1, the overlay 0; correct mine.yaml" in result.stderr


def test_holders_come_from_the_plugins_records(tmp_path: Path) -> None:
    write_machine("hgx-h100", tmp_path / "root", serial="a")
    records = tmp_path / "state" / "prepared"
    records.mkdir(parents=True)
    ref = ClaimRef("team", "train", "11111111-2222-3333-4444-555555555555")
    device = PreparedDevice(request="gpu", device="gpu-0000-0f-00-0", type="gpu")
    prepared = PreparedClaim(
        ref, nonce="0123456789abcdef" * 2, marker=ref.marker, devices=(device,), memlock=False
    )
    (records / "1.json").write_bytes(prepared_claim.encode(prepared))
    (records / "2.json").write_text("{")
    result = run("--root", str(tmp_path / "root"), "--state-dir", str(tmp_path / "state"))
    assert result.stdout.count("team/train") == 1
    assert "\nHeld:\n\n  GPU0   a team/train\n" in result.stdout


def test_files_are_a_node_too(tmp_path: Path) -> None:
    def slices(node: str) -> list[dict[str, Any]]:
        return build_slices(
            catalogue.machine("dgx-h100"), node_name=node, node_uid=None, mode="joint", generation=1
        )

    result = {
        "request": "r",
        "driver": "koordra.io",
        "pool": "a",
        "device": "gpu-0000-1b-00-0",
        "shareID": "s",
    }
    result["consumedCapacity"] = {"memory": "20Gi"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "team", "name": "part"},
        "spec": {},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text("\n".join(json.dumps(entry) for entry in [*slices("a"), claim]))
    two.write_text("\n".join(json.dumps(entry) for entry in slices("b")))
    text = run("-f", str(one)).stdout
    assert "GPU0   memory [aaaaa···············] 25%\n         a team/part (memory 20Gi)\n" in text
    document = json.loads(run("-f", str(one), "-f", str(two), "--node", "a", "-o", "json").stdout)
    assert document["devices"][0]["shares"] == [{"claim": "team/part", "memory": "20Gi"}]
    for arguments, words in (
        (("-f", str(one), "-f", str(two)), "holds slices of 2 nodes: a, b; name one with --node"),
        (("-f", str(one), "--node", "c"), "Node c: publishes no ResourceSlice of koordra.io"),
        (("-f", str(one), "--machine", "dgx-a100"), "--machine and -f exclude each other"),
    ):
        failed = CliRunner().invoke(command, arguments)
        assert isinstance(failed.exception, InvalidInput)
        assert words in str(failed.exception)


class Api(BaseHTTPRequestHandler):
    """An API server that lists ResourceSlices and claims."""

    lists: ClassVar[dict[str, list[dict[str, Any]]]] = {}
    forbidden: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        resource = self.path.partition("?")[0].rpartition("/")[2]
        if resource in self.forbidden:
            self.send_error(403)
            return
        items = self.lists.get(resource, [])
        body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    file = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    file.write_text(
        json.dumps({"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"})
    )
    yield file
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_node_is_seen_through_the_api(kubeconfig: Path) -> None:
    machine = catalogue.machine("dgx-h100")
    results = [{"request": "r", "driver": "koordra.io", "pool": "node-a", "device": "gpu-0000-1b-00-0"}]
    Api.lists = {
        "resourceslices": build_slices(
            machine, node_name="node-a", node_uid=None, mode="joint", generation=1
        ),
        "resourceclaims": [
            {
                "metadata": {"namespace": "team", "name": "train"},
                "status": {"allocation": {"devices": {"results": results}}},
            }
        ],
    }
    document = json.loads(run("--node", "node-a", "--kubeconfig", str(kubeconfig), "-o", "json").stdout)
    levels = document["levels"]["gpu-0000-1b-00-0"]
    assert (levels["nic-0000-18-00-0"], levels["nic-0000-40-00-0"]) == ("PXB", "NODE")
    assert document["devices"][0]["holders"] == ["team/train"]
    assert "GPU0   a team/train\n" in run("--node", "node-a", "--kubeconfig", str(kubeconfig)).stdout
    unknown = CliRunner().invoke(command, ["--node", "node-b", "--kubeconfig", str(kubeconfig)])
    assert isinstance(unknown.exception, InvalidInput)
    assert "Node node-b" in str(unknown.exception)


def test_who_may_not_see_the_claims_sees_the_machine(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = build_slices(
        catalogue.machine("t4x4-1nic"), node_name="node-a", node_uid=None, mode="joint", generation=1
    )
    monkeypatch.setattr(Api, "lists", {"resourceslices": slices})
    monkeypatch.setattr(Api, "forbidden", {"resourceclaims"})
    result = run("--node", "node-a", "--kubeconfig", str(kubeconfig), "-o", "json")
    document = json.loads(result.stdout)
    assert len(document["devices"]) == 5
    assert [problem["field"] for problem in document["problems"]] == ["holders"]
    assert "Node node-a: holders: not shown" in result.stderr


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    runner = CliRunner()
    both = runner.invoke(command, ["--root", str(tmp_path), "--preset", "hgx-h100"])
    assert isinstance(both.exception, InvalidInput)
    unknown = runner.invoke(command, ["--machine", "nope"])
    assert isinstance(unknown.exception, InvalidInput)
    assert "hgx-h100" in str(unknown.exception)
    absent = runner.invoke(command, ["--root", str(tmp_path / "absent")])
    assert isinstance(absent.exception, DiscoveryError)


@pytest.mark.parametrize(
    "module", ["networkx", "pynvml", "yaml", "koordra.kubelet_plugin", "koordra.topology"]
)
def test_help_imports_nothing_heavy(module: str) -> None:
    probe = (
        "import sys\nfrom koordra.cli.machine.topology import topology as command\n"
        "try:\n    command(['--help'])\nexcept SystemExit:\n    pass\n"
        f"sys.exit({module!r} in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe], check=False, capture_output=True)
    assert done.returncode == 0
