"""The image's bill of materials, CycloneDX 1.6 as JSON: Python's packages as requirements/image.txt locks
them, with their licences and who needs whom; the base image; what native/ builds.

    scripts/sbom.py FILE [BASE]

It is made from the locked wheels themselves, unpacked in build/sbom and not run, so it needs neither a
builder of images nor the image's Python.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "sbom"
NATIVE = (
    *("libcuda.so.1", "libkoordra-cuda.so", "libnvidia-ml.so.1", "koordra-cdi-hook"),
    *("limiter-i386/libcuda.so.1", "limiter-i386/libnvidia-ml.so.1"),
)


def shipped_base() -> str:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE)
    return str(base)


def unpacked(python: str) -> Path:
    """An environment without an interpreter of its own, which has the image's packages on its path."""
    site = FOLDER / "site"
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", FOLDER], check=True)
    fetch = [
        str(Path(sys.executable).with_name("uv")),
        "pip",
        "install",
        "--quiet",
        "--require-hashes",
        "--no-build",
    ]
    fetch += ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28"]
    fetch += ["--target", str(site), "--requirement", str(ROOT / "requirements" / "image.txt")]
    subprocess.run(fetch, check=True)
    (packages,) = FOLDER.glob("lib/python*/site-packages")
    packages.joinpath("image.pth").write_text(f"{site}\n")
    return FOLDER / "bin" / "python"


def base_component(base: str) -> dict[str, Any]:
    name, _, digest = base.partition("@")
    image, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    component: dict[str, Any] = {
        "type": "container",
        "bom-ref": base,
        "name": image,
        "version": tag or digest,
    }
    if digest:
        component["hashes"] = [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}]
        repository = image if "/" in image else f"docker.io/library/{image}"
        leaf = image.rpartition("/")[2]
        component["purl"] = (
            f"pkg:oci/{leaf}@{digest.replace(':', '%3A')}?repository_url={repository}&tag={tag}"
        )
    return component


def main(file: Path, base: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tag = re.search(r"python:(\d+\.\d+)", shipped_base())
    assert tag is not None
    describe = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--sv", "1.6"]
    describe += ["--pyproject", str(ROOT / "pyproject.toml"), str(unpacked(tag[1]))]
    bill = json.loads(subprocess.run(describe, capture_output=True, check=True).stdout)
    native = [
        {"type": "library", "bom-ref": f"native/{name}", "name": name, "version": project["version"]}
        | {"licenses": [{"license": {"id": project["license"]}}]}
        for name in NATIVE
    ]
    bill["components"] += [base_component(base), *native]
    koordra = bill["metadata"]["component"]["bom-ref"]
    (needs,) = (each for each in bill["dependencies"] if each["ref"] == koordra)
    needs["dependsOn"] += [base, *(each["bom-ref"] for each in native)]
    bill["dependencies"] += [{"ref": base}, *({"ref": each["bom-ref"]} for each in native)]
    text = json.dumps(bill, indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise SystemExit(f"{file}: not CycloneDX 1.6: {error}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
    print(f"sbom: {file}, {len(bill['components'])} components")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else shipped_base())
