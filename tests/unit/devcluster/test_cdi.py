"""The CDI loader: which files are refused, what conflicts do, and what injection makes of a container."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.errors import CDIError
from koordra_devcluster.container_runtime import cdi
from koordra_devcluster.container_runtime.oci import ContainerSpec, DeviceNode, DeviceRule, Mount

EDITS = {"env": ["A=1"]}


def spec(**fields: Any) -> dict[str, Any]:
    base = {
        "cdiVersion": "0.5.0",
        "kind": "example.com/gpu",
        "devices": [{"name": "gpu-0", "containerEdits": EDITS}],
    }
    return base | fields


def device(**edits: Any) -> dict[str, Any]:
    return spec(devices=[{"name": "gpu-0", "containerEdits": edits}])


def write(directory: Path, name: str, content: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    text = yaml.safe_dump(content) if path.suffix == ".yaml" else json.dumps(content)
    path.write_text(content if isinstance(content, str) else text)
    return path


REFUSED = [
    (spec(cdiVersion="9.9.9"), "invalid CDI version"),
    (spec(cdiVersion=""), "invalid CDI version"),
    (spec(kind="gpu"), "invalid CDI kind"),
    (spec(kind="1example.com/gpu"), "invalid CDI kind"),
    (spec(kind="example.com/gpu-"), "invalid CDI kind"),
    (spec(devices=[]), "no devices"),
    (spec(devices=[{"name": "gpu 0", "containerEdits": EDITS}]), "invalid device name"),
    (spec(devices=[{"name": "-gpu", "containerEdits": EDITS}]), "invalid device name"),
    (spec(devices=[{"name": "a", "containerEdits": EDITS}] * 2), "multiple device"),
    (spec(devices=[{"name": "a", "containerEdits": {}}]), "empty device edits"),
    (spec(devices=[{"name": "a", "containerEdits": {"env": []}}]), "empty device edits"),
    (spec(surprise=1), 'unknown field "surprise"'),
    (spec(devices=[{"name": "a", "containerEdits": EDITS, "more": 1}]), 'unknown field "more"'),
    (device(env=["A=1"], mount=[]), 'unknown field "mount"'),
    (device(env=["A"]), "invalid environment variable"),
    (device(env=["=1"]), "invalid environment variable"),
    (device(env="A=1"), "wrong type"),
    (device(deviceNodes=[{"path": ""}]), "invalid (empty) device path"),
    (device(deviceNodes=[{"path": "/dev/x", "type": "x"}]), "invalid type"),
    (device(deviceNodes=[{"path": "/dev/x", "permissions": "rx"}]), "invalid permissions"),
    (device(deviceNodes=[{"path": "/dev/x", "major": "195"}]), "wrong type"),
    (device(mounts=[{"hostPath": "/x"}]), "hostPath and containerPath are required"),
    (device(hooks=[{"hookName": "never", "path": "/x"}]), "invalid hook name"),
    (device(hooks=[{"hookName": "prestart", "path": ""}]), "empty path"),
    (device(netDevices=[{"name": "eth0"}]), "hostInterfaceName and name are required"),
    (device(intelRdt={"closID": "a/b"}), "invalid intelRdt closID"),
    (device(additionalGids=["x"]), "additionalGids are numbers"),
    (spec(cdiVersion="0.4.0", devices=[{"name": "0gpu", "containerEdits": EDITS}]), "must be at least v0.5.0"),
    (device(deviceNodes=[{"path": "/dev/x", "hostPath": "/y"}]) | {"cdiVersion": "0.4.0"}, "at least v0.5.0"),
    (device(mounts=[{"hostPath": "/x", "containerPath": "/y", "type": "tmpfs"}]) | {"cdiVersion": "0.3.0"}, "at least v0.4.0"),
    (spec(annotations={"a": "b"}), "at least v0.6.0"),
    (spec(kind="example.com/gpu.big"), "at least v0.6.0"),
    (device(additionalGids=[1]), "at least v0.7.0"),
    (device(netDevices=[{"hostInterfaceName": "eth0", "name": "net0"}]), "at least v1.1.0"),
    ("{", "cannot be read"),
    ('{"cdiVersion": "0.5.0", "cdiVersion": "0.5.0"}', "is there twice"),
    ([], "is not an object"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "text"), REFUSED, ids=range(len(REFUSED)))
def test_a_file_that_breaks_a_rule_is_refused_alone(tmp_path: Path, content: Any, text: str) -> None:
    write(tmp_path, "bad.json", content)
    write(tmp_path, "good.json", spec(kind="other.com/gpu"))
    loaded = cdi.load([tmp_path])
    assert list(loaded.devices) == ["other.com/gpu=gpu-0"]
    assert text in loaded.problems[tmp_path / "bad.json"]


@pytest.mark.parametrize("version", ["0.5.0", "v0.5.0", "0.8.0", "1.0.0", "1.1.0"])
def test_known_versions_are_read(tmp_path: Path, version: str) -> None:
    write(tmp_path, "a.json", spec(cdiVersion=version))
    assert list(cdi.load([tmp_path]).devices) == ["example.com/gpu=gpu-0"]


def test_only_json_and_yaml_files_of_the_directory_itself_are_read(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", spec())
    write(tmp_path, "spec.123.tmp", spec(kind="x.com/a"))
    write(tmp_path / "deeper", "b.json", spec(kind="x.com/b"))
    loaded = cdi.load([tmp_path, tmp_path / "missing"])
    assert (list(loaded.devices), loaded.problems) == (["example.com/gpu=gpu-0"], {})


def test_an_id_that_two_files_declare_is_nobodys(tmp_path: Path) -> None:
    write(tmp_path, "a.json", spec())
    write(tmp_path, "b.json", spec())
    loaded = cdi.load([tmp_path])
    assert loaded.devices == {}
    assert "conflicting device" in loaded.problems[tmp_path / "b.json"]


def test_a_later_directory_wins(tmp_path: Path) -> None:
    write(tmp_path / "etc", "a.json", spec())
    winner = write(tmp_path / "run", "a.json", spec())
    assert cdi.load([tmp_path / "etc", tmp_path / "run"]).devices["example.com/gpu=gpu-0"].file == winner


def injected(
    tmp_path: Path, content: dict[str, Any], names: list[str], start: ContainerSpec | None = None
) -> ContainerSpec:
    write(tmp_path, "a.json", content)
    result = start or ContainerSpec()
    cdi.inject(result, names, cdi.load([tmp_path]), host_device=cdi.host_device)
    return result


NAME = "example.com/gpu=gpu-0"


def test_the_files_edits_come_once_and_first(tmp_path: Path) -> None:
    content = spec(
        containerEdits={"env": ["WHO=file", "FILE=1"], "hooks": [{"hookName": "createContainer", "path": "/hook"}]},
        devices=[
            {"name": name, "containerEdits": {"env": [f"WHO={name}"], "mounts": [{"hostPath": "/h", "containerPath": f"/{name}"}]}}
            for name in ("gpu-0", "gpu-1")
        ],
    )  # fmt: skip
    result = injected(tmp_path, content, [NAME, "example.com/gpu=gpu-1", NAME])
    assert result.env == {"WHO": "gpu-1", "FILE": "1"}
    assert len(result.hooks) == 1
    assert [mount.destination for mount in result.mounts] == ["/gpu-0", "/gpu-1"]


def test_environment_is_replaced(tmp_path: Path) -> None:
    start = ContainerSpec(env={"NVIDIA_VISIBLE_DEVICES": "all", "HOME": "/"})
    result = injected(tmp_path, device(env=["NVIDIA_VISIBLE_DEVICES=void"]), [NAME], start)
    assert result.env == {"NVIDIA_VISIBLE_DEVICES": "void", "HOME": "/"}


def test_mounts_replace_by_destination_and_sort_by_depth(tmp_path: Path) -> None:
    start = ContainerSpec(mounts=[Mount("/a/b/c", "/old"), Mount("/a", "/old")])
    edits = {"mounts": [{"hostPath": "/new", "containerPath": "/a", "options": ["ro"]}]}
    result = injected(tmp_path, device(**edits), [NAME], start)
    assert [(one.destination, one.source, one.options) for one in result.mounts] == [
        ("/a", "/new", ("ro",)),
        ("/a/b/c", "/old", ()),
    ]


def test_device_nodes_bring_their_allow_rules(tmp_path: Path) -> None:
    nodes = [
        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0},
        {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1, "permissions": "rw"},
        {
            "path": "/dev/nvidia2",
            "type": "c",
            "major": 195,
            "minor": 2,
            "permissions": "none",
            "fileMode": 0o600,
        },
        {"path": "/dev/fifo", "type": "p"},
    ]
    result = injected(tmp_path, device(deviceNodes=nodes), [NAME])
    assert result.devices["/dev/nvidia2"] == DeviceNode("/dev/nvidia2", "c", 195, 2, 0o600)
    assert result.device_rules == [
        DeviceRule(True, "c", 195, 0, "rwm"),
        DeviceRule(True, "c", 195, 1, "rw"),
        DeviceRule(True, "c", 195, 2, ""),
    ]


def test_missing_numbers_are_looked_up_on_the_host(tmp_path: Path) -> None:
    host = tmp_path / "dev" / "nvidia0"
    host.parent.mkdir()
    host.write_text("c 195:7\n")
    nodes = [{"path": "/dev/nvidia0", "hostPath": str(host)}, {"path": "/dev/null"}]
    result = injected(tmp_path / "cdi", device(deviceNodes=nodes), [NAME])
    assert result.devices["/dev/nvidia0"] == DeviceNode("/dev/nvidia0", "c", 195, 7)
    null = os.stat("/dev/null").st_rdev  # noqa: PTH116
    assert (result.devices["/dev/null"].major, result.devices["/dev/null"].minor) == (
        os.major(null),
        os.minor(null),
    )


@pytest.mark.parametrize("content", ["", "not a node", "c 195", "x 1:2", "c 1:2" + " " * 100])
def test_what_does_not_stand_for_a_node_fails_the_container(tmp_path: Path, content: str) -> None:
    host = tmp_path / "dev0"
    host.write_text(content)
    with pytest.raises(CDIError):
        injected(tmp_path / "cdi", device(deviceNodes=[{"path": "/dev/x", "hostPath": str(host)}]), [NAME])


def test_a_node_that_is_not_there_or_of_another_type_fails_the_container(tmp_path: Path) -> None:
    with pytest.raises(CDIError, match="failed to stat"):
        injected(tmp_path, device(deviceNodes=[{"path": "/dev/not-there"}]), [NAME])
    with pytest.raises(CDIError, match="host type mismatch"):
        injected(tmp_path, device(deviceNodes=[{"path": "/dev/null", "type": "b"}]), [NAME])


def test_links_are_not_followed(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    with pytest.raises(CDIError):
        cdi.host_device(link)


def test_one_unknown_id_fails_the_container(tmp_path: Path) -> None:
    with pytest.raises(CDIError, match=r"unresolvable CDI devices example\.com/gpu=gpu-9"):
        injected(tmp_path, spec(), [NAME, "example.com/gpu=gpu-9"])


def test_the_rest_of_the_edits(tmp_path: Path) -> None:
    edits = {
        "netDevices": [{"hostInterfaceName": "ens1", "name": "net0"}],
        "additionalGids": [0, 44, 44],
        "intelRdt": {"closID": "gold"},
    }
    result = injected(tmp_path, device(**edits) | {"cdiVersion": "1.1.0"}, [NAME])
    assert (result.net_devices, result.additional_gids) == ({"ens1": "net0"}, [44])
    assert result.resources["intelRdt"] == {"closID": "gold"}
