"""What the source of a user's classes is: found as a rank finds it, without importing anything."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.machinery import PathFinder
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


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("imported", "by"),
    [
        ("layers.py", "import layers"),
        ("layers.py", "def build():\n    from layers import A\n"),
        ("parts/layers.py", "from parts.layers import A"),
        ("parts/layers.py", "from parts import layers"),
        ("parts/__init__.py", "import parts.layers"),
    ],
)
def test_what_a_module_imports_from_beside_it_counts(
    tmp_path: Path, imported: str, by: str
) -> None:
    files = {"mine.py": by, "layers.py": "A = 1", "parts/__init__.py": "", "parts/layers.py": ""}
    written(tmp_path, files)
    before = identified(tmp_path, "mine.Net")
    (tmp_path / imported).write_text("A = 2")
    assert identified(tmp_path, "mine.Net") != before
    assert "layers" not in sys.modules


def test_what_imports_import_counts_and_what_nobody_imports_does_not(tmp_path: Path) -> None:
    files = {"mine.py": "import one", "one.py": "import two, mine", "two.py": "", "other.py": ""}
    written(tmp_path, files)
    before = identified(tmp_path, "mine.Net")
    assert before["mine.Net"].startswith("26 bytes (sha256 ")
    (tmp_path / "other.py").write_text("A = 2")
    assert identified(tmp_path, "mine.Net") == before
    (tmp_path / "two.py").write_text("A = 2")
    assert identified(tmp_path, "mine.Net") != before


def test_relative_imports_are_followed_where_packages_have_no_init(tmp_path: Path) -> None:
    files = {"exp/nets/mine.py": "from .layers import A\nfrom ..data import B", "exp/data.py": "B"}
    written(tmp_path, {**files, "exp/nets/layers.py": "A = 1"})
    for imported in ("exp/data.py", "exp/nets/layers.py"):
        before = identified(tmp_path, "exp.nets.mine.Net")
        (tmp_path / imported).write_text("B = A = 2")
        assert identified(tmp_path, "exp.nets.mine.Net") != before


def test_what_a_package_imports_from_beside_it_counts(tmp_path: Path) -> None:
    files = {"nets/__init__.py": "", "nets/mine.py": "import shared", "shared.py": "A = 1"}
    written(tmp_path, files)
    before = identified(tmp_path, "nets.mine.Net")
    (tmp_path / "shared.py").write_text("A = 2")
    assert identified(tmp_path, "nets.mine.Net") != before


@pytest.mark.parametrize(
    "elsewhere", [".venv/lib/site-packages/layers.py", "../beyond/layers.py", "scalewise/layers.py"]
)
def test_libraries_and_what_lies_elsewhere_do_not_count(tmp_path: Path, elsewhere: str) -> None:
    mine = tmp_path / "mine"
    imports = "import scalewise.layers" if "scalewise" in elsewhere else "import layers, json"
    written(mine, {"net.py": imports, elsewhere: "A = 1"})
    search = [str(mine), str((mine / elsewhere).resolve().parent)]
    before = own_code_identity(["net.Net"], search)
    assert before["net.Net"].startswith(f"{len(imports)} bytes (sha256 ")
    (mine / elsewhere).write_text("A = 2")
    assert own_code_identity(["net.Net"], search) == before


def test_beside_an_installed_module_lie_libraries(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    written(installed, {"net.py": "import layers", "layers.py": "A = 1"})
    before = identified(installed, "net.Net")
    (installed / "layers.py").write_text("A = 2")
    assert identified(installed, "net.Net") == before != {}


def test_of_very_many_imports_the_module_alone_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalewise.imported_beside._MOST_FILES", 2)
    written(tmp_path, {"mine.py": "import one", "one.py": "import two", "two.py": "A = 1"})
    assert identified(tmp_path, "mine.Net")["mine.Net"].startswith("10 bytes (sha256 ")


def test_a_source_that_is_no_python_is_known_all_the_same(tmp_path: Path) -> None:
    written(tmp_path, {"mine.py": "import layers (", "layers.py": "A = 1"})
    assert identified(tmp_path, "mine.Net")["mine.Net"].startswith("15 bytes (sha256 ")
    (tmp_path / "mine.py").write_bytes(b"\0")
    assert identified(tmp_path, "mine.Net")["mine.Net"].startswith("1 bytes (sha256 ")


_IN_BLOCKS = """
if one:
    pass
elif two:
    import in_elif
else:
    import in_else
try:
    import in_try
except OSError:
    import in_except
finally:
    import in_finally
for one in two:
    with one:
        import in_with
else:
    import in_for_else
match one:
    case 1:
        import in_case
class A:
    async def build(self):
        while True:
            import in_method
"""


def test_an_import_counts_in_whichever_block_it_stands(tmp_path: Path) -> None:
    names = [word for word in _IN_BLOCKS.split() if word.startswith("in_")]
    written(tmp_path, {"mine.py": _IN_BLOCKS, **{f"{name}.py": "A = 1" for name in names}})
    assert len(names) == 9
    for name in names:
        before = identified(tmp_path, "mine.Net")
        (tmp_path / f"{name}.py").write_text("A = 2")
        assert identified(tmp_path, "mine.Net") != before, name


def test_each_name_is_looked_for_once_however_many_modules_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports = "import json, absent.part\nfrom nets.m0 import A, B\nfrom shared.deep import C\n"
    files = {f"nets/m{i}.py": imports for i in range(40)}
    written(tmp_path, {**files, "nets/__init__.py": "", "shared/deep.py": "C = 1"})
    specs: Counter[str] = Counter()
    looked: Counter[Path] = Counter()
    find_spec, is_file = PathFinder.find_spec, Path.is_file

    def counted_spec(name: str, path: list[str]) -> object:
        specs[name] += 1
        return find_spec(name, path)

    def counted_look(path: Path) -> bool:
        looked[path] += 1
        return is_file(path)

    monkeypatch.setattr(PathFinder, "find_spec", counted_spec)
    monkeypatch.setattr(Path, "is_file", counted_look)
    assert set(identified(tmp_path, "nets.m0.Net", "nets.m1.Net")) == {"nets.m0.Net", "nets.m1.Net"}
    assert specs == {"nets": 1, "json": 1, "absent": 1, "shared": 1}
    assert looked and set(looked.values()) == {1}
