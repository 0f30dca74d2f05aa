"""What somebody who means harm, or is careless, gets from a sweep: real processes, real files."""

import zipfile
from pathlib import Path

from fakes.train_command import LEAN, SMALL, Train, wait_for
from scalewise.cli import main
from scalewise.records import REDACTED

TYPED, IN_ENVIRONMENT, NESTED = "hunter2hunter2", "hf_" + "a1B2" * 9, "correct horse"
GUARDED = f"""
from pathlib import Path
from mine import Net

class Guarded(Net):
    def __init__(self, api_key, hub_token, auth):
        super().__init__()
        given = (api_key, hub_token, auth["password"])
        assert given == {(TYPED, IN_ENVIRONMENT, NESTED)!r}
        if not Path("open").exists():
            raise PermissionError(f"{{api_key}} does not open this door")
"""


def holding(folder: Path, *secrets: str) -> list[Path]:
    """Files below ``folder`` that hold one of ``secrets``."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if any(s.encode() in path.read_bytes() for s in secrets)]


def test_a_secret_reaches_the_rank_and_no_file(train: Train, own_code: Path) -> None:
    (own_code / "guarded.py").write_text(GUARDED)
    typed = (f"+model.api_key={TYPED}", f"+model.auth={{user: me, password: {NESTED}}}")
    run = train(
        *LEAN, "strategy=single", "model._target_=guarded.Guarded", "dataset._target_=mine.Data",
        "+model.hub_token=${oc.env:HUB}", *typed, cwd=own_code, HUB=IN_ENVIRONMENT,
    )  # fmt: skip
    assert f"PermissionError: {REDACTED} does not open this door" in run.err
    folder = run.sweep.path
    assert not holding(folder, TYPED, IN_ENVIRONMENT, NESTED)

    (own_code / "open").touch()
    train.script = (train.script[0], "-m", "scalewise")
    asked = train("resume", str(folder), cwd=own_code, HUB=IN_ENVIRONMENT)
    assert asked.status == 2
    assert "model.api_key, model.auth: found no value, as no record holds secrets" in asked.err
    done = train("resume", str(folder), *typed, cwd=own_code, HUB=IN_ENVIRONMENT)
    assert done.status == 0, done.err
    assert TYPED not in done.err + done.out
    assert not holding(folder, TYPED, IN_ENVIRONMENT, NESTED)
    assert run.only_cell().load_config()["model"]["auth"] == {"user": "me", "password": REDACTED}

    bundle = own_code / "sweep.zip"
    assert main(["bundle", str(folder), "--out", str(bundle)]) == 0
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(own_code / "unpacked")
    assert not holding(own_code / "unpacked", TYPED, IN_ENVIRONMENT, NESTED)


def test_a_folder_that_is_deleted_under_a_sweep_is_named(train: Train) -> None:
    process = train.start(*SMALL, "-m", "strategy=single", "seed=1,2")
    wait_for(lambda: list(train.cwd.glob("multirun/*/*/result.json")), "a result")
    (folder,) = train.sweeps()
    folder.rename(train.cwd / "gone")
    run = train.finish(process)
    assert run.status == 1, "a cell ran: the input was not wrong"
    assert run.err.splitlines()[-1].startswith(f"error: {folder}") and "Errno" not in run.err
