"""What the source of a user's data set says of its size is believed where it is in plain words."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scalewise.components import Component
from scalewise.errors import ConfigError
from scalewise.sweep.own_code import check_own_code
from scalewise.sweep.own_samples import samples_of

SOURCE = """
from torch.utils.data import Dataset
import torch

class Fixed(Dataset):
    def __len__(self):
        "So many."
        return 12

class Given(torch.utils.data.Dataset):
    def __init__(self, rows: int = 7, *, more=0):
        self.rows = rows
    def __len__(self):
        return self.rows

class Parts:
    def __init__(self, n):
        self.train_samples = n
        self.train = Given(n)

class Declared:
    train_samples: int = 9

class Halves:
    def __init__(self, n=8):
        self.train, self.validation = Given(n // 2), Given(n // 2)
    def __len__(self):
        return 8

class Computed(Dataset):
    def __init__(self, n=8):
        n = n // 2
        self.n = n
    def __len__(self):
        return self.n

class Changed(Dataset):
    def __init__(self, n=8):
        self.n = n
    def shrink(self):
        self.n -= 1
    def __len__(self):
        return self.n

class Read(Dataset):
    def __init__(self, path="x"):
        self.rows = open(path).readlines()
    def __len__(self):
        return len(self.rows)

class Module(LightningDataModule):
    train_samples = 3
    def train_dataloader(self): ...

class Derived(Mine):
    def __len__(self):
        return 5

@decorated
class Decorated:
    train_samples = 3
"""


@pytest.mark.parametrize(
    ("name", "arguments", "samples"),
    [
        ("Fixed", {}, 12),
        ("Given", {}, 7),
        ("Given", {"rows": 3}, 3),
        ("Parts", {"n": 4}, 4),
        ("Declared", {}, 9),
        *[(name, {}, None) for name in ("Halves", "Computed", "Changed", "Read", "Module")],
        *[(name, {}, None) for name in ("Derived", "Decorated", "Absent")],
        ("Given", {"rows": "many"}, None),
        ("Parts", {}, None),
    ],
)
def test_a_size_in_plain_words(name: str, arguments: dict[str, Any], samples: int | None) -> None:
    assert samples_of(name, ast.parse(SOURCE), arguments) == samples


def test_a_batch_larger_than_a_data_set_of_ones_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_rows.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    ours = Component("scalewise.models.Any", "any", {})

    def asked(batch_size: int) -> Any:
        cell = SimpleNamespace(
            model=ours,
            optimizer=ours,
            dataset=Component("own_rows.Given", "own", {"rows": 10}),
            workload="train",
            batch_size=batch_size,
            scaling="strong",
            strategy=SimpleNamespace(devices=1),
            accumulate_grad_batches=1,
        )
        return cast(Any, SimpleNamespace(cell=cell, overrides=()))

    check_own_code([asked(10)])
    with pytest.raises(ConfigError, match=r"^batch_size: found 11 samples .* dataset=own has 10; "):
        check_own_code([asked(10), asked(11)])
