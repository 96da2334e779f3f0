"""Every option of every command, with values that nobody should give: words and an exit status, no
traceback, nothing that a terminal obeys."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest

from koordra.cli.main import cli, main
from tests.fakes.every_field import deep, rich_claim, rich_pod
from tests.fakes.joint_cluster import gpu_slice, node

TEXTS: Final = (
    "", " ", "-", "--", "-1", "0", "1", "x", "a,b", ",", "=", "a=b", "a=b=c", ":", ":0", "1:2", "[::1]:0", "*", "NaN",
    "inf", "1e999", "9" * 400, "20Gi", "-20Gi", "0x10", "１２", "\x1b[2J", "\n", "\u202eabc", "{{.}}", "%s%n", "/",
    "../..", "x" * 10_000, "\udcff", "claim/", "claim/c", "pod/p", "gang/\x1b[2J", "node/n0",
)  # fmt: skip
"""`\udcff` is what Python makes of a byte in an argument that is no UTF-8."""

FILES: Final[dict[str, bytes]] = {
    "empty": b"",
    "blank": b"\n---\n---\n",
    "binary": bytes(range(256)) * 8,
    "utf16": "a: b".encode("utf-16"),
    "null": b"null",
    "number": b"1",
    "text": b"just words",
    "list": b"[1, null, [], {}]",
    "brackets": b"[" * 100_000,
    "braces": b'{"a":' * 100_000,
    "deep": json.dumps(deep()).encode(),
    "laughs": b"a: &a [x, x]\n" + b"".join(b"%c: &%c [*%c, *%c]\n" % (n + 1, n + 1, n, n) for n in range(97, 121)),
    "tag": b"!!python/object/apply:os.system [id]",
    "cycle": b"a: &a [*a]",
    "date": b"a: 2026-99-99\nb: 2026-01-01\n? [x]\n: y",
    "columns": b"sn,cpu_milli,gpu\na,b\n" + b"," * 10_000,
    "xml": b"<!DOCTYPE a [<!ENTITY b 'c'>]><system>&b;</system>",
    "odd-kinds": json.dumps([{"kind": {}, "apiVersion": []}, {"kind": "Pod"}, {"kind": "ResourceClaim", "metadata": 1}]).encode(),
    "objects": json.dumps({"kind": "List", "apiVersion": "v1", "items": [
        {"apiVersion": "v1", "kind": "Node", **node("n0")},
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **gpu_slice("n0", 1)}, rich_claim(), rich_pod(),
    ]}).encode(),
}  # fmt: skip

REQUIRED: Final = {
    "convert": ["-f", "FILE"],
    "cordon-device": ["--node", "n0", "gpu-0"],
    "explain": ["-f", "FILE"],
    "plan": ["-f", "FILE"],
    "replay": ["--nodes", "FILE", "--pods", "FILE"],
    "topology": ["--machine", "dgx-a100"],
    "kubelet-plugin": ["--node-name", "n0"],
    "nri": ["--node-name", "n0"],
    "node make-vfs": ["--per-nic", "1"],
    "node mig": ["on", "gpu-0"],
    "debug leftover-table": ["--file", "FILE"],
}
"""Arguments without which a command does nothing."""
FOLDERS: Final = (
    "root",
    "state_dir",
    "cdi_dir",
    "kubelet_root",
    "hook_folder",
    "socket_path",
    "bundles",
    "proc",
)
"""Parameters that name the machine's own folders: empty ones, where they are not what is tried."""
PARSED_ALONE: Final = (
    "demo",
    "devcluster control-plane",
    "devcluster kubelet",
    "node release-driver",
    "node selftest",
)
"""What starts other processes or waits for them is not started; the values are read all the same."""


def commands() -> Iterator[tuple[str, click.Command]]:
    pending: list[tuple[str, click.Command]] = [("", cli)]
    for words, command in pending:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                pending.append((f"{words} {name}".strip(), found))
        else:
            yield words, command


EVERY: Final = {
    f"{words} {parameter.opts[0]}": (words, command, parameter)
    for words, command in commands()
    for parameter in command.params
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("f")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    parts: dict[str, Any] = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    (folder / "kubeconfig").write_text(json.dumps(parts))
    return folder


@pytest.fixture(autouse=True)
def nothing_goes_on(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Processes are told to stop before they have begun; the API server is one that does not answer."""

    def stopped() -> threading.Event:
        event = threading.Event()
        event.set()
        return event

    monkeypatch.setattr("koordra.process.lifecycle.stop_on_signals", stopped)
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)


def values(parameter: click.Parameter, folder: Path) -> list[str]:
    if isinstance(parameter.type, click.Path) or "file" in parameter.name:
        files = [str(folder / name) for name in (*FILES, "folder", "loop", "nothing")]
        return [*files, "", "/dev/null", "x" * 5_000, "\udcff"]
    return list(TEXTS)


def arguments(
    words: str, command: click.Command, parameter: click.Parameter, value: str, folder: Path
) -> list[str]:
    empty = iter(f"{folder}/e{number}" for number in itertools.count())
    required = [str(folder / "objects") if word == "FILE" else word for word in REQUIRED.get(words, [])]
    own = [
        word
        for other in command.params
        if other is not parameter and other.name in FOLDERS and not isinstance(other, click.Argument)
        for word in (other.opts[-1], next(empty))
    ]
    if isinstance(parameter, click.Argument):
        tried = ["--", value]
    elif getattr(parameter, "is_flag", False):
        tried = [parameter.opts[0], parameter.opts[0]]
    else:
        tried = [parameter.opts[-1], value]
    return [*words.split(), *own, *required, *tried]


@pytest.mark.long
@pytest.mark.parametrize("which", EVERY)
def test_an_option_takes_anything(
    which: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words, command, parameter = EVERY[which]
    for value in values(parameter, folder):
        given = arguments(words, command, parameter, value, folder)
        if words in PARSED_ALONE:
            with contextlib.suppress(click.ClickException, click.exceptions.Exit):
                command.make_context(words, given[len(words.split()) :])
            continue
        monkeypatch.setattr(sys, "argv", ["koordra", *given])
        code: Any = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        assert code in (0, None) or 0 < int(code) < 100, ascii(value)
        assert "Traceback" not in said.err, ascii(value)
        for line in f"{said.out}{said.err}".split("\n"):
            assert line.isprintable(), (ascii(value), ascii(line))


def test_every_command_is_tried() -> None:
    assert len(EVERY) > 180
    assert {words for words, _, _ in EVERY.values()} >= {*REQUIRED, *PARSED_ALONE, "controller", "node check"}
