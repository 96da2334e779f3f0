"""The runtime double: records, CDI, and the runtime's side of NRI over a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra._proto.nri import nri_pb2
from koordra.errors import CDIError, NRIError
from koordra_devcluster.container_runtime.nri_runtime import NriSettings
from koordra_devcluster.container_runtime.oci import Mount
from koordra_devcluster.container_runtime.runtime import ContainerConfig, ContainerRuntime
from tests.patience import PATIENCE
from tests.unit.devcluster.calling import eventually
from tests.unit.devcluster.fake_nri_plugin import (
    ALL_BUT_VALIDATE,
    VALIDATE,
    FakePlugin,
    answering,
    failing,
    late,
)

POD = {"namespace": "default", "name": "p", "uid": "u1", "labels": {"a": "b"}, "annotations": {}}
EMPTY = nri_pb2.Empty()


def runtime(folder: Path, *, nri: bool = True, **settings: Any) -> ContainerRuntime:
    made = ContainerRuntime(
        folder,
        node="n1",
        cdi_directories=[folder / "cdi"],
        nri_socket=folder / "nri.sock" if nri else None,
        nri_settings=NriSettings(
            **{"request_timeout": PATIENCE, "registration_timeout": PATIENCE, **settings}
        ),
    )
    made.start()
    return made


@pytest.fixture
def box(tmp_path: Path) -> Iterator[ContainerRuntime]:
    made = runtime(tmp_path)
    yield made
    made.close()


def plugin(box: ContainerRuntime, tmp_path: Path, **handlers: Any) -> FakePlugin:
    """A registered plugin."""
    known = len(box.nri.plugins()) if box.nri else 0
    made = FakePlugin(tmp_path / "nri.sock", **handlers)
    eventually(lambda: box.nri is not None and len(box.nri.plugins()) == known + 1)
    return made


def hurry(box: ContainerRuntime) -> None:
    """From here on the runtime is tired of its plugins soon."""
    assert box.nri is not None
    box.nri.settings = replace(box.nri.settings, request_timeout=0.3)


def run(box: ContainerRuntime, **config: Any) -> dict[str, Any]:
    """A pod with one running container."""
    sandbox = box.sandbox_of("u1") or box.run_sandbox(POD)
    record = box.create_container(sandbox, ContainerConfig(**{"name": "main", "image": "x", **config}))
    box.start_container(record["id"])
    return box.containers_of("u1")[-1]


def adjust(**fields: Any) -> nri_pb2.CreateContainerResponse:
    return nri_pb2.CreateContainerResponse(adjust=nri_pb2.ContainerAdjustment(**fields))


def env(name: str, value: str) -> nri_pb2.KeyValue:
    return nri_pb2.KeyValue(key=name, value=value)


def test_the_record_says_what_the_container_got(tmp_path: Path) -> None:
    box = runtime(tmp_path, nri=False)
    node = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
    edits = {"env": ["A=cdi"], "deviceNodes": [node]}
    spec = {"cdiVersion": "0.5.0", "kind": "a.com/b", "devices": [{"name": "c", "containerEdits": edits}]}
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "a.json").write_text(json.dumps(spec))
    made = run(box, env={"A": "pod", "B": "1"}, cdi_devices=["a.com/b=c"], mounts=[Mount("/m", "/h")])
    saved = json.loads((tmp_path / "containers" / f"{made['id']}.json").read_text())
    assert saved == made
    assert saved["pod"] == {"namespace": "default", "name": "p", "uid": "u1"}
    assert (saved["container"], saved["node"], saved["state"]) == ("main", "n1", "running")
    assert (saved["cdiDevices"], saved["env"]) == (["a.com/b=c"], {"A": "cdi", "B": "1"})
    assert saved["deviceNodes"] == [node]
    assert saved["mounts"] == [{"destination": "/m", "source": "/h", "type": "bind", "options": []}]
    assert saved["deviceRules"][0]["allow"] is False


def test_records_survive_the_runtime(tmp_path: Path) -> None:
    first = runtime(tmp_path, nri=False)
    made = run(first)
    second = runtime(tmp_path, nri=False)
    assert second.containers_of("u1") == [made]
    assert second.sandbox_of("u1") is not None
    second.remove_pod("u1")
    assert second.pods() == {}
    assert list((tmp_path / "containers").iterdir()) == []
    second.remove_pod("u1")


def test_an_unknown_cdi_device_creates_nothing(tmp_path: Path) -> None:
    box = runtime(tmp_path, nri=False)
    with pytest.raises(CDIError, match="unresolvable"):
        run(box, cdi_devices=["a.com/b=c"])
    assert box.containers_of("u1") == []


def test_sleep_ends(tmp_path: Path) -> None:
    now = [100.0]
    box = ContainerRuntime(tmp_path, node="n1", cdi_directories=[], clock=lambda: now[0])
    sandbox = box.run_sandbox(POD)
    record = box.create_container(sandbox, ContainerConfig("main", "x", command=["/bin/sleep", "5"]))
    box.start_container(record["id"])
    assert box.containers_of("u1")[0]["state"] == "running"
    now[0] = 106.0
    ended = box.containers_of("u1")[0]
    assert (ended["state"], ended["exitCode"], ended["finishedAt"]) == ("exited", 0, 105.0)


def test_a_privileged_container_gets_every_device(tmp_path: Path) -> None:
    dev = tmp_path / "dev" / "infiniband"
    dev.mkdir(parents=True)
    (dev / "uverbs0").write_text("c 231:192\n")
    (dev / "README").write_text("no node")
    box = ContainerRuntime(tmp_path, node="n1", cdi_directories=[], host_dev=tmp_path / "dev")
    record = box.create_container(box.run_sandbox(POD), ContainerConfig("main", "x", privileged=True))
    assert [node["path"] for node in record["deviceNodes"]] == ["/dev/infiniband/uverbs0"]
    assert record["deviceRules"][-1]["allow"] is True


# --- NRI ---


def test_registration_configures_and_synchronizes(box: ContainerRuntime, tmp_path: Path) -> None:
    existing = run(box)
    made = plugin(box, tmp_path, name="koordra", index="90")
    assert box.nri is not None
    assert box.nri.plugins() == ["90-koordra"]
    assert made.methods() == ["Configure", "Synchronize"]
    configure, synchronize = made.seen[0][1], made.seen[1][1]
    assert (configure.NRI_version, configure.request_timeout) == ("v0.12.0", PATIENCE * 1000)
    assert [one.uid for one in synchronize.pods] == ["u1"]
    assert [(one.id, one.state) for one in synchronize.containers] == [
        (existing["id"], nri_pb2.CONTAINER_RUNNING)
    ]


@pytest.mark.parametrize(("name", "index"), [("", "10"), ("a b", "10"), ("ok", "1"), ("ok", "abc")])
def test_bad_names_are_not_registered(tmp_path: Path, name: str, index: str) -> None:
    box = runtime(tmp_path, registration_timeout=0.3)
    made = FakePlugin(tmp_path / "nri.sock", name=name, index=index)
    assert made.ended.wait(PATIENCE)
    assert box.nri is not None
    assert box.nri.plugins() == []
    box.close()


def test_event_bits_that_do_not_exist_are_refused(box: ContainerRuntime, tmp_path: Path) -> None:
    made = FakePlugin(tmp_path / "nri.sock", events=1 << 20)
    assert made.ended.wait(PATIENCE)
    assert box.nri is not None
    assert box.nri.plugins() == []


def test_an_adjustment_reaches_the_record(box: ContainerRuntime, tmp_path: Path) -> None:
    deny = nri_pb2.LinuxDeviceCgroup(allow=False, type="c", access="rw")
    changes = adjust(
        env=[env("NVIDIA_VISIBLE_DEVICES", "void")],
        rlimits=[nri_pb2.POSIXRlimit(type="RLIMIT_MEMLOCK", hard=2**64 - 1, soft=2**64 - 1)],
        linux=nri_pb2.LinuxContainerAdjustment(
            resources=nri_pb2.LinuxResources(devices=[deny], cpu=nri_pb2.LinuxCPU(cpus="0-3"))
        ),
    )
    plugin(box, tmp_path, CreateContainer=answering(changes))
    made = run(box, env={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert made["env"] == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert made["rlimits"] == [{"type": "RLIMIT_MEMLOCK", "hard": 2**64 - 1, "soft": 2**64 - 1}]
    assert made["deviceRules"][-1] == {
        "allow": False,
        "type": "c",
        "major": None,
        "minor": None,
        "access": "rw",
    }
    assert made["resources"] == {"cpu.cpus": "0-3"}


def test_plugins_are_asked_in_the_order_of_their_indices(box: ContainerRuntime, tmp_path: Path) -> None:
    late = plugin(
        box, tmp_path, name="late", index="90", CreateContainer=answering(adjust(env=[env("A", "1")]))
    )
    plugin(box, tmp_path, name="early", index="10", CreateContainer=answering(adjust(env=[env("B", "2")])))
    made = run(box)
    assert made["env"] == {"B": "2", "A": "1"}
    request = next(request for method, request in late.seen if method == "CreateContainer")
    assert list(request.container.env) == ["B=2"]


def test_a_conflict_fails_the_container(box: ContainerRuntime, tmp_path: Path) -> None:
    for number in ("10", "20"):
        plugin(
            box,
            tmp_path,
            name=f"p{number}",
            index=number,
            CreateContainer=answering(adjust(env=[env("A", number)])),
        )
    with pytest.raises(NRIError, match=r"'10-p10' and '20-p20' both tried to set Env A"):
        run(box)
    assert box.containers_of("u1") == []


def test_an_error_fails_the_operation_and_keeps_the_plugin(box: ContainerRuntime, tmp_path: Path) -> None:
    made = plugin(
        box, tmp_path, events=ALL_BUT_VALIDATE, CreateContainer=failing("not yours"), StateChange=answering(EMPTY),
        StopContainer=answering(nri_pb2.StopContainerResponse()), RemoveContainer=answering(EMPTY),
    )  # fmt: skip
    with pytest.raises(NRIError, match="not yours"):
        run(box)
    assert box.nri is not None
    assert box.nri.plugins() == ["10-test"]
    assert made.methods()[-2:] == ["StopContainer", "RemoveContainer"]


def test_a_slow_plugin_is_dropped_and_the_container_created_without_it(
    box: ContainerRuntime, tmp_path: Path
) -> None:
    dropped = threading.Event()
    made = plugin(box, tmp_path, CreateContainer=late(dropped, adjust(env=[env("A", "1")])))
    hurry(box)
    assert run(box)["env"] == {}
    dropped.set()
    assert made.ended.wait(PATIENCE)
    assert box.nri is not None
    assert box.nri.plugins() == []


def test_a_plugin_that_dies_is_dropped(box: ContainerRuntime, tmp_path: Path) -> None:
    plugin(box, tmp_path, CreateContainer=answering(adjust())).close()
    eventually(lambda: box.nri is not None and box.nri.plugins() == [])
    assert run(box)["state"] == "running"


def test_a_required_plugin_must_be_there(tmp_path: Path) -> None:
    box = runtime(tmp_path, required_plugins=("koordra",))
    with pytest.raises(NRIError, match="required NRI plugin 'koordra' was not consulted"):
        run(box)
    plugin(box, tmp_path, name="koordra", CreateContainer=answering(adjust()))
    assert run(box)["state"] == "running"
    box.close()


def test_a_required_plugin_that_times_out_counts_as_asked(tmp_path: Path) -> None:
    """The hole that real runtimes have, kept on purpose."""
    box = runtime(tmp_path, required_plugins=("koordra",))
    dropped = threading.Event()
    plugin(box, tmp_path, name="koordra", CreateContainer=late(dropped, adjust()))
    hurry(box)
    assert run(box)["state"] == "running"
    dropped.set()
    box.close()


def test_events_fall_back_to_state_change(box: ContainerRuntime, tmp_path: Path) -> None:
    made = plugin(
        box, tmp_path, events=ALL_BUT_VALIDATE, CreateContainer=answering(adjust()), StateChange=answering(EMPTY),
        StopContainer=answering(nri_pb2.StopContainerResponse()),
    )  # fmt: skip
    run(box)
    box.remove_pod("u1")
    changes = [request.event for method, request in made.seen if method == "StateChange"]
    assert changes == [
        nri_pb2.RUN_POD_SANDBOX, nri_pb2.POST_CREATE_CONTAINER, nri_pb2.START_CONTAINER, nri_pb2.POST_START_CONTAINER,
        nri_pb2.REMOVE_CONTAINER, nri_pb2.STOP_POD_SANDBOX, nri_pb2.REMOVE_POD_SANDBOX,
    ]  # fmt: skip
    assert made.methods().count("RunPodSandbox") == 1


def test_an_older_runtime_knows_state_change_only(tmp_path: Path) -> None:
    box = runtime(tmp_path, dedicated=False, version="")
    handlers = {"CreateContainer": answering(adjust()), "StateChange": answering(EMPTY)}
    made = plugin(box, tmp_path, events=(1 << 11) - 1, **handlers)
    run(box)
    assert "RunPodSandbox" not in made.methods()
    assert "StateChange" in made.methods()
    box.close()


def test_dedicated_events_go_to_who_knows_them(box: ContainerRuntime, tmp_path: Path) -> None:
    known = ("RunPodSandbox", "PostCreateContainer", "StartContainer", "PostStartContainer")
    handlers = {name: answering(EMPTY) for name in known}
    made = plugin(box, tmp_path, events=ALL_BUT_VALIDATE, CreateContainer=answering(adjust()), **handlers)
    run(box)
    assert made.methods()[2:] == [known[0], "CreateContainer", *known[1:]]


def test_no_events_means_all_of_them(box: ContainerRuntime, tmp_path: Path) -> None:
    verdict = nri_pb2.ValidateContainerAdjustmentResponse()
    made = plugin(
        box, tmp_path, events=0, CreateContainer=answering(adjust()), StateChange=answering(EMPTY),
        ValidateContainerAdjustment=answering(verdict),
    )  # fmt: skip
    run(box)
    assert {"RunPodSandbox", "CreateContainer", "ValidateContainerAdjustment", "StateChange"} <= set(
        made.methods()
    )


def test_a_refused_sandbox_is_undone(box: ContainerRuntime, tmp_path: Path) -> None:
    made = plugin(
        box,
        tmp_path,
        events=ALL_BUT_VALIDATE,
        RunPodSandbox=failing("no"),
        StopPodSandbox=answering(EMPTY),
        RemovePodSandbox=answering(EMPTY),
    )
    with pytest.raises(NRIError, match="no"):
        box.run_sandbox(POD)
    assert made.methods()[-2:] == ["StopPodSandbox", "RemovePodSandbox"]
    assert box.pods() == {}


def test_a_validator_can_reject(box: ContainerRuntime, tmp_path: Path) -> None:
    verdict = nri_pb2.ValidateContainerAdjustmentResponse(reject=True, reason="never")
    made = plugin(box, tmp_path, events=VALIDATE, ValidateContainerAdjustment=answering(verdict))
    with pytest.raises(NRIError, match="reason: never"):
        run(box)
    assert made.seen[-1][1].plugins[0].name == "test"


def test_updates_reach_other_containers(box: ContainerRuntime, tmp_path: Path) -> None:
    first = run(box)
    linux = nri_pb2.LinuxContainerUpdate(resources=nri_pb2.LinuxResources(cpu=nri_pb2.LinuxCPU(cpus="8-9")))
    update = nri_pb2.ContainerUpdate(container_id=first["id"], linux=linux)
    answer = nri_pb2.CreateContainerResponse(update=[update])
    made = plugin(box, tmp_path, CreateContainer=answering(answer))
    run(box, name="second")
    assert box.containers_of("u1")[0]["resources"] == {"cpu.cpus": "8-9"}
    asked = nri_pb2.UpdateContainersRequest(update=[nri_pb2.ContainerUpdate(container_id="unknown"), update])
    response = nri_pb2.UpdateContainersResponse.FromString(made.call("UpdateContainers", asked).payload)
    assert [one.container_id for one in response.failed] == ["unknown"]


def test_unknown_calls_of_a_plugin_are_unimplemented(box: ContainerRuntime, tmp_path: Path) -> None:
    made = plugin(box, tmp_path)
    assert made.call("Sing", EMPTY).status.code == 12


LARGE = adjust(env=[env(f"A{number}", "x" * 1000) for number in range(200)])


@pytest.mark.parametrize(
    ("frames", "survives"),
    [([4096], True), ([10, 4086], True), ([4096] * 100, True), ([], False), ([4097], False), ([5000], False)],
    ids=["4096-rest", "10-4086-rest", "all-4096", "one-frame", "4097", "5000"],
)
def test_large_answers_must_be_framed_as_go_reads_them(
    box: ContainerRuntime, tmp_path: Path, frames: list[int], survives: bool
) -> None:
    made = plugin(box, tmp_path, CreateContainer=answering(LARGE))
    made.frames = frames
    got = run(box)["env"]
    assert (len(got) == 200) is survives
    if survives:
        assert len(run(box, name="second")["env"]) == 200
    else:
        assert made.ended.wait(PATIENCE)


def test_large_requests_reach_the_plugin(box: ContainerRuntime, tmp_path: Path) -> None:
    made = plugin(box, tmp_path, CreateContainer=answering(adjust()))
    run(box, env={f"A{number}": "x" * 1000 for number in range(100)})
    request = next(request for method, request in made.seen if method == "CreateContainer")
    assert len(request.container.env) == 100


def test_cdi_devices_of_a_plugin_are_injected(box: ContainerRuntime, tmp_path: Path) -> None:
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "a.com/b",
        "devices": [{"name": "c", "containerEdits": {"env": ["X=1"]}}],
    }
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "a.json").write_text(json.dumps(spec))
    plugin(
        box,
        tmp_path,
        CreateContainer=answering(adjust(CDI_devices=[nri_pb2.CDIDevice(name="a.com/b=c")])),
    )
    assert run(box)["env"] == {"X": "1"}
