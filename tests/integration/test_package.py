"""What is built is whole: it is what everybody has who did not clone this folder."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

pytest.importorskip("hatch_vcs")
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_wheel_has_everything_that_git_has_of_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("scalewise-*.whl")
    packed = set(ZipFile(wheel).namelist())
    kept = [p for top in ("src/scalewise", "src/hydra_plugins") for p in (ROOT / top).rglob("*")]
    expected = {str(p.relative_to(ROOT / "src")) for p in kept
                if p.is_file() and "__pycache__" not in p.parts}  # fmt: skip
    expected |= {f"scalewise/{p.relative_to(ROOT)}" for p in (ROOT / "conf").rglob("*.yaml")}
    assert expected - packed == set()
    assert {"scalewise/script/site/sitecustomize.py", "scalewise/conf/config.yaml"} <= packed
