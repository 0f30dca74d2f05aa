"""The environment ranks are started in, and who else may have started this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.records.provenance import WORKING_DIRECTORY
from scalewise.train import provenance
from scalewise.train.provenance import collect, emulations
from scalewise.train.rank import foreign_launch, rendezvous, scrubbed
from scalewise.train.strategies.ddp import DdpConfig
from scalewise.working_tree import code_version


def test_no_trace_of_another_launcher_is_left() -> None:
    left = scrubbed(
        {
            "PATH": "/bin",
            "MASTER_PORT": "1",
            "RANK": "3",
            "WORLD_SIZE": "4",
            "PL_GLOBAL_SEED": "1",
            "SLURM_NTASKS": "8",
            "SLURM_JOB_ID": "9",
            "TORCHELASTIC_RUN_ID": "x",
        }
    )
    assert left == {"PATH": "/bin", "SLURM_JOB_ID": "9"}


def test_what_we_set_is_what_we_scrub() -> None:
    assert scrubbed(rendezvous(1, 1, 2, 4000)) == {}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, None),
        ({"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a"}, ("torchrun", 1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, ("srun", 3, 4)),
    ],
)
def test_a_foreign_launch_is_recognised(
    environment: dict[str, str], found: tuple[str, int, int] | None
) -> None:
    assert foreign_launch(environment) == found


def test_the_backend_follows_the_device() -> None:
    config = DdpConfig("ddp", "ddp")
    assert config.backend_for("cuda") == "nccl"
    assert config.backend_for("cpu") == "gloo"
    with pytest.raises(ValueError, match=r"strategy\.backend: found nccl on a CPU host"):
        DdpConfig("ddp", "ddp", backend="nccl").backend_for("cpu")


def test_peer_to_peer_switched_off_is_emulation_only_where_there_are_peers() -> None:
    off = {"NCCL_P2P_DISABLE": "1"}
    assert emulations(off, {"0-1": "NV18"}) == ("NCCL_P2P_DISABLE=1 on GPUs with NVLink",)
    assert emulations(off, {"0-1": "PHB"}) == ()
    assert emulations({}, {"0-1": "NV18"}) == ()


def test_without_a_repository_there_is_no_code_version(tmp_path: object) -> None:
    assert code_version(tmp_path) == {}  # type: ignore[arg-type]


def test_a_users_commit_is_recorded_as_none_of_scalewises(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = {Path(provenance.__file__).parent: {"commit": "ours"}, Path.cwd(): {"commit": "users"}}
    monkeypatch.setattr(provenance, "code_version", lambda at: trees[at])
    assert collect((), None, {}).code == {"commit": "ours"}
    trees[Path(provenance.__file__).parent] = {}  # installed
    assert collect((), None, {}).code == {"commit": "users", "tree": WORKING_DIRECTORY}
    trees[Path.cwd()] = {}
    assert collect((), None, {}).code == {}
