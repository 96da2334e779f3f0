"""How adjustments of several NRI plugins are merged and applied."""

from __future__ import annotations

from typing import Any

import pytest

from koordra._proto.nri import nri_pb2
from koordra_devcluster.container_runtime import nri_merge
from koordra_devcluster.container_runtime.nri_merge import Collected, MergeConflict
from koordra_devcluster.container_runtime.oci import ContainerSpec, DeviceNode, DeviceRule, Mount, Rlimit


def answer(**fields: Any) -> nri_pb2.CreateContainerResponse:
    return nri_pb2.CreateContainerResponse(adjust=nri_pb2.ContainerAdjustment(**fields))


def linux(**fields: Any) -> nri_pb2.CreateContainerResponse:
    return answer(linux=nri_pb2.LinuxContainerAdjustment(**fields))


def env(name: str, value: str = "") -> nri_pb2.KeyValue:
    return nri_pb2.KeyValue(key=name, value=value)


def node(path: str, minor: int = 0) -> nri_pb2.LinuxDevice:
    return nri_pb2.LinuxDevice(path=path, type="c", major=195, minor=minor)


def cpu(**fields: Any) -> nri_pb2.LinuxResources:
    return nri_pb2.LinuxResources(cpu=nri_pb2.LinuxCPU(**fields))


def collected(*answers: nri_pb2.CreateContainerResponse) -> Collected:
    merged = Collected(nri_pb2.Container(id="c1", env=["HOME=/", "OLD=1"]))
    for number, one in enumerate(answers):
        merged.add(f"{number:02}-plugin", one)
    return merged


CONFLICTS = [
    (answer(annotations={"a": "1"}), "Annotations a"),
    (answer(env=[env("A", "1")]), "Env A"),
    (answer(mounts=[nri_pb2.Mount(destination="/a")]), "Mounts /a"),
    (answer(args=["x"]), "Args"),
    (answer(rlimits=[nri_pb2.POSIXRlimit(type="RLIMIT_MEMLOCK")]), "Rlimits RLIMIT_MEMLOCK"),
    (answer(CDI_devices=[nri_pb2.CDIDevice(name="a/b=c")]), "CdiDevices a/b=c"),
    (linux(devices=[node("/dev/x")]), "Devices /dev/x"),
    (linux(resources=cpu(cpus="0-3")), "CPUSetCPUs"),
    (linux(resources=nri_pb2.LinuxResources(unified={"a": "1"})), "CgroupsUnified a"),
    (linux(cgroups_path="/x"), "CgroupsPath"),
    (linux(oom_score_adj=nri_pb2.OptionalInt(value=1)), "OomScoreAdj"),
    (linux(sysctl={"net.x": "1"}), "Sysctl net.x"),
    (linux(net_devices={"eth0": nri_pb2.LinuxNetDevice(name="n")}), "LinuxNetDevices eth0"),
]


@pytest.mark.parametrize(("asked", "what"), CONFLICTS, ids=[what for _, what in CONFLICTS])
def test_two_plugins_cannot_claim_the_same(asked: nri_pb2.CreateContainerResponse, what: str) -> None:
    collected(asked)
    with pytest.raises(MergeConflict) as refused:
        collected(asked, asked)
    assert str(refused.value) == f"plugins '00-plugin' and '01-plugin' both tried to set {what}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (answer(env=[env("A", "1")]), answer(env=[env("-A"), env("A", "2")])),
        (answer(annotations={"A": "1"}), answer(annotations={"-A": "", "A": "2"})),
        (answer(args=["a"]), answer(args=["", "b"])),
        (linux(devices=[node("/dev/x", 1)]), linux(devices=[node("-/dev/x"), node("/dev/x", 2)])),
        (
            answer(mounts=[nri_pb2.Mount(destination="/a", source="1")]),
            answer(mounts=[nri_pb2.Mount(destination="-/a"), nri_pb2.Mount(destination="/a", source="2")]),
        ),
    ],
)
def test_a_removal_releases_the_claim(
    first: nri_pb2.CreateContainerResponse, second: nri_pb2.CreateContainerResponse
) -> None:
    merged = collected(first, second)
    assert "01-plugin" in merged.owners.values()
    assert "00-plugin" not in merged.owners.values()


def test_a_later_plugin_sees_the_container_as_changed() -> None:
    merged = collected(
        answer(env=[env("A", "1"), env("HOME", "/root")], annotations={"x": "y"}),
        linux(devices=[node("/dev/x")]),
    )
    assert list(merged.container.env) == ["OLD=1", "A=1", "HOME=/root"]
    assert dict(merged.container.annotations) == {"x": "y"}
    assert [one.path for one in merged.container.linux.devices] == ["/dev/x"]


def applied(start: ContainerSpec, *answers: nri_pb2.CreateContainerResponse) -> ContainerSpec:
    merged = collected(*answers)
    nri_merge.apply_first(start, merged.adjust)
    nri_merge.apply(start, merged.adjust)
    return start


def test_an_environment_variable_of_the_container_cannot_be_removed() -> None:
    """A known gap of real runtimes, which a plugin must not rely upon being closed."""
    assert applied(ContainerSpec(env={"OLD": "1"}), answer(env=[env("-OLD")])).env == {"OLD": "1"}
    assert applied(ContainerSpec(env={"OLD": "1"}), answer(env=[env("OLD", "2")])).env == {"OLD": "2"}


def test_a_device_of_the_container_cannot_be_removed() -> None:
    start = ContainerSpec(devices={"/dev/x": DeviceNode("/dev/x", "c", 195, 0)})
    assert "/dev/x" in applied(start, linux(devices=[node("-/dev/x")])).devices


def test_mounts_and_annotations_of_the_container_can_be_removed() -> None:
    start = ContainerSpec(mounts=[Mount("/a", "/h")], annotations={"a": "1"})
    result = applied(start, answer(mounts=[nri_pb2.Mount(destination="-/a")], annotations={"-a": ""}))
    assert (result.mounts, result.annotations) == ([], {})


def test_an_added_device_gets_a_rule_and_deny_rules_come_last() -> None:
    deny = nri_pb2.LinuxDeviceCgroup(allow=False, type="c", access="rw")
    deny.major.value = 195
    deny.minor.value = 3
    asked = linux(devices=[node("/dev/x", 1)], resources=nri_pb2.LinuxResources(devices=[deny]))
    result = applied(ContainerSpec(device_rules=[DeviceRule(False)]), asked)
    assert result.device_rules == [
        DeviceRule(False),
        DeviceRule(True, "c", 195, 1, "rw"),
        DeviceRule(False, "c", 195, 3, "rw"),
    ]


def test_rlimits_are_appended_even_to_their_like() -> None:
    start = ContainerSpec(rlimits=[Rlimit("RLIMIT_NOFILE", 1, 1)])
    limits = [nri_pb2.POSIXRlimit(type="RLIMIT_NOFILE", hard=2, soft=2)]
    assert len(applied(start, answer(rlimits=limits)).rlimits) == 2


def test_resources_are_kept_by_name() -> None:
    resources = cpu(cpus="0-3", shares=nri_pb2.OptionalUInt64(value=5))
    resources.memory.limit.value = 1024
    resources.pids.limit = 7
    resources.unified["cpu.idle"] = "1"
    result = applied(ContainerSpec(), linux(resources=resources, oom_score_adj=nri_pb2.OptionalInt(value=-5)))
    assert result.resources == {
        "cpu.cpus": "0-3", "cpu.shares": 5, "memory.limit": 1024, "pids": 7, "unified.cpu.idle": "1", "oom_score_adj": -5,
    }  # fmt: skip


def test_arguments_and_hooks() -> None:
    hooks = nri_pb2.Hooks(prestart=[nri_pb2.Hook(path="/a", args=["a"])], poststop=[nri_pb2.Hook(path="/b")])
    result = applied(ContainerSpec(args=["old"]), answer(args=["new"], hooks=hooks))
    assert result.args == ["new"]
    assert [(hook.stage, hook.path) for hook in result.hooks] == [("prestart", "/a"), ("poststop", "/b")]


def test_the_container_being_created_cannot_be_updated() -> None:
    update = nri_pb2.ContainerUpdate(container_id="c1")
    with pytest.raises(MergeConflict, match="is being created"):
        collected(nri_pb2.CreateContainerResponse(update=[update]))


def test_two_plugins_cannot_update_the_same_field() -> None:
    linux_update = nri_pb2.LinuxContainerUpdate(resources=cpu(cpus="0"))
    asked = nri_pb2.CreateContainerResponse(
        update=[nri_pb2.ContainerUpdate(container_id="c2", linux=linux_update)]
    )
    assert len(collected(asked).updates) == 1
    with pytest.raises(MergeConflict, match="CPUSetCPUs of container c2"):
        collected(asked, asked)


def test_owners_are_told_to_validators() -> None:
    owners = collected(answer(env=[env("A", "1")]), linux(cgroups_path="/x")).owning_plugins().owners["c1"]
    assert owners.compound[nri_pb2.Env].owners == {"A": "00-plugin"}
    assert owners.simple[nri_pb2.CgroupsPath] == "01-plugin"
