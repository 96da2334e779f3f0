"""Moves NICs into pods and back, when the runtime creates a sandbox and when it stops it.

The NRI hook calls this (`koordra nri --pod-network` connects the two): NRI's RunPodSandbox is the first
moment at which the pod's network namespace exists and the last before its containers. The claim's Prepare has
decided and written a file (node_state/claim_network.py), so nothing is decided or asked here.

Attach: 1. the network interface moves into the pod (or a macvlan is created there)
        2. the RDMA link follows, where RDMA devices belong to namespaces
        3. GUID, VLAN or partition, MTU, addresses, up, routes; one that moves without an address takes along
           those that it has on the host
        4. a RoCE NIC must have a routable address there (roce_gid.py), also one that Multus attached. Until
           it has, `gidReady` is false, the NIC stays in the pod, and each container that is tried looks
        5. the gate opens: from now on containers with the claim can start
Detach: 1. the gate closes
        2. the RDMA link first, then the network interface: in the other order the kernel destroys the link
        3. the interface gets its name, MTU, state and addresses back
        4. the `attached` file is removed last, so that a kill in between is repeated from the start

All of it is idempotent: runtimes retry sandboxes and call Stop several times, also without a namespace. The
`attached` file is written before anything leaves the host, so after a kill in between the NIC is taken back
and the attachment starts again. If the namespace is gone already, the kernel has returned physical interfaces
by itself, perhaps under another name: then only name and settings are restored.

A NIC whose interface the host needs is never moved, whatever was decided: that could cut the node off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from koordra.errors import CheckpointError, KoordraError, NodeError
from koordra.kubelet_plugin.network import cni, interface_gate
from koordra.kubelet_plugin.network.netlink_links import NetlinkLinks
from koordra.kubelet_plugin.network.rdma_links import NetlinkRdma
from koordra.kubelet_plugin.network.roce_gid import has_gid, in_pods_sysfs, require_gid
from koordra.kubelet_plugin.network.virtual_functions import set_guid
from koordra.logs import get_logger
from koordra.node_state import layout, strict_json
from koordra.node_state.claim_network import (
    AttachedDevice,
    AttachedNetwork,
    ClaimNetwork,
    NetworkKind,
    NetworkPlan,
    Sandbox,
    encode_attached,
    read_attached,
    read_networks,
)
from koordra.node_state.disk import Disk, reported
from koordra.node_state.layout import StateFolder
from koordra.node_state.strict_json import STRING, TEXT, listed

log = get_logger(__name__)

_REMEDY: Final = "check the state directory"
_BASE: Final = ".b"
"""Suffix of an interface in the pod whose VLAN or partition has the planned name."""


class PodNetworks:
    """The pods' networks of one node. Errors are NodeErrors: no container of the claim is made then, and the
    next try begins anew."""

    def __init__(
        self,
        state: Path,
        *,
        links: NetlinkLinks | None = None,
        rdma: NetlinkRdma | None = None,
        disk: Disk | None = None,
        sys: Path = Path("/sys"),
        cni_dirs: Sequence[Path] = cni.BIN_DIRS,
        pods_sysfs: Callable[[str, Callable[[Path], bool | None]], bool | None] = in_pods_sysfs,
    ) -> None:
        self._files = StateFolder(state)
        self._links = links or NetlinkLinks(sys)
        self._rdma = rdma or NetlinkRdma()
        self._disk = disk or Disk()
        self._sys = sys
        self._cni_dirs = tuple(cni_dirs)
        self._pods_sysfs = pods_sysfs

    def attach(self, sandbox: Sandbox) -> None:
        for network in read_networks(self._files, self._disk):
            if sandbox.pod_uid in network.pods:
                self._attach(network, sandbox)

    def detach(self, sandbox: Sandbox) -> None:
        """Detach everything from a sandbox that is being stopped, or is gone."""
        for claim in read_attached(self._files, self._disk):
            if claim.pod == sandbox.pod_uid and (not sandbox.id or claim.sandbox == sandbox.id):
                self.release(claim)

    def release(self, claim: AttachedNetwork) -> None:
        """Detach one claim's NICs from its pod; Unprepare calls it too, if the sandbox was never stopped. One
        that does not come back keeps no other in the pod."""
        networks = read_networks(self._files, self._disk, uid=claim.uid)
        plans = dict(networks[0].plans) if networks else {}
        self._close_gate(claim.uid)
        failed: list[KoordraError] = []
        for attached in claim.devices:
            plan = plans.get(attached.device)
            try:
                if plan is not None:
                    self._detach_device(attached, plan, claim)
            except KoordraError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        path = self._files.attached_file(claim.uid)
        with reported(CheckpointError, path, "removed", remedy=_REMEDY):
            self._disk.remove(path)
        log.info("network_released", uid=claim.uid, devices=[device.device for device in claim.devices])

    def release_claim(self, uid: str) -> None:
        """Detach what a pod still has of the claim: its sandbox was never stopped, or the hook missed it."""
        for claim in read_attached(self._files, self._disk, uid=uid):
            self.release(claim)

    def ready(self) -> tuple[AttachedNetwork, ...]:
        return tuple(claim for claim in self.attached() if self._gate(claim.uid).exists())

    def attached(self) -> tuple[AttachedNetwork, ...]:
        """The networks that are attached or being attached."""
        return read_attached(self._files, self._disk)

    # Attach.

    def _attach(self, network: ClaimNetwork, sandbox: Sandbox) -> None:
        if not sandbox.netns:
            raise NodeError(
                f"{network.ref}: the pod is on the host's network, and the claim was prepared for its own"
            )
        uid = network.ref.uid
        attached = next(iter(read_attached(self._files, self._disk, uid=uid)), None)
        if attached is not None and attached.sandbox == sandbox.id and self._gate(uid).exists():
            return
        if attached is not None and attached.pod != sandbox.pod_uid and _exists(attached.netns):
            # A second pod was added to the claim after Prepare: the running one keeps the network.
            raise NodeError(
                f"{network.ref}: its network is in pod {attached.pod}, and it goes into one pod at a time; give each "
                "pod a claim of its own (a template)"
            )
        if attached is None or attached.sandbox != sandbox.id or not attached.waits:
            if attached is not None:
                # Incomplete, or of a sandbox that died without a Stop: start over.
                self.release(attached)
            attached = self._attach_all(network, sandbox)
        plans = dict(network.plans)
        done = [self._with_gid(device, plans[device.device], sandbox) for device in attached.devices]
        self._open_gate(self._write(network, sandbox, done))
        log.info(
            "network_attached",
            claim=str(network.ref),
            pod=sandbox.pod_uid,
            interfaces=[device.interface for device in done],
        )

    def _attach_all(self, network: ClaimNetwork, sandbox: Sandbox) -> AttachedNetwork:
        done: list[AttachedDevice] = []

        def record(device: AttachedDevice) -> None:
            # Written before anything leaves the host, so that it is found again after a kill.
            self._write(network, sandbox, [*done, device])

        try:
            for device, plan in network.plans:
                done.append(self._attach_device(device, plan, sandbox, record=record))
        except KoordraError as error:
            log.error("network_not_attached", claim=str(network.ref), pod=sandbox.pod_uid, error=str(error))
            with contextlib.suppress(KoordraError):
                self.release_claim(network.uid)
            raise
        needing = {device for device, plan in network.plans if plan.needs_gid}
        done = [replace(each, gid_ready=False) if each.device in needing else each for each in done]
        return self._write(network, sandbox, done)

    def _attach_device(
        self, device: str, plan: NetworkPlan, sandbox: Sandbox, *, record: Callable[[AttachedDevice], None]
    ) -> AttachedDevice:
        given = AttachedDevice(device=device, interface=plan.interface)
        if not plan.kind.ours:
            return given
        if plan.kind is NetworkKind.ATTACH:
            record(given)
            return replace(given, addresses=cni.add(plan, sandbox, bin_dirs=self._cni_dirs))
        base = _base(plan)
        if plan.guid:
            set_guid(self._sys, plan.bus_id, plan.guid)
        if plan.host_interface:
            given = replace(given, before=self._before(plan))
        moves = plan.kind is NetworkKind.MOVE and plan.ib_device is not None
        given = replace(given, rdma_moved=moves and self._rdma.exclusive())
        record(given)
        if plan.host_interface:
            host = str(dict(given.before).get("present") or plan.host_interface)
            if plan.kind is NetworkKind.MACVLAN:
                self._links.add_macvlan(host, netns=sandbox.netns, as_name=base)
            else:
                self._links.move_into(host, netns=sandbox.netns, as_name=base)
        if given.rdma_moved and plan.ib_device:
            self._rdma.move_into(plan.ib_device, netns=sandbox.netns)
        if not plan.host_interface:
            return given
        if base != plan.interface:
            self._links.add_child(base, plan, netns=sandbox.netns)
        if plan.kind is NetworkKind.MOVE and not plan.addresses and base == plan.interface:
            plan = replace(plan, addresses=tuple(dict(given.before)["addresses"]))
        state = self._links.configure(plan, netns=sandbox.netns)
        return replace(given, addresses=state.addresses, mac=state.mac)

    def _before(self, plan: NetworkPlan) -> tuple[tuple[str, Any], ...]:
        """The interface's settings on the host. Raises NodeError where it must not, or cannot, move."""
        # The interface of a RoCE LAG is the bond, and none of the function's own.
        function = plan.bus_id if plan.kind is NetworkKind.MOVE else ""
        host = self._links.host_name(interface=plan.host_interface, bus_id=function)
        if host is None:
            raise NodeError(f"the network interface {plan.host_interface} is not on the host; who has it?")
        why = self._links.needed(host) if plan.kind is NetworkKind.MOVE else None
        if why is not None:
            raise NodeError(f"HostNeedsNIC: {host} stays on the host: {why}")
        state = self._links.state(host)
        return (
            ("addresses", list(state.addresses)),
            ("mtu", state.mtu),
            ("name", plan.host_interface),
            ("present", host),
            ("up", state.up),
        )

    def _with_gid(self, attached: AttachedDevice, plan: NetworkPlan, sandbox: Sandbox) -> AttachedDevice:
        """The device with the addresses that it has by now. Raises NodeError where it needs one."""
        port, device = plan.roce_port, plan.ib_device
        if not plan.needs_gid or port is None or device is None:
            return attached
        # Of what Multus attached the name is not known, and an address is one pod's.
        ours, pods_own = plan.kind.ours, self._rdma.exclusive()

        def addresses() -> Collection[str]:
            if not ours:
                return self._links.addresses_in(sandbox.netns)
            state = self._links.state_in(sandbox.netns, plan.interface)
            return state.addresses if state else ()

        def look(wanted: Collection[str]) -> bool | None:
            def task(sys: Path) -> bool | None:
                return has_gid(sys, device, port, wanted=wanted)

            return self._pods_sysfs(sandbox.netns, task) if pods_own else task(self._sys)

        there = require_gid(look, device=device, interface=plan.interface, addresses=addresses)
        return replace(attached, addresses=tuple(there) if ours else (), gid_ready=True)

    # Detach.

    def _detach_device(self, attached: AttachedDevice, plan: NetworkPlan, claim: AttachedNetwork) -> None:
        netns = claim.netns if _exists(claim.netns) else ""
        if not plan.kind.ours:
            return
        if plan.kind is NetworkKind.ATTACH:
            for problem in cni.delete(
                plan, Sandbox(claim.sandbox, claim.pod, "", "", netns), bin_dirs=self._cni_dirs
            ):
                log.warning("cni_not_deleted", uid=claim.uid, device=attached.device, problem=problem)
            return
        if netns and attached.rdma_moved and plan.ib_device and not self._rdma.present(plan.ib_device):
            self._rdma.move_back(plan.ib_device, netns=netns)
        if not plan.host_interface:
            return
        base = _base(plan)
        if netns and base != plan.interface:
            self._links.delete_in(netns, plan.interface)
        if plan.kind is NetworkKind.MOVE:
            self._restore(attached, plan, base, netns=netns)
        elif netns:
            self._links.delete_in(netns, base)

    def _restore(self, attached: AttachedDevice, plan: NetworkPlan, base: str, *, netns: str) -> None:
        before = dict(attached.before)
        there = self._links.name_in(netns, interface=base, bus_id=plan.bus_id) if netns else None
        if there is not None:
            self._links.move_back(there, netns=netns, as_name=plan.host_interface)
        host = self._links.host_name(interface=plan.host_interface, bus_id=plan.bus_id)
        if host is None and plan.bus_id and (self._sys / "bus/pci/devices" / plan.bus_id / "net").is_dir():
            # The function has an interface, and it is in neither place: a container's root may have taken it
            # into a namespace of its own, which ends with its processes.
            raise NodeError(f"{plan.host_interface} of {plan.bus_id} is in neither host nor pod; tried again")
        if host is None:
            # Neither in the pod nor on the host: a virtual interface that died with its namespace, or a
            # removed card.
            log.warning("network_interface_gone", interface=plan.host_interface, device=attached.device)
            return
        self._links.restore(
            host,
            as_name=plan.host_interface,
            mtu=int(before["mtu"]),
            up=bool(before["up"]),
            addresses=tuple(str(address) for address in before["addresses"]),
        )

    # Files.

    def _gate(self, uid: str) -> Path:
        return interface_gate.gate_file(self._files, uid)

    def _write(
        self, network: ClaimNetwork, sandbox: Sandbox, done: Sequence[AttachedDevice]
    ) -> AttachedNetwork:
        claim = AttachedNetwork(network.ref.uid, sandbox.pod_uid, sandbox.id, sandbox.netns, tuple(done))
        path = self._files.attached_file(network.ref.uid)
        with reported(CheckpointError, path, "written", remedy=_REMEDY):
            self._disk.replace(path, encode_attached(claim), mode=layout.MODE)
        return claim

    def _open_gate(self, claim: AttachedNetwork) -> None:
        with reported(CheckpointError, self._gate(claim.uid), "written", remedy=_REMEDY):
            self._disk.replace(
                self._gate(claim.uid),
                strict_json.encode({"devices": [_GATE_DEVICE.write(device) for device in claim.devices]}),
                mode=interface_gate.GATE_MODE,
                durable=False,
            )

    def _close_gate(self, uid: str) -> None:
        with (
            reported(CheckpointError, self._gate(uid), "removed", remedy=_REMEDY),
            contextlib.suppress(FileNotFoundError),
        ):
            self._disk.unlink(self._gate(uid))


_GATE_DEVICE: Final = strict_json.record(
    AttachedDevice, {"device": TEXT, "interface": STRING, "addresses": listed(TEXT), "mac": STRING}
)
"""What containers may read of a device."""


def _exists(netns: str) -> bool:
    return bool(netns) and Path(netns).exists()


def _base(plan: NetworkPlan) -> str:
    return (
        f"{plan.interface[-13:]}{_BASE}" if plan.vlan is not None or plan.pkey is not None else plan.interface
    )
