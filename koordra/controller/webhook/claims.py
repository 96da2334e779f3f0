"""What koordra's opaque parameters must be for a claim, a template or a DeviceClass to be stored. Pure.

Besides each document by itself (koordra.api.opaque.parameters: kind, fields, values) what they say together:

    the requests that an entry names exist
    no two entries of one kind give a field two values for the same requests; an entry for all requests and
      one for some are no contradiction (the later one wins), and there may be several JointAllocations
    cores are at least the smallest share of a card's time that can be kept
    selectors compile, within the limits of the API server (length, depth, cost)
    the isolation that a claim asks for is one that the classes of its requests allow: the operator's word
      stands above the claim's
    a request by MPS is for one card, since all cards of a claim are to be one (koordra.api.opaque.isolation)

Nodes have a policy too. It is found where a claim waits for one that allows what it asks for (reason
BackendUnavailable). In native mode, where kube-scheduler reads no policies, a selector says it: devices whose
node does not allow the isolation do not match.

Every problem is reported at once, each with object, field and remedy. What else requests and classes say the
API server checks.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, cast

from koordra.allocator.request.claim_validation import LEAST_REMEDY, cores_below_least, memory_in_doubt
from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.api.opaque import configuration, parameters
from koordra.api.opaque.configuration import Configuration
from koordra.api.opaque.isolation import (
    ONE_CARD_REMEDY,
    IsolationPolicy,
    attribute,
    is_one_card,
    several_cards,
)
from koordra.api.opaque.isolation_words import AUTO, NO_ISOLATION
from koordra.api.opaque.parameters import Parameters
from koordra.api.opaque.resize import ANNOTATION, refusal, unknown, wish_for, wishes
from koordra.api.opaque.share_limits import AMOUNTS
from koordra.api.reader import Reader
from koordra.cel.selectors import admission_error
from koordra.errors import InvalidInput, InvalidParameters

_MANY: Final = "JointAllocation"
"""The kind of which a claim may have several: GPUs near NICs, and near each other."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A configuration for koordra's driver. `requests` are those it names, none where it is for all; `value`
    is what its parameters decode to, or why they do not, or may not stand in a claim."""

    read: Reader
    requests: tuple[str, ...]
    value: Parameters | InvalidInput

    @property
    def parameters(self) -> Reader:
        """As written. Raises InvalidParameters for what is no object."""
        return self.read.inner("opaque").inner("parameters")

    def covers(self, name: str) -> bool:
        """Whether it is about the request, or alternative, that results call by this name."""
        return configuration.covers(self.requests, name)


def alternatives(devices: Reader) -> Iterator[tuple[str, Reader]]:
    """(name that results have, body) of every request, and of every alternative of one."""
    for request in devices.each("requests"):
        name = request.text("name")
        if request.data.get("exactly") is not None:
            yield name, request.inner("exactly")
        for each in request.each("firstAvailable"):
            yield f"{name}/{each.text('name')}", each


def request_names(devices: Reader) -> set[str]:
    """Names of requests, and `request/subrequest` of alternatives."""
    return {each.text("name") for each in devices.each("requests")} | {
        name for name, _ in alternatives(devices)
    }


@dataclass(frozen=True, slots=True)
class AskedDevices:
    """What a claim or template says of devices, or a DeviceClass in its spec: as written, and the
    configurations for koordra's driver."""

    read: Reader
    entries: tuple[Entry, ...]
    is_class: bool

    @classmethod
    def of(cls, obj: Fields) -> AskedDevices:
        """Raises InvalidParameters naming object and field where something has another shape than the API
        server stores."""
        read, kind = Reader.of(obj, error=InvalidParameters).inner("spec"), obj.get("kind")
        if kind == "ResourceClaimTemplate":
            read = read.inner("spec")
        if kind != "DeviceClass":
            read = read.inner("devices")
        is_class = kind == "DeviceClass"
        entries = [
            Entry(each, each.texts("requests"), _value(each.inner("opaque"), is_class))
            for each in read.each("config")
            if each.inner("opaque").text("driver") == names.DRIVER
        ]
        return cls(read, tuple(entries), is_class)

    def problems(self) -> list[InvalidInput]:
        """Everything that is wrong with the parameters of koordra's, and with selectors."""
        known, found = request_names(self.read), list[InvalidInput]()
        for entry in self.entries:
            unknown = [(n, name) for n, name in enumerate(entry.requests) if name not in known]
            for index, name in unknown if not self.is_class else ():
                remedy = f"requests are {', '.join(sorted(known)) or 'none'}"
                found.append(
                    entry.read.wrong(f"there is no request {name!r}", remedy, at=f"requests[{index}]")
                )
            if isinstance(entry.value, InvalidInput):
                found.append(entry.value)
        return [*found, *self._contradictions(), *self._bad_selectors(), *self._below_least()]

    def _below_least(self) -> Iterator[InvalidInput]:
        """Less of a card's time than can be kept."""
        for _, body in () if self.is_class else alternatives(self.read):
            requests = body.inner("capacity").inner("requests")
            for name, amount in sorted(requests.data.items()):
                if why := cores_below_least(str(name), str(amount)):
                    yield requests.wrong(why, LEAST_REMEDY, at=str(name))

    def warnings(self) -> list[str]:
        """The fields that are accepted and have no effect, and amounts that can hardly be meant."""
        without_effect = [
            f"{entry.parameters.place(name)} {parameters.NO_EFFECT[name]}"
            for entry in self.entries
            if not isinstance(entry.value, InvalidInput)
            for name in sorted(parameters.NO_EFFECT.keys() & entry.parameters.data.keys())
        ]
        return [*without_effect, *self._doubtful_amounts()]

    def _doubtful_amounts(self) -> Iterator[str]:
        for _, body in () if self.is_class else alternatives(self.read):
            requests = body.inner("capacity").inner("requests")
            for name, amount in sorted(requests.data.items()):
                question = memory_in_doubt(str(name), str(amount))
                if question:
                    yield f"{requests.place(str(name))}: {question}"

    def _bad_selectors(self) -> Iterator[InvalidInput]:
        """Of a class, or of every request and alternative."""
        for owner in (self.read, *(body for _, body in alternatives(self.read))):
            for each in owner.each("selectors"):
                expression = each.inner("cel").text("expression")
                why = admission_error(expression) if expression else None
                if why is not None:
                    yield each.wrong(why, "correct or shorten the expression", at="cel.expression")

    def _contradictions(self) -> Iterator[InvalidInput]:
        """Two entries of one kind over the same requests that give one field two values."""
        decoded = [
            (entry, entry.parameters) for entry in self.entries if not isinstance(entry.value, InvalidInput)
        ]
        for number, (entry, one) in enumerate(decoded):
            for earlier, other in decoded[:number]:
                kind = one.data["kind"]
                if (
                    set(entry.requests) != set(earlier.requests)
                    or kind != other.data["kind"]
                    or kind == _MANY
                ):
                    continue
                both = one.data.keys() & other.data.keys()
                for name in sorted(name for name in both if one.data[name] != other.data[name]):
                    yield one.wrong(
                        f"is {one.data[name]!r} here and {other.data[name]!r} in {earlier.read.field}",
                        "say it once, or name different requests",
                        at=name,
                    )

    def isolation_answers(self, classes: Mapping[str, Object]) -> tuple[list[InvalidInput], list[str]]:
        """Problems where the class of a request does not allow what the claim asks for, and warnings where
        the class's own word stands above the claim's."""
        found: list[InvalidInput] = []
        overruled: list[str] = []
        for name, request, config in self.configured(classes) if self.entries else ():
            asked, wanted = config.isolation(name), self._own.isolation(name).word
            modes = (self._own.rdma(name).mode, config.rdma(name).mode)
            for field, own, gets in (("isolation", wanted, asked.word), ("mode", *modes)):
                place = self._place(name, field)
                if place and own and gets != own:
                    text = f"{own} is not what request {name} gets: its class says {gets}"
                    overruled.append(f"{place.place(field)}: {text}")
            why = asked.refusal(
                IsolationPolicy(),
                share=_may_share(request, config, name),
                instance=request.text("deviceClassName") == names.CLASS_MIG,
            )
            place = self._place(name, why.field) if why else None
            if why and place:
                others = f"use one of {', '.join(asked.policy.allowed or ())}, or another class"
                problem = f"request {name}: {why.problem}"
                found.append(place.wrong(problem, why.remedy or others, at=why.field))
        return found, overruled

    def by_mps(self, classes: Mapping[str, Object]) -> Iterator[Reader]:
        """The requests of which it is known that they are for GPUs and that MPS keeps what they get, wherever
        that is: configuration that names no requests is about NICs as well."""
        for name, request, config in self.configured(classes):
            if not _is_for_gpus(request):
                continue
            share = _may_share(request, config, name)
            if is_one_card(config.isolation(name).on(IsolationPolicy(), share=share)):
                yield request

    def several_cards(self, classes: Mapping[str, Object]) -> Iterator[InvalidInput]:
        for request in self.by_mps(classes):
            if (count := request.whole("count", default=1)) > 1:
                yield request.wrong(several_cards(count), ONE_CARD_REMEDY, at="count")

    def absent_isolations(
        self, classes: Mapping[str, Object], published: Collection[str] | None
    ) -> Iterator[str]:
        """Warnings where no node has what is to keep a share; `published` are the words that nodes have."""
        for name, request, config in self.configured(classes) if published is not None else ():
            asked = config.isolation(name)
            words = asked.order if asked.wanted == AUTO else tuple(filter(None, [asked.wanted]))
            if _may_share(request, config, name) and words and not {*words} & {*(published or ())}:
                text = f"request {name}: no node keeps shares by {' or '.join(words)} now; it waits with BackendUnavailable until"
                yield f"{text} one does (docs/isolation.md), and is bound to none before"

    def resize_problems(self, obj: Fields, classes: Mapping[str, Object]) -> list[InvalidInput]:
        """What the annotation of a claim, or of those that are made of a template, cannot be granted by its
        classes as they are now. The controller decides by those that the claim was allocated with."""
        claim = objects.fields(objects.spec_of(obj)) if obj.get("kind") == "ResourceClaimTemplate" else obj
        try:
            asked = wishes({**claim, "kind": obj.get("kind")})
        except InvalidInput as error:
            return [error]
        if not asked:
            return []
        configured = list(self.configured(classes))
        why = unknown(asked, sorted({name.partition("/")[0] for name, _, _ in configured}))
        for name, read, config in () if why else configured:
            amounts = read.inner("capacity").amounts("requests")
            has = {amount: amounts.get(amount, Decimal(1)) for amount in AMOUNTS}  # else known when allocated
            why = why or refusal(wish_for(asked, name), config.resize(name), has=has)
        place = Reader({}, object=objects.describe(obj), error=InvalidParameters)
        at = f"metadata.annotations[{ANNOTATION}]"
        return (
            [place.wrong(why, "ask for what the class allows, or name another class", at=at)] if why else []
        )

    def selecting(self, classes: Mapping[str, Object]) -> Reader:
        """A copy, where requests of GPUs whose isolation class or claim decide have a selector on what nodes
        publish."""
        changed = self.read.over(copy.deepcopy(dict(self.read.data)))
        requests = dict(alternatives(changed))
        for name, read, config in self.configured(classes):
            asked = config.isolation(name)
            word = asked.wanted
            if word is None or (word in (NO_ISOLATION, AUTO) and not _may_share(read, config, name)):
                continue
            words = asked.order if word == AUTO else (word,)
            selector = {"cel": {"expression": _UNSAID + "".join(map(_allows, words))}}
            before = read.sequence("selectors")
            if selector not in before:
                cast("Object", requests[name].data)["selectors"] = [*before, selector]
        return changed

    @property
    def _own(self) -> Configuration:
        return _configuration(self.entries)

    def configured(self, classes: Mapping[str, Object]) -> Iterator[tuple[str, Reader, Configuration]]:
        """Every request and alternative, with what its class and the claim say of it."""
        known: dict[str, Configuration] = {}
        for name, request in alternatives(self.read):
            class_name = request.text("deviceClassName")
            if class_name not in known:
                body = {"kind": "DeviceClass", **classes.get(class_name, {})}
                known[class_name] = _configuration(self.entries, AskedDevices.of(body).entries)
            yield name, request, known[class_name]

    def _place(self, name: str, field: str) -> Reader | None:
        """The entry whose word on the request counts among those that say the field; None where none does."""
        said = [
            entry
            for entry in self.entries
            if entry.covers(name)
            and not isinstance(entry.value, InvalidInput)
            and field in entry.parameters.data
        ]
        return max(said, key=lambda entry: bool(entry.requests)).parameters if said else None


def _configuration(of_claim: Iterable[Entry], of_class: Iterable[Entry] = ()) -> Configuration:
    """What can be decoded."""
    return Configuration.of(
        configuration.Entry(entry.requests, entry.value, is_class)
        for entries, is_class in ((of_class, True), (of_claim, False))
        for entry in entries
        if not isinstance(entry.value, InvalidInput)
    )


def _value(opaque: Reader, is_class: bool) -> Parameters | InvalidInput:
    field = opaque.place("parameters")
    try:
        return parameters.decode(
            opaque.data.get("parameters"), object=opaque.object, field=field, in_claim=not is_class
        )
    except InvalidInput as error:
        return error


_UNSAID: Final = f'!("isolationNone" in device.attributes["{names.DRIVER}"])'
"""True of a device that is no GPU, or whose node publishes no policy."""


def _allows(word: str) -> str:
    name, own = attribute(word).partition("/")[2], f'device.attributes["{names.DRIVER}"]'
    return f' || ("{name}" in {own} && {own}.{name})'


def _is_for_gpus(request: Reader) -> bool:
    """As far as it can be told without the devices: by koordra's own class, or by amounts that GPUs alone
    have."""
    asked = {str(key).rpartition("/")[2] for key in request.inner("capacity").inner("requests").data}
    own = request.text("deviceClassName") == names.CLASS_GPU
    return own or not asked.isdisjoint({names.CAPACITY_MEMORY, names.CAPACITY_CORES})


def _may_share(request: Reader, config: Configuration, name: str) -> bool:
    """Whether the request may be met by a part of a card."""
    asked = request.inner("capacity").inner("requests").data
    part = any(str(key).rpartition("/")[2] == names.CAPACITY_MEMORY for key in asked)
    gpu = config.gpu(name)
    return (part or gpu.memory_percent not in (None, 100)) and not gpu.exclusive
