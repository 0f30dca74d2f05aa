"""Labelled texts through the real library, from a folder in the hub's layout."""

from __future__ import annotations

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
    assert hub.train.inputs.tolist() == csv.train.inputs.tolist()
    assert hub.train.targets.tolist() == csv.train.targets.tolist()
    assert hub.describe()["classes"] == 4
    assert hub.describe()["source"].endswith("hub train")


def test_another_column(tmp_path: Path) -> None:
    data = AgNews(repository=folder(tmp_path / "hub", body=texts(4), label=[0, 1, 2, 3]))
    with pytest.raises(
        DatasetError, match=r"found no column 'text'; allowed: .* found body, label"
    ):
        _ = data.train


def test_a_class_that_is_none(tmp_path: Path) -> None:
    data = AgNews(repository=folder(tmp_path / "hub", text=texts(4), label=[0, 1, 2, 7]))
    with pytest.raises(DatasetError, match=r"row 4: found class 7; allowed: a text and a class of"):
        _ = data.train


def test_no_such_repository(tmp_path: Path) -> None:
    data = AgNews(repository=str(tmp_path / "none"))
    with pytest.raises(DatasetError, match=r"^dataset.path: found null, and .* cannot be fetched"):
        _ = data.train
