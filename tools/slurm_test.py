"""Start a real SLURM on this host, run the SLURM tests against it, and stop it.

    python tools/slurm_test.py [--keep] [pytest arguments]

One controller and two nodes on loopback, both nodes this host with two pretended GPUs each, with a
munge of their own. Accounting is off: there, tools that wait for `sacct` wait for ever. On Debian,
and as root, missing packages are installed; nothing outside a scratch folder is configured, and
only processes started here are ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
NODES = ("node0", "node1")
READY_S = 60.0

CONFIG = """\
ClusterName=scalewise-test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits this long before it starts anew; 120 s by default.
AuthInfo=socket={folder}/munge/socket,cred_expire=10
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=300
InactiveLimit=0
KillWait=10
MinJobAge=300
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2
# By partitions, because preemption by QOS needs accounting.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
NodeName=DEFAULT CPUs=2 RealMemory=1000 Gres=gpu:2
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}
PartitionName=DEFAULT State=UP PreemptMode=OFF
PartitionName=one Nodes=node0 Default=YES
PartitionName=two Nodes=node[0-1]
PartitionName=requeued Nodes=node0 PreemptMode=REQUEUE
PartitionName=spread Nodes=node[0-1] PreemptMode=REQUEUE
PartitionName=warned Nodes=node0 PreemptMode=REQUEUE GraceTime=30
PartitionName=cancelled Nodes=node0 PreemptMode=CANCEL GraceTime=30
PartitionName=urgent Nodes=node0 PriorityTier=10
"""


def main(arguments: list[str]) -> int:
    """Exit status: pytest's, or 2 where SLURM could not be started."""
    keep = "--keep" in arguments
    began = time.monotonic()
    # Asked to end, it ends what it started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    install_missing(PROGRAMS, PACKAGES)
    with tempfile.TemporaryDirectory(prefix="scalewise-slurm-") as name, ExitStack() as running:
        folder = Path(name)
        environment = {**os.environ, "SLURM_CONF": str(write_config(folder))}
        for program, *options in daemons(folder):
            running.enter_context(daemon([sbin(program), *options], environment, folder))
            if program == "munged":
                wait_for_file(folder / "munge" / "socket")
        wait_for_nodes(environment, folder)
        print(f"SLURM is up after {time.monotonic() - began:.0f} s", flush=True)
        if keep:
            input(f"export SLURM_CONF={environment['SLURM_CONF']}; Enter stops it: ")
            return 0
        wanted = [a for a in arguments if a != "--keep"]
        test = ["-m", "pytest", str(ROOT / "tests" / "integration" / "test_slurm.py"), *wanted]
        status = run([sys.executable, *test], environment)
    print(f"took {time.monotonic() - began:.0f} s")
    return status


def run(command: list[str], environment: dict[str, str]) -> int:
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            raise


def install_missing(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Install ``packages`` where a program is missing. Exits with 2 where that cannot be."""
    missing = [name for name in programs if sbin(name) is None]
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None or os.getuid() != 0:
        print(f"{', '.join(missing)} not found; as root on Debian: {' '.join(command)}")
        raise SystemExit(2)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(command, check=True, env=quiet, stdout=subprocess.DEVNULL)
    print(f"installed {', '.join(packages)}")


def sbin(program: str) -> str | None:
    """Where a program is that an administrator's PATH would find."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which(program, path=path)


def write_config(folder: Path) -> Path:
    """``slurm.conf`` and what lies beside it."""
    for name in ("state", "munge", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir(mode=0o755)
    folder.chmod(0o755)
    for gpu in range(2):
        (folder / f"gpu{gpu}").touch()
    (folder / "gres.conf").write_text(f"NodeName=node[0-1] Name=gpu File={folder}/gpu[0-1]\n")
    path = folder / "slurm.conf"
    user = subprocess.check_output(["id", "-un"], text=True).strip()
    text = CONFIG.format(host=socket.gethostname(), user=user, folder=folder, ports=free_ports(3))
    path.write_text(text)
    return path


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def daemons(folder: Path) -> Iterator[list[str]]:
    """Each in the foreground, so that its process id is ours to end."""
    munge = folder / "munge"
    key = f"--keyfile={munge}/key"
    subprocess.run([sbin("mungekey") or "mungekey", "--create", key], check=True)
    yield [
        "munged", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/socket",
        f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", "--num-threads=2",
    ]  # fmt: skip
    yield ["slurmctld", "-D", "-c"]
    for node in NODES:
        yield ["slurmd", "-D", "-N", node]


@contextmanager
def daemon(command: list[str], environment: dict[str, str], folder: Path) -> Iterator[None]:
    """A process that runs as long as the block does."""
    with (folder / "daemons.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + READY_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"munged made no {path.name} within {READY_S:g} s")
        time.sleep(0.1)


def wait_for_nodes(environment: dict[str, str], folder: Path) -> None:
    """Wait until both nodes are idle; says what the daemons said where they do not come up."""
    deadline = time.monotonic() + READY_S
    while True:
        answer = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%T"],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if set(answer.stdout.split()) == {"idle"}:
            return
        if time.monotonic() > deadline:
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
            raise SystemExit(2)
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
