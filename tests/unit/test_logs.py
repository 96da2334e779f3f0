"""What a line of the log may cost."""

from __future__ import annotations

import json

import pytest

from koordra import logs


@pytest.mark.parametrize("as_json", [False, True])
def test_a_tenants_text_fills_no_disk(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The beginning of a value says what it is, and its end what to do."""
    text = "begin " + "x" * 2_000_000 + " remedy"
    logs.configure(json=as_json)
    try:
        log = logs.get_logger("koordra.test")
        log.warning("claim_refused", error=text, problems=[text, "short"], many=(text,), number=7)
        try:
            raise ValueError(text)
        except ValueError:
            log.exception("pass_failed")
    finally:
        logs.configure(level="warning")
    said = capsys.readouterr().err
    assert len(said) < 8 * logs.LONGEST_VALUE
    assert said.count("begin ") >= 3
    assert said.count(" remedy") >= 4
    if as_json:
        first = json.loads(said.splitlines()[0])
        assert first["problems"][1] == "short"
        assert first["number"] == 7


def test_what_is_imagined_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(level="info")
    try:
        log = logs.get_logger("koordra.somewhere")
        with logs.imagined():
            log.info("claim_allocated")
            log.warning("node_failed")
            log.error("defect")
        log.info("afterwards")
    finally:
        logs.configure(level="warning")
    told = capsys.readouterr().err
    assert "claim_allocated" not in told
    assert "node_failed" not in told
    assert "defect" in told
    assert "afterwards" in told
