"""A table of bad claims: the plan says of each what this cluster's API server says."""

from __future__ import annotations

import pytest

from koordra.api import kinds
from koordra.compat.settings import Settings
from koordra.controller.explain.forecast.admission import admitted
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from tests.fakes.refused_claims import REFUSED, refused_claim

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("case", REFUSED)
def test_the_plan_says_what_the_server_says(client: KubeClient, case: str) -> None:
    claim = refused_claim(case)
    with pytest.raises(ApiError) as told:
        client.create(kinds.RESOURCE_CLAIMS, claim)
    (refused,) = admitted([claim], Settings()).refused
    words = refused.why.partition("compilation failed")[0]  # what follows is the compiler's
    assert words in str(told.value)
