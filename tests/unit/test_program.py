"""The program itself: what its help imports, and commands that are not installed."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import koordra
from koordra import logs
from koordra.cli.main import cli
from koordra.cli.processes import controller, nri
from koordra.controller import run as controller_run
from koordra.controller.webhook.cert_rotation import WebhookSettings
from koordra.kube import kubeconfig
from koordra.nri import service
from koordra.process import lifecycle
from tests.conftest import ROOT


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Settings of the processes that commands would have run; neither signals, logs nor a cluster are
    touched."""
    found: list[Any] = []
    monkeypatch.setattr(lifecycle, "stop_on_signals", threading.Event)
    monkeypatch.setattr(logs, "configure", lambda **_: None)
    monkeypatch.setattr(kubeconfig, "new_client", lambda *_, **__: None)
    monkeypatch.setattr(service, "run", lambda options, _stop: found.append(options))
    monkeypatch.setattr(controller_run, "run", lambda _client, settings, **_: found.append(settings))
    monkeypatch.setattr(
        controller_run, "start_webhook", lambda _client, settings, **_: found.append(settings)
    )
    return found


def test_options_of_the_hook_are_its_settings(started: list[Any], tmp_path: Path) -> None:
    arguments = ["--node-name", "n", "--state-dir", str(tmp_path), "--socket", "/s", "--plugin-index", "07"]
    arguments += ["--exempt-namespace", "a", "--validate", "--proc", "/p", "--cgroups", "/c"]
    arguments += ["--verify-period", "0", "--metrics-address", ":1"]
    assert CliRunner().invoke(nri.command, arguments).exception is None
    (options,) = started
    assert (options.node_name, options.state_dir, options.socket_path) == ("n", tmp_path, Path("/s"))
    assert (options.plugin_index, options.exempt, options.validating) == ("07", {"a", "koordra-system"}, True)
    assert (options.proc, options.cgroups, options.bundles) == (Path("/p"), Path("/c"), None)
    assert (options.verify_period, options.metrics_address, options.client) == (0.0, ":1", None)


def test_the_hook_never_keeps_the_devices_from_koordras_own_plugin(started: list[Any]) -> None:
    """Whatever the operator lists, and wherever it is installed."""
    for env in ({}, {"POD_NAMESPACE": "gpus"}):
        ran = CliRunner().invoke(nri.command, ["--node-name", "n", "--exempt-namespace", "storage"], env=env)
        assert ran.exception is None
    assert [options.exempt for options in started] == [{"storage", "koordra-system"}, {"storage", "gpus"}]


def test_options_of_the_controller_are_its_settings(started: list[Any]) -> None:
    arguments = [
        "--identity",
        "me",
        "--no-leader-elect",
        "--lease-namespace",
        "ns",
        "--starvation-after",
        "7",
    ]
    arguments += ["--preemption", "--elastic-gpu", "--training-jobs", "--peer-annotations", "--legacy-pods"]
    arguments += ["--learn-from-profiles"]
    arguments += ["--webhook-address", ":9443", "--webhook-certificates", "/tls", "--webhook-host", "h"]
    assert CliRunner().invoke(controller.command, arguments).exception is None
    webhook, settings = started
    assert webhook == WebhookSettings(":9443", "ns", Path("/tls"), "h")
    assert (settings.identity, settings.leader_elect, settings.lease_namespace) == ("me", False, "ns")
    assert (settings.starves_after, settings.preemption, settings.elastic_gpu) == (7.0, True, True)
    assert settings.peer_annotations
    assert settings.training_jobs
    assert settings.learn_from_profiles
    assert settings.legacy is not None


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_help_imports_click_and_the_standard_library_alone() -> None:
    """What `koordra --help` imports on top of a bare interpreter (which a .pth file may have filled)."""
    found = _python(
        "import sys; before = set(sys.modules)\n"
        "from koordra.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "print('imported', *{name.split('.')[0] for name in set(sys.modules) - before})\n"
    )
    assert found.returncode == 0, found.stderr
    imported = set(found.stdout.splitlines()[-1].split()[1:])
    assert imported - sys.stdlib_module_names == {"click", "koordra"}


def test_explain_imports_nothing_that_allocates_where_the_controller_answers() -> None:
    """At 10,000 nodes two seconds are for everything; the allocator alone takes half a second to import."""
    found = _python(
        "import sys\n"
        "from koordra.cli.cluster.cluster_answers import Cluster, of_cluster\n"
        "from koordra.cli.cluster.explain import _show\n"
        "from koordra.cli.options import Scope\n"
        "class Client:\n"
        "    authorization = 'Bearer token'\n"
        "    def read(self, path, **_):\n"
        "        return {'claim': dict(namespace='team', name='c', uid='1', status='DoesNotFit', told=['why'])}\n"
        "    def list(self, kind, **_):\n"
        "        return [{'metadata': {'namespace': 'team', 'name': 'c'}}], ''\n"
        "client = Client()\n"
        "_show((of_cluster(client, ['c'], 'team', Scope(), Cluster(client)), {}, ''), 'text')\n"
        "print('imported', *sys.modules)\n"
    )
    assert found.returncode == 0, found.stderr
    told, *_, imported = found.stdout.splitlines()
    assert told == "team/c does not fit"
    heavy = (
        "koordra.placement",
        "koordra.cel",
        "koordra.allocator.score",
        "koordra.compat",
        "numpy",
        "networkx",
    )
    assert not {one for one in imported.split() if one.startswith(heavy)}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["explian"], "No such command 'explian'. Did you mean 'explain'?"),
        (["node", "chekc"], "No such command 'chekc'. Did you mean 'check'?"),
        (["debug", "dmup"], "No such command 'dmup'. Did you mean 'dump'?"),
        (["explain", "--wathc"], "No such option '--wathc'"),
        (["xyzzy"], "No such command 'xyzzy'.\n"),
        (["-x"], "No such option '-x'."),
    ],
)
def test_a_word_that_is_misspelt_is_answered_with_the_one_that_was_meant(typed: list[str], said: str) -> None:
    found = CliRunner().invoke(cli, typed)
    assert found.exit_code == 2
    assert said in found.output


@pytest.mark.parametrize("command", ["demo", "devcluster"])
def test_without_the_demo_distribution_its_commands_name_what_to_type(command: str) -> None:
    found = _python(
        "import sys; from pathlib import Path\n"
        "sys.path[:] = [one for one in sys.path if not Path(one, 'koordra_devcluster').is_dir()]\n"
        f"sys.argv = ['koordra', {command!r}]\n"
        "from koordra.cli.main import main\nmain()"
    )
    assert found.returncode == 2
    assert f"koordra {command} is not installed; type: pip install 'koordra[demo]'" in found.stderr
    assert "Traceback" not in found.stderr


def test_the_two_distributions_name_each_others_version() -> None:
    main = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    demo = tomllib.loads((ROOT / "devcluster" / "pyproject.toml").read_text())["project"]
    assert main["version"] == demo["version"] == koordra.__version__
    assert main["optional-dependencies"]["demo"] == [f"{demo['name']}=={demo['version']}"]
    assert demo["dependencies"] == [f"koordra=={koordra.__version__}"]


def test_what_is_deployed_is_of_this_version() -> None:
    """A chart's own version is SemVer, which writes an alpha with a dash."""
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "koordra" / "Chart.yaml").read_text())
    assert chart["appVersion"] == koordra.__version__
    assert chart["version"].replace("-", "") == koordra.__version__
    shipped = [path.read_text() for path in (ROOT / "deploy" / "kustomize").rglob("*.yaml")]
    tags = {tag for text in shipped for tag in re.findall(r"(?m)^ +image: koordra:(\S+)$", text)}
    assert tags == {koordra.__version__}
    pages = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("quickstart", "install"))
    assert set(re.findall(r"koordra[:-](\d[\w.]*)\b", pages)) == {koordra.__version__}


def test_it_is_an_alpha_until_reports_of_real_hardware_are_among_the_results() -> None:
    results = ROOT / "benchmarks" / "results"
    tried = all((results / f"{name}.md").exists() for name in ("selftest", "fabric"))
    assert ("a" in koordra.__version__) == (not tried)
    if not tried:
        assert "An alpha" in CliRunner().invoke(cli, ["version"]).output
        assert koordra.__version__ in "".join((ROOT / "README.md").read_text().splitlines(keepends=True)[:8])
    assert CliRunner().invoke(cli, ["version", "--short"]).output == f"{koordra.__version__}\n"
