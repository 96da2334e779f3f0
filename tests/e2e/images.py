"""Container images without a registry: an OCI layout in a tar file, whose first layer is a static busybox.

Two names have just that: `local.test/pause:1`, which the runtime starts for every pod, and
`local.test/busybox:1`. Others have a layer of their own on top, from a folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

PAUSE: Final = "local.test/pause:1"
BUSYBOX: Final = "local.test/busybox:1"

_APPLETS: Final = ("sh", "cat", "ls", "env", "sleep", "mknod", "mount", "grep", "dd", "id", "stat", "test")
_FOLDERS: Final = ("bin", "dev", "etc", "proc", "sys", "tmp", "usr", "usr/lib", "usr/lib64")


def write_images(busybox: Path, target: Path, folders: Mapping[str, Path] | None = None) -> None:
    """The OCI layout with both images, or with those of `folders` in place of them, by name."""
    layer = _layer(busybox.read_bytes())
    shell = ["/bin/sh"]
    images = [(PAUSE, ["/bin/busybox", "sleep", "2147483647"], [layer]), (BUSYBOX, shell, [layer])]
    if folders is not None:
        images = [(name, shell, [layer, _layer_of(folder)]) for name, folder in folders.items()]
    blobs: dict[str, bytes] = {}
    manifests = []
    for name, command, layers in images:
        blobs |= {_digest(each): each for each in layers}
        config = _json(
            {
                "architecture": _architecture(),
                "os": "linux",
                "config": {"Entrypoint": command, "Env": ["PATH=/bin", "FROM_IMAGE=yes"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(each) for each in layers]},
            }
        )
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": _descriptor(config, "application/vnd.oci.image.config.v1+json"),
                "layers": [_descriptor(each, "application/vnd.oci.image.layer.v1.tar") for each in layers],
            }
        )
        blobs |= {_digest(config): config, _digest(manifest): manifest}
        entry = _descriptor(manifest, "application/vnd.oci.image.manifest.v1+json")
        manifests.append({**entry, "annotations": {"io.containerd.image.name": name}})
    with tarfile.open(target, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": manifests}))
        for digest, blob in sorted(blobs.items()):
            _add(tar, f"blobs/sha256/{digest.removeprefix('sha256:')}", blob)


def _layer_of(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(folder, arcname=".")
    return buffer.getvalue()


def _layer(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in _FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        _add(tar, "bin/busybox", busybox, mode=0o755)
        for applet in _APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def _descriptor(blob: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _architecture() -> str:
    import platform

    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
