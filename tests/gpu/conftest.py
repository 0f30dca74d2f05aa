"""``train.py`` as a user runs it, on the GPUs of this host."""

from collections.abc import Iterator

import pytest

from fakes.gpus import hardware
from fakes.train_command import Train, copy_own_code, end, make_train


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    """A runner in a user's folder with his code; what it leaves running fails it."""
    root = tmp_path_factory.mktemp("gpu")
    runner = make_train(root)
    runner.cwd = copy_own_code(root / "elsewhere")
    runner.always = hardware()
    runner.patience_s = 300
    yield runner
    assert end(runner) == {}
