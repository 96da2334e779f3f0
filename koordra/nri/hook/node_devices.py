"""What the hook reads of the machine: the driver's cards, and its RDMA devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class NodeDevices:
    """The devices of the machine below `root`; read on each call, since drivers come and go."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def minor_of(self, uuid: str) -> int | None:
        return next((minor for card, minor in self._cards() if card == uuid), None)

    def minors(self) -> tuple[int, ...]:
        """Of the cards that the driver has, in the order of their PCI addresses: CUDA numbers them so, where
        it sees all of them and CUDA_DEVICE_ORDER is PCI_BUS_ID."""
        return tuple(minor for _, minor in self._cards())

    def _cards(self) -> Iterator[tuple[str, int]]:
        """UUID and minor."""
        folder = self._root / "proc/driver/nvidia/gpus"
        for address in sorted(_names(folder), key=lambda name: [part.zfill(8) for part in name.split(":")]):
            lines = (line.partition(":") for line in _text(folder / address / "information").splitlines())
            fields = {name.strip(): value.strip() for name, _, value in lines}
            if fields.get("Device Minor", "").isdecimal():
                yield fields.get("GPU UUID", ""), int(fields["Device Minor"])

    def verbs_of(self, bus_id: str) -> tuple[str, str] | None:
        """The device file and the RDMA device of a PCI function: `/dev/infiniband/uverbs0`, `mlx5_0`."""
        devices = _names(self._root / "sys/bus/pci/devices" / bus_id / "infiniband")
        for name in _names(self._root / "sys/class/infiniband_verbs") if devices else ():
            # `abi_version` lies beside the devices
            if _text(self._root / "sys/class/infiniband_verbs" / name / "ibdev").strip() == devices[0]:
                return f"/dev/infiniband/{name}", devices[0]
        return None

    def rdma_devices(self) -> tuple[str, ...]:
        return tuple(_names(self._root / "sys/class/infiniband"))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
