"""The data sets: the same on every call, divided without overlap, handed out in whole batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fakes.golden import stays
from scalewise.config import DatasetError
from scalewise.datasets.contract import TensorPairs, TokenWindows
from scalewise.datasets.labelled import split_indices
from scalewise.datasets.synthetic import SensorStreams, SyntheticText, SyntheticTokens
from scalewise.datasets.tabular import Tabular, TabularWindows
from scalewise.datasets.text_classification import AgNews, Imdb
from scalewise.datasets.text_file import Stdlib, TextFile


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A small library of 20 files, each of one letter, with things that do not belong to it."""
    root = tmp_path / "library"
    for i in range(20):
        path = root / f"part{i % 3}" / f"module{i:02}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(chr(ord("a") + i) * 50)
    for stray in ("site-packages/other.py", "part0/__pycache__/x.py", "part0/notes.txt"):
        (root / stray).parent.mkdir(parents=True, exist_ok=True)
        (root / stray).write_text("!" * 50)
    return root


@pytest.fixture
def news(tmp_path: Path) -> Path:
    path = tmp_path / "news.csv"
    line = '"{}","Title {}","Words about subject{}, number {}"\n'
    path.write_text("".join(line.format(i % 4 + 1, i, i % 4, i) for i in range(40)))
    return path


DATA: list[Any] = [
    lambda sources, news: Tabular(samples=50, features=5, targets=2),
    lambda sources, news: TabularWindows(samples=50, window=4, features=5, targets=2),
    lambda sources, news: Stdlib(sequence_length=8, root=str(sources)),
    lambda sources, news: TextFile(str(news), sequence_length=8),
    lambda sources, news: AgNews(str(news), vocabulary_size=60, max_tokens=6),
    lambda sources, news: SyntheticTokens(20, 8, train_samples=20, validation_samples=4),
    lambda sources, news: SyntheticText(50, 8, train_samples=20, validation_samples=4),
]


@pytest.fixture(params=DATA)
def dataset(request: pytest.FixtureRequest, sources: Path, news: Path) -> Any:
    return lambda: request.param(sources, news)


def everything(part: Any) -> Any:
    """All samples of a part as one batch."""
    return part.__getitems__(range(len(part)))


def summed(part: Any) -> list[str]:
    """Each number by its place."""
    each = [one.flatten().double() for one in everything(part)]
    return [f"{one @ torch.arange(len(one)).double():.3g}" for one in each]


def test_a_batch_holds_the_samples_it_names_and_building_twice_gives_the_same(dataset: Any) -> None:
    data, again = dataset(), dataset()
    assert len(data.train) > 0 and len(data.validation) > 0
    assert data.describe() == again.describe()
    sums = {part: summed(getattr(data, part)) for part in ("train", "validation")}
    stays(f"datasets/{type(data).__name__.lower()}", data.describe() | sums)
    for a, b in zip(everything(data.train), everything(again.train), strict=True):
        assert torch.equal(a, b)
    batch = data.train.__getitems__([3, 0, 2])
    for row, index in enumerate([3, 0, 2]):
        for whole, single in zip(batch, data.train[index], strict=True):
            assert torch.equal(whole[row], single)


@pytest.mark.parametrize(
    ("count", "fraction", "held_out"),
    [(101, 0.2, 20), (10, 0.01, 1), (3, 0.99, 2), (2, 0.5, 1), (1, 0.5, 0), (9, 0.0, 0)],
)
def test_split_divides_every_index_once(count: int, fraction: float, held_out: int) -> None:
    train, validation = split_indices(count, fraction, seed=7)
    assert (len(validation), sorted([*train, *validation])) == (held_out, list(range(count)))
    other, _ = split_indices(count, fraction, seed=8)
    assert np.array_equal(train, other) == (count == 1)


class TestTabular:
    def test_without_signal_it_is_the_published_data_number_for_number(self) -> None:
        """The published lines, in NumPy: normal features, two dependent columns, noise targets."""
        np.random.seed(42)
        x = np.random.randn(10_000, 50).astype(np.float32)
        x[:, 1] = 0.7 * x[:, 0] + 0.3 * np.random.randn(10_000)
        x[:, 2] = 0.5 * x[:, 0] - 0.3 * x[:, 1] + 0.4 * np.random.randn(10_000)
        y = np.random.randn(10_000, 3).astype(np.float32)
        ours_x, ours_y = Tabular(10_000, 50, 3, signal=0.0, seed=42).rows()
        assert np.array_equal(ours_x, x)
        assert np.array_equal(ours_y, y)

    @pytest.mark.parametrize("signal", [0.0, 0.5, 1.0])
    def test_signal_is_the_share_of_variance_a_linear_fit_explains(self, signal: float) -> None:
        x, y = Tabular(20_000, 10, 3, signal, seed=1).rows()
        design = np.column_stack([x, np.ones(len(x))])
        residual = y - design @ np.linalg.lstsq(design, y)[0]
        assert 1 - residual.var(axis=0) / y.var(axis=0) == pytest.approx(signal, abs=0.02)


class TestTabularWindows:
    def test_a_window_is_consecutive_rows_and_its_target_that_of_the_last(self) -> None:
        data = TabularWindows(30, window=4, features=5, targets=2, validation_fraction=0.2)
        x, y = data.rows()
        windows, targets = data.train.__getitems__([0, 7])
        assert np.array_equal(windows.numpy(), np.stack([x[0:4], x[7:11]]))
        assert np.array_equal(targets.numpy(), y[[3, 10]])
        # No row is in a window of both parts.
        assert len(data.train) == 24 - 3
        train, held_out = everything(data.train)[0], everything(data.validation)[0]
        assert not set(train[..., 0].flatten().tolist()) & set(held_out[..., 0].flatten().tolist())
        with pytest.raises(ValueError, match=r"^window: found 7; allowed: 1 to 6, the rows"):
            TabularWindows(30, window=7)


class TestSynthetic:
    def test_a_token_follows_within_three_of_the_last(self) -> None:
        x, target = SyntheticTokens(50, 16, train_samples=8).train.__getitems__(range(8))
        assert ((target - x).remainder(50) <= 3).all()
        assert x.max() < 50

    def test_times_of_a_sensor_are_moved_by_up_to_a_third_of_a_step(self) -> None:
        *_, times = SensorStreams([1], [1], targets=1000, samples=1).train.__getitems__([0])
        moved = times[0] * 1000 - torch.arange(1000)
        assert (moved.min(), moved.max()) == pytest.approx((-1 / 3, 1 / 3), abs=2e-3)

    def test_words_tell_the_class(self) -> None:
        data = SyntheticText(101, 64, classes=4, train_samples=200, validation_samples=200)
        x, target = everything(data.train)
        assert not torch.equal(x, everything(data.validation)[0]), "parts are drawn apart"
        votes = torch.stack([(x.remainder(4) == c).sum(dim=1) for c in range(4)], dim=1)
        assert (votes.argmax(dim=1) == target).float().mean() > 0.9
        told = (x.remainder(4) == target.unsqueeze(1)).float().mean()
        assert told == pytest.approx(0.25 + 0.75 / 4, abs=0.02), "a quarter, and those by chance"
        assert (x.min(), x.max()) == (2, 100)


class TestTokens:
    def test_windows_follow_one_another_and_targets_are_one_later(self) -> None:
        windows = TokenWindows(torch.arange(10, dtype=torch.uint8), 3)
        assert len(windows) == 3
        x, target = windows.__getitems__([0, 2])
        assert (x.tolist(), target.tolist()) == ([[0, 1, 2], [6, 7, 8]], [[1, 2, 3], [7, 8, 9]])
        assert x.dtype == target.dtype == torch.int64

    def test_files_are_either_trained_on_or_held_out(self, sources: Path) -> None:
        (sources / "part1" / "gone.py").symlink_to(sources / "nowhere.py")
        data = Stdlib(sequence_length=10, root=str(sources), validation_fraction=0.25)
        train = set(everything(data.train)[0].flatten().tolist())
        validation = set(everything(data.validation)[0].flatten().tolist())
        assert train & validation <= {0}, "only the byte between files may be in both"
        assert {chr(b) for b in train | validation if b} == {chr(ord("a") + i) for i in range(20)}
        asked = ((8, 5), (8, None), (6, 16), (1, 50), (101, 1))  # of 102 bytes
        held_out = (Stdlib(n, max_validation_samples=m, root=str(sources)) for n, m in asked)
        assert [len(data.validation) for data in held_out] == [4, 12, 16, 34, 1]

    def test_no_byte_of_a_text_file_is_in_both_parts(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_bytes(bytes(range(200)))
        data = TextFile(str(tmp_path / "text"), sequence_length=4, validation_fraction=0.25)
        train, validation = (torch.cat(everything(p)) for p in (data.train, data.validation))
        assert train.max() < validation.min()

    def test_what_cannot_be_read_is_refused(self, sources: Path, tmp_path: Path) -> None:
        # A file that is there and fails when it is read, also for a user who may read everything.
        (sources / "part1" / "broken.py").symlink_to("/proc/self/mem")
        (tmp_path / "empty").mkdir()
        (tmp_path / "short.txt").write_text("brief")
        for data, message in (
            (Stdlib(8, root=str(sources)), r"^dataset\.root: .*broken\.py cannot be read: In"),
            (Stdlib(root=str(tmp_path / "empty")), r"^dataset\.root: found no \.py file in"),
            (TextFile(str(tmp_path / "none.txt")), r"^dataset\.path: .*none\.txt cannot be read"),
            (TextFile(str(tmp_path / "short.txt"), 64), r"^dataset\.sequence_length: found 64; al"),
        ):
            with pytest.raises(DatasetError, match=message):
                _ = data.train


class TestAgNews:
    def test_vocabulary_knows_the_training_part_only(self, tmp_path: Path) -> None:
        path = tmp_path / "news.csv"
        path.write_text("".join(f"{i % 4 + 1},only{i},common\n" for i in range(20)))
        data = AgNews(str(path), vocabulary_size=1000, max_tokens=2, validation_fraction=0.25)
        train_x, validation_x = everything(data.train)[0], everything(data.validation)[0]
        assert (train_x[:, 0] > 1).all()
        assert (validation_x[:, 0] == 1).all(), "a word of the validation part is unknown"
        assert (validation_x[:, 1] > 1).all()
        assert data.describe()["vocabulary_size"] == 2 + 15 + 1

    def test_rare_words_are_left_out_and_texts_cut_and_filled(self, tmp_path: Path) -> None:
        path = tmp_path / "news.csv"
        path.write_text('1,a a a b,b c\n2,"a",b\n')
        data = AgNews(str(path), vocabulary_size=4, max_tokens=4, validation_fraction=0.0)
        x, target = data.train.__getitems__([0, 1])
        rows = {int(label): row.tolist() for label, row in zip(target, x, strict=True)}
        assert rows == {0: [2, 2, 2, 3], 1: [2, 3, 0, 0]}

    def test_imdb_is_read_in_the_same_way_without_the_library_of_the_hub(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(DatasetError, match=r"^path: found null.* 'scalewise\[hub\]'"):
            Imdb()
        path = tmp_path / "imdb.csv"
        path.write_text('review,sentiment\n"A fine, fine film",positive\nDull,negative\n')
        data = Imdb(str(path), max_tokens=3, validation_fraction=0.0)
        x, target = data.train.__getitems__([0, 1])
        assert dict(zip(target.tolist(), (x > 0).sum(dim=1).tolist(), strict=True)) == {1: 3, 0: 1}
        path.write_text("Dull,bad\n")
        with pytest.raises(DatasetError, match=r"row 1: found \['Dull', 'bad'\]; allowed: "):
            _ = Imdb(str(path)).train


@pytest.mark.parametrize(
    "data",
    [TensorPairs(torch.randn(999, 50), torch.randn(999, 3)), TokenWindows(torch.arange(9999), 64)],
)
def test_a_small_batch_wakes_no_other_thread(data: TensorPairs | TokenWindows) -> None:
    """Beside ranks that keep all cores busy, the threads of one gather took 19 ms to meet."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        data.__getitems__(range(100))
    names = {event.key for event in seen.key_averages()}
    assert "aten::index_select" in names
    assert "aten::index" not in names, "it is divided among threads from 3,000 numbers on"
    torch.testing.assert_close(data[-1], data[len(data) - 1])
    with pytest.raises(IndexError):
        data[-len(data) - 1]
