"""Does the analysis find what was planted, and only that?

    python benchmarks/self_test.py [--device cpu|cuda] [--jobs N] [--quick] [--out FOLDER]

Every fault is planted at three magnitudes into real two-device cells that run beside healthy
twins, in one sweep in random order; ``--jobs`` pairs run at once, each on cores (or GPUs) of its
own. The analysis sees nothing but the records. Printed are the confusion matrix (rows: what was
planted; columns: what was named first), the detection limit of each fault (the smallest magnitude
that was named first in every run, as all larger ones were), and what was named on healthy runs.

``--records FOLDER`` keeps the sweep: the same command run again finishes it, and with ``--judge``
judges what is there without running anything. ``--warm`` forks cells from a server that has
imported everything already.

A fault that costs time is judged by the largest loss of the run's budget
(``analysis/loss_budget``), all others by the codes of findings. Of healthy pairs beside busy
processes only the host may be named.

Exit status 1 if a fault at its largest magnitude was not named first, or one was named on a
healthy run.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from faults import FaultConfig, page
from faults.matrix import passed
from faults.observe import Observation, observe_all
from faults.plan import Fault, Workload, asks, cpu_workload, gpu_workload
from faults.records import leave_records
from hydra import compose, initialize_config_dir

from scalewise.analysis import configurations, load_sweep
from scalewise.config import ConfigError, conf_dir, resolve
from scalewise.gpu import Host, HostMismatch, Leases, discover
from scalewise.records import SweepFolder
from scalewise.sweep import Engine, LocalConfig, LocalExecutor, Policy, make_display
from scalewise.sweep.plan import Request, plan, request

PAIR = 2


def main() -> int:
    options = arguments()
    workload = gpu_workload() if options.device == "cuda" else cpu_workload(options.cores_per_rank)
    faults = [f for f in workload.faults if not options.only or f.name in options.only]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="scalewise-self-test-") as temporary:
        folder = options.records or Path(temporary)
        try:
            if not options.judge:
                run(workload, faults, folder, options)
            found = judge(workload, folder)
            devices, cores = ran_on(folder)
        except (ConfigError, HostMismatch) as error:
            print(f"self_test: {error}", file=sys.stderr)
            return 2
    setting = page.Setting(
        command=command(options),
        devices=devices,
        usable_cores=cores,
        side_by_side=options.jobs,
        load_average=None if options.judge else round(os.getloadavg()[0], 1),
        seconds=None if options.judge else round(time.monotonic() - begin, 1),
    )
    text = page.as_markdown(found, setting)
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "self_test.md").write_text(text, encoding="utf-8")
        plain = json.dumps(page.as_plain(found, setting), indent=1)
        (options.out / "self_test.json").write_text(plain + "\n", encoding="utf-8")
    return 0 if passed(found) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="pairs that run at once (default 1)")
    parser.add_argument("--cores-per-rank", type=int, default=1, help="on a CPU (default 1)")
    parser.add_argument("--healthy", type=int, default=60, help="healthy runs (default 60)")
    parser.add_argument("--planted", type=int, default=1, help="runs of each fault and magnitude")
    parser.add_argument("--magnitudes", type=int, choices=(1, 2, 3), default=3, help="largest N")
    parser.add_argument("--quick", action="store_true", help="--magnitudes 1 --healthy 3")
    parser.add_argument("--only", nargs="*", help="names of the faults to plant (default all)")
    parser.add_argument("--warm", action="store_true", help="fork cells from a warm server")
    parser.add_argument("--records", type=Path, help="keep the sweep here, or finish the one there")
    parser.add_argument("--judge", action="store_true", help="run nothing: judge --records")
    parser.add_argument("--out", type=Path, help="write self_test.json and self_test.md here")
    options = parser.parse_args()
    if options.judge and options.records is None:
        parser.error("--judge needs --records FOLDER")
    if options.jobs < 1 or options.cores_per_rank < 1:
        parser.error("--jobs and --cores-per-rank: allowed: 1 or more")
    if options.quick:
        options.magnitudes, options.healthy = 1, min(options.healthy, 3)
    return options


def command(options: argparse.Namespace) -> str:
    """What to type to run this test again; folders are left out."""
    words = ["python", "benchmarks/self_test.py", "--device", options.device]
    words += ["--jobs", str(options.jobs), "--healthy", str(options.healthy)]
    words += ["--planted", str(options.planted), "--magnitudes", str(options.magnitudes)]
    words += ["--only", *options.only] if options.only else []
    return shlex.join([*words, "--warm"] if options.warm else words)


def run(
    workload: Workload, faults: Sequence[Fault], folder: Path, options: argparse.Namespace
) -> None:
    """Run everything that is not done yet in one sweep, then plant the faults of records."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # ranks import the faults
    strengths = range(3 - options.magnitudes, 3)
    wanted = asks(workload, faults, strengths, options.healthy, options.planted)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        requests = [
            compose_request((*workload.overrides, f"repeats={ask.repeats}", *ask.overrides))
            for ask in wanted
        ]
    host = discover(requests[0].cell.hardware)
    with kept_free(host, options.jobs):
        policy: Policy = "exclusive" if options.jobs == 1 else "packed"
        engine = Engine(
            folder, LocalExecutor(LocalConfig(policy, warm=options.warm)), make_display()
        )
        engine.run(plan(requests, order_seed=1))
    for _, cell in SweepFolder(folder).cells():
        planted = cell.load_config().get("fault")
        if planted and cell.has_result_file():
            arguments = {k: v for k, v in planted.items() if k not in ("_target_", "name")}
            leave_records(FaultConfig(**arguments), cell, PAIR)


def compose_request(overrides: tuple[str, ...]) -> Request:
    return request(overrides, resolve(compose(config_name="config", overrides=list(overrides))))


@contextmanager
def kept_free(host: Host, jobs: int) -> Iterator[None]:
    """Lease the devices beyond ``jobs`` pairs, so that the sweep leaves them alone.

    On a CPU host the supervisors and this process then find cores on which nobody is timed.
    """
    spare = len(host.slots) - PAIR * jobs
    if spare < 0:
        raise HostMismatch(
            f"--jobs: found {jobs}; this host has {len(host.slots)} devices, so allowed: at most "
            f"{len(host.slots) // PAIR}"
        )
    leases = Leases()
    lease = leases.try_lease(host.slots[::-1], spare)
    if lease is None:
        raise HostMismatch("another sweep holds this host's devices: wait for it")
    try:
        yield
    finally:
        leases.release(lease)


def judge(workload: Workload, folder: Path) -> list[Observation]:
    """What is named of each run of the sweep in ``folder``."""
    return list(observe_all(workload, configurations(load_sweep(folder))))


def ran_on(folder: Path) -> tuple[tuple[str, ...], int]:
    """Names of the devices of a pair, and the host's usable cores, by the records.

    Raises :class:`ConfigError` where no pair has left any.
    """
    for cell in load_sweep(folder).cells:
        if cell.provenance is not None and len(cell.provenance.devices) == PAIR:
            devices = cell.provenance.devices
            return tuple(device.name for device in devices), cell.provenance.usable_cores
    raise ConfigError(
        f"--records: no cell of {folder} was started on two devices: nothing to judge"
    )


if __name__ == "__main__":
    raise SystemExit(main())
