"""A host's network interfaces and RDMA devices, and those of its pods, without a kernel; it can fail at any
step."""

from __future__ import annotations

from dataclasses import replace

from koordra.errors import NodeError
from koordra.kubelet_plugin.network.netlink_links import LinkState
from koordra.node_state.claim_network import NetworkPlan

HOST = "host"


class FakeLinks:
    """`where[(namespace, name)]` is an interface; `steps` are the changes that were made; `fail_at` makes one
    fail."""

    def __init__(self, *names: str) -> None:
        self.where: dict[tuple[str, str], LinkState] = {
            (HOST, name): LinkState(name, 1500, True, f"02:00:00:00:00:0{index}", ("10.9.0.1/24",))
            for index, name in enumerate(names)
        }
        self.needs: dict[str, str] = {}
        """Interface of the host -> why it stays."""
        self.of_function: dict[str, str] = {}
        """PCI address -> the function's own interface, where it matters."""
        self.routes: list[tuple[str, str, str]] = []
        self.steps: list[str] = []
        self.fail_at: int | None = None
        self.die_at: int | None = None

    def _step(self, text: str) -> None:
        if self.fail_at == len(self.steps):
            self.fail_at = None
            raise NodeError(f"netlink: {text}")
        if self.die_at == len(self.steps):
            raise KeyboardInterrupt(text)
        self.steps.append(text)

    def _take(self, namespace: str, name: str) -> LinkState:
        if (namespace, name) not in self.where:
            raise NodeError(f"there is no network interface {name} here")
        return self.where.pop((namespace, name))

    def host_name(self, *, interface: str, bus_id: str) -> str | None:
        own = self.of_function.get(bus_id, interface)
        if (HOST, own) in self.where:
            return own
        return interface if (HOST, interface) in self.where else None

    def state(self, name: str) -> LinkState:
        return self.where[HOST, name]

    def needed(self, name: str) -> str | None:
        return self.needs.get(name)

    def state_in(self, netns: str, name: str) -> LinkState | None:
        return self.where.get((netns, name))

    def name_in(self, netns: str, *, interface: str, bus_id: str) -> str | None:
        own = self.of_function.get(bus_id, interface)
        here = (name for name in (own, interface) if (netns, name) in self.where)
        return next(here, None)

    def addresses_in(self, netns: str) -> dict[str, str]:
        here = [state for (namespace, _), state in self.where.items() if namespace == netns]
        return {address.partition("/")[0]: state.name for state in here for address in state.addresses}

    def move_into(self, name: str, *, netns: str, as_name: str) -> None:
        self._step(f"{name} into the pod as {as_name}")
        # The kernel takes addresses and the up flag away.
        state = replace(self._take(HOST, name), name=as_name, up=False, addresses=())
        self.where[netns, as_name] = state

    def move_back(self, name: str, *, netns: str, as_name: str) -> None:
        self._step(f"{name} back as {as_name}")
        self.where[HOST, as_name] = replace(self._take(netns, name), name=as_name, up=False, addresses=())

    def restore(self, name: str, *, as_name: str, mtu: int, up: bool, addresses: tuple[str, ...]) -> None:
        self._step(f"restore {as_name}")
        self.where[HOST, as_name] = replace(
            self._take(HOST, name), name=as_name, mtu=mtu, up=up, addresses=addresses
        )

    def add_macvlan(self, parent: str, *, netns: str, as_name: str) -> None:
        self._step(f"macvlan {as_name} on {parent}")
        assert (HOST, parent) in self.where
        self.where[netns, as_name] = LinkState(as_name, 1500, False, "02:aa:00:00:00:01", ())

    def add_child(self, parent: str, plan: NetworkPlan, *, netns: str) -> None:
        self._step(f"{plan.interface} on {parent}: vlan {plan.vlan} pkey {plan.pkey}")
        assert (netns, parent) in self.where
        self.where[netns, plan.interface] = LinkState(plan.interface, 1500, False, "02:bb:00:00:00:01", ())

    def delete_in(self, netns: str, name: str) -> None:
        self._step(f"delete {name}")
        self.where.pop((netns, name), None)

    def configure(self, plan: NetworkPlan, *, netns: str) -> LinkState:
        name = plan.interface
        self._step(f"configure {name}")
        before = self.where[netns, name]
        state = replace(before, mtu=plan.mtu or before.mtu, up=True, addresses=plan.addresses)
        self.where[netns, name] = state
        self.routes += [(name, destination, gateway) for destination, gateway in plan.routes]
        return state


class FakeRdma:
    """RDMA devices by namespace; steps are written into the links' list, so that their order shows."""

    def __init__(self, links: FakeLinks, *devices: str, exclusive: bool = True) -> None:
        self._links = links
        self._exclusive = exclusive
        self.where = dict.fromkeys(devices, HOST)

    def exclusive(self) -> bool:
        return self._exclusive

    def present(self, ib_device: str) -> bool:
        return self.where.get(ib_device) == HOST

    def move_into(self, ib_device: str, *, netns: str) -> None:
        self._links._step(f"rdma {ib_device} into the pod")
        self.where[ib_device] = netns

    def move_back(self, ib_device: str, *, netns: str) -> None:
        self._links._step(f"rdma {ib_device} back")
        assert self.where[ib_device] == netns
        self.where[ib_device] = HOST
