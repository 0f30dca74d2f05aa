"""Labelled texts through the real library, from a folder in the hub's layout."""

from pathlib import Path

import pytest

from scalewise.config import DatasetError
from scalewise.datasets.text_classification import AgNews

pytest.importorskip("datasets")


def folder(path: Path, **columns: list[object]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.mkdir()
    pq.write_table(pa.table(columns), path / "train-00000-of-00001.parquet")
    return str(path)


def texts(count: int) -> list[object]:
    return [f"news number {n} of the day" for n in range(count)]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_the_hub_gives_what_a_csv_of_the_same_texts_gives(tmp_path: Path) -> None:
    labels: list[object] = [n % 4 for n in range(40)]
    hub = AgNews(repository=folder(tmp_path / "hub", text=texts(40), label=labels))
    rows = "".join(f'"{n % 4 + 1}","{text}",""\n' for n, text in enumerate(texts(40)))
    (tmp_path / "ag.csv").write_text(rows)
    csv = AgNews(str(tmp_path / "ag.csv"))
    for ours, theirs in zip(
        hub.train.__getitems__(range(32)), csv.train.__getitems__(range(32)), strict=True
    ):
        assert ours.tolist() == theirs.tolist()
    assert hub.describe()["classes"] == 4


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": texts(4), "label": [0] * 4}, "found no column 'text'; .* found body, label"),
        ({"text": texts(4), "label": [0, 1, 2, 7]}, "row 4: found class 7; allowed: a text and a"),
        (None, "^dataset.path: found null, and .* cannot be read"),
    ],
)
def test_what_is_no_labelled_text(
    tmp_path: Path, columns: dict[str, list[object]] | None, message: str
) -> None:
    hub = str(tmp_path / "hub") if columns is None else folder(tmp_path / "hub", **columns)
    with pytest.raises(DatasetError, match=message):
        _ = AgNews(repository=hub).train
