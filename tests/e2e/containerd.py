"""One private containerd with CDI and NRI on, and nothing of it left afterwards.

Everything lives in one folder with a short name (unix sockets), but for the shims' sockets in /run/containerd
and the cgroups below /k8s.io, which are removed by name at the end. Shims outlive containerd by design, so
pods are removed first.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType

import grpc

from tests.e2e import cgroup2
from tests.e2e.cri import Cri
from tests.e2e.debian import Runtime
from tests.e2e.images import PAUSE, write_images
from tests.patience import PATIENCE

CGROUPS = Path("/sys/fs/cgroup")
SHIM_SOCKETS = Path("/run/containerd/s")

# restrict_oom_score_adj: root without CAP_SYS_RESOURCE cannot lower it. Requests of NRI plugins get 20 s
# instead of 2 s, since the machine may be busy with other tests.
_CRI_V3 = """
[plugins.'io.containerd.cri.v1.images']
  snapshotter = '{snapshotter}'
  use_local_image_pull = true
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{pause}'
[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ['{folder}/cdi']
  restrict_oom_score_adj = true
  enable_unprivileged_ports = false
  enable_unprivileged_icmp = false
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '{runc}'
      Root = '{folder}/runc'
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{folder}/cni']
    conf_dir = '{folder}/cni'
"""
_CRI_V2 = """
[plugins.'io.containerd.grpc.v1.cri']
  sandbox_image = '{pause}'
  enable_cdi = true
  cdi_spec_dirs = ['{folder}/cdi']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.grpc.v1.cri'.containerd]
    snapshotter = '{snapshotter}'
    [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc.options]
        BinaryName = '{runc}'
        Root = '{folder}/runc'
  [plugins.'io.containerd.grpc.v1.cri'.cni]
    bin_dir = '{folder}/cni'
    conf_dir = '{folder}/cni'
"""
_CONFIG = """
version = {version}
root = '{folder}/root'
state = '{folder}/state'
[grpc]
  address = '{folder}/c.sock'
{cri}
[plugins.'io.containerd.internal.v1.opt']
  path = '{folder}/opt'
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = '{folder}/nri.sock'
  plugin_path = '{folder}/nri.d'
  plugin_config_path = '{folder}/nri.conf.d'
  plugin_registration_timeout = '20s'
  plugin_request_timeout = '20s'
"""

_CNI = """#!/bin/sh
cat > /dev/null
[ "$CNI_COMMAND" = VERSION ] && echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' && exit 0
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","interfaces":[{"name":"'$CNI_IFNAME'","sandbox":"'$CNI_NETNS'"}],"ips":[{"address":"10.1.2.3/32","interface":0}]}'
exit 0
"""
"""A CNI plugin that does nothing but say that a pod has an address."""


class Containerd:
    """`folder` must be short and empty; it is removed at the end by whoever made it. `version2`: with cgroup
    version 2 alone (cgroup2.py)."""

    def __init__(
        self,
        runtime: Runtime,
        folder: Path,
        modules: tuple[ModuleType, ModuleType],
        *,
        version2: bool = False,
        snapshotter: str = "native",
    ) -> None:
        self.runtime = runtime
        self.snapshotter = snapshotter
        self.version2 = version2
        self.folder = folder
        self.cdi = folder / "cdi"
        self.nri_socket = folder / "nri.sock"
        self.log = folder / "containerd.log"
        self._sockets_before = set(SHIM_SOCKETS.glob("*"))
        self.cri = Cri(folder / "c.sock", modules)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Configure, start, import the images."""
        for name in ("cdi", "cni", "nri.d", "nri.conf.d", "opt"):
            (self.folder / name).mkdir()
        new = not self.runtime.version.startswith("1.")
        runc = cgroup2.runc_in(self.folder, self.runtime.runc) if self.version2 else self.runtime.runc
        values = {
            "folder": self.folder,
            "runc": runc,
            "pause": PAUSE,
            "snapshotter": self.snapshotter,
        }
        cri = (_CRI_V3 if new else _CRI_V2).format(**values)
        config = _CONFIG.format(version=3 if new else 2, cri=cri, **values)
        (self.folder / "containerd.toml").write_text(config)
        self.launch()
        self.import_images()

    def allow_own_networks(self) -> None:
        """Pods may have a network of their own, in which is nothing; containerd takes it up in a moment."""
        cni = self.folder / "cni"
        for name in ("loopback", "address"):
            (cni / name).write_text(_CNI)
            (cni / name).chmod(0o755)
        conf = {"cniVersion": "1.0.0", "name": "test", "plugins": [{"type": "address"}]}
        (cni / "10-test.conflist").write_text(json.dumps(conf))

    def import_images(self, folders: Mapping[str, Path] | None = None) -> None:
        """The usual images, or some of these folders' (images.py)."""
        tar = self.folder / "images.tar"
        write_images(self.runtime.busybox, tar, folders)
        self.import_archive(tar)

    def import_archive(self, tar: Path) -> None:
        local = [] if self.runtime.version.startswith("1.") else ["--local"]
        self.ctr("images", "import", *local, "--snapshotter", self.snapshotter, str(tar))

    def launch(self) -> None:
        """Start the process and wait until it answers."""
        command = [self.runtime.containerd, "-c", self.folder / "containerd.toml"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                cgroup2.inside(command) if self.version2 else command,
                env={**os.environ, "PATH": self.runtime.path},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, "containerd answers", log=self.log)

    def stop(self) -> None:
        """Stop the process; containers go on in their shims."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE)
        self._process = None

    def ctr(self, *arguments: str) -> None:
        command = [str(self.runtime.ctr), "-a", str(self.folder / "c.sock"), "-n", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, f"ctr {' '.join(arguments)}: {done.stderr}"

    def clean_up(self) -> None:
        """Remove every pod, stop, and take away what lies outside the folder."""
        pods = []
        if self._process is not None:
            with contextlib.suppress(grpc.RpcError):
                pods = self.cri.pods()
            for pod in pods:
                with contextlib.suppress(grpc.RpcError):
                    self.cri.remove_pod(pod)
        self.stop()
        self.cri.close()
        self._kill_shims()
        self._unmount()
        remove_cgroups(self.cri.made)

    def _kill_shims(self) -> None:
        """Shims of this containerd that are left, known by its address on their command line."""
        address = f"{self.folder}/c.sock".encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"containerd-shim-runc-v2") and address in words:
                    os.kill(int(entry.name), signal.SIGKILL)
        for path in set(SHIM_SOCKETS.glob("*")) - self._sockets_before:
            with contextlib.suppress(OSError):
                if not _is_bound(path):
                    path.unlink()

    def _unmount(self) -> None:
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in sorted((path for path in mounts if path.startswith(f"{self.folder}/")), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        shutil.rmtree(self.folder / "root", ignore_errors=True)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"containerd ended:\n{tail(self.log)}"
        try:
            return bool(self.cri.version())
        except grpc.RpcError:
            return False


def wait_until(
    condition: Callable[[], object], what: str, *, seconds: float = 3 * PATIENCE, log: Path | None = None
) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:g} s: {what}" + (f"\n{tail(log)}" if log else ""))


def tail(path: Path, lines: int = 40) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""


def _is_bound(socket: Path) -> bool:
    return any(line.endswith(str(socket)) for line in Path("/proc/net/unix").read_text().splitlines())


def remove_cgroups(containers: Iterable[str]) -> None:
    """The containers' cgroups in every hierarchy; one whose last process is still dying is tried again for a
    while."""
    tops = [top for top in (*CGROUPS.glob("*/k8s.io"), CGROUPS / "k8s.io") if top.is_dir()]
    left = [path for top in tops for path in (top / name for name in containers) if path.is_dir()]
    deadline = time.monotonic() + PATIENCE
    while left and time.monotonic() < deadline:
        for folder in left:
            with contextlib.suppress(OSError):
                folder.rmdir()
        left = [folder for folder in left if folder.exists()]
        time.sleep(0.05)
    for top in tops:
        # Another containerd may have its containers there.
        with contextlib.suppress(OSError):
            top.rmdir()
