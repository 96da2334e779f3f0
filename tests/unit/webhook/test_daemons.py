"""What a pod is told whose containers would be clients of several MPS daemons."""

from __future__ import annotations

from koordra.controller.webhook import handlers
from koordra.controller.webhook.review import MOST_WARNING, AdmissionRequest
from tests.unit.webhook.cluster import Known, claim, parameters, pod, request, template


def test_a_container_with_several_claims_by_mps_is_warned_of() -> None:
    amount = request("gpu", capacity={"requests": {"memory": "10Gi"}})
    by_mps, limited = (
        claim([amount], [parameters("GpuConfig", isolation=word)], name=word) for word in ("mps", "limiter")
    )
    of_mps = template(by_mps, "of-mps")

    def told(*holding: list[int]) -> tuple[str, ...]:
        used = [{"resources": {"claims": [{"name": f"claim-{n}"} for n in held]}} for held in holding]
        containers = [{"name": f"c{at}", "image": "x", **each} for at, each in enumerate(used)]
        sent = pod(
            {"resourceClaimName": "mps"},
            {"resourceClaimTemplateName": "of-mps"},
            {"resourceClaimName": "limiter"},
            {"resourceClaimName": "not-there-yet"},
            containers=containers,
        )
        review = AdmissionRequest("u", "CREATE", "Pod", "team", sent)
        answer = handlers.mutate_pods(review, Known(by_mps, of_mps, limited), False)
        assert not answer.problems
        return answer.warnings

    (warning,) = told([0, 1])
    assert warning == (
        "container c0: claims claim-0, claim-1 are by isolation mps, and a process is the client of one MPS daemon, which is one "
        "card's: with several cards it is refused on its node; give each to a container of its own"
    )
    assert len(warning) < MOST_WARNING
    assert told([0], [1]) == told([0, 2], [1, 3]) == told([0, 0]) == ()
