"""A table of bad claims, templates and classes: the plan says of each what this cluster's API server says."""

from __future__ import annotations

import pytest

from koordra.compat.settings import Settings
from koordra.controller.explain.forecast.admission import admitted
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from tests.fakes.refused_claims import CASES, refused_object

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("case", CASES)
def test_the_plan_says_what_the_server_says(client: KubeClient, case: str) -> None:
    kind, obj = refused_object(case)
    with pytest.raises(ApiError) as told:
        client.create(kind, obj, strict=True)
    (refused,) = admitted([obj], Settings()).refused
    words = refused.why.partition("compilation failed")[0]  # what follows is the compiler's
    assert words in str(told.value)
