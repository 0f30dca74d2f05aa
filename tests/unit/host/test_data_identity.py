"""A file is told from what it was, however large it is."""

from __future__ import annotations

from pathlib import Path

from scalewise.host import changes, data_identity

MIB = 1 << 20


def test_only_files_and_indexed_folders_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,a,b\n")
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "index.json").write_text("{}")
    (tmp_path / "plain").mkdir()
    arguments = {"path": "a.csv", "root": "plain", "size": 3, "gone": "b.csv", "none": None}
    told = data_identity({**arguments, "folder": "tokens", "nul": "a\0b", "no": ""}, tmp_path)
    assert set(told) == {"path", "folder"}
    assert told["path"].startswith("6 bytes (sha256 ")
    assert data_identity({"path": str(tmp_path / "a.csv")}) == {"path": told["path"]}


def test_size_and_content_both_tell(tmp_path: Path) -> None:
    path = tmp_path / "a"
    seen = set()
    for content in (b"abc", b"abd", b"ab", b"", b"\0"):
        path.write_bytes(content)
        seen.add(data_identity({"path": str(path)})["path"])
    assert len(seen) == 5


def test_of_a_large_file_beginning_middle_and_end_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "large"
    size = 40 * MIB
    with path.open("wb") as file:
        file.truncate(size)
    before = data_identity({"path": str(path)})
    for place, is_seen in ((0, True), (size // 2, True), (size - 1, True), (5 * MIB, False)):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        after = data_identity({"path": str(path)})
        assert bool(changes(before, after)) == is_seen, place
        before = after


def test_what_one_side_does_not_know_is_no_change() -> None:
    assert changes({"path": "a", "other": "b"}, {"path": "c", "new": "d"}) == {
        "path": "a there, c here"
    }
    assert changes({}, {"path": "a"}) == changes({"path": "a"}, {}) == {}
