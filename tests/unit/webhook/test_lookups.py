"""What a review asks the API server for: little, whatever a pod names, and once for all who want it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.webhook.handlers import admitted
from koordra.controller.webhook.lookups import MOST_ASKED, WITHIN, Lookups
from koordra.errors import ApiError, ApiUnreachable, NotFound
from tests.patience import PATIENCE
from tests.unit.webhook.cluster import claim, pod, request


class Api:
    """Objects that no watch has shown yet. `hold`: answers wait for it."""

    def __init__(self, *known: Object) -> None:
        self.known = {(one["kind"], objects.key(one)): one for one in known}
        self.asked: list[str] = []
        self.withins: list[float | None] = []
        self.error: Exception | None = None
        self.hold = threading.Event()
        self.hold.set()

    def get(
        self, kind: Kind, name: str, *, namespace: str | None = None, spare_within: float | None = None
    ) -> Object:
        self.asked.append(f"{kind.plural}/{name}")
        self.withins.append(spare_within)
        assert self.hold.wait(PATIENCE)
        if self.error:
            raise self.error
        found = self.known.get((kind.kind, f"{namespace}/{name}"))
        if found is None:
            raise NotFound("no such object", code=404)
        return found


def lookups(api: Any) -> Lookups:
    return Lookups(api)


def test_a_pod_that_names_thousands_of_claims_costs_four_requests() -> None:
    api = Api()
    named = [{"resourceClaimName": f"c{number}"} for number in range(5000)]
    assert admitted(pod(*named), lookups(api), native=False)["spec"]["resourceClaims"]
    assert len(api.asked) == MOST_ASKED == 4
    assert set(api.withins) == {WITHIN}
    assert MOST_ASKED * WITHIN < 5  # the webhook's timeoutSeconds


def test_what_the_watch_shows_costs_nothing_and_is_no_part_of_the_bound() -> None:
    api, made = Api(), claim([request("gpu")])
    looking = lookups(api)
    for number in range(10):
        looking._caches[RESOURCE_CLAIMS]._apply("ADDED", claim([request("gpu")], name=f"c{number}"))
    review = looking.for_review()
    assert all(review.claim("team", f"c{number}") for number in range(10))
    assert not api.asked
    api.known["ResourceClaim", "team/late"] = made
    assert review.claim("team", "late") is made


@pytest.mark.parametrize("error", [ApiUnreachable("away"), ApiError("no", code=403), NotFound("x", code=404)])
def test_what_is_not_answered_is_not_known(error: ApiError) -> None:
    api = Api()
    api.error = error
    looking = lookups(api)
    assert looking.for_review().template("team", "t") is None
    api.error = None
    api.known["ResourceClaimTemplate", "team/t"] = {"kind": "ResourceClaimTemplate"}
    assert looking.for_review().template("team", "t")  # asked anew: nothing of a no is kept


def test_pods_of_a_burst_share_one_request_for_their_template(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Semaphore(0)

    class Shared(Future[Object | None]):
        def result(self, timeout: float | None = None) -> Object | None:
            waiting.release()
            return super().result(timeout)

    monkeypatch.setattr("koordra.controller.webhook.lookups.Future", Shared)
    made = {"kind": "ResourceClaimTemplate", "metadata": {"name": "t", "namespace": "team"}}
    api = Api(made)
    api.hold.clear()
    looking, found = lookups(api), list[Object | None]()
    threads = [
        threading.Thread(target=lambda: found.append(looking.for_review().template("team", "t")))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for _ in threads[1:]:  # all but the one that asks
        assert waiting.acquire(timeout=PATIENCE)
    api.hold.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == [made] * 20
    assert api.asked == ["resourceclaimtemplates/t"]
    assert not looking._asked


def test_a_defect_leaves_nobody_waiting() -> None:
    api = Api()
    api.error = ValueError("a defect")
    looking = lookups(api)
    with pytest.raises(ValueError, match="a defect"):
        looking.ask(RESOURCE_CLAIM_TEMPLATES, "team", "t")
    assert not looking._asked
