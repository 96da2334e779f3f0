"""`koordra profile`: what a job used of GPUs, and the share that would have done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import click

from koordra.cli import options
from koordra.cli.cluster.cluster_objects import connect, namespace_of
from koordra.cli.cluster.use.profile.from_prometheus import from_prometheus
from koordra.cli.cluster.use.profile.legacy_settings import legacy_settings
from koordra.cli.cluster.use.profile.nodes import NodeProfiles, of_namespace
from koordra.cli.cluster.use.profile.plots import HEADER, rows, svg
from koordra.cli.cluster.use.prometheus import Prometheus, prometheus
from koordra.cli.options import Access, Scope, say
from koordra.cli.output import Document, show_document, show_table
from koordra.cli.progress import progress
from koordra.compat.settings import Settings
from koordra.errors import ApiError, Forbidden, InvalidInput
from koordra.kube.client import KubeClient
from koordra.profiles.kept import KeptProfile, profiles_of, recommended
from koordra.profiles.profile import Profile
from koordra.profiles.share import Recommendation
from koordra.profiles.store import open_store


@dataclass(frozen=True, slots=True)
class Shown:
    """A job's pods of one template; `earlier`: jobs before it that ran the same; `wide`: what is recommended
    by all of them."""

    profile: Profile
    earlier: tuple[Profile, ...]
    recommendation: Recommendation | None


@click.command("profile")
@click.argument("job", metavar="[KIND/]JOB")
@options.access
@click.option("-n", "--namespace", help="Namespace.  [default: the context's]")
@click.option(
    "--store",
    metavar="URL",
    help="What `koordra profiler` has kept, too: sqlite:///FILE, postgresql+psycopg://USER@HOST/DATABASE ...",
)
@options.prometheus
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml", "svg"]),
    default="table",
    help="What is printed.",
)
@click.option("--per-pod", is_flag=True, default=False, help="Each pod by itself, too.")
def profile(
    access: Access,
    job: str,
    namespace: str | None,
    store: str | None,
    named: str,
    output: str,
    per_pod: bool,
) -> None:
    """What the pods of a job, or one pod, used over their lives: GPUs, SMs, GPU memory, processors, memory
    and RDMA, and which share of a GPU would have done, in the words in which they asked.

    Nodes keep the profile of a pod until a day after its end; a store keeps it for 90 days, and then jobs
    that ran the same before are taken into account.
    """
    client = connect(access)
    place = namespace_of(access, Scope(namespace)) or "default"
    history = open_store(store) if store else None
    try:
        kept = _of_nodes(client, place)
    except Forbidden as error:
        if history is None:
            raise
        say(f"koordra: what is kept alone, since the nodes may not be asked: {error}", err=True)
        kept = []
    if history is not None:
        kept = with_history(kept, history.of_job(place, job.rpartition("/")[2]))
    chosen = of_job(kept, job)
    if not chosen:
        raise InvalidInput(
            "no node has a profile of it",
            object=f"{place}/{job}",
            remedy="name a job, or a pod, that has GPUs and ran within a day"
            + ("" if store else ", or --store with what koordra profiler keeps"),
        )
    server = prometheus(client, named)
    if server is not None:
        try:
            with progress("asking Prometheus", line=False):
                chosen = [_longer(server, one) for one in chosen]
        except ApiError as error:
            say(f"koordra: what nodes know alone: {error}", err=True)
    before = {
        template: history.of_template(place, template)
        for template in {one.template for one in chosen}
        if history is not None and template
    }
    settings = _settings(client)
    shown = [shown_of(one, last, before.get(one.template, ()), settings) for one, last in profiles_of(chosen)]
    _show(shown, output, per_pod=per_pod)


def _settings(client: KubeClient) -> Settings:
    try:
        return legacy_settings(client)
    except Forbidden as error:
        say(f"koordra: words in the units that other stacks have by default: {error}", err=True)
        return Settings()


def _of_nodes(client: KubeClient, namespace: str) -> list[KeptProfile]:
    with progress("asking the nodes", line=False):
        found = NodeProfiles(client)
        kept = of_namespace(client, namespace, found)
    for node, why in sorted(found.silent.items()):
        say(f"koordra: node {node} is not known: {why}", err=True)
    return kept


def with_history(kept: Sequence[KeptProfile], past: Sequence[KeptProfile]) -> list[KeptProfile]:
    """Of a pod that the API has no more a store may know whose it was; a node may know more of its use."""
    newest = {one.profile.uid: one for one in past}
    for one in kept:
        before = newest.get(one.profile.uid)
        newest[one.profile.uid] = replace(before, profile=one.profile) if before and not one.template else one
    return list(newest.values())


def of_job(kept: Sequence[KeptProfile], job: str) -> list[KeptProfile]:
    """Of the last job of that name; else of the pod of that name."""
    kind, _, name = job.rpartition("/")
    named = [
        one
        for one in kept
        if one.job.name == name and (not kind or one.job.kind.casefold() == kind.casefold())
    ]
    if not named and kind.casefold() in ("", "pod"):
        named = [one for one in kept if one.profile.pod == name]
    if not named:
        return []
    last = max(named, key=lambda one: (one.profile.until, one.job.uid)).job.uid
    return [one for one in named if one.job.uid == last]


def shown_of(profile: Profile, last: KeptProfile, same: Sequence[KeptProfile], settings: Settings) -> Shown:
    """`same`: pods that ran the same, of this job too."""
    earlier = tuple(one for one, _ in profiles_of(same) if one.job != profile.job)
    return Shown(profile, earlier, recommended([profile, *earlier], last, settings))


def _longer(server: Prometheus, kept: KeptProfile) -> KeptProfile:
    """Series of which Prometheus knows more than the node does: the plugin was not there all the time."""
    found = from_prometheus(server, kept.profile).summaries
    own = kept.profile.summaries
    better = {
        series: one for series, one in found.items() if series not in own or one.ms > own[series].ms * 1.1
    }
    return replace(kept, profile=replace(kept.profile, summaries={**own, **better}))


def _show(shown: Sequence[Shown], output: str, *, per_pod: bool) -> None:
    if output in ("json", "yaml"):
        show_document({"profiles": [document_of(one) for one in shown]}, output)
        return
    job = shown[0].profile.job
    title = f"{job.kind} {job.namespace}/{job.name}"
    if output == "svg":
        texts = [one.recommendation.text for one in shown if one.recommendation]
        say(svg([one.profile for one in shown], title=title, remarks=texts), nl=False)
        return
    for number, one in enumerate(shown):
        say(f"{'' if number == 0 else chr(10)}{title}: {_told(one)}")
        show_table(HEADER, list(rows(one.profile.use)), empty="nothing was measured")
        if per_pod:
            for pod in one.profile.pods:
                say(f"\npod {pod.pod} on {pod.node}, {_duration(pod.until - pod.began)}")
                show_table(HEADER, list(rows(pod.use)))
        say(one.recommendation.text if one.recommendation else "no smaller share is recommended")


def _told(shown: Shown) -> str:
    pods = shown.profile.pods
    began, until = min(one.began for one in pods), max(one.until for one in pods)
    told = f"{len(pods)} {'pod' if len(pods) == 1 else 'pods'}, {_time(began)} to {_time(until)}"
    if shown.profile.template:
        told += f", template {shown.profile.template}"
    if shown.earlier:
        told += f", ran {len(shown.earlier)} times before"
    return told


def _time(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _duration(seconds: int) -> str:
    minutes = seconds // 60
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {seconds % 60} s"


def document_of(shown: Shown) -> Document:
    profile = shown.profile
    recommended = shown.recommendation
    found: dict[str, Any] = {
        "job": profile.job._asdict(),
        "template": profile.template,
        "ranBefore": len(shown.earlier),
        "series": {series.value: one.document for series, one in profile.use.items()},
        "pods": [
            {
                "pod": pod.pod,
                "uid": pod.uid,
                "node": pod.node,
                "began": _time(pod.began),
                "until": _time(pod.until),
                "series": {series.value: one.document for series, one in pod.use.items()},
            }
            for pod in profile.pods
        ],
    }
    if recommended is not None:
        found["recommendation"] = {
            "asked": dict(recommended.asked.words),
            "words": dict(recommended.words),
            "memoryBytes": recommended.memory,
            "cores": recommended.cores,
            "text": recommended.text,
        }
    return found
