"""A legacy pod becomes one that refers to a claim: what `koordra convert` and the webhook share. Pure.

    pod ──> detection: which dialect ──> its normalized request
                                         ├──> claim spec ──> ResourceClaimTemplate, named after its content
                                         └──> pod: resourceClaims, containers' claims; legacy names out

In the pod nothing changes but this: legacy resources leave limits and requests, containers that asked get
`resources.claims`, `spec.resourceClaims` gets one entry; annotations that only a scheduler may write are
taken out, and so is the name of a scheduler that was the dialect's own, or that the settings say is gone;
runtime classes likewise. What the user wrote stays, also annotations that were understood: they ask nobody
any more.

A template's name is a digest of its spec, so that equal pods share one, and other content has another name. A
pod that asks for nothing is returned as it is, which makes a second pass change nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.api import objects
from koordra.api.classic.notes import Notes
from koordra.api.objects import Fields, Object
from koordra.api.opaque.parameters import NO_EFFECT
from koordra.api.pods import containers, resource_names, with_containers
from koordra.compat.claims import Used, claim_of
from koordra.compat.detection import (
    asks,
    asks_by_annotation,
    check_resources,
    dialect_of,
    dialects_with,
    is_misspelt,
    is_written,
    vendor_of,
)
from koordra.compat.dialect import Dialect, asking_containers, warn_of_environment
from koordra.compat.dialect.allocation import DIALECT_LABEL, UNIT
from koordra.compat.dialect.nic_names import asks_for_nics, nic_of, with_nics
from koordra.compat.dialect.pod_view import Container, PodView, view_of, without
from koordra.compat.dialects import DIALECTS
from koordra.compat.normalized_request import ContainerPhase, NormalizedRequest, Share, Sharing
from koordra.compat.remaining_names import is_refused, refuse_resources, tell_rest
from koordra.compat.settings import Settings
from koordra.errors import InvalidInput

PLAIN: Final = next(dialect for dialect in DIALECTS if dialect.extended_resources)
"""What a pod speaks that asks for NICs alone."""
ENTRY: Final = "koordra-devices"
"""Name of the pod's entry in spec.resourceClaims; with a number where the pod has one of that name."""


Native = Callable[[Object], tuple[Object, tuple[InvalidInput, ...], tuple[str, ...]]]
"""A template -> it in standard terms, what cannot be said in them, warnings."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """`pod` as it should be; `template` is None (and `pod` the very same) where nothing was asked for.

    `explained` has a line for every container, `entry` is the name in the pod's spec.resourceClaims,
    `resources` the names that were taken out; `problems` what cannot be said in native mode.
    """

    pod: Object
    template: Object | None = None
    dialect: str = ""
    explained: tuple[str, ...] = ()
    entry: str = ""
    resources: frozenset[str] = frozenset()
    problems: tuple[InvalidInput, ...] = ()


def names_devices(pod: Fields, settings: Settings) -> bool:
    """Whether some container asks for a device under a name that a dialect or another vendor has, or one like
    it. Cheap."""
    names = [name for container in containers(pod) for name in resource_names(container)]
    return has_dialect(pod, settings) or any(
        vendor_of(name) or is_refused(name) or is_misspelt(name, settings) for name in names
    )


def has_dialect(pod: Fields, settings: Settings) -> bool:
    """Whether some container asks under a name that a dialect has; names of other vendors and misspelt ones
    do not count."""
    return asks_by_annotation(objects.annotations_of(pod)) or any(
        dialects_with(name, settings) or nic_of(name, settings)
        for container in containers(pod)
        for name in resource_names(container)
    )


def rewrite(
    pod: Object,
    settings: Settings,
    notes: Notes,
    *,
    namespace: str | None = None,
    where: str = "",
    native: Native | None = None,
) -> Rewritten:
    """The pod, or pod template, in koordra's words. `where` is its field in the object that holds it, ending
    in a dot; `native` translates for native mode.

    Raises Refused for what cannot be honoured; what is lost otherwise is a warning in `notes`.
    """
    view = view_of(pod, settings, notes, where=where)
    refuse_resources(view)
    check_resources(view)
    if not asks(view) and not asks_for_nics(view):
        return Rewritten(pod)
    for each in DIALECTS:
        key, word = each.opt_out
        if key and view.labels.get(key) == word:
            notes.warn(
                f"{view.meta}.labels[{key}]",
                f"{word}: the pod is left as it is, as {each.title} leaves it",
                "take the label out for koordra to convert the pod",
            )
            return Rewritten(pod)
    dialect = dialect_of(view) if asks(view) else PLAIN
    normalized = with_nics(dialect.normalized(view), view)
    if not normalized.shares and normalized.nics is None:
        return Rewritten(pod)
    warn_of_environment(view, normalized, dialect)
    _warn_of_pod(view, normalized)
    changed = _without_old_stack(pod, view)
    tell_rest(view, normalized, dialect)
    spec, used = claim_of(normalized, view)
    template = template_of(spec, dialect, namespace=namespace, settings=settings)
    if native is not None:
        translated, problems, _ = native(template)
        if problems:
            return Rewritten(pod, problems=problems)
        spec = translated["spec"]["spec"]
        template = template_of(spec, dialect, namespace=namespace, settings=settings)
        used = {container: _parts(requests, spec) for container, requests in used.items()}
    entry = _free_entry(view)
    resources = frozenset(
        name
        for container in view.containers
        for name in container.resources
        if dialect.name in dialects_with(name, settings) or nic_of(name, settings)
    )
    refers: Object = {"name": entry, "resourceClaimTemplateName": objects.name(template)}
    claimed = with_containers(changed["spec"], lambda raw: _container(raw, used, resources, entry))
    claimed["resourceClaims"] = [*(claimed.get("resourceClaims") or ()), refers]
    return Rewritten(
        {**changed, "spec": claimed},
        template,
        dialect.name,
        tuple(_line(container, used.get(container.name, ()), normalized) for container in view.containers),
        entry,
        resources,
    )


def _parts(requests: Sequence[str], spec: Object) -> tuple[str, ...]:
    """The requests by their names in the claim; some are split there (native mode), and all parts of one are
    used."""
    known = [str(request["name"]) for request in spec["devices"]["requests"]]
    return tuple(
        part
        for name in requests
        for part in known
        if part == name or (name not in known and part.rpartition("-")[0] == name)
    )


def template_of(spec: Object, dialect: Dialect, *, namespace: str | None, settings: Settings) -> Object:
    """The template of a claim spec, named after what it says."""
    place = {"namespace": namespace} if namespace else {}
    inner: Object = {"labels": {DIALECT_LABEL: dialect.name}}
    if dialect.memory_unit is not None:
        inner["annotations"] = {UNIT: str(dialect.memory_unit(settings))}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": template_name(dialect.name, spec),
            **place,
            "labels": {DIALECT_LABEL: dialect.name},
        },
        "spec": {"metadata": inner, "spec": spec},
    }


def template_name(dialect: str, spec: Fields) -> str:
    """Equal specs have one name, other content another: 128 bits, since users write parts of a spec, and
    could look for two specs of one shorter digest."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return f"koordra-{dialect}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _warn_of_pod(view: PodView, normalized: NormalizedRequest) -> None:
    """What else in the pod will not do what it did."""
    notes = view.notes
    for container in asking_containers(view, normalized):
        if container.privileged:
            notes.warn(
                f"{container.where}.securityContext.privileged",
                "a privileged container sees every device of the node, whatever it was given",
                "take it out",
            )
    for share in normalized.shares:
        for name, value in (("coresPolicy", share.cores_policy), ("priority", share.priority)):
            if value is not None and not share.partition:
                notes.warn(f"{view.where}: {share.phase} {share.container}", f"{name} {NO_EFFECT[name]}")
        _warn_of_compute(share, view, normalized)
    if view.spec.get("nodeName"):
        notes.warn(
            f"{view.where}.nodeName",
            "goes past the scheduler, and with it past the claim's allocation",
            "write a nodeSelector on kubernetes.io/hostname",
        )


def _warn_of_compute(share: Share, view: PodView, normalized: NormalizedRequest) -> None:
    """A limit on compute that the old stack enforced, and what is written does not. Without a `coresPolicy`,
    which has been told of, the limiter limits none in its preview either."""
    if not share.limited_by or share.cores_policy or not 0 < share.cores < 100:
        return
    if normalized.counts_compute:
        by = f"isolation {normalized.isolation}" if normalized.isolation else "what most nodes keep shares by"
        view.notes.warn(
            share.where or view.where,
            f"{share.limited_by}: compute is counted, not limited, by {by}",
            f"mps and hami-core limit it (isolation: {{{normalized.dialect}: hami-core}} in koordra's settings)",
        )


def _without_old_stack(pod: Object, view: PodView) -> Object:
    """The pod without what only its old stack read; each is a warning."""
    notes, settings = view.notes, view.settings
    changed = {**pod, "spec": dict(pod["spec"])}
    written = sorted(filter(is_written, view.annotations))
    for key in written:
        view.warn(key, "is taken out: koordra does not trust allocations in manifests")
    if written:
        metadata = dict(pod["metadata"])
        kept = {key: value for key, value in metadata.pop("annotations").items() if key not in written}
        changed["metadata"] = {**metadata, "annotations": kept} if kept else metadata
    runtime = view.spec.get("runtimeClassName")
    if runtime in settings.runtime_classes:
        notes.warn(f"{view.where}.runtimeClassName", f"{runtime} is taken out: devices come with the claim")
        del changed["spec"]["runtimeClassName"]
        changed["spec"].pop("overhead", None)  # the class's; the API server refuses it without the class
    removed = settings.schedulers
    if removed is None:
        removed = tuple(name for each in DIALECTS for name, always in each.schedulers.items() if always)
    called, field = view.spec.get("schedulerName"), f"{view.where}.schedulerName"
    if called in removed:
        notes.warn(field, f"{called} is taken out: kube-scheduler places the pod")
        del changed["spec"]["schedulerName"]
    elif any(called in each.schedulers for each in DIALECTS):
        notes.warn(
            field, f"{called} stays, and has to honour ResourceClaims", "take it out for kube-scheduler"
        )
    return changed


def _free_entry(view: PodView) -> str:
    entries = view.spec.get("resourceClaims") or []
    if not isinstance(entries, list):
        raise view.notes.refuse(
            f"{view.where}.resourceClaims", "is not a list", "write a list of names and templates"
        )
    taken = {str(known.get("name")) for known in entries if isinstance(known, (dict, Mapping))}
    number, name = 1, ENTRY
    while name in taken:
        number += 1
        name = f"{ENTRY}-{number}"
    return name


def _container(raw: Object, used: Used, resources: frozenset[str], entry: str) -> Object:
    requests = used.get(str(raw.get("name") or ""), ())
    if not requests and not resources.intersection(resource_names(raw)):
        return raw
    kept = without(raw, resources)
    if requests:
        uses = [{"name": entry, "request": name} for name in requests]
        kept["claims"] = [*(kept.get("claims") or ()), *uses]
    changed = {**raw, "resources": kept}
    if not kept:
        del changed["resources"]
    return changed


def _line(container: Container, used: Sequence[str], normalized: NormalizedRequest) -> str:
    called = f"{container.phase} {container.name}"
    if not used:
        return f"{called}: asks for no device"
    together = normalized.together
    own = [
        share.described(counted=normalized.counts_compute)
        for share in normalized.shares
        if share.container == container.name or together is Sharing.POD
    ]
    if normalized.nics and (together is Sharing.POD or container.name in normalized.nic_users):
        own.append(str(normalized.nics))
    how = {
        Sharing.POD: ", seen by all containers of the pod",
        Sharing.ONE_CARD: ", on one card with the pod's other containers",
        Sharing.PER_CONTAINER: "",
    }[together]
    plural = "request" if len(used) == 1 else "requests"
    reused = ", used before the containers need it" if container.phase is ContainerPhase.INIT else ""
    asks = f"{normalized.dialect}: {'; '.join(own)}{how}"
    return f"{called}: {asks}; {plural} {', '.join(used)}{reused}"
