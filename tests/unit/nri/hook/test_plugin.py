"""The hook from one end to the other: NRI messages in, the plugin's files beside it, answers out."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from koordra._proto.nri import nri_pb2
from koordra.errors import RemoteError
from koordra.metrics import Metrics
from koordra.node_state.claim_network import AttachedDevice, AttachedNetwork, encode_attached
from koordra.node_state.layout import StateFolder
from koordra.node_state.reader import StateReader
from koordra.nri.hook.ledger import Ledger
from koordra.nri.hook.oci import LONGEST_REFUSAL, Container, DeviceRule, Mount, container_of
from koordra.nri.hook.plugin import HookPlugin, Settings
from koordra.nri.hook.system_pods import SystemPods
from koordra.nri.hook.ungranted_access import _spelled, host_path
from koordra.nri.transport.ttrpc import Call, Code
from koordra.topology.location import DeviceNode
from tests.unit.nri.node_state import (
    GPU0,
    MARKER,
    NODE,
    NONCE,
    OTHER_UID,
    UID,
    VERBS0,
    claim_json,
    gpu_json,
    guarded_json,
    markers,
    nic_json,
    write,
)

CALL = Call("nri.pkg.api.v1alpha1.Plugin", "CreateContainer")


def request(
    *nodes: DeviceNode, env: tuple[tuple[str, str], ...] = (), namespace: str = "team"
) -> nri_pb2.CreateContainerRequest:
    message = nri_pb2.CreateContainerRequest()
    message.pod.namespace, message.pod.name, message.container.name = namespace, "train-0", "main"
    message.container.env.extend(f"{name}={value}" for name, value in env)
    rules = message.container.linux.resources.devices
    rules.add(allow=False, access="rwm")
    for node in nodes:
        message.container.linux.devices.add(
            path=node.path, type=node.type, major=node.major, minor=node.minor
        )
        rule = rules.add(allow=True, type=node.type, access="rwm")
        rule.major.value, rule.minor.value = node.major, node.minor
    return message


@pytest.fixture
def hook(tmp_path: Path) -> HookPlugin:
    write(
        tmp_path / "prepared" / f"{UID}.json",
        claim_json(gpu_json(KOORDRA_MEMORY_LIMIT_0="10Gi"), nic_json(), memlock=True),
    )
    write(tmp_path / "guarded.json", guarded_json())
    return HookPlugin(
        StateReader(tmp_path, node_name=NODE),
        settings=Settings(system=SystemPods(frozenset(["monitoring"]))),
        ledger=Ledger(tmp_path),
    )


def test_a_claims_container_is_adjusted(hook: HookPlugin) -> None:
    answer = hook.create_container(request(GPU0, VERBS0, env=markers(0, 1)), CALL)
    env = {entry.key: entry.value for entry in answer.adjust.env}
    assert env["KOORDRA_MEMORY_LIMIT_0"] == "10Gi"
    assert env[MARKER] == "granted"
    assert [(limit.type, limit.soft, limit.hard) for limit in answer.adjust.rlimits] == [
        ("RLIMIT_MEMLOCK", 2**64 - 1, 2**64 - 1)
    ]


def test_a_refusal_is_a_status_and_a_line_in_the_log(hook: HookPlugin) -> None:
    with (
        capture_logs() as lines,
        pytest.raises(RemoteError, match="koordra refuses container main of pod") as raised,
    ):
        hook.create_container(request(GPU0), CALL)
    assert raised.value.code == Code.PERMISSION_DENIED
    assert [(line["event"], line["rule"]) for line in lines] == [("container_refused", "UngrantedDevice")]


@pytest.mark.parametrize("letter", ["x", "\x1b", "\U000e0001"])
def test_a_refusal_quotes_no_more_than_a_person_reads(hook: HookPlugin, letter: str) -> None:
    """It is told, logged, and tried again and again: by the megabyte it would fill the node's disk."""
    message = request()
    where = f"/var/run/nvidia-container-devices/{letter * 2_000_000}"
    message.container.mounts.add(source="/tmp", destination=where, type="bind")
    with capture_logs() as lines, pytest.raises(RemoteError) as raised:
        hook.create_container(message, CALL)
    (line,) = lines
    assert line["rule"] == "ForeignMount"
    for said in (str(raised.value), line["reason"]):
        assert len(said) < 10 * LONGEST_REFUSAL + 1000
        assert "asks NVIDIA's toolkit for GPUs" in said
        assert "ask for the device with a ResourceClaim" in said
    assert _spelled.cache_info().currsize <= 1024
    before = _spelled.cache_info().currsize
    assert host_path(where + "x") == where[len("/var") :] + "x"
    assert _spelled.cache_info().currsize == before, "a path that no kernel takes is not kept"


def test_metrics_name_no_pod_no_claim_and_no_nonce(tmp_path: Path, hook: HookPlugin) -> None:
    """Every pod of the cluster reaches them."""
    metrics = Metrics()
    hook.__post_init__(metrics)
    hook.create_container(request(GPU0, VERBS0, env=markers(0, 1)), CALL)
    with pytest.raises(RemoteError):
        hook.create_container(request(GPU0), CALL)
    text = metrics.text()
    assert 'koordra_nri_adjusted_total{devices="granted"} 1.0' in text
    assert 'koordra_nri_refusals_total{rule="UngrantedDevice"} 1.0' in text
    for word in ("train-0", "team", NONCE, MARKER, UID):
        assert word not in text


def test_an_exempt_namespace_is_left_alone(hook: HookPlugin) -> None:
    answer = hook.create_container(request(GPU0, namespace="monitoring"), CALL)
    assert answer == nri_pb2.CreateContainerResponse(adjust=nri_pb2.ContainerAdjustment())


def test_a_claim_that_is_unprepared_meanwhile_is_no_longer_honoured(tmp_path: Path, hook: HookPlugin) -> None:
    hook.create_container(request(GPU0, env=markers(0)), CALL)
    (tmp_path / "prepared" / f"{UID}.json").unlink()
    with pytest.raises(RemoteError, match="no such claim is prepared"):
        hook.create_container(request(GPU0, env=markers(0)), CALL)


def test_a_claim_whose_network_is_in_another_pod_is_refused(tmp_path: Path, hook: HookPlugin) -> None:
    file = tmp_path / "network" / "attached" / f"{UID}.json"
    message = request(GPU0, VERBS0, env=markers(0, 1))
    message.pod.uid = "pod-b"
    hook.create_container(message, CALL)
    attached = AttachedDevice("nic-0000-0c-00-0", "net1", before=(("mtu", 1500),))
    write(
        file,
        encode_attached(AttachedNetwork(UID, "pod-a", "sandbox-a", "/run/netns/a", (attached,))).decode(),
    )
    assert file == StateFolder(tmp_path).attached_file(UID)
    with capture_logs() as lines, pytest.raises(RemoteError) as raised:
        hook.create_container(message, CALL)
    assert [line["rule"] for line in lines] == ["NetworkElsewhere"]
    for part in ("claim team/train", "the pod with uid pod-a", "a claim of its own", "train-0"):
        assert part in str(raised.value)
    message.pod.uid = "pod-a"
    hook.create_container(message, CALL)
    message.pod.uid = "pod-b"
    file.unlink()
    hook.create_container(message, CALL)


@pytest.mark.parametrize(
    "broken", ["{", {"schema": "koordra.io/network-attached/v2"}, {"uid": OTHER_UID}, {"pod": ""}]
)
def test_an_unusable_record_of_where_the_network_is_fails_closed(
    tmp_path: Path, hook: HookPlugin, broken: str | dict[str, str]
) -> None:
    file = tmp_path / "network" / "attached" / f"{UID}.json"
    document = json.loads(encode_attached(AttachedNetwork(UID, "pod-a", "sandbox-a", "/run/netns/a", ())))
    write(file, broken if isinstance(broken, str) else {**document, **broken})
    message = request(GPU0, VERBS0, env=markers(0, 1))
    message.pod.uid = "pod-a"
    with pytest.raises(RemoteError, match="its claim cannot be verified"):
        hook.create_container(message, CALL)
    assert hook.create_container(request(), CALL).adjust.env[0].value == "void"
    write(file, document)
    hook.create_container(message, CALL)


def test_torn_state_fails_closed_and_recovers(tmp_path: Path, hook: HookPlugin) -> None:
    write(tmp_path / "guarded.json", "{")
    with pytest.raises(RemoteError, match=r"guarded\.json is unusable"):
        hook.create_container(request(GPU0, env=markers(0)), CALL)
    assert hook.create_container(request(), CALL).adjust.env[0].value == "void"
    write(tmp_path / "guarded.json", guarded_json())
    write(tmp_path / "prepared" / f"{UID}.json", "{")
    with pytest.raises(RemoteError, match=rf"{UID}\.json is unusable"):
        hook.create_container(request(GPU0, env=markers(0)), CALL)
    write(tmp_path / "prepared" / f"{UID}.json", claim_json(gpu_json()))
    hook.create_container(request(GPU0, env=markers(0)), CALL)


@pytest.mark.parametrize(("version", "denies"), [("v2.1.9", False), ("v2.2.1", True)])
def test_a_privileged_container_is_denied_by_a_new_runtime_and_refused_under_an_old_one(
    hook: HookPlugin, version: str, denies: bool
) -> None:
    hook.configure(nri_pb2.ConfigureRequest(runtime_name="containerd", runtime_version=version))
    message = request()
    message.container.linux.resources.devices[0].allow = True
    if denies:
        assert len(hook.create_container(message, CALL).adjust.linux.resources.devices) == 7
    else:
        with pytest.raises(RemoteError, match="cannot take them away"):
            hook.create_container(message, CALL)


def test_it_asks_for_creations_and_removals_only(hook: HookPlugin) -> None:
    assert hook.wanted_events() == 1 << 3 | 1 << 10


def test_what_was_granted_is_remembered_until_the_container_goes(tmp_path: Path, hook: HookPlugin) -> None:
    message = request(GPU0, env=markers(0))
    message.container.id = "c1"
    hook.create_container(message, CALL)
    (file,) = (tmp_path / "nri-granted").iterdir()
    assert file.name == "c1.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert NONCE not in file.read_text()
    granted = Ledger(tmp_path).get("c1")
    assert granted is not None
    assert ("c", 195, 255) in granted.numbers
    hook.remove_container(nri_pb2.RemoveContainerRequest(container=message.container), CALL)
    assert not list((tmp_path / "nri-granted").iterdir())
    assert Ledger(tmp_path).get("c1") is None


def test_a_container_without_devices_writes_nothing(tmp_path: Path, hook: HookPlugin) -> None:
    message = request()
    message.container.id = "c2"
    hook.create_container(message, CALL)
    assert not list((tmp_path / "nri-granted").iterdir())


def test_what_the_rules_see_of_a_request() -> None:
    message = request(GPU0, env=(("A", "1=2"), ("B", "")))
    message.container.mounts.add(destination="/a", source="/b", type="bind")
    message.container.mounts.add(destination="/c", source="/d", options=["ro", "rbind"])
    message.container.mounts.add(destination="/proc", source="proc", type="proc")
    message.container.rlimits.add(type="RLIMIT_NOFILE")
    message.container.annotations["k"] = "v"
    wildcard = message.container.linux.resources.devices.add(allow=True, type="c", access="m")
    wildcard.major.value = -1
    assert container_of(message.pod, message.container) == Container(
        namespace="team",
        pod="train-0",
        name="main",
        env=(("A", "1=2"), ("B", "")),
        devices=(GPU0,),
        rules=(
            DeviceRule(False, "", None, None, "rwm"),
            DeviceRule(True, "c", 195, 0, "rwm"),
            DeviceRule(True, "c", None, None, "m"),
        ),
        mounts=(
            Mount("/b", "/a", True),
            Mount("/d", "/c", True, read_only=True),
            Mount("proc", "/proc", False),
        ),
        annotations={"k": "v"},
        pod_annotations={},
        pod_labels={},
        rlimits=("RLIMIT_NOFILE",),
        host_network=True,
    )
