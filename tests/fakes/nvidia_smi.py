"""The fake nvidia-smi: what of the real one koordra's self test reads, answered from libnvidia-ml.so.1 as the
loader finds it. Installed as a program of the made-up driver (gpu_machine.py)."""

from __future__ import annotations

import sys

import pynvml

MIB = 1 << 20


def field(handle: object, index: int, name: str) -> str:
    if name == "index":
        return str(index)
    if name == "uuid":
        return str(pynvml.nvmlDeviceGetUUID(handle))
    if name == "name":
        return str(pynvml.nvmlDeviceGetName(handle))
    if name == "pci.bus_id":
        return str(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    if name == "memory.total":
        return str(pynvml.nvmlDeviceGetMemoryInfo(handle).total // MIB)
    if name == "memory.used":
        return str(pynvml.nvmlDeviceGetMemoryInfo(handle).used // MIB)
    if name == "memory.reserved":
        return "0"
    if name == "mig.mode.current":
        return "Enabled" if pynvml.nvmlDeviceGetMigMode(handle)[0] else "Disabled"
    if name == "driver_version":
        return str(pynvml.nvmlSystemGetDriverVersion())
    raise SystemExit(f'Field "{name}" is not a valid field to query.')


def main() -> None:
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    arguments = sys.argv[1:]
    if arguments[:1] == ["topo"]:
        names = [f"GPU{index}" for index in range(len(handles))]
        print("\t" + "\t".join([*names, "CPU Affinity"]))
        for row in names:
            print(row + "\t" + "\t".join([*(" X " if row == column else "SYS" for column in names), "0-15"]))
    elif arguments and arguments[0].startswith("--query-gpu="):
        names = arguments[0].partition("=")[2].split(",")
        for index, handle in enumerate(handles):
            print(", ".join(field(handle, index, name) for name in names))
    else:
        print(f"{len(handles)} GPUs")


if __name__ == "__main__":
    main()
