"""The names that sort by rank are resolved by glibc itself, as in a pod with a cluster's search domains.

In namespaces of its own: a name server on loopback, and a resolv.conf like kubelet's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from koordra.kubelet_plugin.cdi.container_files import hostaliases

SERVER = """
import socket, sys
known = {b"serve-1.serve.team.svc.cluster.local": "10.9.8.7"}
listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listening.bind(("127.0.0.1", 53))
print("listening", flush=True)
while True:
    asked, who = listening.recvfrom(512)
    at, labels = 12, []
    while asked[at]:
        labels.append(asked[at + 1 : at + 1 + asked[at]])
        at += asked[at] + 1
    found = known.get(b".".join(labels).lower())
    is_address = found is not None and asked[at + 1 : at + 3] == b"\\x00\\x01"
    flags = b"\\x81\\x80" if found else b"\\x81\\x83"
    answer = b"\\xc0\\x0c\\x00\\x01\\x00\\x01\\x00\\x00\\x00\\x05\\x00\\x04" + socket.inet_aton(found) if is_address else b""
    count = b"\\x00\\x01" if answer else b"\\x00\\x00"
    listening.sendto(asked[:2] + flags + b"\\x00\\x01" + count + b"\\x00" * 4 + asked[12 : at + 5] + answer, who)
"""
SCRIPT = """
ip link set lo up
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
exec 3< <(exec "$2" "$1/server.py")
server=$!
read -r _ <&3
export HOSTALIASES="$1/hostaliases"
"$2" -c 'import socket; print(socket.getaddrinfo("rank-00001", 29500, socket.AF_INET)[0][4][0])'
kill "$server"
"""


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("unshare"), reason="needs Linux namespaces")
@pytest.mark.long
def test_glibc_resolves_the_names(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--net", "--mount", "true"], check=False).returncode:
        pytest.skip("needs the right to make namespaces")
    written = {
        "resolv.conf": "nameserver 127.0.0.1\nsearch team.svc.cluster.local cluster.local\noptions ndots:5\n",
        "nsswitch.conf": "hosts: files dns\n",
        "server.py": SERVER,
        "hostaliases": hostaliases("serve-0.serve:8,serve-1.serve:8", "", leader="serve-0.serve").decode(),
    }
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    ran = subprocess.run(
        ["unshare", "--net", "--mount", "bash", "-c", SCRIPT, "bash", str(tmp_path), sys.executable],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.stdout.split() == ["10.9.8.7"], ran.stderr
