"""What may stand where a program expects a file of its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from koordra.node_state.disk import LARGEST


def link(path: Path) -> None:
    path.with_name("target").write_text("{}")
    path.symlink_to(path.with_name("target"))


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)


IN_PLACE_OF_A_FILE: dict[str, Callable[[Path], None]] = {
    "a link": link,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a socket": unix_socket,
    "a folder": lambda path: path.mkdir(),
    "a huge file": huge,
}
