"""Every `koordra ...` of every page is a command with such options; those that need no cluster and no node
are run as they stand, and say what the page says. What make, kubectl and Helm are told on a page is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from koordra.cli.cluster.dashboard.command import ADDRESS
from koordra.cli.main import cli
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from scripts import site
from tests.fakes.chart import of_components, rendered
from tests.machines import catalogue
from tests.unit.allocator.machines import claim, device_classes, node, pod, request

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    page for page in {path.relative_to(ROOT) for pattern in site.PAGES for path in ROOT.glob(pattern)}
    if page.name != "CHANGELOG.md" and page.parts[0] != "benchmarks"
)  # fmt: skip
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "console", "text", "bash")
OFFLINE = {"plan", "explain", "convert", "replay", "topology", "version", "debug leftover-table"}
"""Commands that may answer from files alone."""


@dataclass(frozen=True)
class Documented:
    page: Path
    line: str
    output: tuple[str, ...] = ()
    runs: bool = False

    @property
    def words(self) -> list[str]:
        """The first command of the line, without what it is redirected to."""
        lexer = shlex.shlex(self.line, posix=True, punctuation_chars=";|>&")
        lexer.whitespace_split = True
        found: list[str] = []
        for word in lexer:
            if word[0] in ";|>&":
                break
            found.append(word.strip("[]"))
        return found[1:]


def blocks(page: Path) -> Iterator[str]:
    """What a page shows of a terminal."""
    text = (ROOT / page).read_text()
    yield from (body for _, language, body in FENCE.findall(text) if language in SHELL)
    yield from re.findall(r"(?:^(?: {4,}.*|)\n)+", FENCE.sub("", text), re.MULTILINE)


def documented() -> Iterator[Documented]:
    for page in PAGES:
        for body in blocks(page):
            yield from _in_block(page, body)
        rest = FENCE.sub("", (ROOT / page).read_text())
        for line in re.findall(r"`(koordra [^`\n]+)`", re.sub(r"^ {4,}.*$", "", rest, flags=re.MULTILINE)):
            yield Documented(page, line.replace("...", "").replace("…", ""))


def _in_block(page: Path, body: str) -> Iterator[Documented]:
    lines = [line.strip() for line in body.split("\n")]
    for number, line in enumerate(lines):
        command = re.sub(r"\s+#.*", "", line).removeprefix("$ ")
        if command.startswith("koordra ") and not command.endswith((",", ".", ":")):
            output = []
            for shown in lines[number + 1 :] if line.startswith("$ ") else ():
                if shown.startswith("$ "):
                    break
                output.append(shown)
            yield Documented(page, command, tuple(filter(None, output)), runs=True)


ALL = list(dict.fromkeys(documented()))


def resolved(words: list[str]) -> tuple[click.Command, str, list[str]]:
    """The command, its name, and the words that are left. Raises UsageError for one that there is not."""
    command: click.Command = cli
    names: list[str] = []
    ctx = click.Context(cli, info_name="koordra")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(ctx, words[0])
        if inner is None:
            raise click.UsageError(f"no command {words[0]!r}")
        command, ctx = inner, click.Context(inner, info_name=words[0], parent=ctx)
        names.append(words.pop(0))
    return command, " ".join(names), words


@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.page}: {one.line}"[:80])
def test_it_is_a_command_with_such_options(one: Documented) -> None:
    words = one.words
    if not words or words[0].isupper() or words[0].startswith("-"):
        return
    for alternative in words[0].split("|"):
        command, _, left = resolved([alternative, *words[1:]])
        known = {
            name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)
        }
        said = [word.partition("=")[0] for word in left if re.fullmatch(r"--?[a-zA-Z][a-z-]*(=.*)?", word)]
        assert not set(said) - known - {"-h", "--help"}, f"{one.page}: {one.line}"


def published(name: str, machine: str = "hgx-h100") -> list[dict[str, Any]]:
    slices = build_slices(
        catalogue.machine(machine), node_name=name, node_uid=None, mode="joint", generation=1
    )
    return [node(name), *slices]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those that the pages name: a cluster of one node, jobs that want two more, a legacy pod, a trace."""
    tmp_path = tmp_path_factory.mktemp("files")
    busy = claim("busy", request("gpu", count=7))
    jobs = [
        one
        for number in range(2)
        for one in (claim(f"train-{number}-gpus", request("gpu", count=8), namespace="team"), pod(f"train-{number}", f"train-{number}-gpus", namespace="team"))
    ]  # fmt: skip
    wanted = [*jobs, claim("train-0", request("gpu"))]
    legacy = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team"},
              "spec": {"containers": [{"name": "a", "image": "app:1", "resources": {"limits": {"aliyun.com/gpu-mem": 3}}}]}}  # fmt: skip
    written = {
        "cluster.yaml": [*device_classes(), *published("node-1"), busy, pod("busy", "busy")],
        "wanted.yaml": wanted,
        "claims.yaml": wanted[:1],
        "converted.yaml": wanted[:1],
        "mine.yaml": wanted[:1],
        "c.yaml": [*device_classes(), *published("node-1")],
        "manifests.yaml": [legacy],
        "parameters.yaml": [{"apiVersion": "gpu.resource.nvidia.com/v1alpha1", "kind": "GpuClaimParameters", "metadata": {"name": "one", "namespace": "team"}, "spec": {"count": 1}}],
        "pods.yaml": [legacy],
    }  # fmt: skip
    for name, documents in written.items():
        (tmp_path / name).write_text(yaml.safe_dump_all(documents))
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "nodes.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn1,96000,786432,8,A100\nn2,96000,786432,8,A100\n"
    )
    (tmp_path / "pods.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
        + "".join(f"p{n},4000,1024,1,{500 if n % 2 else 1000},\n" for n in range(40))
    )
    runner = CliRunner()
    saved = runner.invoke(
        cli,
        [
            "replay",
            "--nodes",
            str(tmp_path / "nodes.csv"),
            "--pods",
            str(tmp_path / "pods.csv"),
            "--save-table",
            str(tmp_path / "table.json"),
        ],
    )
    assert saved.exit_code == 0, saved.output
    return tmp_path


@pytest.fixture
def folder(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(files)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return files


def offline(one: Documented) -> bool:
    try:
        _, name, left = resolved(one.words)
    except click.UsageError:
        return False
    return (
        one.runs
        and name in OFFLINE
        and (name == "version" or any(word in ("-f", "--machine", "--nodes", "FILE") for word in left))
        and not {word for word in left if word.isupper()}
    )


RUN = [one for one in ALL if offline(one)]


def test_enough_of_them_are_run() -> None:
    assert len(RUN) > 12
    assert sum(bool(one.output) for one in RUN) >= 3


@pytest.mark.long
@pytest.mark.parametrize("one", RUN, ids=lambda one: f"{one.page}: {one.line}"[:80])
def test_it_runs_and_says_what_the_page_says(one: Documented, folder: Path) -> None:
    ran = CliRunner().invoke(cli, one.words)
    assert ran.exit_code == 0, f"{one.page}: {one.line}\n{ran.output}\n{ran.exception}"
    said = [" ".join(line.split()) for line in ran.output.splitlines()]
    for line in one.output:
        assert line == "..." or " ".join(line.split()) in said, (
            f"{one.page}: {one.line}\nshows {line!r}, and says\n{ran.output}"
        )


def lines_of(program: str) -> list[str]:
    """Commands of another program that pages show, without their comments."""
    text = "\n".join(body for page in PAGES for body in blocks(page))
    lines = re.findall(rf"^ *(?:\$ )?({program} .*)$", text, re.MULTILINE)
    return [re.sub(r"\s+#.*", "", line) for line in lines]


def test_what_make_and_kubectl_are_told_is_there() -> None:
    """Targets, files, and the workloads of koordra's namespace."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    prose = "".join((ROOT / page).read_text() for page in PAGES)
    made = {
        *re.findall(r"`make ([a-z0-9-]+)", prose),
        *re.findall(r"\bmake ([a-z0-9-]+)", str(lines_of("make"))),
    }
    assert len(made) > 8
    assert not made - targets
    shown = "\n".join(lines_of("kubectl"))
    files = re.findall(r" -[fk] (\S+/\S+)", shown)
    assert len(files) > 8
    assert not [name for name in files if not (ROOT / name).exists()]
    workloads = {f"{kind.lower()}/{name}" for kind, name in of_components("dashboard", "profiler")}
    named = re.findall(r"\bdeploy/koordra-[a-z-]+", shown)
    assert len(named) >= 2
    assert not {name.replace("deploy/", "deployment/") for name in named} - workloads


def test_the_chart_takes_what_helm_is_told() -> None:
    told = re.findall(r"--set '?([\w.]+)=([^'`\s]+)", "".join((ROOT / page).read_text() for page in PAGES))
    assert len(told) > 4
    for path, word in told:
        value: Any = word.strip("{}").split(",") if word.startswith("{") else word
        for key in reversed(path.split(".")):
            value = {key: value}
        assert rendered(**value) != rendered(), path


def test_every_output_is_compared() -> None:
    """Here, by the FAQ's own tests (tests/unit/explain/test_faq.py), or with a golden file."""
    others = [one for one in ALL if one.output and one not in RUN and one.page.name != "faq.md"]
    golden = (ROOT / "tests" / "golden" / "profiles" / "profile.txt").read_text().split("\n")
    said = {
        "koordra profile train -n team": [line.strip() for line in golden if line],
        "koordra dashboard": [f"http://{ADDRESS}/"],
    }
    assert {one.line: list(one.output) for one in others} == said
