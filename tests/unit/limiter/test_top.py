"""`koordra node top`: tables and document."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from koordra.cli.node.top import mebibytes
from koordra.cli.node.top import top as command
from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter.open_region import OpenRegion

UUID = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"


def test_a_line_for_each_share(tmp_path: Path) -> None:
    claims = tmp_path / "limiter" / "claims"
    region.allow(claims / "a", claim="a", uuid=UUID, limit=3 << 30)
    region.allow(claims / "b", claim="b", uuid=UUID, limit=None)
    region.write_unaccounted(claims / "a", UUID, 5 << 20)
    (claims / "broken").mkdir()
    result = CliRunner().invoke(command, ["--state-dir", str(tmp_path)])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["CLAIM", "GPU", "USED", "UNSEEN", "LIMIT", "PROCESSES", "REFUSED", "LIMITER"]
    assert lines[1].split() == ["a", UUID, "5Mi", "5Mi", "3072Mi", "0", "0", "waiting"]
    assert lines[2].split() == ["b", UUID, "0Mi", "0Mi", "-", "0", "0", "waiting"]
    assert "broken" in result.stderr


def test_the_document(tmp_path: Path) -> None:
    claims = tmp_path / "limiter" / "claims"
    region.allow(claims / "a", claim="a", uuid=UUID, limit=3 << 30)
    result = CliRunner().invoke(command, ["--state-dir", str(tmp_path), "-o", "json"])
    (claim,) = json.loads(result.stdout)
    assert claim["claim"] == "a"
    assert claim["devices"] == [
        {
            "uuid": UUID,
            "usedBytes": 0,
            "limitBytes": 3 << 30,
            "unseenBytes": 0,
            "contextBytes": 0,
            "denied": 0,
            "deviceTime": None,
        }
    ]


def test_time_as_it_was_charged_and_as_it_was_seen(tmp_path: Path) -> None:
    claims = tmp_path / "limiter" / "claims"
    region.allow(claims / "a", claim="a", uuid=UUID, limit=None, cores=30, time=region.TimeShare(3000))
    OpenRegion(claims / "a").write_seen_time(0, device_time=1_500_000_000, until=1)
    result = CliRunner().invoke(command, ["--state-dir", str(tmp_path), "-o", "json"])
    (claim,) = json.loads(result.stdout)
    assert claim["devices"][0]["deviceTime"] == {
        "ratio": 0.3,
        "chargedSeconds": 0.0,
        "seenSeconds": 1.5,
        "waitedSeconds": 0.0,
    }


def test_a_node_without_limited_claims(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--state-dir", str(tmp_path), "--processes"])
    assert result.exit_code == 0
    assert result.stdout.split() == ["CLAIM", "PID", "HOST", "PID", "NAME", "GPU", "USED", "FOR"]


def test_something_never_shows_as_nothing() -> None:
    assert [mebibytes(amount) for amount in (0, 1, 1 << 20)] == ["0Mi", "1Mi", "1Mi"]
