"""Running containers compared with what they should have: each kind of difference, and the loop that tells of
them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koordra.errors import ApiError, ApiUnreachable
from koordra.metrics import Metrics
from koordra.node_state.reader import StateReader
from koordra.nri.hook.grants import Grant, Grants
from koordra.nri.hook.ledger import Granted, Ledger, granted_of
from koordra.nri.hook.oci import Container, DeviceRule, Mount
from koordra.nri.hook.system_pods import POD_RESOURCES, SystemPods
from koordra.nri.verify.bundles import Bundles, Running, container_of_spec
from koordra.nri.verify.drift import Expected, Finding, drift_of
from koordra.nri.verify.verification import Verification
from tests.fakes.clock import Clock
from tests.fakes.disks import UnreadableDisk
from tests.fakes.in_place_of_files import IN_PLACE_OF_A_FILE
from tests.fakes.metric_samples import sample
from tests.unit.nri.node_state import (
    ALLOW_ALL,
    GPU0,
    GPU1,
    GPU_CLAIM,
    GUARDED,
    JOINT_CLAIM,
    MARKER,
    NODE,
    NONCE,
    NVIDIACTL,
    UID,
    VERBS0,
    VOID,
    bind,
    claim_json,
    container,
    gpu_json,
    guarded_json,
    markers,
    rules_for,
    write,
)

GRANTED_ENV = ((MARKER, "granted"), (f"{MARKER}_0", "granted"), ("KOORDRA_MEMORY_LIMIT_0", "10Gi"), VOID)
GRANTED = Granted(
    pod_uid="u",
    env=GRANTED_ENV,
    numbers=frozenset({GPU0.number, NVIDIACTL.number}),
    devices=granted_of(container(), Grants(held=(Grant(GPU_CLAIM, GPU_CLAIM.devices[0]),)), None).devices,
)
HELD = container(GPU0, NVIDIACTL, env=GRANTED_ENV, id="c1")


def kinds(running: Container, **known: Any) -> list[str]:
    return [drift.kind for drift in drift_of(Running(running), Expected(**{"guarded": GUARDED, **known}))]


def test_what_is_as_it_should_be_has_no_drift() -> None:
    assert kinds(HELD, granted=GRANTED) == []
    assert kinds(container(env=(VOID,))) == []


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"env": (*GRANTED_ENV[:2], ("KOORDRA_MEMORY_LIMIT_0", "80Gi"), VOID)}, "EnvChanged"),
        ({"env": (*GRANTED_ENV[:3], ("NVIDIA_VISIBLE_DEVICES", "all"))}, "EnvChanged"),
        ({"rules": rules_for(GPU0, NVIDIACTL, GPU1)}, "ForeignDevice"),
        ({"rules": rules_for(NVIDIACTL)}, "DeviceMissing"),
        ({"mounts": bind("/dev/nvidia1")}, "ForeignMount"),
        ({"mounts": bind("/run/nri/nri.sock")}, "ForeignMount"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_each_difference_of_a_container_that_the_hook_saw(changed: dict[str, Any], kind: str) -> None:
    assert kinds(replace(HELD, **changed), granted=GRANTED) == [kind]


def test_everything_open_is_one_drift() -> None:
    """A privileged container can open each node of a machine with hundreds: one Event says so."""
    everything = Running(replace(HELD, rules=(ALLOW_ALL,)))
    (found,) = drift_of(everything, Expected(GRANTED, guarded=GUARDED))
    assert found.kind == "ForeignDevice"
    assert "that it does not hold: c " in found.message
    assert found.message.endswith(" and 1 more")


def test_a_limit_that_was_not_lifted() -> None:
    assert kinds(HELD, granted=replace(GRANTED, memlock=True)) == ["LimitMissing"]
    assert kinds(replace(HELD, rlimits=("RLIMIT_MEMLOCK",)), granted=replace(GRANTED, memlock=True)) == []


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ((), ["NotAdjusted"]),
        ((("NVIDIA_VISIBLE_DEVICES", "all"),), ["NotAdjusted"]),
        ((VOID, (MARKER, "granted")), ["ForgedMarker"]),
        ((VOID, (MARKER, "0" * 32)), ["ForgedMarker"]),
        ((VOID, (MARKER, NONCE)), ["HookMissed"]),
    ],
)
def test_a_container_that_no_hook_saw(env: tuple[tuple[str, str], ...], kind: list[str]) -> None:
    found = drift_of(Running(container(env=env)), Expected(claims={MARKER: GPU_CLAIM}, guarded=GUARDED))
    assert [drift.kind for drift in found] == kind
    assert all(NONCE not in drift.message for drift in found)


def test_a_forged_marker_excuses_no_device() -> None:
    forged = container(GPU0, env=(VOID, (MARKER, "granted")))
    assert kinds(forged, claims={MARKER: GPU_CLAIM}) == ["ForgedMarker", "ForeignDevice"]


def test_a_genuine_claim_that_the_hook_missed_holds_its_devices() -> None:
    missed = container(GPU0, NVIDIACTL, VERBS0, env=markers(0, 1))
    assert kinds(missed, claims={MARKER: JOINT_CLAIM}) == ["HookMissed"]


# ----------------------------------------------------------------------------------------- what really runs


def spec(*, env: Sequence[str] = (), kind: str = "container", devices: Sequence[Any] = ()) -> dict[str, Any]:
    return {
        "process": {"env": list(env), "rlimits": [{"type": "RLIMIT_NOFILE"}]},
        "mounts": [{"destination": "/data", "source": "/srv", "options": ["rbind"]}],
        "linux": {
            "devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}],
            "resources": {"devices": [{"allow": False, "access": "rwm"}, *devices]},
        },
        "annotations": {
            "io.kubernetes.cri.container-type": kind,
            "io.kubernetes.cri.sandbox-namespace": "team",
            "io.kubernetes.cri.sandbox-name": "train-0",
            "io.kubernetes.cri.sandbox-uid": "u",
            "io.kubernetes.cri.container-name": "main",
        },
    }


class FakeNode:
    """Bundles, proc and cgroups of a node in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundles = Bundles(folder / "bundles", proc=folder / "proc", cgroups=folder / "cgroup")

    def run(self, name: str, document: dict[str, Any], *, pid: int = 7, kernel: str | None = None) -> None:
        write(self.folder / "bundles" / name / "config.json", document)
        write(self.folder / "bundles" / name / "init.pid", str(pid))
        write(self.folder / "proc" / str(pid) / "cgroup", f"4:devices:/k8s.io/{name}\n0::/\n")
        if kernel is not None:
            write(self.folder / "cgroup" / "devices" / "k8s.io" / name / "devices.list", kernel)


def test_the_spec_of_a_container() -> None:
    rule = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    found = container_of_spec("c1", spec(env=["A=1=2"], devices=[rule]))
    assert (str(found), found.id, found.pod_uid) == ("container main of pod team/train-0", "c1", "u")
    assert found.env == (("A", "1=2"),)
    assert found.devices == (GPU0,)
    assert found.rules == (DeviceRule(False), DeviceRule(True, "c", 195, 0, "rw"))
    assert found.mounts[0].bind
    assert found.rlimits == ("RLIMIT_NOFILE",)


def test_the_kernels_rules_stand_before_the_specs(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.run("closed", spec(), pid=7, kernel="c *:* m\nc 1:3 rwm\nc 195:1 rw\n")
    node.run("open", spec(), pid=8, kernel="a *:* rwm\n")
    node.run("pause", spec(kind="sandbox"), pid=9)
    (tmp_path / "bundles" / "half").mkdir()
    closed, everything = node.bundles.containers()
    assert closed.from_kernel
    assert DeviceRule(True, "c", 195, 1, "rw") in closed.container.rules
    # Somebody wrote to devices.allow: the spec opens nothing, the kernel everything.
    assert everything.from_kernel
    assert "ForeignDevice" in kinds(everything.container)


def test_large_specs_are_looked_at_and_not_kept(tmp_path: Path) -> None:
    """Pods with variables by the ten thousand would take the hook's memory, and with it the hook."""
    node, many = FakeNode(tmp_path), [f"V{number}=x" for number in range(20_000)]
    node.run("large", spec(env=many), pid=7)
    node.run("small", spec(env=["A=1"]), pid=8)
    first, again = list(node.bundles.containers()), list(node.bundles.containers())
    assert [len(each.container.env) for each in again] == [20_000, 1]
    assert first[0].container is not again[0].container
    assert first[1].container is again[1].container


def test_a_privileged_containers_spec_stands_before_a_list_without_exceptions(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    denied = {"allow": False, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    node.run("c1", spec(devices=[{"allow": True, "access": "rwm"}, denied]), kernel="a *:* rwm\n")
    (running,) = node.bundles.containers()
    assert not running.from_kernel
    assert DeviceRule(False, "c", 195, 0, "rw") in running.container.rules


def test_the_rules_of_another_container_with_a_reused_pid_are_not_believed(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.run("ended", spec(), pid=7)
    write(tmp_path / "proc" / "7" / "cgroup", "4:devices:/k8s.io/holder\n")
    write(tmp_path / "cgroup" / "devices" / "k8s.io" / "holder" / "devices.list", "c 195:0 rw\n")
    (running,) = node.bundles.containers()
    assert not running.from_kernel
    assert running.container.rules == (DeviceRule(False),)


class Told:
    """A reporter whose server may be away."""

    def __init__(self) -> None:
        self.found_kinds: list[str] = []
        self.gone_kinds: list[str] = []
        self.found_devices: list[list[str]] = []
        self.gone_devices: list[list[str]] = []
        self.away = False
        self.asked = 0

    def found(self, finding: Finding, /) -> None:
        if self.away:
            raise ApiUnreachable("away")
        self.found_kinds.append(finding.drift.kind)
        self.found_devices.append([device.device for device in finding.drift.devices])

    def ask_for_evictions(self) -> None:
        self.asked += 1
        if self.away:
            raise ApiUnreachable("away")

    def gone(self, finding: Finding, /) -> None:
        self.gone_kinds.append(finding.drift.kind)
        self.gone_devices.append([device.device for device in finding.drift.devices])


def test_a_breach_is_told_once_kept_while_the_api_is_away_and_taken_back(tmp_path: Path) -> None:
    node, told, metrics = FakeNode(tmp_path / "node"), Told(), Metrics()
    state, clock = tmp_path / "state", Clock()
    write(state / "guarded.json", guarded_json())
    write(state / "prepared" / f"{UID}.json", claim_json(gpu_json()))
    verification = Verification(
        StateReader(state, node_name=NODE),
        ledger=Ledger(state),
        bundles=node.bundles,
        metrics=metrics,
        system=SystemPods(frozenset({"kube-system"})),
        reporter=told,
        monotonic=clock.monotonic,
    )
    node.run("good", spec(env=["NVIDIA_VISIBLE_DEVICES=void"]), pid=1)
    opened = {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rw"}
    node.run("bad", spec(env=["NVIDIA_VISIBLE_DEVICES=void"], devices=[opened]), pid=2)
    node.run("early", spec(), pid=3)
    exempt = spec(devices=[opened])
    exempt["annotations"]["io.kubernetes.cri.sandbox-namespace"] = "kube-system"
    node.run("exempt", exempt, pid=4)

    told.away = True
    kinds_found = sorted(finding.drift.kind for finding in verification.sync())
    assert kinds_found == ["ForeignDevice", "NotAdjusted", "NotConfined"]
    assert told.found_kinds == []
    told.away = False
    verification.sync()
    assert told.found_kinds == []  # a container that is created meanwhile asks no API server that is away
    clock.now += 1
    verification.sync()
    verification.sync()
    assert sorted(told.found_kinds) == ["ForeignDevice", "NotConfined"]
    assert sample(metrics, "koordra_nri_drift", {"kind": "ForeignDevice"}) == 1
    assert sample(metrics, "koordra_nri_drift_found_total", {"kind": "ForeignDevice"}) == 1
    assert sample(metrics, "koordra_nri_verified_containers") == 3

    (tmp_path / "node" / "bundles" / "bad" / "config.json").unlink()
    (tmp_path / "node" / "bundles" / "bad" / "init.pid").unlink()
    (tmp_path / "node" / "bundles" / "bad").rmdir()
    verification.sync()
    assert told.gone_kinds == ["ForeignDevice"]
    assert sample(metrics, "koordra_nri_drift", {"kind": "ForeignDevice"}) == 0


def test_the_ledger_forgets_what_the_runtime_no_longer_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path)
    ledger.add("old", GRANTED)
    ledger.add("../escape", GRANTED)
    assert ledger.get("../escape") is None
    ledger.retain(["other"])
    assert ledger.get("old") == GRANTED  # it may be being created right now
    again = Ledger(tmp_path)
    assert again.get("old") == GRANTED
    assert again.holds_claim("u")
    again.retain(["other"])
    assert again.get("old") is None
    assert not again.holds_claim("u")


def test_a_ledger_that_somebody_else_wrote_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / "nri-granted"
    folder.mkdir()
    target = write(tmp_path / "real.json", {"schema": "koordra.io/nri-granted/v1"})
    (folder / "link.json").symlink_to(target)
    write(folder / "torn.json", "{")
    write(folder / "other.json", json.dumps({"schema": "x"}))
    ledger = Ledger(tmp_path)
    assert [ledger.get(name) for name in ("link", "torn", "other")] == [None, None, None]


@pytest.mark.parametrize("what", IN_PLACE_OF_A_FILE)
def test_whatever_stands_in_the_ledger_the_hook_starts(tmp_path: Path, what: str) -> None:
    """Without a hook containers are created as they are asked for."""
    Ledger(tmp_path).add("c1", GRANTED)
    IN_PLACE_OF_A_FILE[what](tmp_path / "nri-granted" / "c2.json")
    ledger = Ledger(tmp_path)
    assert ledger.get("c1") == GRANTED
    assert ledger.get("c2") is None
    ledger.add("c2", GRANTED)
    assert Ledger(tmp_path).get("c2") == GRANTED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("env", []),
        ("env", "x"),
        ("numbers", [["c", 1]]),
        ("numbers", [["c", float("inf"), 1]]),
        ("numbers", 7),
        ("devices", [[1]]),
        ("devices", [None]),
        ("mounts", [{}]),
        ("mounts", None),
        ("podUID", ...),
    ],
)
def test_an_entry_that_says_nothing_sensible_is_left_out(tmp_path: Path, field: str, value: object) -> None:
    Ledger(tmp_path).add("c1", GRANTED)
    path = tmp_path / "nri-granted" / "c1.json"
    document = json.loads(path.read_text()) | {field: value}
    if value is ...:
        del document[field]
    path.write_text(json.dumps(document))
    assert Ledger(tmp_path).get("c1") is None
    path.write_text("[" * 100_000)
    assert Ledger(tmp_path).get("c1") is None
    path.write_text("[]")
    assert Ledger(tmp_path).get("c1") is None


# ------------------------------------------------------------------------------- what must not be taken for a
# breach


def verification_of(
    folder: Path,
    node: FakeNode,
    ledger: Ledger,
    told: Told,
    *,
    since: float = 0.0,
    clock: Callable[[], float] = time.time,
) -> Verification:
    write(folder / "guarded.json", guarded_json())
    return Verification(
        StateReader(folder, node_name=NODE),
        ledger=ledger,
        bundles=node.bundles,
        metrics=Metrics(),
        reporter=told,
        since=since,
        clock=clock,
    )


def test_a_container_that_ends_while_it_is_looked_at_is_no_forger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, told = FakeNode(tmp_path / "node"), Told()
    ledger = Ledger(tmp_path)
    ledger.add("c1", replace(GRANTED, env=((MARKER, "granted"),), numbers=frozenset()))
    verification = verification_of(tmp_path, node, ledger, told)
    node.run("c1", spec(env=[f"{MARKER}=granted"]))
    assert verification.sync() == ()

    def removed(_seconds: float) -> None:
        (tmp_path / "node" / "bundles" / "c1" / "config.json").unlink()
        ledger.remove("c1")

    monkeypatch.setattr("koordra.nri.verify.verification.time.sleep", removed)
    assert verification.sync() == ()
    assert told.found_kinds == []


def test_an_entry_is_kept_while_the_bundle_is_there_though_the_runtime_does_not_list_it(
    tmp_path: Path,
) -> None:
    Ledger(tmp_path).add("c1", GRANTED)
    again = Ledger(tmp_path, runs=lambda name: name == "c1")
    again.retain([])
    assert again.get("c1") == GRANTED


def test_an_entry_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    (tmp_path / "nri-granted").rmdir()
    (tmp_path / "nri-granted").write_text("no folder")
    ledger.add("c1", GRANTED)
    ledger.add("c2", GRANTED)
    ledger.remove("c2")
    assert Ledger(tmp_path).get("c1") is None
    (tmp_path / "nri-granted").unlink()
    ledger.flush()
    again = Ledger(tmp_path)
    assert again.get("c1") == GRANTED
    assert again.get("c2") is None


def test_a_container_older_than_the_first_hook_is_marked_so(tmp_path: Path) -> None:
    node = FakeNode(tmp_path / "node")
    node.run("old", spec(devices=[{"allow": True, "access": "rwm"}]), pid=1)
    node.run("new", spec(devices=[{"allow": True, "access": "rwm"}]), pid=2)
    os.utime(tmp_path / "node" / "bundles" / "old" / "config.json", (1000, 1000))
    findings = verification_of(tmp_path, node, Ledger(tmp_path), Told(), since=2000).sync()
    earlier = {finding.container.id: finding.predates_hook for finding in findings}
    assert earlier == {"old": True, "new": False}


def test_a_clock_that_was_set_back_makes_no_container_older_than_the_hook(tmp_path: Path) -> None:
    node = FakeNode(tmp_path / "node")
    node.run("new", spec(devices=[{"allow": True, "access": "rwm"}]), pid=1)
    verification = verification_of(tmp_path, node, Ledger(tmp_path), Told(), since=4e9, clock=lambda: 3000.0)
    os.utime(tmp_path / "node" / "bundles" / "new" / "config.json", (3100, 3100))
    findings = verification.sync()
    assert findings
    assert not any(finding.predates_hook for finding in findings)


def test_an_unreadable_record_makes_no_forger(tmp_path: Path) -> None:
    node, told = FakeNode(tmp_path / "node"), Told()
    write(tmp_path / "prepared" / f"{UID}.json", json.dumps({"schema": "koordra.io/prepared/v2"}))
    node.run("c1", spec(env=[f"{MARKER}={NONCE}"]))
    (finding,) = verification_of(tmp_path, node, Ledger(tmp_path), told).sync()
    assert (finding.drift.kind, finding.drift.breach) == ("Unverified", False)
    assert told.found_kinds == []


def test_an_entry_that_the_disk_does_not_give_makes_no_forger(tmp_path: Path) -> None:
    """A bad sector would otherwise have an innocent pod evicted."""
    node, told = FakeNode(tmp_path / "node"), Told()
    Ledger(tmp_path).add("c1", replace(GRANTED, env=((MARKER, "granted"),), numbers=frozenset()))
    node.run("c1", spec(env=[f"{MARKER}=granted"]))
    verification = verification_of(tmp_path, node, Ledger(tmp_path, disk=UnreadableDisk(0)), told)
    (finding,) = verification.sync()
    assert (finding.drift.kind, finding.drift.breach) == ("Unverified", False)
    assert "nri-granted cannot be read: Input/output error" in finding.drift.message
    assert verification.sync() == (), "and the next round reads it"
    assert told.found_kinds == []


@pytest.mark.parametrize(
    ("name", "mounts", "rules"),
    [
        ("kube-proxy, after the hook", ("/lib/modules", "/run/xtables.lock"), (ALLOW_ALL,)),
        ("network plugin", ("/opt/cni/bin", "/etc/cni/net.d", "/run/netns", "/sys/fs/bpf"), None),
        ("node exporter", ("/", "/proc", "/sys"), None),
        ("log shipper", ("/var/log", "/var/lib/kubelet/pods"), None),
        ("CSI node plugin", ("/var/lib/kubelet", "/dev", "/sys"), (ALLOW_ALL,)),
        ("runtime user", ("/run", "/run/containerd"), None),
    ],
)
def test_ordinary_daemons_of_a_node_are_no_breach(
    name: str, mounts: tuple[str, ...], rules: tuple[DeviceRule, ...] | None
) -> None:
    daemon = container(env=(VOID,), mounts=tuple(each for path in mounts for each in bind(path)), pod=name)
    if rules is not None:
        deny = tuple(
            DeviceRule(False, *number, "rw") for number in sorted(node.number for node in GUARDED.nodes)
        )
        daemon = replace(daemon, rules=(*rules, *deny))
    assert kinds(daemon) == []


# --------------------------------------------------------------------------------------------- isolation of a
# share

LIMITS = Mount("/var/lib/kubelet/plugins/koordra.io/limiter/claims/u/policy", "/run/koordra/p", True, True)


def test_a_mount_of_the_isolation_that_is_missing_or_writable_is_a_breach() -> None:
    granted = replace(GRANTED, mounts=(LIMITS,))
    held = {device.claim_uid for device in GRANTED.devices}
    mine = replace(LIMITS, source=LIMITS.source.replace("/u/", f"/{held.pop()}/"))
    granted = replace(GRANTED, mounts=(mine,))
    assert kinds(replace(HELD, mounts=(mine,)), granted=granted) == []
    assert kinds(HELD, granted=granted) == ["MountChanged"]
    assert "MountChanged" in kinds(replace(HELD, mounts=(replace(mine, read_only=False),)), granted=granted)


def test_a_limiter_that_does_not_enforce_is_told_and_no_reason_to_evict() -> None:
    uid = GRANTED.devices[0].claim_uid
    (drift,) = drift_of(Running(HELD), Expected(granted=GRANTED, guarded=GUARDED, unlimited=frozenset({uid})))
    assert (drift.kind, drift.breach) == ("NotLimited", False)


# ------------------------------------------------------------------------------------------------- notices


def test_numbers_of_cards_are_a_notice_and_no_fault() -> None:
    counting = replace(HELD, env=(*GRANTED_ENV, ("CUDA_VISIBLE_DEVICES", "0,1")))
    (found,) = drift_of(Running(counting), Expected(granted=GRANTED, guarded=GUARDED))
    assert (found.kind, found.breach) == ("CardsCounted", False)
    assert "counts the container's own cards (0) and not the node's" in found.message
    named = replace(HELD, env=(*GRANTED_ENV, ("CUDA_VISIBLE_DEVICES", "GPU-0")))
    assert kinds(named, granted=GRANTED) == []


def test_a_notice_is_one_for_all_containers_of_a_pod(tmp_path: Path) -> None:
    node, told = FakeNode(tmp_path / "node"), Told()
    ledger = Ledger(tmp_path)
    verification = verification_of(tmp_path, node, ledger, told)
    for pid, name in enumerate(("c1", "c2"), start=1):
        ledger.add(name, replace(GRANTED, env=(), numbers=frozenset()))
        node.run(name, spec(env=["CUDA_VISIBLE_DEVICES=0"]), pid=pid)
    assert [finding.drift.kind for finding in verification.sync()] == ["CardsCounted"]
    verification.sync()
    assert told.found_kinds == ["CardsCounted"]


def test_a_privileged_holder_where_nothing_can_be_denied_is_not_confined() -> None:
    held = replace(GRANTED, confined=False)
    (found,) = drift_of(Running(replace(HELD, rules=(ALLOW_ALL,))), Expected(granted=held, guarded=GUARDED))
    assert (found.kind, found.breach, found.subject) == ("NotConfined", False, "NotConfined")
    assert "and 1 more; it is privileged" in found.message
    assert [device.claim_name for device in found.devices] == ["train"]


class Asked(SystemPods):
    """Pods that the API knows: why, or an error."""

    def __init__(self, why: str | ApiError) -> None:
        super().__init__()
        self.why = why

    def critical(self, container: Container) -> str:
        if isinstance(self.why, ApiError):
            raise self.why
        return self.why


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("its priority is system-node-critical", "NotConfined"),
        (ApiUnreachable("no route to host"), "NotConfined"),
        ("", "ForeignDevice"),
    ],
    ids=["critical", "unknown", "tenant"],
)
def test_whose_privileged_pod_it_is_decides_between_a_notice_and_a_breach(
    tmp_path: Path, why: str | ApiError, kind: str
) -> None:
    """A notice never evicts: a node's own pod is not ended for what the runtime cannot deny, nor one that
    may be such a pod while the API does not answer."""
    node, told = FakeNode(tmp_path / "node"), Told()
    verification = verification_of(tmp_path, node, Ledger(tmp_path), told)
    verification.system = Asked(why)
    everything = {"allow": True, "access": "rwm"}
    node.run("c1", spec(env=["NVIDIA_VISIBLE_DEVICES=void"], devices=[everything]))
    assert {finding.drift.kind for finding in verification.sync()} == {kind}


@pytest.mark.parametrize(("why", "kind"), [("it is a static pod", "NotConfined"), ("", "ForeignDevice")])
def test_what_nvidias_runtime_gave_a_monitor_is_a_notice(tmp_path: Path, why: str, kind: str) -> None:
    node, told = FakeNode(tmp_path / "node"), Told()
    verification = verification_of(tmp_path, node, Ledger(tmp_path), told)
    verification.system = Asked(why)
    card = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    monitor = spec(env=["NVIDIA_VISIBLE_DEVICES=void"], devices=[card])
    monitor["mounts"] = [{"source": POD_RESOURCES, "destination": POD_RESOURCES, "options": ["rbind", "ro"]}]
    node.run("c1", monitor)
    assert {finding.drift.kind for finding in verification.sync()} == {kind}


def test_privileged_pods_are_listed_once_when_the_runtime_is_known(tmp_path: Path) -> None:
    node = FakeNode(tmp_path / "node")
    verification = verification_of(tmp_path, node, Ledger(tmp_path), Told())
    verification.system = SystemPods(frozenset({"kube-system"}))
    everything = {"allow": True, "access": "rwm"}
    for name, namespace in (("mine", "kube-system"), ("other", "team")):
        made = spec(env=["NVIDIA_VISIBLE_DEVICES=void"], devices=[everything])
        made["annotations"]["io.kubernetes.cri.sandbox-namespace"] = namespace
        made["annotations"]["io.kubernetes.cri.sandbox-name"] = name
        node.run(name, made)
    runtime: list[bool | None] = [None]
    verification.rules_apply = lambda: runtime[0]

    def listed() -> list[dict[str, Any]]:
        with capture_logs() as lines:
            verification.sync()
        return [line for line in lines if line["event"] == "privileged_pods"]

    assert listed() == []
    runtime[0] = False
    (line,) = listed()
    assert line["start_and_are_reported"] == ["kube-system/mine"]
    assert line["others"] == ["team/other"]
    assert line["others_are"] == "refused when they are created anew"
    assert listed() == []
