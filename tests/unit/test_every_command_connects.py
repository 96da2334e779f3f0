"""Every command of a person asks the API server that --kubeconfig and --context name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import yaml
from click.testing import CliRunner

from koordra.cli.main import cli
from koordra.kube.client import KubeClient
from tests.attacks.test_every_option import EVERY

NEEDED: Final = {"cordon-device": ("node-a", "--all"), "profile": ("job",), "topology": ("--node", "n")}
"""Without which a command asks nobody."""
COMMANDS: Final = [
    words
    for words, command, parameter in EVERY.values()
    if parameter.name == "context" and words not in ("dashboard", "profiler")
]


class Asked(Exception):
    """By whom, in place of an answer."""


@pytest.mark.parametrize("words", COMMANDS)
def test_it_asks_the_server_that_is_named(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def negotiate(self: KubeClient) -> object:
        raise Asked(self.server)

    monkeypatch.setattr(KubeClient, "negotiate", negotiate)
    monkeypatch.setattr(KubeClient, "get", negotiate)
    contexts = [{"name": name, "context": {"cluster": name, "user": "u"}} for name in ("usual", "other")]
    clusters = [
        {"name": name, "cluster": {"server": f"https://{name}.test:6443"}} for name in ("usual", "other")
    ]
    users = [{"name": "u", "user": {}}]
    file = tmp_path / "kubeconfig"
    file.write_text(
        yaml.safe_dump(
            {"current-context": "usual", "contexts": contexts, "clusters": clusters, "users": users}
        )
    )
    for more, name in (((), "usual"), (("--context", "other"), "other")):
        given = [*words.split(), *NEEDED.get(words, ()), "--kubeconfig", str(file), *more]
        asked = CliRunner().invoke(cli, given).exception
        assert isinstance(asked, Asked), asked
        assert str(asked) == f"https://{name}.test:6443"
