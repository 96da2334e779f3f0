"""Extended resources and annotations that are no dialect's: other vendors' accelerators, misspelt names, resources of other programs. Pure.

    another vendor's    `huawei.com/...`: the pod is refused, and keeps that vendor's device plugin and scheduler
    misspelt resource   `koordinator.sh/gpu-shared` (the name has a dot), `nvidia.com/gpucore`: it stays in the container, where no
                        node offers it and the pod would wait for ever
    misspelt annotation `nvidia.com/use-gputpye`, `hami.io/gpu-scheduler-polcy`: nobody reads it
    on a node           koordra publishes no extended resources, so whatever of the dialects' names a Node has in
                        status.allocatable, above zero, another program's device plugin (or node agent) put there; it would give
                        out cards that koordra gives out too

Misspelt names are warnings that say which name may have been meant. Names of a dialect that koordra does not serve under any
name (`volcano.sh/vgpu-priority`) are reported in the same way.
Source of the vendors: the vendor sections of HAMi's chart, Koordinator's extension names, vendors' device plugins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.compat import detection
from koordra.compat.dialect.pod_view import PodView
from koordra.compat.dialect.vocabulary import Place
from koordra.compat.dialects import DIALECTS
from koordra.compat.settings import Settings
from koordra.errors import InvalidQuantity
from koordra.quantity import parse

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


def foreign(names: Sequence[str]) -> list[tuple[str, str]]:
    """(resource, vendor) of those that are another vendor's."""
    return [(name, vendor) for name in names for prefix, vendor in VENDORS if name.startswith(prefix)]


def is_misspelt(resource: str, settings: Settings) -> bool:
    """Whether a resource begins like one of a dialect and is none."""
    prefixes = tuple(prefix for dialect in DIALECTS for prefix in dialect.like_resources)
    return resource.startswith(prefixes) and not detection.is_served(resource, settings)


def warn_of_resources(view: PodView) -> None:
    for container in view.containers:
        for name in container.resources():
            if is_misspelt(name, view.settings):
                view.notes.warn(
                    container.field(name),
                    "is no name that koordra reads, and stays: the pod waits until a node offers it",
                    _meant(name, _names(Place.RESOURCE), "take it out"),
                )


def is_like_one(annotation: str) -> bool:
    """Whether an annotation begins like one of a dialect."""
    return annotation.startswith(tuple(prefix for dialect in DIALECTS for prefix in dialect.like_annotations))


def warn_of_annotations(view: PodView) -> None:
    like = [key for key in view.annotations if is_like_one(key)]
    known = {*_names(Place.ANNOTATION), *written_by_schedulers(like)} if like else set()
    for key in like:
        if key not in known:
            meant = _meant(key, _names(Place.ANNOTATION))
            view.warn(key, "is no name that koordra reads, and asks for nothing", meant)


def written_by_schedulers(annotations: Iterable[str]) -> frozenset[str]:
    """Those that only some dialect's scheduler may write."""
    listed = list(annotations)
    return frozenset(key for dialect in DIALECTS for key in dialect.vocabulary.results(listed))


def _names(place: Place) -> list[str]:
    return [name.key for dialect in DIALECTS for name in dialect.vocabulary.of(place) if "*" not in name.key]


def _meant(name: str, known: Sequence[str], otherwise: str = "") -> str:
    """`did you mean ...?`, comparing what stands behind the slash."""
    domain, _, rest = name.partition("/")
    beside = [key.partition("/")[2] for key in known if key.startswith(f"{domain}/")]
    found = get_close_matches(rest.lower(), beside, n=1, cutoff=0.75)
    return f"did you mean {domain}/{found[0]}?" if found else otherwise


def offered_by_others(node: Object) -> tuple[str, ...]:
    """Names of the resources, in order."""
    amounts = objects.status_of(node).get("allocatable")
    if not isinstance(amounts, dict):
        return ()
    return tuple(
        sorted(str(name) for name, value in amounts.items() if _publisher(str(name)) and _some(value))
    )


def publishers(resources: tuple[str, ...]) -> str:
    """Who is behind them, in words."""
    return " and ".join(dict.fromkeys(_publisher(name) for name in resources))


def _publisher(name: str) -> str:
    publishers = (publisher for dialect in DIALECTS for publisher in dialect.publishers)
    return next((whose for prefix, whose in publishers if name.startswith(prefix)), "")


def _some(value: object) -> bool:
    """Above zero; what cannot be read counts, since somebody wrote it."""
    try:
        return parse(value) > 0
    except InvalidQuantity:
        return True
