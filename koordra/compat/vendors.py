"""Accelerators of other vendors: their names are known, so that the answer is a sentence and not a shrug.

koordra serves NVIDIA GPUs and RDMA NICs. A pod that asks for anything below keeps its own device plugin and scheduler.
Source: the vendor sections of HAMi's chart, Koordinator's extension names, vendors' device plugins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

VENDORS: Final[tuple[tuple[str, str], ...]] = (
    ("cambricon.com/", "Cambricon MLU"),
    ("hygon.com/", "Hygon DCU"),
    ("dcu.com/", "Hygon DCU"),
    ("huawei.com/", "Huawei Ascend NPU"),
    ("metax-tech.com/", "MetaX GPU"),
    ("mthreads.com/", "Moore Threads GPU"),
    ("iluvatar.ai/", "Iluvatar GPU"),
    ("kunlunxin.com/", "Kunlunxin XPU"),
    ("baidu.com/", "Kunlunxin XPU"),
    ("enflame.com/", "Enflame GCU"),
    ("amd.com/gpu", "AMD GPU"),
    ("gpu.intel.com/", "Intel GPU"),
    ("habana.ai/", "Intel Gaudi"),
    ("aws.amazon.com/neuron", "AWS Neuron"),
    ("google.com/tpu", "Google TPU"),
    ("vastaitech.com/", "Vastai"),
    ("birentech.com/", "Biren GPU"),
    ("qualcomm.com/", "Qualcomm Cloud AI"),
    ("rebellions.ai/", "Rebellions NPU"),
    ("furiosa.ai/", "FuriosaAI NPU"),
    ("koordinator.sh/fpga", "FPGA"),
)
"""Beginning of the resource's name, and whose it is."""


def vendor_of(name: str) -> str:
    """Whose accelerator the resource is, "" for none of these."""
    return next((vendor for prefix, vendor in VENDORS if name.startswith(prefix)), "")


def foreign(names: Sequence[str]) -> list[tuple[str, str]]:
    """(resource, vendor) of those that are another vendor's."""
    return [(name, vendor) for name in names if (vendor := vendor_of(name))]
