"""A real PostgreSQL of this machine's, with a cluster of its own in a folder, and a socket in place of a
port."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ANOTHER = "postgres"
"""Whom Debian's package makes; PostgreSQL does not run as root."""


def programs() -> Path | None:
    there = shutil.which("initdb")
    found = [Path(there).parent] if there else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return found[-1] if found and (found[-1] / "postgres").exists() else None


@contextmanager
def postgresql(binaries: Path) -> Iterator[str]:
    """Its URL. The folder is not below a test's own, which nobody else may enter."""
    user = ANOTHER if os.geteuid() == 0 else None

    def run(program: str, *arguments: str) -> None:
        command = [str(binaries / program), *arguments]
        made = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr

    with TemporaryDirectory(prefix="koordra-pg-", ignore_cleanup_errors=True) as folder:
        if user:
            shutil.chown(folder, user)
        data = f"{folder}/data"
        run("initdb", "-D", data, "-U", "koordra", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        run("pg_ctl", "-D", data, "-o", options, "-w", "-t", "600", "-l", f"{folder}/log", "start")
        try:
            yield f"postgresql+psycopg://koordra@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
