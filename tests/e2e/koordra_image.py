"""koordra's image, made here by its own recipe without a registry: deploy/Dockerfile on a bare Debian from
the system's mirror, in place of the base that the recipe pins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.conftest import ROOT
from tests.e2e.debian import Unavailable, system_archive

SUITE: Final = "trixie"
"""Of the recipe's base, too."""
IMAGE: Final = "local.test/koordra:1"
LONGEST: Final = 1800
"""Seconds for one command, on a busy machine."""
_BASE: Final = "local.test/base:1"
_PACKAGES: Final = ("python3", "python3-venv", "python-is-python3")
_SHED: Final = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man")
"""What the slim images of Docker's library are without, too."""
_TRUSTED: Final = ("etc/pip.conf", "etc/ssl/certs/ca-certificates.crt")
"""How pip reaches its index from this machine."""


def build(folder: Path, *, base: Path, checkout: Path = ROOT, image: str = IMAGE) -> Path:
    """The image of a checkout as an OCI archive below `folder`; `base` keeps the bare Debian for the next
    time. Raises Unavailable."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("debootstrap", "buildah"))):
        raise Unavailable("an image is made as root, by debootstrap and buildah")
    if not base.exists():
        _make_base(base)
    storage = folder / "storage.conf"
    places = f'graphroot = "{folder}/images"\nrunroot = "{folder}/run"\n'
    storage.write_text(f'[storage]\ndriver = "vfs"\n{places}')
    said = {
        "CONTAINERS_STORAGE_CONF": str(storage),
        "STORAGE_DRIVER": "vfs",
        "BUILDAH_ISOLATION": "chroot",
        "BUILDER": "buildah",
        "BASE": _BASE,
        "IMAGE": image,
    }
    container = _ran(["buildah", "from", "scratch"], said).strip()
    _ran(["buildah", "add", container, str(base), "/"], said)
    _ran(["buildah", "commit", "--rm", container, _BASE], said)
    _ran([str(checkout / "scripts" / "image")], said)
    archive = folder / "koordra.tar"
    _ran(["buildah", "push", image, f"oci-archive:{archive}:{image}"], said)
    shutil.rmtree(folder / "images", ignore_errors=True)
    return archive


def name_of(archive: Path) -> str:
    """Under which a runtime that imports it knows the image."""
    with tarfile.open(archive) as tar:
        return str(
            _json(tar, "index.json")["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"]
        )


def config_of(archive: Path) -> Mapping[str, Any]:
    """Of the image: user, entry point, environment."""
    with tarfile.open(archive) as tar:
        return dict(_json(tar, _path(_manifest(tar)["config"]["digest"]))["config"])


def files_of(archive: Path) -> dict[str, int]:
    """Bytes of every file that the image has on a node."""
    found: dict[str, int] = {}
    with tarfile.open(archive) as tar:
        for layer in _manifest(tar)["layers"]:
            with tarfile.open(fileobj=tar.extractfile(_path(layer["digest"]))) as files:
                found |= {member.name: member.size for member in files if not member.isdir()}
    return found


def _make_base(base: Path) -> None:
    partial = base.with_name(f"{base.name}.{os.getpid()}")
    partial.parent.mkdir(parents=True, exist_ok=True)
    packages = f"--include={','.join(_PACKAGES)}"
    try:
        _ran(["debootstrap", "--variant=minbase", packages, SUITE, str(partial), system_archive().uri], {})
        for path in _SHED:
            shutil.rmtree(partial / path)
        (partial / "var/cache/apt/archives/partial").mkdir(parents=True)
        for path in _TRUSTED:
            if (there := Path("/", path)).exists():
                (partial / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(there, partial / path)
        partial.rename(base)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _ran(command: Sequence[str], more: Mapping[str, str]) -> str:
    ran = subprocess.run(
        command, env={**os.environ, **more}, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    if ran.returncode:
        raise Unavailable(f"{' '.join(command[:2])}: {(ran.stderr or ran.stdout)[-800:]}")
    return ran.stdout


def _manifest(tar: tarfile.TarFile) -> dict[str, Any]:
    return _json(tar, _path(_json(tar, "index.json")["manifests"][0]["digest"]))


def _json(tar: tarfile.TarFile, name: str) -> dict[str, Any]:
    found = tar.extractfile(name)
    assert found is not None
    return dict(json.load(found))


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
