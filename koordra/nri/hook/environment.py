"""The environment of a container: what its devices bring, and what its author wrote about devices. Pure.

**What the devices bring.** In CDI the last device that sets a variable wins, so a container with devices of
several requests or claims would see only some of them. Variables that list devices are therefore joined here,
in the order of the container's claims; all others that the devices set are pinned, so that no other plugin
can change them.

**What the author wrote.** A pod or its image may set the lists itself, and CUDA_VISIBLE_DEVICES. In a
container that holds such devices the value stays as it is written, if it names devices that the container
holds:

    CUDA_VISIBLE_DEVICES   UUIDs (or beginnings of UUIDs, as CUDA takes them) of held cards or MIG instances:
                           stays. Others: refused, since CUDA would find no device. Numbers count the
                           container's own cards, whichever number a card has on the host: they stay, and the
                           pod's author is told what they mean (`counted_cards`).
    NCCL_IB_HCA            exact names after "=", else beginnings of names; "^" excludes and names nothing
    UCX_NET_DEVICES,       `device:port`, with wildcards; `all` and network interfaces name no NIC of a claim
    NVSHMEM_HCA_LIST
    UCX_CONFIG_DIR         any; of several claims with such a file the first counts: NICs of one program are
                           on one network

A container without such devices may say what it likes: it can open none.

**NVIDIA_VISIBLE_DEVICES** is `void` in every container: NVIDIA's toolkit injects nothing for it, where it is
installed as the runtime or as a hook; where it is not, nothing reads the variable. Images bake `all` and pods
set it again, and of a variable with several values the runtimes replace the first while the last one wins
(NRI's AdjustEnv in containerd 1.7 to 2.1; removing a variable of the container's own has no effect). A
variable of a name that none of them has, however, is put after all others. So what cannot be replaced is
outvoted by `NVIDIA_VISIBLE_DEVICES=void,=`: a list with `void` in it, which the toolkit takes for `void`
(devicesFromEnvvars of its internal/config/image; one so old that the word must stand alone fails the
container for the unknown device `=`). Any other variable that must have one value and has several is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from koordra.node_state.claim_ref import MARKER_PREFIX
from koordra.node_state.prepared_claim import HOOKS_VARIABLES, LIST_VARIABLES, UCX_FOLDER
from koordra.nri.hook.grants import GRANTED, Grants
from koordra.nri.hook.oci import Container, Refusal

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
CUDA_VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
NCCL_IB_HCA: Final = "NCCL_IB_HCA"

NOTHING_VISIBLE: Final = "void"
"""The value for which NVIDIA's toolkit injects nothing; CDI injects what the container may have."""

OUTVOTED: Final = f"{NOTHING_VISIBLE},="
"""The last of several values of NVIDIA_VISIBLE_DEVICES, where the others cannot be replaced."""

_NOTHING: Final = (NOTHING_VISIBLE, "none")
"""Values for which NVIDIA's toolkit injects no device."""


LONGEST_LIST: Final = 4096
"""Characters of a variable that lists devices: sixty UUIDs of MIG instances, with room."""


def granted_env(container: Container, grants: Grants) -> dict[str, str]:
    """The variables of the held devices, joined and pinned, and the markers without their nonce; without
    those that the container sets itself and may. Raises Refusal."""
    own = _own_lists(container, grants)
    env = dict.fromkeys(grants.markers, GRANTED)
    lists: dict[str, list[str]] = {}
    for grant in grants.held:
        for name, value in grant.device.env:
            if name.startswith(MARKER_PREFIX) or name in own or name == CUDA_VISIBLE_DEVICES:
                continue  # the last: of a claim that an earlier koordra prepared
            if name == UCX_FOLDER:
                env.setdefault(name, value)
            elif name in LIST_VARIABLES:
                lists.setdefault(name, []).append(value)
            elif env.setdefault(name, value) != value:
                raise Refusal(
                    "ConflictingEnv",
                    f"{container}: its devices set {name} both to {env[name]!r} and to {value!r}; "
                    f"use claim {grant.claim} in a container of its own",
                )
    return env | {name: _joined(values) for name, values in lists.items()}


def _own_lists(container: Container, grants: Grants) -> frozenset[str]:
    """The list variables that the container sets itself. Raises Refusal for one that names a device which it
    does not hold."""
    last = dict(container.env)
    lists = (CUDA_VISIBLE_DEVICES, *sorted(HOOKS_VARIABLES - {UCX_FOLDER}))
    for name in lists if grants.held else ():
        if len(last.get(name, "")) > LONGEST_LIST:
            # Each item is compared with each device, while other containers wait.
            raise Refusal(
                "ForeignDeviceNamed",
                f"{container}: variable {name} has {len(last[name])} characters, and a list of devices at most {LONGEST_LIST}; "
                "shorten it",
            )
    if grants.gpu and CUDA_VISIBLE_DEVICES in last:
        for item in _items(last[CUDA_VISIBLE_DEVICES]):
            if item.startswith(("GPU-", "MIG-")) and not any(uuid.startswith(item) for uuid in grants.uuids):
                raise _foreign(container, CUDA_VISIBLE_DEVICES, item, "CUDA finds what it holds without it")
    nics = tuple(grant.device.ib_device for grant in grants.held if grant.device.ib_device)
    own = HOOKS_VARIABLES & last.keys() if grants.nic else frozenset()
    for name in sorted(own - {UCX_FOLDER}):
        named = _of_nccl if name == NCCL_IB_HCA else _of_ucx
        for item in named(last[name], nics):
            raise _foreign(container, name, item, "it is set to the NICs that the container holds")
    return own


def _of_nccl(value: str, nics: Iterable[str]) -> Iterable[str]:
    """The items of an NCCL_IB_HCA that stand for none of the NICs."""
    if value.startswith("^"):
        return ()
    exact = value.startswith("=")
    devices = {item: item.partition(":")[0] for item in _items(value.removeprefix("="))}
    return [
        item
        for item, device in devices.items()
        if not any(nic == device if exact else nic.startswith(device) for nic in nics)
    ]


def _of_ucx(value: str, nics: Iterable[str]) -> Iterable[str]:
    """The items of a UCX_NET_DEVICES that are ports of RDMA devices, and of none of the NICs."""
    if value.startswith("^"):
        return ()
    devices = {item: item.rpartition(":")[0] for item in _items(value) if ":" in item}
    return [item for item, device in devices.items() if not any(fnmatchcase(nic, device) for nic in nics)]


def counted_cards(env: Mapping[str, str]) -> tuple[str, ...]:
    """The cards that CUDA_VISIBLE_DEVICES numbers; empty where it is absent or names them."""
    items = _items(env.get(CUDA_VISIBLE_DEVICES, ""))
    return items if items and all(item.isascii() and item.isdigit() for item in items) else ()


def outvote(container: Container, env: dict[str, str]) -> tuple[str, ...]:
    """Variables of `env` that are to be put last, as they cannot be replaced; taken out of it."""
    values = [value for name, value in container.env if name == VISIBLE_DEVICES]
    if len(values) > 1 and env.get(VISIBLE_DEVICES) == NOTHING_VISIBLE and values[-1] not in _NOTHING:
        del env[VISIBLE_DEVICES]
        return (f"{VISIBLE_DEVICES}={OUTVOTED}",)
    return ()


def refuse_repeated(container: Container, wanted: Mapping[str, str]) -> None:
    """Refuse a variable that must have one value, and has several of which the last is another."""
    counts = Counter(name for name, _ in container.env if name in wanted)
    last = dict(container.env)
    for name, count in counts.items():
        harmless = name == VISIBLE_DEVICES and last[name] in _NOTHING and wanted[name] == NOTHING_VISIBLE
        if count > 1 and last[name] != wanted[name] and not harmless:
            raise Refusal(
                "RepeatedVariable",
                f"{container}: variable {name} is set more than once (by the pod, its image or both), so that its value "
                f"cannot be replaced; remove {name} from the container's env",
            )


def _items(value: str) -> tuple[str, ...]:
    return tuple(item for entry in value.split(",") if (item := entry.strip()))


def _joined(values: Iterable[str]) -> str:
    """One list of the items of all values, each once. NCCL's `=` (exact names) leads the list."""
    values = tuple(values)
    exact = any(value.startswith("=") for value in values)
    items = dict.fromkeys(item for value in values for item in _items(value.removeprefix("=")))
    return ("=" if exact else "") + ",".join(items)


def _foreign(container: Container, name: str, item: str, otherwise: str) -> Refusal:
    return Refusal(
        "ForeignDeviceNamed",
        f"{container}: variable {name} names {item}, which no claim of the container holds; remove it from the pod "
        f"and its image ({otherwise}), or name a device that its claims hold",
    )
