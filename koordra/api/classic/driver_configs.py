"""Parameters of a claim from one driver to another: which of them hold for which request. Pure.

    koordra    a GpuConfig holds for every GPU and instance of the requests it names, of all where it names
               none; of several the later one decides, and those of a claim stand above those of its class
    NVIDIA's   the same, but a GpuConfig is for whole GPUs and a MigDeviceConfig for instances: one that names
               a request of the other sort is an error on the node, one that names none passes it by

So what names no request gets names, and what holds for both sorts becomes two. TimeSlicing is what koordra
does where nothing is said; it is said where it takes back an MPS. Source: GetOpaqueDeviceConfigs and
validateDeviceConfigType in cmd/gpu-kubelet-plugin/device_state.go of NVIDIA's driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from koordra.api import names
from koordra.api.classic.driver_words import Words
from koordra.api.classic.notes import Notes
from koordra.api.objects import Object
from koordra.api.opaque.isolation_words import NO_ISOLATION
from koordra.api.opaque.parameters import API_VERSION
from koordra.api.reader import Reader

GPU: Final = names.TYPE_GPU
MIG: Final = names.TYPE_MIG
OF_KIND: Final = {"GpuConfig": GPU, "MigDeviceConfig": MIG}
_NONE: Final = {"apiVersion": API_VERSION, "kind": "GpuConfig", "isolation": NO_ISOLATION}
_SLICED: Final = {"strategy": "TimeSlicing"}


def of_class(selectors: Iterable[Reader]) -> str:
    """What a DeviceClass of one's own gives, as far as its selectors say."""
    text = " ".join(each.inner("cel").text("expression") for each in selectors)
    return (
        MIG if f'type == "{MIG}"' in text or ".profile" in text else GPU if f'type == "{GPU}"' in text else ""
    )


def configs(read: Reader, words: Words, notes: Notes, types: Mapping[str, str]) -> list[Object]:
    """`types`: each request, and what its class gives; one entry "" for a DeviceClass."""
    found: list[Object] = []
    shared = set[str]()
    """Requests for which something was said before."""
    for entry in read.each("config"):
        opaque = entry.inner("opaque")
        if opaque.text("driver") != words.source:
            found.append(dict(entry.data))
            continue
        parameters = opaque.inner("parameters")
        made = words.config(parameters, notes)
        if words.types:
            covered = {name for name in types if covers(entry, name)}
            if made is None and _is_said(parameters) and covered & shared:
                made = _taken_back(words)
            elif made is None and _is_said(parameters) and any(not types[name] for name in covered - {""}):
                notes.warn(
                    parameters.place("kind"),
                    "says nothing more, while the request's own class may share otherwise",
                    "if it does, name another class",
                )
            shared |= covered if made is not None else set()
        if made is not None:
            if words.driver == names.DRIVER and _is_for_either(entry, made, types):
                notes.warn(
                    parameters.place("kind"),
                    "holds in koordra for GPUs and instances alike, and a request's class may give both",
                    "name the requests that it is for",
                )
            found.extend(_placed(entry, words, parameters, made, types))
    return found


def covers(entry: Reader, name: str) -> bool:
    """Whether the configuration is for the request, or the alternative of one, of this name."""
    named = set(map(str, entry.data.get("requests") or ()))
    return not named or name in named or name.partition("/")[0] in named


def _is_for_either(entry: Reader, made: Object, types: Mapping[str, str]) -> bool:
    return (
        "isolation" in made
        and not entry.data.get("requests")
        and any(name and not sort for name, sort in types.items())
    )


def _is_said(parameters: Reader) -> bool:
    """Whether the parameters say that nothing is shared in a way of its own."""
    return "sharing" in parameters.data or "isolation" in parameters.data


def _taken_back(words: Words) -> Object:
    if words.driver == names.DRIVER:
        return dict(_NONE)
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": dict(_SLICED)}


def _placed(
    entry: Reader, words: Words, parameters: Reader, made: Object, types: Mapping[str, str]
) -> Iterator[Object]:
    said = [str(each) for each in entry.data.get("requests") or ()]

    def placed(requests: list[str], parameters: Object) -> Object:
        kept = {key: value for key, value in entry.data.items() if key != "requests"}
        wanted = {"requests": requests} if requests else {}
        return {**wanted, **kept, "opaque": {"driver": words.driver, "parameters": parameters}}

    if not words.types:
        yield placed(said, made)
    elif words.driver == names.DRIVER:
        sort = OF_KIND[parameters.text("kind")]
        covered = [name for name, found in types.items() if found in ("", sort)]
        if said or len(covered) == len(types):
            yield placed(said, made)
        elif covered:
            yield placed(covered, made)
    else:
        yield from (
            placed(requests, {**made, "kind": kind}) for kind, requests in _of_nvidia(entry, said, types)
        )


def _of_nvidia(entry: Reader, said: list[str], types: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Kinds of parameters, each with the requests that it names."""
    if not said:
        there = set(types.values())
        for kind, sort in OF_KIND.items():
            if sort in there or ("" in there and types.keys() != {""}) or (there == {""} and sort == GPU):
                yield kind, []
        return
    whole = {name: types.get(name) or _of_alternatives(name, types) for name in said}
    for name, sort in whole.items():
        if not sort:
            raise entry.wrong(
                f"whether {name} is given GPUs or instances is not known, which NVIDIA's driver has different parameters for",
                "name no requests",
                at="requests",
            )
    for kind, sort in OF_KIND.items():
        if named := [name for name, found in whole.items() if found == sort]:
            yield kind, named


def _of_alternatives(name: str, types: Mapping[str, str]) -> str:
    """Of a request by its name alone, where all its alternatives are of one sort."""
    sorts = {sort for each, sort in types.items() if each.startswith(f"{name}/")}
    return sorts.pop() if len(sorts) == 1 else ""
