"""A folder with all that `koordra node selftest` needs on a machine that reaches nothing: build/selftest.

    scripts/selftest_bundle.py [FOLDER]

    run            starts the self test; passes arguments on
    lib/koordra    the package of this checkout
    lib/build      what native/ builds: the limiter, bench-gpu; where koordra looks for it
    site           the packages that the node side imports, as installed here, without compiled parts

It is moved as it is, or as a tar, to any machine with glibc of the same architecture and Python 3.11. The
programs are run by the machine's python3 (PYTHON=... another), whose packages they try; that may be older.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (
    "click",
    "networkx",
    "nvidia-ml-py",
    "prometheus-client",
    "pyroute2",
    "PyYAML",
    "structlog",
    "urllib3",
)
FASTER = {"PyYAML"}
"""Those whose compiled part only makes them faster; it is left out."""
RUN = """#!/bin/sh
# koordra node selftest, with what lies beside this file, which the programs that it tries do not see.
here=$(cd "$(dirname "$0")" && pwd)
programs=$(command -v "${PYTHON:-python3}")
for python in "$programs" python3.14 python3.13 python3.12 python3.11; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
    python=
done
[ "$python" ] || { echo "koordra needs Python 3.11 or newer; name one with PYTHON=..." >&2; exit 2; }
exec "$python" -P -c 'import sys
sys.path[:0] = sys.argv[1:3]
sys.argv[:3] = ["koordra"]
from koordra.cli.main import main
main()' "$here/lib" "$here/site" node selftest --python "${programs:-$(command -v "$python")}" "$@"
"""


def copy_package(name: str, site: Path) -> None:
    """Its files as installed. Raises SystemExit for one with a compiled part: it would not run on another
    Python."""
    for file in distribution(name).files or ():
        if file.suffix in (".so", ".pyd"):
            if name in FASTER:
                continue
            raise SystemExit(f"{name} has a compiled part: {file}")
        if not {"..", "__pycache__", "tests"}.isdisjoint(file.parts):
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.locate(), target)


def main(folder: Path) -> None:
    made = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(made, ignore_errors=True)
    native = made / "lib" / "build" / "native"
    native.mkdir(parents=True)
    subprocess.run(["make", "-s", "-C", ROOT / "native", f"OUT={native}", "all", "bench-gpu"], check=True)
    shutil.copytree(ROOT / "koordra", made / "lib" / "koordra", ignore=shutil.ignore_patterns("__pycache__"))
    for name in NEEDED:
        copy_package(name, made / "site")
    (made / "run").write_text(RUN)
    (made / "run").chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)
    made.rename(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {size >> 20} MiB; run it with {folder}/run --report report.tar.gz")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else ROOT / "build" / "selftest")
