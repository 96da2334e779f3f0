"""A region of its own: what a tenant can write is bounded by the file system that it lies on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from koordra.kubelet_plugin.isolation import own_file_system
from koordra.kubelet_plugin.isolation.limiter import backend
from koordra.kubelet_plugin.isolation.limiter.backend import SIZE
from koordra.kubelet_plugin.isolation.limiter.region import USAGE_BYTES

NAMES = ("policy", "usage")

CODE = """
import json, os, sys
from pathlib import Path
from koordra.kubelet_plugin.isolation import own_file_system
from koordra.kubelet_plugin.isolation.limiter import backend
from koordra.kubelet_plugin.isolation.limiter import region, usage
folder = Path(sys.argv[1]) / "claims" / "c"
uuid = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
for _ in range(2):
    backend.make_folder(folder)
    region.allow(folder, claim="c", uuid=uuid, limit=1)
mounted = own_file_system.mounted(folder)
written = 0
try:
    with (folder / "usage").open("ab", buffering=0) as file:
        while written < 100 << 20:
            written += file.write(bytes(65536))
except OSError as error:
    full = error.strerror
files = 0
try:
    while files < 1000:
        (folder / f"f{files}").touch()
        files += 1
except OSError:
    pass
read = len(usage.read(folder).devices)
for number in range(files):
    (folder / f"f{number}").unlink()
for _ in range(2):
    backend.remove_folder(folder, ("policy", "usage"))
print(json.dumps({"mounted": mounted, "written": written, "full": full, "files": files, "read": read, "left": folder.exists()}))
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts need root and unshare")
def test_on_a_shared_mount_a_region_has_a_small_file_system_of_its_own(tmp_path: Path) -> None:
    script = 'mount --bind "$1" "$1" && mount --make-shared "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
            str(tmp_path),
            sys.executable,
            CODE,
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode and "mount" in done.stderr and "Traceback" not in done.stderr:
        pytest.skip("mounts cannot be made here")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["mounted"]
    assert said["written"] + USAGE_BYTES <= SIZE
    assert (said["full"], said["read"], said["left"]) == ("No space left on device", 1, False)
    assert said["files"] <= backend.INODES


def test_elsewhere_it_is_a_folder(tmp_path: Path) -> None:
    if own_file_system.shared(tmp_path):
        pytest.skip("mounts are shared here")
    folder = tmp_path / "claims" / "c"
    for _ in range(2):
        backend.make_folder(folder)
    assert not own_file_system.mounted(folder)
    (folder / "policy").touch()
    for _ in range(2):
        backend.remove_folder(folder, NAMES)
    assert not folder.exists()
