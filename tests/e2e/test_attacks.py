"""The rows of tests/attacks/containers.py, inside real containers; a test answers with what came of it."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from koordra.api import kinds
from tests.attacks.containers import CONTAINERS
from tests.attacks.row import Attack, Outcome, Seen
from tests.e2e.conftest import runtime_of, runtimes
from tests.e2e.containerd import Containerd, wait_until
from tests.e2e.cri import ContainerSpec, HostDevice, HostMount, compile_proto
from tests.e2e.images import BUSYBOX
from tests.e2e.node import NAMESPACE, Prepared
from tests.e2e.test_containers import ALLOWED, REFUSED, environment, limits_of, node_of, opens, share_of
from tests.e2e.test_nri_runtimes import WANTS_ALL, Validating
from tests.e2e.watched_node import WatchedNode
from tests.patience import PATIENCE

pytestmark = pytest.mark.e2e

OUTVOTED = "NVIDIA_VISIBLE_DEVICES=void,="

RUNS = [row for row in CONTAINERS if row.runs]


@dataclass
class Scene:
    """The attacker's and the victim's pods on one node."""

    containerd: Containerd
    node: WatchedNode
    label: str
    pods: list[str] = field(default_factory=list)
    claims: list[Prepared] = field(default_factory=list)
    conditions: set[str] = field(default_factory=set)
    """`Type: Status`, of what has been looked at so far."""
    restarted: bool = False

    @property
    def newer(self) -> bool:
        """The runtime denies devices to privileged containers, and creates none without the hook."""
        return isinstance(self.containerd, Validating)

    @property
    def card(self) -> Any:
        """The card that the attacker wants: the victim's."""
        return node_of(self.node.machine.gpus[0])

    def pod(
        self,
        *,
        privileged: bool = False,
        namespace: str = "team-a",
        priority: int | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> str:
        """With a priority it is in the API too."""
        name = f"{self.label}-{len(self.pods)}"
        uid = ""
        if priority is not None:
            uid = self.node.make_pod(name, namespace=namespace, priority=priority)
        self.pods.append(
            self.containerd.cri.run_pod(
                name, namespace=namespace, privileged=privileged, annotations=annotations, uid=uid
            )
        )
        return self.pods[-1]

    def claim(self, gpu: int = 0) -> Prepared:
        name = f"{self.label}-{uuid.uuid4().hex[:8]}"
        self.claims.append(self.node.prepare(name, [share_of(self.node.machine.gpus[gpu])]))
        return self.claims[-1]

    def host_path(self, path: str) -> str:
        """A path of the made-up machine's, as the host has it."""
        return str(self.node.root / path.lstrip("/"))

    def refused(self, spec: ContainerSpec, rule: str, *, pod: str | None = None) -> str:
        """`refused`, when the hook says so by this rule; `open` when the container comes into being."""
        before = self.node.hook.count(f"rule={rule} ")
        try:
            self.containerd.cri.create(pod or self.pod(), "attacker", spec)
        except grpc.RpcError as error:
            assert "koordra refuses" in str(error), error
            wait_until(lambda: self.node.hook.count(f"rule={rule} ") > before, rule, log=self.node.hook.log)
            return "refused"
        return "open"

    def refused_or_denied(self, spec: ContainerSpec, rule: str, *, pod: str) -> str:
        """What becomes of a privileged container, by what the runtime can do."""
        if not self.newer:
            return self.refused(spec, rule, pod=pod)
        return self.denied(self.containerd.cri.run(pod, "attacker", spec))

    def missed(self, name: str, spec: ContainerSpec, kind: str) -> str:
        """Of a container that is created while the hook is away."""
        with self.without_hook():
            try:
                self.containerd.cri.run(self.pod(), name, spec)
            except grpc.RpcError as error:
                assert self.newer, error
                assert "required plugin" in str(error) or "validator plugin" in str(error), error
                return "refused"
        return self.detected(kind, name)

    def denied(self, container: str, *wanted: Any) -> str:
        """`denied`, when the kernel refuses every one of the nodes."""
        said = [opens(self.containerd, container, node) for node in wanted or (self.card,)]
        assert all(REFUSED in each or ALLOWED in each for each in said), said
        return "denied" if all(REFUSED in each for each in said) else "open"

    def detected(self, kind: str, name: str) -> str:
        """`detected`, once the hook's log names the container with this difference."""

        def said() -> bool:
            lines = self.node.hook.log.read_text(errors="replace").splitlines()
            return any(f"kind={kind} " in line and f"container {name}" in line for line in lines)

        wait_until(said, f"{kind} of {name}", log=self.node.hook.log)
        return "detected"

    @contextlib.contextmanager
    def without_hook(self) -> Iterator[None]:
        times = self.node.hook.count("nri_synchronized")
        self.restarted = True
        self.node.hook.kill()
        try:
            yield
        finally:
            self.node.hook.start()
            self.node.wait_hook_registered(times=times + 1)

    def sees(self, seen: Seen, before: float) -> bool:
        """Whether it stands there, for a metric: more than before, or again after the hook's own restart."""
        match seen.where:
            case "metric":
                now = self.node.metric(seen.word)
                return now > before or (self.restarted and now > 0)
            case "Event":
                return any(self.label in name for name, reason in _events(self) if reason == seen.word)
            case "condition":
                return seen.word in self.conditions
            case _:
                return False

    def end(self) -> None:
        for pod in self.pods:
            with contextlib.suppress(grpc.RpcError):
                self.containerd.cri.remove_pod(pod)
        for claim in self.claims:
            self.node.unprepare(claim)


ATTEMPTS = 5
Try = Callable[[Scene], str]
TRIES: dict[str, Try] = {}


def attack(name: str) -> Callable[[Try], Try]:
    def register(function: Try) -> Try:
        TRIES[name] = function
        return function

    return register


@pytest.fixture(scope="module", params=["", "newer"], ids=["debian", "newer"])
def containerd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    """One of its own: the hook of the other modules' node would register with theirs, and two hooks
    collide."""
    modules = compile_proto(tmp_path_factory.mktemp("cri"))
    config = request.config
    found = config.stash[runtimes][request.param] if request.param else runtime_of(config)
    make = Validating if request.param else Containerd
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        runtime = make(found, Path(folder), modules)
        try:
            runtime.start()
            yield runtime
        finally:
            runtime.clean_up()


@pytest.fixture(scope="module")
def watched(containerd: Containerd) -> Iterator[WatchedNode]:
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        newer = isinstance(containerd, Validating)
        node = WatchedNode(Path(folder), containerd, extra=["--validate"] if newer else [])
        try:
            node.start()
            yield node
        finally:
            node.stop()


@pytest.mark.parametrize("row", RUNS, ids=lambda row: row.name)
def test_attack(containerd: Containerd, watched: WatchedNode, row: Attack) -> None:
    scene = Scene(containerd, watched, f"attack-{row.name}")
    samples = {seen: watched.metric(seen.word) for seen in row.seen if seen.where == "metric"}
    try:
        wanted: Outcome = (scene.newer and row.newer) or row.outcome
        assert TRIES[row.name](scene) == wanted
        for seen in row.seen if wanted == row.outcome else ():
            wait_until(partial(scene.sees, seen, samples.get(seen, 0.0)), str(seen), log=watched.hook.log)
    finally:
        scene.end()


# --------------------------------------------------------------------------------------- without any claim


@attack("visible-devices-all")
def visible_devices_all(scene: Scene) -> str:
    spec = ContainerSpec(env={"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all"})
    container = scene.containerd.cri.run(scene.pod(), "attacker", spec)
    if environment(scene.containerd, container)["NVIDIA_VISIBLE_DEVICES"] != "void":
        return "open"
    return scene.denied(container)


@attack("repeated-variable")
def repeated_variable(scene: Scene) -> str:
    twice = (("NVIDIA_VISIBLE_DEVICES", "void"), ("NVIDIA_VISIBLE_DEVICES", "all"))
    container = scene.containerd.cri.run(scene.pod(), "attacker", ContainerSpec(repeated_env=twice))
    spec = json.loads(scene.containerd.cri.oci_spec(container))["runtimeSpec"]["process"]["env"]
    # NVIDIA's runtime reads the spec and lets the last value win; so does runc.
    if [each for each in spec if each.startswith("NVIDIA_VISIBLE_DEVICES=")][-1] != OUTVOTED:
        return "open"
    if environment(scene.containerd, container)["NVIDIA_VISIBLE_DEVICES"] != OUTVOTED.partition("=")[2]:
        return "open"
    return scene.denied(container)


@attack("mknod")
def mknod(scene: Scene) -> str:
    container = scene.containerd.cri.run(scene.pod(), "attacker", ContainerSpec(capabilities=("ALL",)))
    return scene.denied(container, scene.card, *scene.node.machine.gpu_control)


@attack("hostpath-card")
def hostpath_card(scene: Scene) -> str:
    # The made-up machine is not below /dev: the path that is guarded there is mounted by the other rows.
    spec = ContainerSpec(mounts=[HostMount("/dev", "/x")])
    assert scene.refused(spec, "ForeignMount") == "refused"
    return scene.refused(ContainerSpec(mounts=[HostMount("/run/nvidia-persistenced", "/x")]), "ForeignMount")


@attack("hostpath-dev")
def hostpath_dev(scene: Scene) -> str:
    return scene.refused(ContainerSpec(mounts=[HostMount("/dev", "/host-dev")]), "ForeignMount")


@attack("hostpath-root")
def hostpath_root(scene: Scene) -> str:
    container = scene.containerd.cri.run(
        scene.pod(), "attacker", ContainerSpec(mounts=[HostMount("/", "/host")])
    )
    said = scene.containerd.cri.shell(container, f"dd if=/host{scene.host_path('/dev/nvidia0')} count=1").text
    assert REFUSED in said or ALLOWED in said, said
    return "denied" if REFUSED in said else "open"


@attack("hostpath-symlink")
def hostpath_symlink(scene: Scene) -> str:
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        outcomes = set()
        for number, (target, rule) in enumerate([("/dev", "ForeignMount"), (scene.node.state, "NodeState")]):
            link = Path(folder) / f"innocent-{number}"
            link.symlink_to(target)
            outcomes.add(scene.refused(ContainerSpec(mounts=[HostMount(str(link), "/x")]), rule))
    return "refused" if outcomes == {"refused"} else "open"


@attack("hostpath-state")
def hostpath_state(scene: Scene) -> str:
    places = [scene.node.state, scene.node.state / "prepared", scene.containerd.nri_socket]
    outcomes = {
        scene.refused(ContainerSpec(mounts=[HostMount(str(place), "/x")]), "NodeState") for place in places
    }
    return "refused" if outcomes == {"refused"} else "open"


@attack("hostpath-above-state")
def hostpath_above_state(scene: Scene) -> str:
    claim = scene.claim()
    spec = ContainerSpec(mounts=[HostMount(str(scene.node.state.parent), "/above")])
    container = scene.containerd.cri.run(scene.pod(), "attacker", spec)
    record = f"/above/{scene.node.state.name}/prepared/{claim.uid}.json"
    said = scene.containerd.cri.shell(container, f"cat {record}").text
    return "open" if nonce_of(scene, claim) in said else "denied"


@attack("hostpath-race")
def hostpath_race(scene: Scene) -> str:
    """The folder is a real one when it is looked at, or a link into the machine's /dev: whichever the race
    brings."""
    pod, stop = scene.pod(), threading.Event()
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        shared, real, link = Path(folder) / "shared", Path(folder) / "real", Path(folder) / "link"
        shared.mkdir()
        link.symlink_to(scene.host_path("/dev"))

        def exchange() -> None:
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    shared.rename(real)
                    link.rename(shared)
                    shared.rename(link)
                    real.rename(shared)

        racer = threading.Thread(target=exchange, daemon=True)
        racer.start()
        outcomes = set()
        try:
            for number in range(12):
                spec = ContainerSpec(mounts=[HostMount(str(shared), "/x")])
                try:
                    container = scene.containerd.cri.run(pod, f"racer-{number}", spec)
                except grpc.RpcError:
                    continue  # refused, or the folder was gone for a moment
                said = scene.containerd.cri.shell(container, "dd if=/x/nvidia0 count=1").text
                outcomes.add("open" if ALLOWED in said else "denied")
                outcomes.add(scene.denied(container))
        finally:
            stop.set()
            racer.join(PATIENCE)
    return "open" if "open" in outcomes else "denied"


@attack("host-device")
def host_device(scene: Scene) -> str:
    spec = ContainerSpec(devices=[HostDevice(scene.host_path("/dev/nvidia0"), "/dev/anything")])
    return scene.refused(spec, "UngrantedDevice")


@attack("toolkit-mount")
def toolkit_mount(scene: Scene) -> str:
    mount = HostMount("/dev/null", "/var/run/nvidia-container-devices/all")
    return scene.refused(ContainerSpec(mounts=[mount]), "ForeignMount")


@attack("cdi-annotation")
def cdi_annotation(scene: Scene) -> str:
    victim = scene.claim()
    spec = ContainerSpec(annotations={"cdi.k8s.io/mine": ",".join(victim.all_cdi)})
    return scene.refused(spec, "ForeignCDIDevice")


@attack("privileged")
def privileged(scene: Scene) -> str:
    pod = scene.pod(privileged=True)
    return scene.refused_or_denied(ContainerSpec(privileged=True), "CannotDeny", pod=pod)


@attack("privileged-holder")
def privileged_holder(scene: Scene) -> str:
    claim = scene.claim(1)
    pod = scene.pod(privileged=True)
    container = scene.containerd.cri.run(pod, "holder", ContainerSpec(cdi=claim.all_cdi, privileged=True))
    env = environment(scene.containerd, container)
    if scene.newer:
        assert "CUDA_VISIBLE_DEVICES" not in env
    else:
        assert (env["CUDA_DEVICE_ORDER"], env["CUDA_VISIBLE_DEVICES"]) == ("PCI_BUS_ID", "1")
        assert scene.detected("NotConfined", "holder") == "detected"
        wait_until(lambda: "NotConfined: True" in _conditions(scene, claim), "the condition")
    outcome = scene.denied(container)
    scene.containerd.cri.remove_pod(pod)
    wait_until(lambda: "NotConfined: True" not in _conditions(scene, claim), "the condition's end")
    return outcome


def _events(scene: Scene) -> set[tuple[str, str]]:
    """Of whom, and the reason."""
    events, _ = scene.node.api.list(kinds.EVENTS)
    return {(event["involvedObject"]["name"], event["reason"]) for event in events}


def _conditions(scene: Scene, claim: Prepared) -> set[str]:
    found = scene.node.api.get(kinds.RESOURCE_CLAIMS, claim.name, namespace=NAMESPACE)
    devices = found["status"].get("devices") or ()
    now = {f"{each['type']}: {each['status']}" for device in devices for each in device["conditions"]}
    scene.conditions |= now
    return now


@attack("critical-priority")
def critical_priority(scene: Scene) -> str:
    pod = scene.pod(privileged=True, priority=2_000_001_000)
    container = scene.containerd.cri.run(pod, "critical", ContainerSpec(privileged=True))
    if not scene.newer:
        assert scene.detected("NotConfined", "critical") == "detected"
    return scene.denied(container)


@attack("namespace-of-the-list")
def namespace_of_the_list(scene: Scene) -> str:
    pod = scene.pod(privileged=True, namespace="calico-system")
    container = scene.containerd.cri.run(pod, "squatter", ContainerSpec(privileged=True))
    return scene.denied(container)


@attack("looks-like-the-node")
def looks_like_the_node(scene: Scene) -> str:
    annotations = {"kubernetes.io/config.source": "api", "scheduler.alpha.kubernetes.io/critical-pod": ""}
    pod = scene.pod(privileged=True, priority=0, annotations=annotations)
    spec = ContainerSpec(privileged=True, annotations={"kubernetes.io/config.source": "file"})
    return scene.refused_or_denied(spec, "CannotDeny", pod=pod)


# --------------------------------------------------------------------------------------------- with claims


@attack("override-limits")
def override_limits(scene: Scene) -> str:
    claim = scene.claim()
    spec = ContainerSpec(cdi=claim.all_cdi, env={"KOORDRA_MEMORY_LIMIT_0": str(80 << 30)})
    container = scene.containerd.cri.run(scene.pod(), "attacker", spec)
    env = environment(scene.containerd, container)
    assert limits_of(env)
    if 80 << 30 in _claim_limits(env, claim):
        return "open"
    return scene.denied(container, node_of(scene.node.machine.gpus[1]))


@attack("names-other-devices")
def names_other_devices(scene: Scene) -> str:
    claim = scene.claim()
    for value in (scene.node.machine.gpus[1].uuid or "", "MIG-3e5d50c8-32b6-5722-9204-d074a2222bbc"):
        spec = ContainerSpec(cdi=claim.all_cdi, env={"CUDA_VISIBLE_DEVICES": value})
        assert scene.refused(spec, "ForeignDeviceNamed") == "refused"
    counted = ContainerSpec(cdi=claim.all_cdi, env={"CUDA_VISIBLE_DEVICES": "1"})
    container = scene.containerd.cri.run(scene.pod(), "counting", counted)
    assert environment(scene.containerd, container)["CUDA_VISIBLE_DEVICES"] == "1"
    wait_until(lambda: "CardsCounted" in {reason for _, reason in _events(scene)}, "the Event")
    return "refused" if scene.denied(container, node_of(scene.node.machine.gpus[1])) == "denied" else "open"


@attack("refusal-too-long")
def refusal_too_long(scene: Scene) -> str:
    """Each letter is four in the message: more than the runtime takes of an answer, which it then waits for
    in vain, drops the hook, and creates the container."""
    lost = scene.node.hook.count("nri_connection_lost")
    size = scene.node.hook.log.stat().st_size
    claim, letters = scene.claim(), "\x1b" * 1_400_000
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        volume = HostMount(folder, f"/var/run/nvidia-container-devices/{letters}")
        for spec, rule in (
            (ContainerSpec(mounts=[volume]), "ForeignMount"),
            (
                ContainerSpec(cdi=claim.all_cdi, env={"CUDA_VISIBLE_DEVICES": f"GPU-{letters}"}),
                "ForeignDeviceNamed",
            ),
        ):
            if scene.refused(spec, rule) != "refused":
                return "open"
    assert scene.node.hook.count("nri_connection_lost") == lost
    assert scene.node.hook.log.stat().st_size < size + 50_000
    neighbour = scene.containerd.cri.run(scene.pod(), "neighbour", WANTS_ALL)
    assert environment(scene.containerd, neighbour)["NVIDIA_VISIBLE_DEVICES"] == "void"
    return "refused"


def _claim_limits(env: dict[str, str], claim: Prepared) -> list[int]:
    """The limits that the claim's device set; a variable of the attacker's own naming stands beside them."""
    uid = claim.uid.upper().replace("-", "_")
    return [
        int(value) for name, value in env.items() if name.startswith("KOORDRA_MEMORY_LIMIT_") and uid in name
    ]


def marker_of(claim: Prepared) -> str:
    return f"KOORDRA_CLAIM_{claim.uid.upper().replace('-', '_')}"


def nonce_of(scene: Scene, claim: Prepared) -> str:
    return str(json.loads((scene.node.state / "prepared" / f"{claim.uid}.json").read_text())["nonce"])


@attack("forged-marker")
def forged_marker(scene: Scene) -> str:
    name = marker_of(scene.claim())
    assert (
        scene.refused(ContainerSpec(env={name: "0" * 32, f"{name}_0": "0" * 32}), "ForgedMarker") == "refused"
    )
    return scene.refused(
        ContainerSpec(env={f"KOORDRA_CLAIM_{uuid.uuid4().hex.upper()}": "x"}), "UnknownClaim"
    )


@attack("granted-marker")
def granted_marker(scene: Scene) -> str:
    name = marker_of(scene.claim())
    return scene.refused(ContainerSpec(env={name: "granted", f"{name}_0": "granted"}), "ForgedMarker")


@attack("replayed-marker")
def replayed_marker(scene: Scene) -> str:
    claim = scene.claim()
    with scene.without_hook():
        pod = scene.pod(annotations={"koordra.io/tolerate-missing-hook": "true"})
        victim = scene.containerd.cri.run(pod, "victim", ContainerSpec(cdi=claim.all_cdi))
    env = environment(scene.containerd, victim)
    stolen = {name: value for name, value in env.items() if name.startswith("KOORDRA_")}
    assert nonce_of(scene, claim) in stolen.values()
    return scene.refused(ContainerSpec(env=stolen), "ForgedMarker")


@attack("marker-of-other-namespace")
def marker_of_other_namespace(scene: Scene) -> str:
    claim = scene.claim()
    nonce = nonce_of(scene, claim)
    spec = ContainerSpec(env={marker_of(claim): nonce, f"{marker_of(claim)}_0": nonce})
    return scene.refused(spec, "ForgedMarker", pod=scene.pod(namespace="team-b"))


@attack("state-symlink")
def state_symlink(scene: Scene) -> str:
    claim = scene.claim()
    record = scene.node.state / "prepared" / f"{claim.uid}.json"
    genuine = record.read_bytes()
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        own = Path(folder) / "mine.json"
        own.write_bytes(genuine)
        try:
            for _ in range(ATTEMPTS):
                link = Path(folder) / "link"
                link.symlink_to(own)
                link.replace(record)
                verdict = scene.refused(ContainerSpec(cdi=claim.all_cdi), "UnreadableState")
                # The plugin puts the record right within seconds: only while the link stands was it tried.
                if verdict == "refused" or record.is_symlink():
                    return verdict
            return "restored before the container started, every time"
        finally:
            record.unlink()
            record.write_bytes(genuine)
            record.chmod(0o600)


# --------------------------------------------------------------------------------------- what comes too late


@attack("killed-hook")
def killed_hook(scene: Scene) -> str:
    return scene.missed("missed-by-hook", ContainerSpec(cdi=scene.claim().all_cdi), "HookMissed")


@attack("killed-hook-forged-marker")
def killed_hook_forged_marker(scene: Scene) -> str:
    name = marker_of(scene.claim())
    env = {name: "granted", f"{name}_0": "granted", "NVIDIA_VISIBLE_DEVICES": "void"}
    return scene.missed("self-granted", ContainerSpec(env=env), "ForgedMarker")


@attack("cgroup-write")
def cgroup_write(scene: Scene) -> str:
    container = scene.containerd.cri.run(scene.pod(), "cgroup-writer", ContainerSpec(capabilities=("ALL",)))
    rule = f"c {scene.card.major}:{scene.card.minor} rwm"
    script = (
        "mkdir -p /tmp/g; mount -t cgroup -o devices none /tmp/g; "
        f"for d in /tmp/g /tmp/g/k8s.io /tmp/g/k8s.io/*; do echo '{rule}' > $d/devices.allow; done; echo done"
    )
    said = scene.containerd.cri.shell(container, script).text
    if ALLOWED not in opens(scene.containerd, container, scene.card):
        pytest.skip(f"this machine's containers cannot write their device cgroup: {said[:200]}")
    return scene.detected("ForeignDevice", "cgroup-writer")


@attack("cgroup-allow-all")
def cgroup_allow_all(scene: Scene) -> str:
    container = scene.containerd.cri.run(scene.pod(), "allow-all", ContainerSpec(capabilities=("ALL",)))
    script = (
        "mkdir -p /tmp/g; mount -t cgroup -o devices none /tmp/g; "
        f"for d in $(find /tmp/g -type d -name '*{container}*'); do echo a > $d/devices.allow; cat $d/devices.list; done"
    )
    said = scene.containerd.cri.shell(container, script).text
    if "a *:* rwm" not in said:
        pytest.skip(f"this machine's containers cannot write their device cgroup: {said[:200]}")
    assert ALLOWED in opens(scene.containerd, container, scene.card)
    return scene.detected("ForeignDevice", "allow-all")


@attack("leave-cgroup")
def leave_cgroup(scene: Scene) -> str:
    container = scene.containerd.cri.run(scene.pod(), "leaver", ContainerSpec(capabilities=("ALL",)))
    card = scene.card
    assert scene.denied(container) == "denied"
    script = (
        "mkdir -p /tmp/g; mount -t cgroup -o devices none /tmp/g; echo $$ > /tmp/g/cgroup.procs && echo left; "
        f"mknod /tmp/wanted c {card.major} {card.minor}; dd if=/tmp/wanted count=1"
    )
    said = scene.containerd.cri.shell(container, script).text
    if "left" not in said:
        pytest.skip(f"this machine's containers cannot leave their device cgroup: {said[:200]}")
    assert REFUSED in said or ALLOWED in said, said
    return "open" if ALLOWED in said else "denied"


@attack("past-the-kubelet")
def past_the_kubelet(scene: Scene) -> str:
    name = f"past-{uuid.uuid4().hex[:6]}"
    local = ["--snapshotter", "native", "--runc-binary", str(scene.containerd.runtime.runc)]
    device = ["--device", scene.host_path("/dev/nvidia0")]
    scene.containerd.ctr("run", "--detach", *local, *device, BUSYBOX, name, "/bin/sleep", "2147483647")
    try:
        return scene.detected("ForeignDevice", name[:12])
    finally:
        with contextlib.suppress(AssertionError):
            scene.containerd.ctr("task", "kill", "--signal", "9", name)
        wait_until(lambda: _removed(scene, name), "its removal")


def _removed(scene: Scene, name: str) -> bool:
    with contextlib.suppress(AssertionError):
        scene.containerd.ctr("task", "rm", name)
    try:
        scene.containerd.ctr("container", "rm", name)
    except AssertionError:
        return False
    return True
