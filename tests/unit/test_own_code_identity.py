"""What the source of a user's classes is: found as a rank finds it, without importing anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scalewise.own_code_identity import own_code_identity, own_targets


def identified(folder: Path, *targets: str) -> dict[str, str]:
    return own_code_identity(targets, [str(folder)])


def test_the_classes_are_those_of_neither_scalewise_nor_torch() -> None:
    plain = {
        "model": {"_target_": "mine.Net", "layer": {"_target_": "other.Layer"}},
        "dataset": {"_target_": "scalewise.datasets.tabular.Tabular"},
        "optimizer": {"_target_": "torch.optim.SGD"},
        "callbacks": [{"_target_": "mine.Callback"}],
    }
    assert own_targets(plain) == ("mine.Callback", "mine.Net", "other.Layer")


def test_a_module_is_known_by_its_content_and_not_imported(tmp_path: Path) -> None:
    module = tmp_path / "net_of_mine.py"
    module.write_text("raise RuntimeError('imported')\n")
    (was,) = identified(tmp_path, "net_of_mine.Net").items()
    assert was[0] == "net_of_mine.Net"
    assert was[1].startswith("31 bytes (sha256 ")
    module.write_text("raise RuntimeError('imporfed')\n")
    (now,) = identified(tmp_path, "net_of_mine.Net").values()
    assert now.startswith("31 bytes (sha256 ") and now != was[1]


def test_a_package_is_known_by_all_its_modules(tmp_path: Path) -> None:
    layers = tmp_path / "nets" / "parts" / "layers.py"
    layers.parent.mkdir(parents=True)
    for path in (tmp_path / "nets" / "__init__.py", layers.with_name("__init__.py")):
        path.write_text("")
    (tmp_path / "nets" / "mine.py").write_text("from nets.parts.layers import A\n")
    layers.write_text("A = 1\n")
    before = identified(tmp_path, "nets.mine.Net")
    assert set(before) == {"nets.mine.Net"}
    (tmp_path / "nets" / "notes.txt").write_text("no code")
    assert identified(tmp_path, "nets.mine.Net") == before
    layers.write_text("A = 2\n")
    assert identified(tmp_path, "nets.mine.Net") != before


def test_of_a_large_package_the_module_alone_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalewise.own_code_identity._MOST_BYTES", 20)
    package = tmp_path / "large"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text("A = 1\n")
    (package / "other.py").write_text("# much more than that\n")
    before = identified(tmp_path, "large.mine.Net")
    assert before["large.mine.Net"].startswith("6 bytes (sha256 ")
    (package / "other.py").write_text("# much, much more than that\n")
    assert identified(tmp_path, "large.mine.Net") == before


def test_what_is_not_found_is_left_out(tmp_path: Path) -> None:
    assert identified(tmp_path, "no_such_module.Net", "no.such.Net", "sys.Net") == {}
    assert "no" not in sys.modules
