"""The rules, as a table: what a container brings, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from koordra.node_state.layout import mps_namespace
from koordra.node_state.prepared_claim import DeviceGuard
from koordra.nri.hook.adjust import NodeFacts
from koordra.nri.hook.oci import Adjustment, DeviceRule, Mount, adjustment_message, can_open
from koordra.topology.location import DeviceNode
from tests.unit.nri.node_state import (
    ALLOW_ALL,
    DENY_ALL,
    DRM0,
    GPU0,
    GPU1,
    GPU_CLAIM,
    JOINT_CLAIM,
    MARKER,
    NULL,
    NVIDIACTL,
    OTHER_UID,
    RDMA_CM,
    UID,
    UMAD0,
    VERBS0,
    VOID,
    adjust,
    adjusted,
    bind,
    claim,
    container,
    facts,
    gpu_json,
    markers,
    privileged,
    refused,
    rules_for,
)

# --------------------------------------------------------------------------------------------- nothing held


@pytest.mark.parametrize(
    "env", [(), (("NVIDIA_VISIBLE_DEVICES", "all"),), (("NVIDIA_VISIBLE_DEVICES", "void"),)]
)
def test_a_container_without_devices_sees_none_and_nothing_else_is_changed(
    env: tuple[tuple[str, str], ...],
) -> None:
    assert adjusted(container(NULL, env=env), facts()) == Adjustment(env=(VOID,))
    assert adjusted(container(env=env), NodeFacts()) == Adjustment(env=(VOID,))


@pytest.mark.parametrize(
    "node",
    [
        GPU0,
        DRM0,
        UMAD0,
        NVIDIACTL,
        RDMA_CM,
        DeviceNode("/dev/harmless", 195, 1),
        DeviceNode("/dev/nvidia1", 1, 3),
        DeviceNode("/dev/nvidia7", 509, 0),
        DeviceNode("/dev/hotplugged", 195, 9),
        DeviceNode("/dev/infiniband/uverbs9", 511, 9),
        DeviceNode("/dev/nvidia-caps/nvidia-cap3", 508, 3),
    ],
    ids=str,
)
def test_a_node_that_no_claim_holds_is_refused(node: DeviceNode) -> None:
    refusal = refused(container(NULL, node), facts())
    assert refusal.rule == "UngrantedDevice"
    assert str(node) in str(refusal)
    assert "ResourceClaim of class gpu.koordra.io" in str(refusal)


@pytest.mark.parametrize(
    "node",
    [NULL, DeviceNode("/dev/fuse", 10, 229), DeviceNode("/dev/nvidia-modeset", 195, 254)],
    ids=str,
)
def test_other_nodes_are_nobodys_business(node: DeviceNode) -> None:
    assert adjusted(container(node), facts()) == Adjustment(env=(VOID,))


def test_a_rule_that_opens_a_guarded_device_without_a_node_is_refused() -> None:
    refusal = refused(container(rules=rules_for(GPU1)), facts())
    assert refusal.rule == "UngrantedDevice"
    assert "c 195:1" in str(refusal)


def test_a_rule_that_opens_a_whole_major_is_answered_with_denials() -> None:
    wide = (*rules_for(), DeviceRule(True, "c", 195, None, "rw"))
    answer = adjusted(container(rules=wide), facts())
    assert [(rule.major, rule.minor) for rule in answer.deny] == [(195, 0), (195, 1), (195, 255)]
    assert not any(can_open((*wide, *answer.deny), node.number) for node in (GPU0, GPU1, NVIDIACTL))


def test_a_privileged_container_is_denied_every_guarded_node() -> None:
    everything = privileged(NULL, GPU0, GPU1, VERBS0, DeviceNode("/dev/nvidia9", 195, 9))
    answer = adjusted(everything, facts())
    denied = {(rule.type, rule.major, rule.minor) for rule in answer.deny}
    assert denied == {node.number for node in (GPU0, GPU1, DRM0, VERBS0, UMAD0, NVIDIACTL, RDMA_CM)} | {
        ("c", 195, 9)
    }
    assert {rule.access for rule in answer.deny} == {"rw"}


def test_a_privileged_container_that_was_denied_already_gets_no_rule() -> None:
    closed = (ALLOW_ALL, *(DeviceRule(False, *node.number, "rw") for node in (GPU0, GPU1)))
    answer = adjusted(privileged(rules=closed), facts())
    assert GPU0.number not in {(rule.type, rule.major, rule.minor) for rule in answer.deny}


# -------------------------------------------------------------------------------------- mounts, annotations


@pytest.mark.parametrize(
    "source",
    [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-caps",
        "/dev/infiniband",
        "/dev/infiniband/uverbs0",
        "//dev/./infiniband/",
        "/tmp/../dev/nvidia0",
        "/dev/dri",
        "/dev",
        "/run/nvidia",
        "/run/nvidia/driver/dev",
        "/var/run/nvidia-persistenced/socket",
        "/tmp/nvidia-mps",
    ],
)
def test_a_volume_that_brings_devices_is_refused(source: str) -> None:
    refusal = refused(container(mounts=bind(source)), facts())
    assert refusal.rule == "ForeignMount"
    assert "remove that hostPath volume" in str(refusal)


@pytest.mark.parametrize(
    "source",
    [
        "/var/run/cdi",
        "/run/cdi/x.json",
        "/etc/cdi",
        "/var/run/nri/nri.sock",
        "/var/lib/kubelet/plugins/koordra.io",
    ],
)
def test_a_volume_that_holds_the_nonces_is_refused(source: str) -> None:
    refusal = refused(container(mounts=bind(source)), facts())
    assert refusal.rule == "NodeState"
    assert source in str(refusal)
    assert adjusted(container(mounts=bind(source)), facts(), exempt=True) == Adjustment()


@pytest.mark.parametrize(
    "source", ["/", "/dev/shm", "/dev/log", "/devices", "/run", "/var/lib/nvidia", "/tmp/nvidia-mps-x"]
)
def test_other_volumes_are_nobodys_business(source: str) -> None:
    assert adjusted(container(mounts=bind(source)), facts()) == Adjustment(env=(VOID,))


def test_a_mount_that_is_no_volume_is_nobodys_business() -> None:
    tmpfs = (Mount("tmpfs", "/dev", bind=False), Mount("/dev/nvidia0", "/x", bind=False))
    assert adjusted(container(mounts=tmpfs), facts()) == Adjustment(env=(VOID,))


def test_all_of_dev_in_a_privileged_container_is_left_to_the_denials() -> None:
    answer = adjusted(privileged(mounts=bind("/dev", "/host/dev")), facts())
    assert len(answer.deny) == 7
    assert refused(privileged(mounts=bind("/dev/nvidia0")), facts()).rule == "ForeignMount"


def test_a_holder_of_a_gpu_may_have_the_drivers_sockets_and_libraries_but_not_its_nodes() -> None:
    known = facts(claims={MARKER: GPU_CLAIM})
    for source in ("/run/nvidia-persistenced/socket", "/run/nvidia/driver/usr/lib64/libcuda.so.580"):
        assert adjusted(container(GPU0, env=markers(0), mounts=bind(source)), known).deny == ()
    for source in ("/run/nvidia/driver", "/run/nvidia/driver/dev/nvidia1", "/dev/nvidia0"):
        assert refused(container(GPU0, env=markers(0), mounts=bind(source)), known).rule == "ForeignMount"


@pytest.mark.parametrize(
    "destination", ["/var/run/nvidia-container-devices/all", "/run/nvidia-container-devices/GPU-0"]
)
def test_a_mount_that_asks_the_toolkit_for_gpus_is_refused(destination: str) -> None:
    refusal = refused(container(mounts=bind("/dev/null", destination)), facts())
    assert refusal.rule == "ForeignMount"
    assert destination in str(refusal)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cdi.k8s.io/x", "nvidia.com/gpu=all"),
        ("cdi.k8s.io/x", "vendor.example/fpga=1, nvidia.com/gpu=0"),
        ("cdi.k8s.io/x", "koordra.io/claim=11111111-gpu"),
        ("nvidia.cdi.k8s.io", "management.nvidia.com/gpu=all"),
        ("nvidia.cdi.k8s.io/pod", "nvidia.com/gpu=0"),
        ("nvidia.cdi.k8s.io/container.main", "nvidia.com/gpu=0"),
    ],
)
@pytest.mark.parametrize("place", ["annotations", "pod_annotations"])
def test_an_annotation_that_names_a_cdi_device_is_refused(place: str, key: str, value: str) -> None:
    refusal = refused(container(**{place: {key: value}}), facts())
    assert refusal.rule == "ForeignCDIDevice"
    assert key in str(refusal)


@pytest.mark.parametrize(
    "annotations",
    [
        {"cdi.k8s.io/x": "vendor.example/fpga=1"},
        {"cdi.k8s.io/x": "notnvidia.com/gpu=1"},
        {"nvidia.cdi.k8s.io/container.sidecar": "nvidia.com/gpu=0"},
        {"team.example/gpu": "nvidia.com/gpu=0"},
    ],
)
def test_other_annotations_are_nobodys_business(annotations: dict[str, str]) -> None:
    assert adjusted(container(pod_annotations=annotations), facts()) == Adjustment(env=(VOID,))


# -------------------------------------------------------------------------------- exemption, failing closed


def test_in_an_exempt_namespace_nothing_is_taken_away() -> None:
    mounts = (*bind("/dev"), *bind("/dev/null", "/var/run/nvidia-container-devices/all"))
    exporter = privileged(
        GPU0,
        env=(("NVIDIA_VISIBLE_DEVICES", "all"),),
        mounts=mounts,
        annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"},
    )
    assert adjusted(exporter, facts(), exempt=True) == Adjustment()


def test_in_an_exempt_namespace_a_claim_is_served_as_elsewhere() -> None:
    answer = adjusted(container(VERBS0, env=markers(1)), facts(claims={MARKER: JOINT_CLAIM}), exempt=True)
    assert dict(answer.env)["NCCL_IB_HCA"] == "=mlx5_0"
    assert answer.rlimits == ("RLIMIT_MEMLOCK",)


def test_a_runtime_that_drops_rules_gets_no_privileged_container_where_something_must_be_denied() -> None:
    dropping = facts(rules_apply=False)
    refusal = refused(privileged(NULL), dropping)
    assert refusal.rule == "CannotDeny"
    assert "--exempt-namespace" in str(refusal)
    assert adjusted(privileged(NULL), dropping, exempt=True) == Adjustment()
    assert adjusted(container(NULL), dropping) == Adjustment(env=(VOID,))
    nothing = DeviceGuard(node="cpu-only", devices=(), control=())
    assert adjusted(privileged(NULL), facts(rules_apply=False, guarded=nothing)) == Adjustment(env=(VOID,))
    assert adjusted(
        privileged(NULL), NodeFacts(rules_apply=False)
    ).deny  # the plugin has not been here: come up
    torn = NodeFacts(rules_apply=False, guarded_problem="guarded.json is unusable: torn")
    assert refused(privileged(NULL), torn).rule == "CannotDeny"


def test_an_unreadable_record_refuses_the_containers_with_its_marker_only() -> None:
    broken = facts(unreadable={MARKER: "x.json is unusable"})
    refusal = refused(container(GPU0, env=markers(0)), broken)
    assert (refusal.rule, "x.json is unusable" in str(refusal)) == ("UnreadableState", True)
    assert adjusted(container(), broken) == Adjustment(env=(VOID,))


@pytest.mark.parametrize("problem", ["", "guarded.json is unusable: torn"])
def test_without_the_guarded_list_holders_and_what_looks_like_a_device_are_refused(problem: str) -> None:
    blind = NodeFacts(claims={MARKER: GPU_CLAIM}, guarded_problem=problem)
    refusal = refused(container(GPU0, env=markers(0)), blind)
    assert refusal.rule == "UnreadableState"
    assert "guarded.json" in str(refusal)
    assert refused(container(GPU1), blind).rule == "UngrantedDevice"
    assert refused(container(VERBS0), blind).rule == "UngrantedDevice"
    assert refused(container(mounts=bind("/dev/infiniband")), blind).rule == "ForeignMount"


def test_without_the_guarded_list_the_rest_of_the_node_comes_up_but_opens_no_gpu() -> None:
    assert adjusted(container(NULL, mounts=bind("/dev")), NodeFacts()) == Adjustment(env=(VOID,))
    answer = adjusted(privileged(NULL, GPU0), NodeFacts())
    assert not any(
        can_open((ALLOW_ALL, *answer.deny), node.number) for node in (GPU0, GPU1, VERBS0, NVIDIACTL)
    )


# --------------------------------------------------------------------------------------------- what is said


RULES = st.lists(
    st.builds(
        DeviceRule,
        allow=st.booleans(),
        type=st.sampled_from(["", "a", "c", "b"]),
        major=st.sampled_from([None, 1, 195, 231]),
        minor=st.sampled_from([None, 0, 1, 192]),
        access=st.sampled_from(["rwm", "rw", "r", "m", ""]),
    ),
    max_size=6,
)


@given(
    rules=RULES, nodes=st.lists(st.sampled_from([NULL, GPU0, GPU1, VERBS0]), max_size=3), holds=st.booleans()
)
def test_no_container_that_is_let_in_can_open_what_it_does_not_hold(
    rules: list[DeviceRule], nodes: list[DeviceNode], holds: bool
) -> None:
    env = markers(0) if holds else ()
    wanted = container(*nodes, env=env, rules=tuple(rules))
    answer = adjust(wanted, facts(claims={MARKER: GPU_CLAIM}))
    if isinstance(answer, Adjustment):
        foreign = {GPU1, DRM0, VERBS0, UMAD0, RDMA_CM} | (set() if holds else {GPU0, NVIDIACTL})
        opened = [node for node in foreign if can_open((*rules, *answer.deny), node.number)]
        assert opened == []
        if holds:
            assert can_open((*rules, *answer.deny), GPU0.number) == can_open(rules, GPU0.number)


def test_can_open_reads_rules_as_the_kernel_does() -> None:
    assert can_open((DENY_ALL, DeviceRule(True, "c", 195, 0, "r")), GPU0.number)
    assert not can_open((DENY_ALL, DeviceRule(True, "b", 195, 0, "rw")), GPU0.number)
    assert not can_open((DENY_ALL, DeviceRule(True, "c", 195, 0, "m")), GPU0.number)
    assert not can_open((), GPU0.number)


def test_the_message_of_an_adjustment(golden: Callable[[str, str], None]) -> None:
    env = (*markers(0, 1), ("NVIDIA_VISIBLE_DEVICES", "all"))
    held = privileged(GPU0, GPU1, VERBS0, env=env)
    message = adjustment_message(adjusted(held, facts(claims={MARKER: JOINT_CLAIM})))
    golden("nri/adjustment.json", json.dumps(MessageToDict(message), indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        (f"/var/lib/kubelet/plugins/koordra.io/claims/{UID}/gpu.metadata.json", None),
        (f"/var/lib/kubelet/plugins/koordra.io/claims/{UID}", "NodeState"),
        ("/var/lib/kubelet/plugins/koordra.io/claims", "NodeState"),
        (f"/var/lib/kubelet/plugins/koordra.io/claims/{OTHER_UID}/gpu.metadata.json", "NodeState"),
        (f"/var/lib/kubelet/plugins/koordra.io/claims/{UID}/../../prepared/x.json", "NodeState"),
        (f"/var/lib/kubelet/plugins/koordra.io/prepared/{UID}.json", "NodeState"),
    ],
)
def test_a_claims_own_documents_may_be_mounted_and_no_others(source: str, rule: str | None) -> None:
    read_only = (Mount(source, "/data", bind=True, read_only=True),)
    held = container(GPU0, env=markers(0), mounts=read_only)
    answer = adjust(held, facts(claims={MARKER: GPU_CLAIM}))
    assert (None if isinstance(answer, Adjustment) else answer.rule) == rule
    if rule is None:
        written = container(GPU0, env=markers(0), mounts=bind(source))
        assert refused(written, facts(claims={MARKER: GPU_CLAIM})).rule == "NodeState"
        assert refused(container(mounts=bind(source)), facts()).rule == "NodeState"


STATE = "/var/lib/kubelet/plugins/koordra.io"


@pytest.mark.parametrize(
    ("source", "read_only", "allowed"),
    [
        (f"{STATE}/limiter/library/1/libcuda.so.1", True, True),
        (f"{STATE}/limiter/library/1/libcuda.so.1", False, False),
        (f"{STATE}/limiter/claims/{UID}", True, True),
        (f"{STATE}/limiter/claims/{UID}", False, False),
        (f"{STATE}/limiter/claims/{UID}/usage", False, True),
        (f"{STATE}/limiter/claims/{UID}/policy", False, False),
        (f"{STATE}/limiter/claims/{OTHER_UID}/usage", False, False),
        (f"{STATE}/limiter/claims", True, False),
        (f"{STATE}/of-a-third-party/claims/{UID}/table", True, True),
        (f"{STATE}/of-a-third-party/claims/{UID}/usage", False, False),
        (f"{STATE}/of-a-third-party/claims/{OTHER_UID}/table", True, False),
        (f"{STATE}/of-a-third-party/library", True, False),
        (f"{STATE}/limiter", True, False),
        (STATE, True, False),
    ],
)
def test_what_isolation_has_there_for_the_own_claim_only(source: str, read_only: bool, allowed: bool) -> None:
    mounts = (Mount(source, "/data", bind=True, read_only=read_only),)
    held = container(GPU0, env=markers(0), mounts=mounts)
    answer = adjust(held, facts(claims={MARKER: GPU_CLAIM}))
    assert isinstance(answer, Adjustment) == allowed
    assert refused(container(mounts=mounts), facts()).rule == "NodeState"


@pytest.mark.parametrize(
    ("card", "part", "read_only", "allowed"),
    [
        (0, "pipe", True, True),
        (0, "pipe", False, False),
        (0, "pipe/control", True, False),
        (0, "shm", False, True),
        (0, "log", True, False),
        (1, "pipe", True, False),
        (1, "shm", False, False),
        (0, "v3/k/" + mps_namespace(GPU_CLAIM.ref.uid), True, True),
        (0, "v3/k/" + mps_namespace(GPU_CLAIM.ref.uid), False, False),
        (0, "v3/k/" + mps_namespace("another"), True, False),
        (0, "v3/k/default", True, False),
        (0, "v3/k", True, False),
        (0, "v3", True, False),
        (1, "v3/k/" + mps_namespace(GPU_CLAIM.ref.uid), True, False),
    ],
)
def test_sockets_of_mps_are_for_those_who_hold_the_card(
    card: int, part: str, read_only: bool, allowed: bool
) -> None:
    device = gpu_json(card)["device"]
    mounts = (Mount(f"{STATE}/mps/cards/{device}/{part}", "/mps", bind=True, read_only=read_only),)
    held = container(GPU0, env=markers(0), mounts=mounts)
    answer = adjust(held, facts(claims={MARKER: GPU_CLAIM}))
    assert isinstance(answer, Adjustment) == allowed
    assert refused(container(mounts=mounts), facts()).rule == "NodeState"


def test_a_container_is_the_client_of_one_cards_daemon() -> None:
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": "/run/koordra/mps/pipe"}
    both = claim(gpu_json(0, **pipe), gpu_json(1, **pipe))
    held = container(GPU0, GPU1, env=markers(0, 1))
    refusal = refused(held, facts(claims={MARKER: both}))
    assert refusal.rule == "MpsDaemons"
    assert "is the client of one card's daemon" in str(refusal)
    adjusted(container(GPU0, env=markers(0)), facts(claims={MARKER: both}))
    beside = claim(gpu_json(0, **pipe), gpu_json(1))
    assert refused(held, facts(claims={MARKER: beside})).rule == "MpsDaemons"
    adjusted(held, facts(claims={MARKER: claim(gpu_json(0), gpu_json(1))}))


def test_hamis_library_holds_all_cards_of_a_container_to_one_limit() -> None:
    kept = {
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/vgpulock/cudevshr.cache",
        "CUDA_DEVICE_MEMORY_LIMIT": "1m",
    }
    held = container(GPU0, GPU1, env=markers(0, 1))
    beside = refused(held, facts(claims={MARKER: claim(gpu_json(0, **kept), gpu_json(1))}))
    assert beside.rule == "HamiCoreCards"
    assert "beside" in str(beside)
    adjusted(held, facts(claims={MARKER: claim(gpu_json(0, **kept), gpu_json(1, **kept))}))
    larger = {**kept, "CUDA_DEVICE_MEMORY_LIMIT": "2m"}
    two = refused(held, facts(claims={MARKER: claim(gpu_json(0, **kept), gpu_json(1, **larger))}))
    assert two.rule == "ConflictingEnv"


def test_a_cdi_annotation_of_the_runtime_is_never_another_containers() -> None:
    annotations = {"cdi.k8s.io/container.other": "koordra.io/claim=x"}
    assert refused(container(pod_annotations=annotations), facts()).rule == "ForeignCDIDevice"


def test_a_card_that_the_inventory_lacks_is_known_by_its_number() -> None:
    last_card, modeset = DeviceNode("/dev/renamed", 195, 253), DeviceNode("/dev/nvidia-modeset", 195, 254)
    assert refused(container(last_card), facts()).rule == "UngrantedDevice"
    assert adjusted(container(modeset), facts()).deny == ()
