"""Commands that can be watched, and those that cannot."""

import sys
from pathlib import Path

import pytest

from scalewise.config import ConfigError, ScriptConfig


@pytest.mark.parametrize(
    ("command", "words", "name"),
    [
        ("python train.py --lr 3e-4", [sys.executable, "train.py", "--lr", "3e-4"], "train.py"),
        ("python3 -u a/train.py", [sys.executable, "-u", "a/train.py"], "train.py"),
        ("train.py --lr 1", [sys.executable, "train.py", "--lr", "1"], "train.py"),
        ("python -m mine.train", [sys.executable, "-m", "mine.train"], "mine.train"),
        ("bash run.sh 'a b'", ["bash", "run.sh", "a b"], "run.sh"),
    ],
)
def test_a_command_keeps_its_words(command: str, words: list[str], name: str) -> None:
    script = ScriptConfig(command)
    assert (script.words, script.name) == (words, name)


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("torchrun --nproc_per_node 2 train.py", "torchrun"),
        ("accelerate launch train.py", "accelerate"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("python -I train.py", "python -I, which hides the script"),
        ("python3 -uE -X dev train.py", "python -uE"), ("python 'train.py", "No closing quotation"),
        ("", "nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_watched_is_refused_in_one_line(command: str, found: str) -> None:
    with pytest.raises(ConfigError, match=found) as refused:
        ScriptConfig(command)
    assert "\n" not in str(refused.value)


def test_arguments_of_the_script_are_no_options_of_python() -> None:
    assert ScriptConfig("python train.py -m torch.distributed.run").name == "train.py"
    assert ScriptConfig("python -u train.py -E 3").words[-2:] == ["-E", "3"]
    assert ScriptConfig("python -m mine.train -I").name == "mine.train"
    assert ScriptConfig("bash -c 'python train.py'").file is None


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no_such_program: no such program"):
        ScriptConfig("no_such_program train.txt").check_here()
    with pytest.raises(ConfigError, match=r"train\.py: no such script"):
        ScriptConfig("python train.py").check_here()
    Path("train.py").touch()
    ScriptConfig("python train.py").check_here()
