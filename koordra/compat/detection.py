"""Which dialect a pod speaks: every resource, annotation and label that some dialect has is a sign.

A name that one dialect alone has decides. Names that several have (`nvidia.com/gpu`: plain, HAMi,
Koordinator) go along with the decision, or narrow it down where nothing decides; `nvidia.com/gpu` that stays
open is the operator's default dialect. Names of the same project about other things (a QoS label of
Koordinator) decide last and contradict nobody, and so do amounts of 0.

Signs of two dialects are refused naming both: no stack says what that would mean. A pod that asks for no
device has no dialect, whatever its annotations say.

Extended resources and annotations that are no dialect's (other vendors' accelerators, misspelt names,
resources of other programs):

    another vendor's    `huawei.com/...`: the pod is refused, and keeps that vendor's device plugin and
                        scheduler
    misspelt resource   `koordinator.sh/gpu-shared` (the name has a dot), `nvidia.com/gpucore`: it stays in
                        the container, where no node offers it and the pod would wait for ever
    misspelt annotation `nvidia.com/use-gputpye`, `hami.io/gpu-scheduler-polcy`: nobody reads it
    on a node           koordra publishes no extended resources, so whatever of the dialects' names a Node has
                        in status.allocatable, above zero, another program's device plugin (or node agent) put
                        there; it would give out cards that koordra gives out too

Misspelt names are warnings that say which name may have been meant. Names of a dialect that koordra does not
serve under any name (`volcano.sh/vgpu-priority`) are reported in the same way. Source of the vendors: the
vendor sections of HAMi's chart, Koordinator's extension names, vendors' device plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.pods import SIDES
from koordra.compat.dialect import Dialect, covers
from koordra.compat.dialect.pod_view import PodView
from koordra.compat.dialects import DIALECTS
from koordra.compat.settings import Settings
from koordra.errors import InvalidQuantity
from koordra.quantity import parse
from koordra.spelling import meant

MOST_KEPT: Final = 1 << 15
"""Answers about names."""
LONGEST_NAME: Final = 253 + len("/") + 63
"""Characters of a name with its domain. The API server refuses longer ones, but asks the webhooks first."""

_More = ParamSpec("_More")
_Answer = TypeVar("_Answer")


def kept_by_name(
    ask: Callable[Concatenate[str, _More], _Answer],
) -> Callable[Concatenate[str, _More], _Answer]:
    """Every pod asks the same; users choose what they ask about, so a bounded number of answers is kept,
    about names of bounded length."""
    kept: Callable[..., _Answer] = lru_cache(maxsize=MOST_KEPT)(ask)

    def answer(name: str, /, *args: _More.args, **more: _More.kwargs) -> _Answer:
        return kept(name, *args, **more) if len(name) <= LONGEST_NAME else ask(name, *args, **more)

    return answer


class Sign(NamedTuple):
    """`field` is where it stands; `dialects` are those that have the name."""

    field: str
    dialects: frozenset[str]
    soft: bool = False


def asks(view: PodView) -> bool:
    """Whether some container asks for a device under a name of a dialect, or an annotation does by itself."""
    return any(not sign.soft for sign in _resources(view)) or asks_by_annotation(view.annotations)


def asks_by_annotation(annotations: Iterable[object]) -> bool:
    return any(str(key).startswith(_ASKING) for key in annotations)


def dialect_of(view: PodView) -> Dialect:
    """Raises Refused where the signs are of two. The pod has to ask for something."""
    signs = [*_resources(view), *_metadata(view)]
    firm = [sign for sign in signs if not sign.soft]
    deciding = [sign for sign in firm if len(sign.dialects) == 1][:1] or firm
    chosen = frozenset.intersection(*(sign.dialects for sign in deciding))
    for sign in firm:
        if not chosen & sign.dialects:
            raise view.notes.refuse(
                sign.field,
                f"is of {_titles(sign)}, while {deciding[0].field} is of {_titles(deciding[0])}; a pod speaks one dialect",
                "take the names of one of them out",
            )
    chosen = next(filter(None, (sign.dialects & chosen for sign in signs if sign.soft)), chosen)
    if view.settings.default_dialect in chosen:
        chosen = frozenset({view.settings.default_dialect})
    return next(dialect for dialect in DIALECTS if dialect.name in chosen)


def _titles(sign: Sign) -> str:
    return " or ".join(dialect.title for dialect in DIALECTS if dialect.name in sign.dialects)


def _resources(view: PodView) -> Iterator[Sign]:
    for container in view.containers:
        for key in container.resources:
            if found := dialects_with(key, view.settings):
                nothing = all(container.asked(side).get(key) in (None, 0, "0") for side in SIDES)
                yield Sign(container.field(key), found, soft=nothing)


@kept_by_name
def dialects_with(key: str, settings: Settings) -> frozenset[str]:
    """The dialects that have the resource under this name in the cluster."""
    return frozenset(
        dialect.name
        for dialect in DIALECTS
        if covers((settings.name(name, dialect.name) for name in dialect.resources), key)
    )


def _metadata(view: PodView) -> Iterator[Sign]:
    for kind, found in (("annotations", view.annotations), ("labels", view.labels)):
        for key in found:
            exact, soft = signs_of(key, kind)
            if exact or soft:
                yield Sign(f"{view.meta}.{kind}[{key}]", exact or soft, soft=not exact)


@kept_by_name
def signs_of(key: str, kind: str) -> tuple[frozenset[str], frozenset[str]]:
    """The dialects of which one of the `annotations` or `labels` is a sign, and those of which it is a soft
    one."""
    exact, soft = set(), set()
    for dialect in DIALECTS:
        names, beside = dialect.annotations, dialect.soft_annotations
        if kind == "labels":
            names, beside = dialect.labels, dialect.soft_labels
        elif covers(dialect.written, key):
            continue  # schedulers write those of their friends too
        if covers(names, key):
            exact.add(dialect.name)
        elif covers(beside, key):
            soft.add(dialect.name)
    return frozenset(exact), frozenset(soft)


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
)
"""Beginning of the resource's name, and whose it is."""


def vendor_of(resource: str) -> str:
    """The other vendor whose the resource is, "" for none."""
    return _whose(resource, VENDORS)


def _whose(resource: str, table: Iterable[tuple[str, str]]) -> str:
    return next((whose for prefix, whose in table if resource.startswith(prefix)), "")


def is_misspelt(resource: str, settings: Settings) -> bool:
    """Whether a resource begins like one of a dialect and is none."""
    return resource.startswith(_LIKE_RESOURCES) and not dialects_with(resource, settings)


def check_resources(view: PodView) -> None:
    """Warns of misspelt names. Raises Refused for another vendor's."""
    for container in view.containers:
        for name in container.resources:
            if vendor := vendor_of(name):
                raise view.notes.refuse(
                    container.field(name),
                    f"is of another vendor ({vendor}); koordra serves NVIDIA GPUs and RDMA NICs",
                    "leave this pod to that vendor's device plugin and scheduler",
                )
            if is_misspelt(name, view.settings):
                view.notes.warn(
                    container.field(name),
                    "is no name that koordra reads, and stays: the pod waits until a node offers it",
                    did_you_mean(name, _RESOURCES) or "take it out",
                )


_ASKING: Final = tuple(prefix for dialect in DIALECTS for prefix in dialect.asking)
_LIKE_RESOURCES: Final = tuple(prefix for dialect in DIALECTS for prefix in dialect.like_resources)
DOMAINS: Final = tuple(prefix for dialect in DIALECTS for prefix in dialect.domains)
"""Beginnings of annotations and labels that are somebody's to read."""
_PUBLISHERS: Final = tuple(publisher for dialect in DIALECTS for publisher in dialect.publishers)
_RESOURCES: Final = [name for dialect in DIALECTS for name in dialect.resources]


@kept_by_name
def is_written(annotation: str) -> bool:
    """Whether only some dialect's scheduler may write it."""
    return any(covers(dialect.written, annotation) for dialect in DIALECTS)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """`did you mean ...?`, comparing what stands behind the slash."""
    domain, _, rest = name.partition("/")
    beside = [key.partition("/")[2] for key in known if key.startswith(f"{domain}/") and "*" not in key]
    found = meant(rest.lower(), beside, cutoff=0.75)
    return f"did you mean {domain}/{found}?" if found else ""


def offered_by_others(node: Object) -> tuple[str, ...]:
    """Names of the resources, in order."""
    amounts = objects.status_of(node).get("allocatable")
    if not isinstance(amounts, dict):
        return ()
    return tuple(
        sorted(
            str(name) for name, value in amounts.items() if _whose(str(name), _PUBLISHERS) and _some(value)
        )
    )


def publishers(resources: tuple[str, ...]) -> str:
    """Who is behind them, in words."""
    return " and ".join(dict.fromkeys(_whose(name, _PUBLISHERS) for name in resources))


def _some(value: object) -> bool:
    """Above zero; what cannot be read counts, since somebody wrote it."""
    try:
        return parse(value) > 0
    except InvalidQuantity:
        return True
