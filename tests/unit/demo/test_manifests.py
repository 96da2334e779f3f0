"""Reading and applying manifests: mistakes are named with file and place, and stop nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.errors import ApiUnreachable, Conflict, Invalid, InvalidManifest
from koordra_devcluster.demo import manifests


class RefusingClient:
    """Takes every object but those whose name says otherwise."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.gone = True

    def create(self, kind: kinds.Kind, body: Object, *, strict: bool) -> Object:
        assert strict
        if body["metadata"]["name"].startswith("bad"):
            raise Invalid("spec is wrong", code=422, reason="Invalid")
        if body["metadata"]["name"] == "gone":
            if self.gone:
                raise ApiUnreachable("no answer")
            raise Conflict("exists", code=409, reason="AlreadyExists")
        if body["metadata"]["name"] == "taken":
            raise Conflict("exists", code=409, reason="AlreadyExists")
        self.created.append(f"{kind.kind}/{body['metadata']['name']}")
        return body


def no_rest() -> None:
    raise AssertionError("nobody was away")


def manifest(kind: kinds.Kind, name: str) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}


def test_shipped_examples_are_readable_and_every_folder_is_shown() -> None:
    folder = manifests.deploy_folder()
    assert {path.name for path in (folder / "examples").iterdir()} >= set(manifests.EXAMPLES)
    assert all((folder / "examples" / name / "README.md").is_file() for name in manifests.EXAMPLES)
    assert len(manifests.shipped(folder)) == 2 * len(manifests.EXAMPLES)
    assert [body["metadata"]["name"] for body in manifests.device_classes(folder)] == [
        "gpu.koordra.io",
        "mig.koordra.io",
        "nic.koordra.io",
        "vf.koordra.io",
        "imex-channel.koordra.io",
        "imex-channels.koordra.io",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not YAML"),
        ("- 1", "is not an object"),
        ("apiVersion: v1\nkind: Pod\nmetadata: &a {name: x, labels: *a}", "has an alias within"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {1: x}", "has a key that is not text"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: !!set {x}}", "cannot be JSON"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: .nan}", "cannot be JSON"),
        ("apiVersion: v1\nkind: Pod", "has no metadata"),
        ("apiVersion: v1\nkind: List\nitems: [7]", "items[0]: is not an object"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InvalidManifest) as caught:
        list(manifests.read(path))
    assert words in str(caught.value)
    assert "mine.yaml" in str(caught.value)


def test_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match="cannot be read"):
        list(manifests.read(tmp_path / "absent.yaml"))


def test_lists_and_empty_documents(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(
        "---\n---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: p}}\n"
    )
    assert [body["kind"] for body in manifests.read(path)] == ["Pod"]


def test_what_pods_refer_to_goes_first_and_refusals_stop_nobody() -> None:
    client = RefusingClient()
    refused = manifests.apply(
        client,  # type: ignore[arg-type]
        [
            manifest(kinds.PODS, "p"),
            manifest(kinds.RESOURCE_CLAIMS, "bad"),
            manifest(kinds.RESOURCE_CLAIMS, "c"),
            manifest(kinds.RESOURCE_CLAIM_TEMPLATES, "t"),
            manifest(kinds.DEVICE_CLASSES, "k"),
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}},
            {"apiVersion": "apps/v1beta1", "kind": "Deployment", "metadata": {"name": "old"}},
        ],
        rest=no_rest,
    )
    assert client.created == [
        "DeviceClass/k",
        "ResourceClaimTemplate/t",
        "ResourceClaim/c",
        "Pod/p",
        "Deployment/d",
    ]
    assert [entry.message for entry in refused] == [
        "ResourceClaim bad was refused: spec is wrong",
        "Deployment old was refused: the demo's API server serves no apps/v1beta1 Deployment",
    ]


def test_a_kind_that_the_file_defines_is_taken() -> None:
    client = RefusingClient()
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object"}},
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [version],
        },
    }
    thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}
    assert manifests.apply(client, [thing, definition], rest=no_rest) == []  # type: ignore[arg-type]
    assert client.created == ["CustomResourceDefinition/things.example.com", "Thing/t"]


def test_a_webhook_that_is_away_is_waited_for() -> None:
    class Away(RefusingClient):
        tries = 0

        def create(self, kind: kinds.Kind, body: Object, *, strict: bool) -> Object:
            self.tries += 1
            if self.tries < 3:
                message = 'Internal error occurred: failed calling webhook "legacy.koordra.io": refused'
                raise Invalid(message, code=500, reason="InternalError")
            return super().create(kind, body, strict=strict)

    client = Away()
    assert manifests.apply(client, [manifest(kinds.PODS, "p")], rest=lambda: None) == []  # type: ignore[arg-type]
    assert client.created == ["Pod/p"]


def test_a_server_that_is_away_is_waited_for() -> None:
    """A creation that went unanswered may have been done: that it exists already is then no refusal."""
    client = RefusingClient()
    rests: list[int] = []

    def rest() -> None:
        rests.append(1)
        client.gone = len(rests) < 3

    refused = manifests.apply(client, [manifest(kinds.PODS, "gone")], rest=rest)  # type: ignore[arg-type]
    assert (len(rests), refused) == (3, [])


def test_what_exists_already_is_a_refusal() -> None:
    refused = manifests.apply(RefusingClient(), [manifest(kinds.PODS, "taken")], rest=no_rest)  # type: ignore[arg-type]
    assert refused[0].message == "Pod taken was refused: exists"


def test_dates_are_text(tmp_path: Path) -> None:
    path = tmp_path / "dated.yaml"
    path.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {d: 2024-01-01}}")
    assert next(manifests.read(path))["metadata"]["labels"] == {"d": "2024-01-01"}
