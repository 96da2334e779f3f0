"""Claims, templates and classes of v1 from one driver to another (`koordra convert --to`). Pure.

    NVIDIA's DRA driver   gpu.nvidia.com   both ways: classes, attributes, GpuConfig, MigDeviceConfig
    dranet                dra.net          both ways: attributes, name and MTU of the interface

Word by word: what the tables lack is refused, since a claim without it would select other devices. Classes
that the drivers' charts bring are left out, claims name those of the other; a class of one's own keeps its
name. koordra's driver has GPUs and NICs, so a selector by driver alone becomes one by their type too, and a
class carries the guard against kube-scheduler's allocator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.classic.driver_configs import configs, covers, of_class
from koordra.api.classic.driver_words import BROUGHT, DRANET, TO_NVIDIA, WORDS, Words
from koordra.api.classic.notes import Notes
from koordra.api.classic.v1alpha2 import driver_selector
from koordra.api.kinds import RESOURCE_GROUP
from koordra.api.objects import Object
from koordra.api.opaque.isolation import ONE_CARD_REMEDY, is_one_card, several_cards
from koordra.api.reader import Reader

_KINDS: Final = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
_GUARD: Final = driver_selector(names.DRIVER)


def converted(obj: Object, target: str, notes: Notes) -> list[Object]:
    """The object for the other driver; as it is where it is not about one of the tables' drivers. Raises
    Refused or InvalidInput."""
    if objects.group_of(obj) != RESOURCE_GROUP or obj.get("kind") not in _KINDS:
        return [obj]
    made = obj
    for words in WORDS.get(target, TO_NVIDIA):
        if _is_about(made, words):
            if obj["kind"] == "DeviceClass" and objects.name(obj) in words.classes:
                now = words.classes[objects.name(obj)]
                notes.warn(
                    "", f"is the class that the driver's chart brings, claims name {now}", "it is left out"
                )
                return []
            made = _object(made, words, notes)
            if words.fewer and obj["kind"] == "DeviceClass" and not _says(obj, words.fewer):
                notes.warn("spec.selectors", words.narrower, "leave the class where it is for others")
    brought = BROUGHT if target == DRANET and made is not obj else {}
    return [made, *(_brought(name) for name in brought if _is_named(made, name))]


def _says(value: Any, word: str) -> bool:
    if isinstance(value, Mapping):
        return any(_says(each, word) for each in value.values())
    if isinstance(value, list):
        return any(_says(each, word) for each in value)
    return isinstance(value, str) and word in value


def _brought(name: str) -> Object:
    return {
        "apiVersion": f"{RESOURCE_GROUP}/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": BROUGHT[name]}}]},
    }


def _is_named(value: Any, name: str) -> bool:
    if isinstance(value, Mapping):
        return value.get("deviceClassName") == name or any(_is_named(each, name) for each in value.values())
    return isinstance(value, list) and any(_is_named(each, name) for each in value)


def _is_about(value: Any, words: Words) -> bool:
    if isinstance(value, Mapping):
        return any(_is_about(entry, words) for key, entry in value.items() if key != "metadata")
    if isinstance(value, list):
        return any(_is_about(entry, words) for entry in value)
    known = words.classes.keys() | words.alone
    named = isinstance(value, str) and (_names(value, words.source) or _of_a_cloud(value, words))
    return isinstance(value, str) and (value in known or bool(named))


def _names(text: str, driver: str) -> bool:
    """Whether the driver's own name stands in the text, and not in that of a class or a longer domain."""
    return re.search(rf"(?<![\w.-]){re.escape(driver)}(?![\w.-])", text) is not None


def _object(obj: Object, words: Words, notes: Notes) -> Object:
    spec = notes.read(obj).inner("spec")
    if obj["kind"] == "DeviceClass":
        return {**obj, "spec": _class(spec, words, notes)}
    if obj["kind"] == "ResourceClaim":
        return {**obj, "spec": {**spec.data, "devices": _devices(spec.inner("devices"), words, notes)}}
    inner = spec.inner("spec")
    changed = {**inner.data, "devices": _devices(inner.inner("devices"), words, notes)}
    return {**obj, "spec": {**spec.data, "spec": changed}}


def _class(read: Reader, words: Words, notes: Notes) -> Object:
    made = {**read.data, **_selectors(read, words)}
    if words.driver == names.DRIVER:
        made["selectors"] = [*(made.get("selectors") or ()), {"cel": {"expression": _GUARD}}]
    if config := configs(read, words, notes, {"": of_class(read.each("selectors"))}):
        made["config"] = config
    else:
        made.pop("config", None)
    return made


def _devices(read: Reader, words: Words, notes: Notes) -> Object:
    made: Object = {**read.data, "requests": [_request(each, words) for each in read.each("requests")]}
    constraints = [_constraint(each, words) for each in read.each("constraints")]
    types = {name: words.types.get(body.text("deviceClassName"), "") for name, body in _bodies(read)}
    _refuse_several_by_mps(read, words, types)
    config = configs(read, words, notes, types)
    for name, entries in (("constraints", constraints), ("config", config)):
        made.pop(name, None)
        if entries:
            made[name] = entries
    return made


def _bodies(read: Reader) -> Iterator[tuple[str, Reader]]:
    """Each request, or alternative of one."""
    for request in read.each("requests"):
        name, exactly = request.text("name"), request.optional("exactly")
        if exactly is not None:
            yield name, exactly
        for each in request.each("firstAvailable"):
            yield f"{name}/{each.text('name')}", each


def _refuse_several_by_mps(read: Reader, words: Words, types: Mapping[str, str]) -> None:
    """What koordra refuses when the claim is made. The last configuration of a request decides."""
    for name, body in _bodies(read):
        if types[name] != names.TYPE_GPU or (count := body.whole("count", default=1)) < 2:
            continue
        word = ""
        for entry in read.each("config"):
            parameters = entry.inner("opaque").inner("parameters")
            if entry.inner("opaque").text("driver") == words.source and covers(entry, name):
                word = parameters.text("isolation") or parameters.inner("sharing").text("strategy") or word
        if is_one_card(word.lower()):
            raise body.wrong(several_cards(count), ONE_CARD_REMEDY, at="count")


def _request(read: Reader, words: Words) -> Object:
    if exactly := read.optional("exactly"):
        return {**read.data, "exactly": _body(exactly, words)}
    return {**read.data, "firstAvailable": [_body(each, words) for each in read.each("firstAvailable")]}


def _body(read: Reader, words: Words) -> Object:
    called = read.text("deviceClassName")
    if called in words.alone:
        raise read.wrong(
            f"{called} has no class beside it there", "leave the claim as it is", at="deviceClassName"
        )
    if read.data.get("capacity") and called in words.classes and words.driver != names.DRIVER:
        raise read.wrong(f"{words.driver} gives whole devices", "take it out", at="capacity")
    amounts = objects.fields(objects.fields(read.data.get("capacity")).get("requests"))
    for name in map(str, amounts if called in words.classes else ()):
        if name.removeprefix(f"{words.source}/") not in words.capacities:
            raise read.wrong(
                f"{words.driver} has no capacity {name}", "ask for memory, or take it out", at="capacity"
            )
    return {**read.data, "deviceClassName": words.classes.get(called, called), **_selectors(read, words)}


def _selectors(read: Reader, words: Words) -> Object:
    found = []
    for each in read.each("selectors"):
        cel = each.inner("cel")
        if cel.data.get("expression") == _GUARD:
            continue
        found.append({**each.data, "cel": {**cel.data, "expression": _expression(cel, words)}})
    return {"selectors": found} if found else {}


def _expression(read: Reader, words: Words) -> str:
    driver = re.escape(words.source)

    def attribute(found: re.Match[str]) -> str:
        place, name = found["place"], found["name"]
        if place == "attributes" and name in words.expressions:
            return words.expressions[name]
        known = words.attributes if place == "attributes" else {name: name for name in words.capacities}
        if name not in known:
            raise read.wrong(
                f"{words.driver} publishes no {name} as {words.source} does",
                f"select by {', '.join(known) or 'something else'}",
                at="expression",
            )
        return f'device.{place}["{words.driver}"].{known[name]}'

    text = re.sub(
        rf"""device\.(?P<place>attributes|capacity)\[\s*(["']){driver}\2\s*\]\.(?P<name>\w+)""",
        attribute,
        read.required("expression"),
    )
    text = re.sub(rf"""device\.driver\s*==\s*(["']){driver}\1""", lambda _: f"({words.here})", text)
    if (cloud := _of_a_cloud(text, words)) is not None:
        raise read.wrong(_NOBODY.format(cloud, words.driver), "select by something else", at="expression")
    if _names(text, words.source):
        raise read.wrong(
            f"{words.source} is read in a way that cannot be told apart",
            'write device.attributes["<driver>"].<name>',
            at="expression",
        )
    return text


_NOBODY: Final = "{} publishes what a cloud says of its devices, and {} does not"


def _of_a_cloud(text: str, words: Words) -> str | None:
    """The domain below the driver's (`gce.dra.net`) whose attributes the text reads."""
    found = re.search(rf"""(?<![\w.-])((?:[\w-]+\.)+{re.escape(words.source)})(?=["'/])""", text)
    return found[1] if found else None


def _constraint(read: Reader, words: Words) -> Object:
    made = dict(read.data)
    for name in ("matchAttribute", "distinctAttribute"):
        domain, _, attribute = read.text(name).rpartition("/")
        if (cloud := _of_a_cloud(read.text(name), words)) is not None:
            raise read.wrong(_NOBODY.format(cloud, words.driver), "match another", at=name)
        if domain == words.source:
            if attribute not in words.matched:
                raise read.wrong(f"{words.driver} publishes no {attribute}", "match another", at=name)
            made[name] = f"{words.driver}/{words.matched[attribute]}"
    return made
