"""Running the three jobs: the first one before the others, so that they find what it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.kube.client import KubeClient
from koordra_devcluster.demo import jobs, manifests
from koordra_devcluster.demo.run import Demo, Outcome


def shipped_jobs() -> list[Object]:
    """The manifests of deploy/examples/three-jobs."""
    folder = manifests.deploy_folder() / "examples" / jobs.EXAMPLE
    return list(manifests.read(folder / f"{jobs.EXAMPLE}.yaml"))


def run_jobs(demo: Demo, client: KubeClient, documents: Sequence[Object]) -> Outcome:
    """Apply them, and watch until the story is over."""
    later = (jobs.SECOND, jobs.ELASTIC)
    refused = demo.apply(client, [body for body in documents if objects.name(body) not in later])
    demo.wait_for(
        client,
        lambda seen: (
            sum(1 for pod in jobs.members_of(seen, jobs.FIRST) if jobs.nodes_of(seen, pod))
            == jobs.SIZES[jobs.FIRST]
        ),
    )
    refused += demo.apply(client, [body for body in documents if objects.name(body) in later], classes=False)
    return demo.wait(client, refused, story=jobs.Story())


def seen_of_jobs(client: KubeClient, observation: Any) -> dict[str, Any]:
    """The jobs' part of the report."""
    return jobs.document(observation, client.list(kinds.EVENTS)[0], client.list(kinds.NODES)[0])
