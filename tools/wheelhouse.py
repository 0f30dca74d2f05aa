"""Collect the wheels that a GPU host without internet lacks: ``make wheelhouse``.

Such a host has its own torch, Lightning, NumPy, pandas, PyArrow and Matplotlib, built for its
driver, and they are kept. What scalewise needs beside them, and what pytest needs to
run tests/gpu is resolved against constraints.txt, downloaded for the host's Python and platform,
and has to stay below 60 MiB.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LIMIT_MIB = 60.0

HOST_HAS = frozenset(
    {
        "aiohttp",
        "anyio",
        "certifi",
        "charset-normalizer",
        "click",
        "contourpy",
        "cycler",
        "filelock",
        "fonttools",
        "fsspec",
        "h11",
        "hf-xet",
        "httpcore",
        "httpx",
        "huggingface-hub",
        "idna",
        "jinja2",
        "kiwisolver",
        "lightning-utilities",
        "markdown-it-py",
        "markupsafe",
        "matplotlib",
        "mdurl",
        "networkx",
        "numpy",
        "nvidia-ml-py",
        "packaging",
        "pandas",
        "pillow",
        "protobuf",
        "psutil",
        "pyarrow",
        "pygments",
        "pyparsing",
        "python-dateutil",
        "pytorch-lightning",
        "pyyaml",
        "requests",
        "rich",
        "scipy",
        "setuptools",
        "six",
        "sympy",
        "torch",
        "torchmetrics",
        "tqdm",
        "triton",
        "typing-extensions",
        "urllib3",
    }
)
"""What a host with torch, Lightning, the scientific stack and huggingface-hub brings along."""
TESTING = ("pytest", "pytest-timeout")
"""What `pytest tests/gpu` needs: nothing there runs in parallel."""

PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 24, 17, 12, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / ".wheelhouse")
    parser.add_argument("--python", default="3.12", help="the host's Python (default: 3.12)")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    pinned = lacking(resolve())
    for name, version in sorted(pinned.items()):
        fetch(name, version, folder, arguments.python)
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    total_mib = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
    print(f"{folder}: {len(pinned) + 1} wheels, {total_mib:.1f} MiB")
    if total_mib > LIMIT_MIB:
        print(f"that is more than {LIMIT_MIB:g} MiB: see which wheel is new", file=sys.stderr)
        return 1
    return 0


def resolve() -> list[dict[str, Any]]:
    """All that scalewise and the tests would install, as pip's installation report."""
    report = pip(
        "install", "--dry-run", "--ignore-installed", "--report", "-",
        "-c", str(ROOT / "constraints.txt"), str(ROOT), *TESTING,
    )  # fmt: skip
    installs: list[dict[str, Any]] = json.loads(report)["install"]
    return [entry["metadata"] for entry in installs]


def lacking(resolved: list[dict[str, Any]]) -> dict[str, str]:
    """Name to version of what the host lacks: reached from ours, not through what it has."""
    by_name = {canonicalize_name(meta["name"]): meta for meta in resolved}
    pinned = {name: by_name[canonicalize_name(name)]["version"] for name in TESTING}
    waiting: list[tuple[str, frozenset[str]]]
    waiting = [(name, frozenset()) for name in ("scalewise", *TESTING)]
    seen = set(waiting)
    while waiting:
        parent, extras = waiting.pop()
        for text in by_name[parent].get("requires_dist", []):
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            marker = requirement.marker
            wanted = marker is None or any(marker.evaluate({"extra": e}) for e in extras | {""})
            if not wanted or name in HOST_HAS or name not in by_name:
                continue
            pinned[name] = by_name[name]["version"]
            entry = (str(name), frozenset(requirement.extras))
            if entry not in seen:
                seen.add(entry)
                waiting.append(entry)
    return pinned


def fetch(name: str, version: str, folder: Path, python: str) -> None:
    """Download one wheel, or build it where only a source distribution exists."""
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    try:
        pip(
            "download", "--no-deps", "--only-binary=:all:", "--implementation", "cp",
            "--python-version", python, *platforms, "-d", str(folder), f"{name}=={version}",
        )  # fmt: skip
    except subprocess.CalledProcessError:
        # A pure Python package without a wheel: what is built here runs there.
        pip("wheel", "--no-deps", "--wheel-dir", str(folder), f"{name}=={version}")
        built = next(folder.glob(f"{name.replace('-', '_')}-*.whl"))
        if not built.name.endswith("none-any.whl"):
            raise SystemExit(f"{name} {version} has no wheel for Python {python}") from None


def pip(*words: str) -> str:
    """Run pip and return its output; raises CalledProcessError after showing its errors."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    raise SystemExit(main())
