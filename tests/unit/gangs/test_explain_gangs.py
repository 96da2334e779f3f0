"""`koordra explain` about gangs: how many members fit, and what the others lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from koordra.api import names
from koordra.api.objects import Object
from koordra.cli.cluster.explain import explain as command
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod


def objects_of(members: int, *, least: int) -> list[Object]:
    found: list[Object] = [
        {"apiVersion": "v1", "kind": "Node", **node("n0")},
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", **device_class(names.CLASS_GPU, "gpu")},
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **gpu_slice("n0", 2)},
    ]
    for number in range(members):
        name = f"w{number}"
        found.append(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim(name, uid=f"c{number}")}
        )
        member = pod(name, [name], gates=[names.JOINT_GATE])
        member["metadata"] |= {
            "uid": f"p{number}",
            "annotations": {"koordra.io/gang": "train", "koordra.io/gang-min": str(least)},
        }
        found.append({"apiVersion": "v1", "kind": "Pod", **member})
    return found


def explained(folder: Path, found: list[Object], *arguments: str) -> str:
    path = folder / "objects.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}))
    done = CliRunner().invoke(command, ["-f", str(path), *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_gang_that_does_not_fit_says_how_many_would(tmp_path: Path) -> None:
    text = explained(tmp_path, objects_of(3, least=3))
    assert "gang default/train: Waiting, 3 members, 3 have to start together" in text
    assert "2 of 3 members fit" in text
    shown: dict[str, Any] = json.loads(explained(tmp_path, objects_of(3, least=3), "-o", "json"))
    (gang,) = shown["gangs"]
    assert (gang["stage"], gang["fit"], gang["least"]) == ("Waiting", 2, 3)


def test_a_gang_whose_members_are_missing_says_so(tmp_path: Path) -> None:
    text = explained(tmp_path, objects_of(2, least=3))
    assert "gang default/train: Gathering" in text
    assert "2 of 3 members are there" in text
