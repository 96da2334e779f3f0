"""Volumes that are the kubelet's files: what is in them, and that a change comes in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koordra.errors import NotFound
from koordra_devcluster.kubelet import pods as pod_rules
from koordra_devcluster.kubelet.volumes import PodVolumes, VolumeError

GANG_HOSTS = "metadata.annotations['gate.koordra.io/gang-hosts']"


def pod(*volumes: dict[str, Any], **annotations: str) -> dict[str, Any]:
    meta = {"name": "p", "namespace": "team", "uid": "u1", "labels": {"app": "a"}, "annotations": annotations}
    return {"metadata": meta, "spec": {"volumes": list(volumes)}}


def told(text: str) -> dict[str, str]:
    return {"gate.koordra.io/gang-hosts": text}


def downward(*items: dict[str, Any], name: str = "gang", **more: Any) -> dict[str, Any]:
    return {"name": name, "downwardAPI": {"items": list(items), **more}}


def item(path: str, field: str = GANG_HOSTS, **more: Any) -> dict[str, Any]:
    return {"path": path, "fieldRef": {"fieldPath": field}, **more}


@pytest.fixture
def volumes(tmp_path: Path) -> PodVolumes:
    maps = {"programs": {"run.sh": "#!/bin/sh\n", "lib/a.py": "a = 1\n"}}

    def get(namespace: str, name: str) -> dict[str, Any]:
        if namespace != "team" or name not in maps:
            raise NotFound(f'configmaps "{name}" not found', code=404)
        return {"data": maps[name]}

    return PodVolumes(tmp_path, get)


def test_an_annotation_is_a_file_that_follows_it(volumes: PodVolumes) -> None:
    volume = downward(item("hosts"), item("deep/labels", "metadata.labels"), defaultMode=0o600)
    place = volumes.make(pod(volume, **told("a slots=8\n")))["gang"]
    assert (place / "hosts").read_text() == "a slots=8\n"
    assert (place / "deep/labels").read_text() == 'app="a"'
    assert (place / "hosts").stat().st_mode & 0o777 == 0o600
    before = (place / "..data").readlink()
    with (place / "hosts").open() as opened:  # who has the old file open reads the old one to its end
        volumes.refresh(pod(volume, **told("a slots=8\nb slots=8\n")))
        assert opened.read() == "a slots=8\n"
    assert (place / "hosts").read_text() == "a slots=8\nb slots=8\n"
    assert (place / "..data").readlink() != before
    assert (place / "hosts").readlink() == Path("..data/hosts"), "the name of the file stays the same link"
    assert not (place / before).exists()


def test_what_has_not_changed_is_not_written(volumes: PodVolumes) -> None:
    volume = downward(item("hosts"))
    place = volumes.make(pod(volume, **told("a")))["gang"]
    before = (place / "..data").readlink()
    volumes.refresh(pod(volume, **told("a"), other="b"))
    volumes.make(pod(volume, **told("b")))
    assert (place / "..data").readlink() == before
    assert (place / "hosts").read_text() == "a"


def test_an_annotation_that_is_not_there_is_an_empty_file(volumes: PodVolumes) -> None:
    volume = downward(item("hosts"))
    place = volumes.make(pod(volume, **told("a")))["gang"]
    volumes.refresh(pod(volume))
    assert (place / "hosts").read_text() == ""


def test_a_config_map_and_the_downward_api_in_one_volume(volumes: PodVolumes) -> None:
    sources = [
        {"configMap": {"name": "programs", "items": [{"key": "run.sh", "path": "bin/run", "mode": 0o755}]}},
        {"downwardAPI": {"items": [item("hosts")]}},
    ]
    volume = {"name": "all", "projected": {"sources": sources}}
    place = volumes.make(pod(volume, **told("a")))["all"]
    assert (place / "bin/run").stat().st_mode & 0o777 == 0o755
    (place / "written-by-a-container").write_bytes(b"\xff")
    volumes.refresh(pod(volume, **told("b")))
    assert ((place / "hosts").read_text(), (place / "bin/run").read_text()) == ("b", "#!/bin/sh\n")


def test_all_of_a_config_map(volumes: PodVolumes) -> None:
    volume = {"name": "programs", "configMap": {"name": "programs", "defaultMode": 0o755}}
    place = volumes.make(pod(volume))["programs"]
    assert (place / "lib/a.py").read_text() == "a = 1\n"
    assert (place / "run.sh").stat().st_mode & 0o777 == 0o755


def test_an_empty_volume_keeps_what_is_written_and_all_go_with_the_pod(
    volumes: PodVolumes, tmp_path: Path
) -> None:
    place = volumes.make(pod({"name": "scratch", "emptyDir": {}}))["scratch"]
    (place / "a").write_text("a")
    assert (volumes.make(pod({"name": "scratch", "emptyDir": {}}))["scratch"] / "a").exists()
    volumes.remove("u1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        ({"name": "v", "configMap": {"name": "none"}}, 'configmap "none" not found'),
        (
            {"name": "v", "configMap": {"name": "programs", "items": [{"key": "x", "path": "x"}]}},
            "references non-existent config key: x",
        ),
        (downward(item("../../out")), "leads out of the volume"),
        (downward({"path": "cpu", "resourceFieldRef": {"resource": "limits.cpu"}}), "no resourceFieldRef"),
    ],
)
def test_what_cannot_be_made_is_said(volumes: PodVolumes, volume: dict[str, Any], words: str) -> None:
    with pytest.raises(VolumeError, match=words):
        volumes.make(pod(volume))


def test_an_optional_config_map_need_not_be_there(volumes: PodVolumes) -> None:
    place = volumes.make(pod({"name": "v", "configMap": {"name": "none", "optional": True}}))["v"]
    assert [entry.name for entry in place.iterdir() if not entry.name.startswith("..")] == []


def test_mounts_are_where_the_volumes_lie(volumes: PodVolumes) -> None:
    body = pod(downward(item("hosts")), {"name": "elsewhere", "secret": {"secretName": "s"}})
    container = {
        "name": "main",
        "volumeMounts": [
            {"name": "gang", "mountPath": "/run/gang", "readOnly": True},
            {"name": "gang", "mountPath": "/etc/hosts.mpi", "subPath": "hosts"},
            {"name": "elsewhere", "mountPath": "/secret"},
        ],
    }
    made = volumes.make(body)
    config = pod_rules.container_config(body, container, [], volumes=made)
    assert [(one.destination, one.source, one.options[-1]) for one in config.mounts] == [
        ("/run/gang", str(made["gang"]), "ro"),
        ("/etc/hosts.mpi", f"{made['gang']}/hosts", "rw"),
    ]
