"""Plain device plugins: whole cards, MIG instances by profile, and replicas of a card that is shared.

`nvidia.com/gpu: N` is N whole cards; nothing else is said of them. `nvidia.com/gpu.shared` is what NVIDIA's
plugin calls a card that it gives out several times (time-slicing with renameByDefault): how many times is set
on the plugin and not in the pod, so the operator has to say it (`plain.replicas`), and a replica is that part
of the memory. Init containers use what the containers have: the kubelet counts the larger of both.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from koordra.compat.dialect import (
    MIG,
    ContainerRequest,
    Dialect,
    NormalizedRequest,
    PodView,
    Share,
    charges,
    mig_shares,
    number_section,
    percent_of,
)

PLAIN: Final = "plain"
COUNT: Final = "nvidia.com/gpu"
SHARED: Final = "nvidia.com/gpu.shared"


def parse(view: PodView) -> NormalizedRequest:
    shares = (share(request) for request in view.requests() for share in (_cards, _replicas))
    return NormalizedRequest((*filter(None, shares), *mig_shares(view)))


def _cards(request: ContainerRequest) -> Share | None:
    count = request.amount(COUNT)
    return None if count is None else request.share(count)


def _replicas(request: ContainerRequest) -> Share | None:
    count = request.amount(SHARED)
    if not count:
        return None
    replicas: int | None = request.pod.settings.option(PLAIN, "replicas", None)
    if replicas is None:
        raise request.refuse(
            SHARED,
            "is a replica of a card, and how many a card has is not known",
            "say it in the settings (plain: {replicas: 4}), or ask for memory",
        )
    return request.share(count, memory=percent_of(max(100 // replicas, 1)))


DIALECT: Final = Dialect(
    PLAIN,
    "NVIDIA's device plugin",
    parse,
    {COUNT: charges.whole_cards, SHARED: charges.shared_cards, f"{MIG}*": None},
    publishers=((COUNT, "NVIDIA's or HAMi's device plugin"), (MIG, "NVIDIA's or HAMi's device plugin")),
    extended_resources=True,
    like_resources=("nvidia.com/gpu",),
    sections={PLAIN: partial(number_section, name="replicas")},
)
