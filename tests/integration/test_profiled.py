"""A profiled cell beside its timed twin, through the command."""

from fakes.train_command import SMALL, Train
from scalewise.analysis import analyse, load_sweep
from scalewise.records import load_profiles


def test_a_window_stands_beside_the_timed_cell_and_is_never_timed(train: Train) -> None:
    run = train(
        "-m", *SMALL, "strategy=ddp", "max_steps=100", "profile.window=false,true",
        "profile.steps=3", "validation=never", "repeats=1", "sweep.objective=global_samples_per_s",
    )  # fmt: skip
    assert run.status == 0, run.err
    (profiled,) = [folder for _, folder in run.cells().values() if folder.profile_path.exists()]
    first, second = load_profiles(profiled)
    assert (first.rank, second.rank, first.steps) == (0, 1, 3)
    assert first.communication_ms is not None and first.communication_ms > 0
    assert first.overlapped_ms is not None and first.overlapped_ms <= first.communication_ms
    assert len(first.reduced_steps) == len(first.unreduced_steps) == 25
    assert any(o.name == "gloo:all_reduce" and o.calls >= 3 for o in first.operations)
    analysis = analyse(load_sweep(profiled.path.parent))
    (timed,) = analysis.measured
    assert timed.values("global_samples_per_s") and len(timed.runs) == 1
    (under,) = (c for c in analysis.configurations if not c.is_timed and c.runs)
    assert under.runs[0].throughput is None
    cost = analysis.communication[timed.config_id]
    assert cost.window is not None and cost.window.cell == profiled.name
    assert cost.window.cost_ms is not None and cost.window.slower_ms is not None
    assert cost.gradient_bytes == timed.runs[0].cell.result.ranks[0].parameters_trainable * 4
