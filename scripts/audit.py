"""Known vulnerabilities of what requirements/ locks, from the source that pip-audit asks. It reports and
stops nothing: the exit status is 0 whatever is known, and 1 where there was no answer about some package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOCKS = sorted(Path(__file__).resolve().parent.parent.joinpath("requirements").glob("*.txt"))


def main() -> int:
    found: dict[str, list[str]] = {}
    unanswered: set[str] = set()
    packages: set[str] = set()
    for lock in LOCKS:
        ask = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--format", "json"]
        ask += ["--disable-pip", "--require-hashes", "--requirement", str(lock)]
        answer = subprocess.run(ask, capture_output=True, text=True, check=False)
        if not answer.stdout:
            print(f"{lock.name}: pip-audit failed: {answer.stderr.strip()[-500:]}", file=sys.stderr)
            return 1
        for package in json.loads(answer.stdout)["dependencies"]:
            what = f"{package['name']} {package.get('version', '')}".strip()
            packages.add(what)
            if "skip_reason" in package:
                unanswered.add(what)
            for known in package.get("vulns", ()):
                mended = ", ".join(known["fix_versions"]) or "no version"
                found.setdefault(f"{what}: {known['id']}, mended in {mended}", []).append(lock.name)
    for line, locks in sorted(found.items()):
        print(f"{line} ({', '.join(locks)})")
    print(
        f"audit: {len(packages)} packages, {len(found)} known vulnerabilities, no answer about {len(unanswered)}"
    )
    return int(bool(unanswered))


if __name__ == "__main__":
    sys.exit(main())
