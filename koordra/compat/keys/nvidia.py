"""NVIDIA's device plugin. Source: api/config/v1, internal and the README of k8s-device-plugin."""

from __future__ import annotations

from typing import Final

from koordra.compat.keys import Key, rows

KEYS: Final[tuple[Key, ...]] = rows(
    "plain",
    """
resource | y | nvidia.com/gpu | whole cards | `count` of class `gpu.koordra.io`, no capacity: all of each card
resource | y | nvidia.com/gpu.shared | replicas of cards that are given out several times | `GpuConfig.memoryPercent` of 100 / replicas, each on another card
resource | y | nvidia.com/mig-* | MIG instances of a profile (strategy mixed) | class `mig.koordra.io` with the profile
resource | refused | nvidia.com/mig-*.shared | replicas of MIG instances that are given out several times | is a replica of an instance, and koordra gives an instance to one claim; ask for the profile, or for memory of a card
environment | warned | NVIDIA_VISIBLE_DEVICES | cards by number or UUID, past every scheduler | is not honoured: a container sees what its claim was given
environment | y | NVIDIA_DRIVER_CAPABILITIES | parts of the driver for the container | is read by koordra's plugin (docs/container-contract.md)
environment | warned | NVIDIA_IMEX_CHANNELS | IMEX channels for the container | gives none here; ask for class imex-channel.koordra.io
environment | warned | NVIDIA_MIG_CONFIG_DEVICES | cards whose MIG instances the container may change | gives none here; koordra's plugin makes the instances
environment | warned | NVIDIA_MIG_MONITOR_DEVICES | cards whose MIG instances the container may watch | gives none here; koordra's metrics tell of them
environment | warned | NVIDIA_GDS | GPUDirect Storage for the container | gives none here; mount what it needs
environment | warned | NVIDIA_MOFED | InfiniBand devices for the container | gives none here; ask for class nic.koordra.io
environment | warned | NVIDIA_GDRCOPY | the gdrcopy device for the container | gives none here; mount what it needs
setting | warned | sharing.timeSlicing | how often a card is given out | is said to koordra as `plain: {replicas: N}`; add it to the settings, or ask for memory
setting | warned | sharing.mps | how often a card is given out, each part kept by MPS | is said to koordra as `plain: {replicas: N}` and `isolation: {plain: mps}`; add it to the settings, or ask for memory
setting | warned | flags.migStrategy | single: instances under the name nvidia.com/gpu | koordra gives instances out by their profile; write nvidia.com/mig-<profile>
setting | warned | resources.gpus | names of cards by a pattern of their model | is said to koordra as `names`, one for all cards; select on productName instead
setting | warned | resources.mig | names of MIG instances by a pattern of their profile | is said to koordra by the profile; write nvidia.com/mig-<profile>
setting | y | flags.* | how the plugin finds and passes devices | flags of koordra's kubelet plugin
setting | warned | imex | IMEX channels that every pod gets | gives none here; ask for class imex-channel.koordra.io
node | y | nvidia.com/gpu.*, nvidia.com/cuda.*, nvidia.com/mig.capable | what a node has | are written by koordra too, where GPU feature discovery is gone
node | y | nvidia.com/device-plugin.config | which of several configurations | not needed
""",
)
