"""Containers that hold several claims by MPS: a warning, since these may be of one card, and nobody knows
before they have it. The hook refuses a container that has two cards then (koordra.nri.hook.ungranted_access).
Of claims that the watch does not show yet nothing is said. Pure but for the look-ups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from koordra.api import objects, pods
from koordra.api.kinds import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.api.opaque.isolation import ONE_CARD
from koordra.controller.webhook.claims import AskedDevices
from koordra.controller.webhook.lookups import KnownObjects, claim_of_template


def warnings(pod: Object, lookups: KnownObjects) -> Iterator[str]:
    several = {str(one.get("name")): names for one in pods.containers(pod) if len(names := _held(one)) > 1}
    by_mps = set(_by_mps(pod, lookups)) if several else set()
    for container, names in several.items():
        if len(found := sorted(names & by_mps)) > 1:
            yield (
                f"container {container}: claims {', '.join(found)} are by isolation mps, and {ONE_CARD}: with several cards it "
                "is refused on its node; give each to a container of its own"
            )


def _held(container: Fields) -> set[str]:
    """The pod's names of the claims that the container holds."""
    resources = container.get("resources")
    claims = resources.get("claims") if isinstance(resources, Mapping) else ()
    return {str(one.get("name")) for one in claims or () if isinstance(one, Mapping)}


def _by_mps(pod: Object, lookups: KnownObjects) -> Iterator[str]:
    namespace, classes = objects.namespace(pod), lookups.classes()
    for entry in objects.spec_of(pod).get("resourceClaims") or ():
        named = entry if isinstance(entry, Mapping) else {}
        claim = None
        if name := named.get("resourceClaimName"):
            claim = lookups.known(RESOURCE_CLAIMS, f"{namespace}/{name}")
        elif name := named.get("resourceClaimTemplateName"):
            claim = claim_of_template(lookups.known(RESOURCE_CLAIM_TEMPLATES, f"{namespace}/{name}"))
        if claim is not None and any(AskedDevices.of(claim).by_mps(classes)):
            yield str(named.get("name"))
