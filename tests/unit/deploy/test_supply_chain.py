"""What the image and the checks are made of is pinned, file by file."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
LOCKS = sorted(path.name for path in (ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def locked(lock: str) -> list[tuple[Requirement, list[str]]]:
    """What a lock pins, each with its hashes."""
    entries = (ROOT / "requirements" / lock).read_text().replace("\\\n", " ").splitlines()
    lines = [entry.split() for entry in entries if entry and not entry.startswith("#")]
    return [
        (
            Requirement(" ".join(word for word in words if not word.startswith("--"))),
            [word for word in words if word.startswith("--")],
        )
        for words in lines
    ]


def applying(lock: str) -> dict[str, str]:
    """Name -> version, of what this interpreter would get."""
    return {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin, _ in locked(lock)
        if pin.marker is None or pin.marker.evaluate()
    }


def needs(lock: str) -> list[Requirement]:
    """What the lock was made for."""
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    return [
        Requirement(line)
        for line in {
            "image.txt": project["dependencies"],
            "run.txt": [*project["dependencies"], *PROJECT["build-system"]["requires"], "editables"],
            "dev.txt": [*project["dependencies"], *extras["dev"]],
            "build.txt": PROJECT["build-system"]["requires"],
            "tools.txt": (ROOT / "requirements" / "tools.in").read_text().split(),
            "docs.txt": (ROOT / "requirements" / "docs.in").read_text().split(),
        }[lock]
    ]


@pytest.mark.parametrize("lock", LOCKS)
def test_everything_is_one_version_with_hashes_of_its_files(lock: str) -> None:
    for pin, hashes in locked(lock):
        assert re.fullmatch(r"==[\w.!+]+", str(pin.specifier)), pin
        assert pin.url is None
        assert hashes, pin
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), pin


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_are_made_anew_when_the_requirements_change(lock: str) -> None:
    pinned = {canonicalize_name(pin.name): [] for pin, _ in locked(lock)}
    for pin, _ in locked(lock):
        pinned[canonicalize_name(pin.name)].append(str(pin.specifier).removeprefix("=="))
    for need in needs(lock):
        versions = pinned.get(canonicalize_name(need.name), [])
        assert versions, f"{need} is not in requirements/{lock}: make lock"
        assert all(need.specifier.contains(version) for version in versions), f"{need}: make lock"


def test_the_tests_run_with_what_is_locked() -> None:
    installed = {canonicalize_name(one.metadata["Name"]): one.version for one in distributions()}
    pins = applying("dev.txt")
    assert {name: installed.get(name) for name in pins} == pins


def test_the_image_holds_the_versions_that_are_tested() -> None:
    tested: dict[str, set[str]] = {}
    for pin, _ in locked("dev.txt"):
        tested.setdefault(canonicalize_name(pin.name), set()).add(str(pin.specifier))
    for pin, _ in locked("image.txt"):
        assert str(pin.specifier) in tested[canonicalize_name(pin.name)], pin


def test_the_demo_runs_with_part_of_what_is_tested() -> None:
    """So that `make setup` after `make demo` adds to the environment, and changes nothing in it."""
    tested = [(str(pin), hashes) for pin, hashes in locked("dev.txt")]
    assert all((str(pin), hashes) in tested for pin, hashes in locked("run.txt"))


def test_the_image_stands_on_a_digest_and_installs_by_hash() -> None:
    assert re.search(r"^ARG BASE=\S+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${BASE}", "scratch"}
    installs = re.findall(r"install --no-cache-dir(.*?)(?:&&|\n[^ ])", DOCKERFILE, re.DOTALL)
    assert len(installs) == 3
    assert all("--require-hashes" in one or "--no-index --no-deps" in one for one in installs)


def test_a_package_on_top_of_the_image_goes_where_its_python_looks() -> None:
    """As docs/isolation-backends.md puts it there."""
    page = (ROOT / "docs" / "isolation-backends.md").read_text()
    (base,) = re.findall(r"^ARG BASE=\S+/python:(\d+\.\d+)\.", DOCKERFILE, re.MULTILINE)
    assert f"FROM docker.io/library/python:{base}-slim AS packages\n" in page
    assert f"COPY --from=packages /packages /opt/koordra/lib/python{base}/site-packages\n" in page
    assert f"FROM registry.example/koordra:{PROJECT['project']['version']}\n" in page


def test_the_image_says_what_it_is() -> None:
    """In the labels that registries and scanners read."""
    said = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', DOCKERFILE.rpartition("FROM ")[2]))
    project = PROJECT["project"]
    assert said == {
        "title": project["name"],
        "description": project["description"],
        "version": project["version"],
        "licenses": project["license"],
    }


@pytest.mark.parametrize(
    ("builder", "platform", "told"),
    [
        ("docker", "", ["build --tag koordra:1"]),
        ("docker", "linux/amd64,linux/arm64", ["build --platform linux/amd64,linux/arm64 --tag koordra:1"]),
        ("podman", "linux/arm64", ["build --platform linux/arm64 --tag koordra:1"]),
        (
            "buildah",
            "linux/amd64,linux/arm64",
            [
                "manifest rm koordra:1.new",
                "build --platform linux/amd64,linux/arm64 --manifest koordra:1.new",
                "tag koordra:1.new koordra:1",
                "manifest rm koordra:1.new",
            ],
        ),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_an_image_for_several_platforms_is_a_new_list(
    tmp_path: Path, builder: str, platform: str, told: list[str], fails: bool
) -> None:
    """As buildah and podman take it: --tag would name the last platform's image, and --manifest adds to a
    list that is there. A build that fails leaves the image of before its name."""
    program, log = tmp_path / builder, tmp_path / "log"
    program.write_text(
        f'#!/bin/sh\ntest "$1" = info || echo "$@" >> {log}\ntest "$1" != build || exit {int(fails)}\n'
    )
    program.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key not in ("BASE", "PLATFORM")}
    said = {"BUILDER": builder, "IMAGE": "koordra:1", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    if platform:
        said["PLATFORM"] = platform
    done = subprocess.run(
        [ROOT / "scripts" / "image"], env=environment | said, check=False, capture_output=True
    )
    assert done.returncode == fails
    if fails:
        told = told[: next(at for at, line in enumerate(told) if line.startswith("build")) + 1]
    assert log.read_text().splitlines() == [
        f"{line} --file deploy/Dockerfile ." if line.startswith("build") else line for line in told
    ]


def containers() -> list[Any]:
    """Pod and container of everything that deploy/kustomize runs, init containers that a patch adds, too."""
    found = []
    for path in sorted((ROOT / "deploy" / "kustomize").rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document["kind"] in ("Deployment", "DaemonSet"):
                pod = document["spec"]["template"]["spec"]
                found += [
                    pytest.param(pod, one, id=one["name"]) for one in pod["containers"] if "image" in one
                ]
            for patch in (document or {}).get("patches") or ():
                for operation in yaml.safe_load(patch.get("patch", "")) or ():
                    if isinstance(operation, dict) and str(operation.get("path", "")).endswith(
                        "initContainers"
                    ):
                        found += [pytest.param({}, one, id=one["name"]) for one in operation["value"]]
    return found


@pytest.mark.parametrize(("pod", "container"), containers())
def test_who_needs_root_says_so(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """The image's own user is nobody in particular."""
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", DOCKERFILE, re.MULTILINE)
    context = pod.get("securityContext", {}) | container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    if context.get("runAsNonRoot"):
        assert context["runAsUser"] > 0
        assert not context["allowPrivilegeEscalation"]
    else:
        assert context["runAsUser"] == 0


def test_the_bill_of_materials_names_what_native_builds_for_the_image() -> None:
    """Its programs run apart from the tests' packages, so the list is read, not imported."""
    tree = ast.parse((ROOT / "scripts" / "sbom.py").read_text())
    (listed,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NATIVE"
    )
    named = {each.value for each in ast.walk(listed) if isinstance(each, ast.Constant)}
    copied = {
        Path(path).name for path in re.findall(r"/build/\S+\.(?:so\S*)|/build/cdi-hook/\S+", DOCKERFILE)
    }
    small = set(
        re.findall(r"\$\(OUT\)/(limiter-i386/lib\S+?\.so\.1)", (ROOT / "native" / "Makefile").read_text())
    )
    assert len(copied) == 4
    assert len(small) == 2
    assert "/build/limiter-i386" in DOCKERFILE
    assert named == copied | small
