"""What is printed is inert: nothing that a terminal obeys leaves koordra, whatever objects say.

Hypothesis writes texts with control characters, escape sequences and signs that turn the direction of writing
into every place where somebody else's words stand. One more line than there should be is a forged line.
"""

from __future__ import annotations

import ast
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from koordra import errors, logs
from koordra.allocator.explain.grouping import grouped
from koordra.allocator.explain.telling import lines
from koordra.allocator.reasons import Cause, Reason, refusal
from koordra.api import names
from koordra.api.kinds import DEVICE_CLASSES, EVENTS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.cli.cluster.cluster_objects import latest_events
from koordra.cli.main import main
from koordra.cli.output import as_text, render_table
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.controller.reporting.event_recorder import EventRecorder
from koordra.controller.resource_class.reconcile import ready
from koordra.controller.webhook.review import AdmissionRequest, AdmissionResponse, encode
from koordra.inert import inert, inert_lines
from koordra.kube.kubeconfig import new_client
from koordra.kubelet_plugin.status.pod_events import warn_pods
from koordra_devcluster.control_plane import ControlPlane
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod

ROOT = Path(__file__).resolve().parents[2]
EVIL = (
    "\x1b]0;title\x07", "\x1b[2J\x1b[1;1H", "\x9b31m", "\r", "\n", "\nkoordra: all is well", "\x00", "\x7f",
    "\x85", "\u2028", "\u2029", "\u202egpj.exe", "\u2066", "\ufeff", "\u200b", "\ud800", "\U000e0041", "\t",
)  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(EVIL), st.text(max_size=5)), min_size=1, max_size=4).map("".join)


def assert_inert(text: str) -> None:
    assert text.isprintable(), repr(text)


@given(TEXTS)
def test_escaping_twice_is_escaping_once(text: str) -> None:
    assert_inert(inert(text))
    assert inert(inert(text)) == inert(text)
    assert inert_lines(text).count("\n") == text.count("\n")
    assert inert("Grüße, 世界 🙂 \\x1b") == "Grüße, 世界 🙂 \\x1b"
    assert inert("\x1b[2J\n\u202e") == "\\x1b[2J\\n\\u202e"


@given(TEXTS)
def test_reasons_and_errors(text: str) -> None:
    reason = Reason(text, text, text, Cause.SELECTOR_ERROR.value, text)
    assert_inert(str(reason))
    assert_inert("".join(map(str, reason.to_dict().values())))
    several = [
        Reason(text + each, text, text, Cause.TAINTED.value, text, clause=text, values=((text + each, 1),))
        for each in "ab"
    ]
    for told in grouped(several):
        assert_inert("".join([*map(str, told.to_dict().values()), *lines([told]), *map(str, told.values)]))
    assert_inert(str(refusal(text, Cause.TAINTED, text, request=text, node=text)))
    assert_inert(str(errors.ApiError(text, code=500, reason=text)))
    assert_inert(str(errors.PrepareError(text)))
    problem = errors.SelectorError(text, object=text, field=text, remedy=text)
    assert_inert(str(problem))
    asked = AdmissionRequest("u", "CREATE", "ResourceClaim", "", {})
    review = json.loads(encode(asked, AdmissionResponse(problems=(problem,), warnings=(text,))))
    assert_inert(review["response"]["status"]["message"])
    review = json.loads(encode(asked, AdmissionResponse(warnings=(text,))))
    assert_inert("".join(review["response"]["warnings"]))


class Api:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    def get(self, *_: Any, **__: Any) -> Any:
        raise errors.NotFound("there is none")

    def create(self, _kind: Any, body: Any, **_: Any) -> Any:
        self.written.append(body)
        return body


@given(TEXTS)
def test_events_and_conditions(text: str) -> None:
    api: Any = Api()
    recorder = EventRecorder(api, now=lambda: "2026-01-01T00:00:00Z", identity="me", clock=lambda: 0.0)
    recorder(ClaimEvent("Tainted", text, ({"kind": "Pod", "metadata": {"name": "p", "uid": "1"}},)))
    assert recorder.flush()
    users = [{"resource": "pods", "name": "p", "uid": "1"}]
    warn_pods(
        api,
        {"metadata": {"name": "c", "namespace": "d"}, "status": {"reservedFor": users}},
        reason="NotLimited",
        message=text,
        now="2026-01-01T00:00:00Z",
    )
    assert len(api.written) == 2
    for body in (*api.written, ready("False", "InvalidSelector", text)):
        assert_inert(body["message"])
    said = {"source": {"component": "koordra-controller"}, "involvedObject": {"uid": "1"}, "message": text}
    assert_inert(latest_events([{**said, "reason": text}])["1"])


def messages(tree: ast.AST) -> Iterator[ast.expr]:
    """What stands behind "message" in a literal that has a reason, too: Events and conditions."""
    for each in ast.walk(tree):
        if isinstance(each, ast.Dict):
            entries = {
                key.value: value
                for key, value in zip(each.keys, each.values, strict=True)
                if isinstance(key, ast.Constant)
            }
            if {"reason", "message"} <= entries.keys():
                yield entries["message"]


def is_safe(value: ast.expr) -> bool:
    while isinstance(value, ast.Subscript):
        value = value.value
    called = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
    return isinstance(value, ast.Constant) or called in ("inert", "cut")


def test_no_message_is_written_but_by_this_way() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{value.lineno}": ast.unparse(value)
        for path in (ROOT / "koordra").rglob("*.py")
        for value in messages(ast.parse(path.read_text()))
        if not is_safe(value)
    }
    # The review's is of errors, which are inert.
    assert {each.partition(":")[0] for each in found} <= {"koordra/controller/webhook/review.py"}, found


def test_commands_write_by_say_alone() -> None:
    """Whatever a later command prints goes the same way."""
    writers = ("click.echo", "click.secho", "print", "sys.stdout.write", "sys.stderr.write")
    found = [
        f"{path.name}: {ast.unparse(each)}"
        for path in (ROOT / "koordra" / "cli").rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Call) and ast.unparse(each.func) in writers
    ]
    progress = [each for each in found if each.startswith("progress.py: click.echo(") and "\\x1b[K" in each]
    assert sorted(set(found) - set(progress)) == ["options.py: click.echo(inert_lines(text), err=err, nl=nl)"]


@contextmanager
def stderr() -> Iterator[StringIO]:
    before, sys.stderr = sys.stderr, StringIO()
    try:
        yield sys.stderr
    finally:
        sys.stderr = before


@pytest.mark.parametrize("as_json", [False, True])
@given(text=TEXTS)
def test_logs(as_json: bool, text: str) -> None:
    try:
        with stderr() as shown:
            logs.configure(json=as_json, process=text)
            log = logs.get_logger("koordra.test")
            log.info("claim_refused", claim=text, error=errors.NodeError(text), many=[text, {text: text}])
            try:
                raise ValueError(text)
            except ValueError:
                log.exception("pass_failed", claim=text)
        lines = shown.getvalue().splitlines() if as_json else shown.getvalue().split("\n")
        for line in lines:
            assert_inert(line)
        assert lines[0].count("claim_refused") == 1
        if as_json:
            assert len(lines) == 2
    finally:
        logs.configure(level="warning")


@given(TEXTS, TEXTS)
def test_tables_and_documents(one: str, other: str) -> None:
    lines = render_table(("A", "B"), [(one, [other, one]), ("-", other)]).split("\n")
    assert len(lines) == 4
    for line in lines:
        assert_inert(line)
    for form in ("json", "yaml"):
        document = {one: [other], "text": f"{one}{other}"}
        shown = as_text(document, form)
        for line in shown.split("\n"):
            assert_inert(line)
        try:
            one.encode(), other.encode()
        except UnicodeEncodeError:
            continue  # no object has it
        assert (json.loads(shown) if form == "json" else yaml.safe_load(shown)) == document


def objects_with(text: str, *, syntax: str = "") -> list[Any]:
    waits = claim("waits", memory="120Gi", uid="1")
    request = waits["spec"]["devices"]["requests"][0]["exactly"]
    selector = f'device.attributes["""{text}"""].model == "H100" {syntax}'
    request["selectors"] = [{"cel": {"expression": selector}}]
    published = gpu_slice("n0", 1)
    for device in published["spec"]["devices"]:
        device["attributes"][f"{names.DRIVER}/productName"] = {"string": text}
        device["attributes"][f"{names.DRIVER}/model"] = {"string": text}
    version = "resource.k8s.io/v1"
    return [
        {"apiVersion": version, "kind": "DeviceClass", **device_class(names.CLASS_GPU, "gpu")},
        {"apiVersion": "v1", "kind": "Node", **node("n0")},
        {"apiVersion": version, "kind": "ResourceSlice", **published},
        {"apiVersion": version, "kind": "ResourceClaim", **waits},
        *(
            [{"apiVersion": version, "kind": "ResourceClaim", **claim(syntax, memory="120Gi", uid="2")}]
            if syntax
            else []
        ),
        {"apiVersion": "v1", "kind": "Pod", **pod("p", ["waits"])},
    ]


def said_of(text: str) -> Any:
    """What the controller is made to have said, by whoever may write Events."""
    return {
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"uid": "1", "kind": "ResourceClaim", "name": "waits", "namespace": "default"},
        "source": {"component": "koordra-controller"},
        "reason": "Tainted",
        "message": text,
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }


def shown_by(arguments: list[str], capture: Callable[[], Any]) -> list[str]:
    """Lines, of stdout and stderr, without what a slow machine is told of progress."""
    before, sys.argv = sys.argv, ["koordra", *arguments]
    try:
        main()
    except SystemExit as ended:
        assert int(ended.code or 0) < 100
    finally:
        sys.argv = before
    captured = capture()
    lines: list[str] = f"{captured.out}{captured.err}".split("\n")
    for line in lines:
        assert_inert(line)
    assert "Traceback" not in captured.err
    return [line for line in lines if not (line.startswith("koordra: ") and line.endswith(" ..."))]


READABLE = [text.replace("\ud800", "x") for text in EVIL]
"""What an API server stores."""


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "-f", "FILE"],
        ["plan", "-f", "FILE", "-o", "yaml"],
        ["plan", "-f", "FILE", "-o", "json"],
        ["explain", "-f", "FILE"],
        ["explain", "-f", "FILE", "TEXT"],
        ["explain", "-f", "UNREADABLE"],
        ["topology", "--job", "TEXT", "-f", "FILE"],
        ["convert", "-f", "FILE"],
        ["plan", "--policy", "TEXT", "-f", "FILE"],
        ["explain", "-f", "TEXT"],
        ["TEXT"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("text", READABLE, ids=ascii)
def test_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    files = {"FILE": str(tmp_path / "objects.json"), "UNREADABLE": str(tmp_path / "other.yaml")}
    lengths = []
    for said in ("harmless", f"{text.replace(chr(0), chr(1))}harmless"):
        document = {"apiVersion": "v1", "kind": "List", "items": objects_with(said, syntax=said)}
        Path(files["FILE"]).write_text(json.dumps(document))
        Path(files["UNREADABLE"]).write_text(json.dumps({"kind": said, "metadata": {"name": said}}))
        given = [{**files, "TEXT": said}.get(each, each) for each in arguments]
        lengths.append(len(shown_by(given, capsys.readouterr)))
    if not {"convert", "yaml"} & set(arguments):  # documents, which have as many lines as their texts
        assert lengths[0] == lengths[1]


def test_words_of_the_option_parser(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise click.UsageError("".join(EVIL))

    monkeypatch.setattr("koordra.cli.main.cli.main", refused)
    assert len(shown_by([], capsys.readouterr)) == 1 + "".join(EVIL).count("\n") + 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """A text -> the kubeconfig of a cluster where it stands in a claim, a slice and an Event."""
    stop = threading.Event()
    plane = ControlPlane(tmp_path_factory.mktemp("c"))
    plane.start(stop)
    client = new_client(str(plane.kubeconfig))
    by_kind = {
        "DeviceClass": DEVICE_CLASSES,
        "ResourceSlice": RESOURCE_SLICES,
        "ResourceClaim": RESOURCE_CLAIMS,
        "Pod": PODS,
    }
    client.create(NODES, node("n0"))

    def holding(text: str) -> str:
        for obj in objects_with(text):
            if obj["kind"] in by_kind:
                kind, name = by_kind[obj["kind"]], obj["metadata"]["name"]
                namespace = "default" if kind.namespaced else ""
                with contextlib.suppress(errors.NotFound):
                    client.delete(kind, name, namespace=namespace)
                made = client.create(kind, obj, namespace=namespace)
                if kind is RESOURCE_CLAIMS:
                    uid = made["metadata"]["uid"]
        event = said_of(text)
        event["involvedObject"]["uid"] = uid
        with contextlib.suppress(errors.NotFound):
            client.delete(EVENTS, "e", namespace="default")
        client.create(EVENTS, event, namespace="default")
        return str(plane.kubeconfig)

    yield holding
    stop.set()
    plane.close()


@pytest.mark.parametrize("text", READABLE, ids=ascii)
def test_commands_that_ask_the_cluster(
    cluster: Callable[[str], str], capsys: pytest.CaptureFixture[str], text: str
) -> None:
    commands = (
        ["claims", "-o", "wide"],
        ["devices", "-o", "wide"],
        ["explain"],
        ["topology", "--node", "n0"],
    )
    lengths = []
    for said in (f"{inert(text)}harmless", f"{text}harmless"):
        kubeconfig = cluster(said)
        lengths.append(
            [len(shown_by([*each, "--kubeconfig", kubeconfig], capsys.readouterr)) for each in commands]
        )
    assert lengths[0] == lengths[1]
    assert min(lengths[0]) > 2
