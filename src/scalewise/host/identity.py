"""The code fingerprint: commit, difference of the working tree, and files of the user's classes.

A configuration names a class, and its id stays the same whatever the class's file says later.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import importlib.util
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final

# Which files a cell learnt from, told apart by size and content. Torch-free, and cheap.
#
# A configuration names a file, and its id stays the same whatever is written there later. Records
# therefore hold what the file was, and a resumed sweep looks whether it still is.


_PART_BYTES = 1 << 20


_INDEX = "index.json"
"""Of a folder of token shards: it holds the sum of each."""


def data_identity(arguments: Mapping[str, Any], base: Path | None = None) -> dict[str, str]:
    """What each file was that an argument of a data set names, by the argument's name.

    Args:
        arguments: of the data set, our own or a user's: texts that name a file, or a folder with
            an index of its own, are looked at. Any other folder is not: what belongs to it is
            known to its data set alone.
        base: folder that relative paths mean; the working directory where it is None.

    A file that cannot be read is left out: whoever needs it says so.
    """
    found: dict[str, str] = {}
    for name, value in sorted(arguments.items()):
        if not isinstance(value, str) or not value:
            continue
        try:
            path = (base or Path()) / value
            if path.is_dir():
                path /= _INDEX
            if path.is_file():
                found[name] = _told_of_data(path)
        except (OSError, ValueError):  # ValueError: a text with a NUL is no path
            continue
    return found


def changes(was: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """What became of each file that both know of and that is another by now, in words."""
    return {
        name: f"{was[name]} there, {now[name]} here"
        for name in was
        if name in now and was[name] != now[name]
    }


def _told_of_data(path: Path) -> str:
    """Size and sum; of a file of more than three MiB, of its first, middle and last MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size <= 3 * _PART_BYTES:
            starts, part_bytes = [0], size
        else:
            starts, part_bytes = [0, (size - _PART_BYTES) // 2, size - _PART_BYTES], _PART_BYTES
        for start in starts:
            file.seek(start)
            digest.update(file.read(part_bytes))
    return f"{size} bytes (sha256 {digest.hexdigest()[:12]})"


# Which host this is: told apart from others, and never named.
#
# An identity says what it rests on, then a hash of that: ``mac-0123456789ab``. The first source
# that can be read is taken. Older records also have ``dmi``, of the firmware, which only root may
# read.
#
# ==== ========================================== ==================================================
# kind what is hashed                             how long, and for whom, it stays the same
# ==== ========================================== ==================================================
# mac  addresses that the makers gave to the      until a card is exchanged; not in containers with
# host's network cards on PCI                network of their own, which do not see the cards
# gpu  UUIDs of the NVIDIA GPUs that are visible  until a GPU is exchanged; not for containers that
# were given different GPUs
# boot the kernel's random number of this boot    until the host is started anew; for all containers
# name the host's name                            as long as it is called so
# ==== ========================================== ==================================================
#
# Different hosts get different identities, but for those that only ``name`` can tell, and for
# virtual machines taken from one memory image. Identities of different kinds may be of one host.
#
# Not asked is ``/etc/machine-id``: containers and copied disks carry that of the image they were
# made from. Nor are addresses that hypervisors and containers make up, which begin anew on each
# host.


_GIVEN_BY_ITS_MAKER = "0"
"""What ``addr_assign_type`` says of an address that stands in the card."""


@functools.cache
def host_id() -> str:
    """This host, as the head of this module says: ``<kind>-<12 hexadecimal digits>``."""
    return identify(Path("/"))


def place_id() -> str:
    """This host and the name that it goes by here, hashed too.

    Containers of one host may share a cell, each with a name of its own: what they write into one
    folder must not bear the same name.
    """
    return f"{host_id()}-{_hash([socket.gethostname()])[:4]}"


def identify(root: Path) -> str:
    """The identity of the host whose ``/proc`` and ``/sys`` lie in ``root``."""
    for kind, read in _SOURCES:
        told = read(root)
        if told:
            return f"{kind}-{_hash(told)}"
    return f"name-{_hash([socket.gethostname()])}"


def _hash(told: list[str]) -> str:
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]


def _network_cards(root: Path) -> list[str]:
    found = []
    for card in (root / "sys/class/net").glob("*"):
        address = _read(card / "address")
        is_on_pci = (card / "device/subsystem").resolve().name == "pci"
        own = _read(card / "addr_assign_type") == _GIVEN_BY_ITS_MAKER and is_on_pci
        if own and _is_universal(address):
            found.append(address)
    return sorted(found)


def _is_universal(address: str) -> bool:
    """Whether an IEEE address is of a maker's range, in which each is given once."""
    try:
        octets = bytes.fromhex(address.replace(":", ""))
    except ValueError:
        return False
    return len(octets) == 6 and any(octets) and not octets[0] & 0b11


def _gpus(root: Path) -> list[str]:
    uuids = []
    for about in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        lines = (line.partition(":") for line in _read(about).splitlines())
        uuids += [value.strip() for name, _, value in lines if name.strip() == "GPU UUID"]
    # Of a GPU that nobody has used since the driver was loaded there are question marks.
    return [] if any("?" in uuid for uuid in uuids) else sorted(uuids)


def _boot(root: Path) -> list[str]:
    number = _read(root / "proc/sys/kernel/random/boot_id")
    return [number] if number else []


_SOURCES = (("mac", _network_cards), ("gpu", _gpus), ("boot", _boot))


def _read(path: Path) -> str:
    """The text of a file of the kernel; empty where it is not there, or not for this user."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


# The environment variables that are recorded: by name, since any other may hold a secret.
#
# Each changes times or results. NCCL's are those that it reads (NVIDIA's user guide, "Environment
# Variables"), without NCCL_HOSTID and NCCL_COMM_ID, which name hosts, and the paths of its log
# files.


_NCCL: Final = """
    NCCL_VERSION

    NCCL_SOCKET_IFNAME NCCL_SOCKET_FAMILY NCCL_SOCKET_RETRY_CNT NCCL_SOCKET_RETRY_SLEEP_MSEC
    NCCL_SOCKET_POLL_TIMEOUT_MSEC NCCL_SOCKET_NTHREADS NCCL_NSOCKS_PERTHREAD NCCL_CROSS_NIC
    NCCL_IB_DISABLE NCCL_IB_HCA NCCL_IB_TIMEOUT NCCL_IB_RETRY_CNT NCCL_IB_GID_INDEX
    NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE NCCL_IB_ROCE_VERSION_NUM NCCL_IB_SL NCCL_IB_TC
    NCCL_IB_FIFO_TC NCCL_IB_AR_THRESHOLD NCCL_IB_RETURN_ASYNC_EVENTS NCCL_IB_CUDA_SUPPORT
    NCCL_IB_QPS_PER_CONNECTION NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_PCI_RELAXED_ORDERING
    NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_ECE_ENABLE NCCL_IB_MERGE_NICS NCCL_IB_MERGE_VFS
    NCCL_IB_WARN_RAIL_LOCAL NCCL_OOB_NET_ENABLE NCCL_OOB_NET_IFNAME NCCL_UID_STAGGER_RATE
    NCCL_UID_STAGGER_THRESHOLD
    NCCL_NET NCCL_NET_PLUGIN NCCL_TUNER_PLUGIN NCCL_PROFILER_PLUGIN NCCL_NET_GDR_LEVEL
    NCCL_NET_GDR_C2C NCCL_NET_GDR_READ NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS
    NCCL_NET_MERGE_LEVEL NCCL_NET_FORCE_MERGE NCCL_NET_FORCE_FLUSH NCCL_NET_DISABLE_INTRA
    NCCL_GDRCOPY_ENABLE NCCL_GDR_FLUSH_DISABLE NCCL_DMABUF_ENABLE

    NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_P2P_DIRECT_DISABLE NCCL_P2P_USE_CUDA_MEMCPY
    NCCL_P2P_READ_ENABLE NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_NVL_CHUNKSIZE
    NCCL_PXN_DISABLE NCCL_P2P_PXN_LEVEL NCCL_PXN_C2C NCCL_SHM_DISABLE NCCL_SHM_USE_CUDA_MEMCPY
    NCCL_IGNORE_CPU_AFFINITY NCCL_IGNORE_DISABLED_P2P NCCL_TOPO_FILE NCCL_GRAPH_FILE
    NCCL_NVB_DISABLE NCCL_NVB_PRECONNECT NCCL_MNNVL_ENABLE NCCL_MNNVL_UUID NCCL_MNNVL_CLIQUE_ID
    NCCL_MNNVL_SCATTER_NETS_ENABLE NCCL_MNNVL_RAIL_PER_HOST

    NCCL_ALGO NCCL_PROTO NCCL_BUFFSIZE NCCL_LL_BUFFSIZE NCCL_LL128_BUFFSIZE NCCL_NTHREADS
    NCCL_LL128_NTHREADS NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_NRINGS NCCL_MAX_NRINGS
    NCCL_MIN_CTAS NCCL_MAX_CTAS NCCL_CTA_POLICY NCCL_NCHANNELS_PER_NET_PEER
    NCCL_MIN_P2P_NCHANNELS NCCL_MAX_P2P_NCHANNELS NCCL_WORK_FIFO_BYTES NCCL_WORK_FIFO_DEPTH
    NCCL_WORK_ARGS_BYTES NCCL_LAUNCH_MODE NCCL_LAUNCH_ORDER_IMPLICIT NCCL_CHECKS_DISABLE
    NCCL_CHECK_POINTERS NCCL_COLLNET_ENABLE NCCL_COLLNET_NODE_THRESHOLD NCCL_NVLS_ENABLE
    NCCL_NVLS_NCHANNELS NCCL_NVLSTREE_MAX_CHUNKSIZE NCCL_NVLS_CHUNKSIZE NCCL_PAT_ENABLE
    NCCL_SINGLE_RING_THRESHOLD NCCL_SINGLE_PROC_MEM_REG_ENABLE NCCL_THREAD_THRESHOLDS
    NCCL_LOCAL_REGISTER NCCL_GRAPH_REGISTER NCCL_GRAPH_MIXING_SUPPORT
    NCCL_LEGACY_CUDA_REGISTER NCCL_CUMEM_ENABLE
    NCCL_CUMEM_HOST_ENABLE NCCL_WIN_ENABLE NCCL_WIN_STRIDE NCCL_SYM_CTAS NCCL_SYM_KERNEL
    NCCL_SYM_GIN_KERNELS_ENABLE NCCL_GIN_TYPE NCCL_GIN_ENABLE NCCL_GIN_NCONNECTIONS
    NCCL_GIN_NCONTEXTS NCCL_BUFFER_ALIGN NCCL_RUNTIME_CONNECT NCCL_CONNECT_ROUND_ROBIN
    NCCL_CREATE_THREAD_CONTEXT NCCL_PROGRAM_LAUNCH_STREAM NCCL_SET_THREAD_NAME
    NCCL_SET_STACK_SIZE NCCL_SET_CPU_STACK_SIZE NCCL_CGA_CLUSTER_SIZE
    NCCL_MAX_CGA_CLUSTER_SIZE NCCL_L1_SHARED_MEMORY_CARVEOUT NCCL_MEM_SYNC_DOMAIN
    NCCL_COMM_BLOCKING NCCL_COMM_SPLIT_SHARE_RESOURCES NCCL_COMM_SHRINK_SHARE_RESOURCES
    NCCL_PROXY_CPUSET NCCL_NVTX_DISABLE NCCL_RAS_ENABLE NCCL_RAS_TIMEOUT_FACTOR

    NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_WARN_ENABLE_DEBUG_INFO NCCL_ENV_PLUGIN
    NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_DESYNC_DEBUG
"""


_TORCH: Final = """
    TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BCAST_UNIQUEID
    TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_COORD_CHECK_MILSEC TORCH_NCCL_CUDA_EVENT_CACHE
    TORCH_NCCL_DESYNC_DEBUG TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_ENABLE_MONITORING
    TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_HIGH_PRIORITY
    TORCH_NCCL_NAN_CHECK TORCH_NCCL_PROPAGATE_ERROR TORCH_NCCL_RANKS_PER_ROOT
    TORCH_NCCL_RETHROW_CUDA_ERRORS TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_TRACE_CPP_STACK
    TORCH_NCCL_USE_COMM_NONBLOCKING TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK
    TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC TORCH_FR_BUFFER_SIZE TORCH_FR_CPP_STACK
    TORCH_DISTRIBUTED_DEBUG TORCH_DIST_INIT_BARRIER TORCH_GLOO_LAZY_INIT
    TORCH_SYMM_MEM_DISABLE_MULTICAST TORCH_SYMMMEM TORCH_SYMMMEM_NBLOCKS
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT TORCH_LINALG_PREFER_CUSOLVER
    TORCH_CUDNN_USE_HEURISTIC_MODE_B TORCH_CUDNN_V8_API_DISABLED TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT
    TORCH_CUDNN_SDPA_ENABLED TORCH_CUDA_ARCH_LIST TORCH_LINEAR_FLATTEN_3D
    TORCH_MKLDNN_MATMUL_MIN_DIM TORCH_MKLDNN_MATMUL_MIN_SIZE TORCH_COMPILE_DISABLE
    TORCH_COMPILE_DEBUG TORCH_SHOW_CPP_STACKTRACES TORCH_USE_CUDA_DSA TORCH_LOGS
    TORCHDYNAMO_DISABLE TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_FORCE_DISABLE_CACHES
    TORCHINDUCTOR_FX_GRAPH_CACHE TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_MAX_AUTOTUNE_GEMM
    TORCHINDUCTOR_CUDAGRAPHS TORCHINDUCTOR_FREEZING TORCHINDUCTOR_USE_FAST_MATH
    TORCHINDUCTOR_COORDINATE_DESCENT_TUNING TORCHINDUCTOR_DETERMINISTIC
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING
    PYTORCH_NVML_BASED_CUDA_CHECK PYTORCH_JIT PYTORCH_TUNABLEOP_ENABLED PYTORCH_TUNABLEOP_TUNING
    PYTORCH_TUNABLEOP_MAX_TUNING_DURATION_MS PYTORCH_TUNABLEOP_MAX_TUNING_ITERATIONS
"""


_CUDA: Final = """
    CUDA_HOME CUDA_VERSION CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_DEVICE_MAX_CONNECTIONS
    CUDA_DEVICE_MAX_COPY_CONNECTIONS CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING
    CUDA_MODULE_DATA_LOADING CUDA_AUTO_BOOST CUDA_SCALE_LAUNCH_QUEUES CUDA_FORCE_PTX_JIT
    CUDA_DISABLE_PTX_JIT CUDA_CACHE_DISABLE CUDA_CACHE_MAXSIZE CUDA_MANAGED_FORCE_DEVICE_ALLOC
    CUDA_GRAPHS_USE_NODE_PRIORITY CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_PINNED_DEVICE_MEM_LIMIT CUDA_MPS_CLIENT_PRIORITY
    CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE CUBLAS_EMULATE_DOUBLE_PRECISION
    CUBLAS_EMULATE_SINGLE_PRECISION NVIDIA_TF32_OVERRIDE NVIDIA_VISIBLE_DEVICES
    NVIDIA_DRIVER_CAPABILITIES
"""


_HOST: Final = """
    OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OMP_SCHEDULE OMP_DYNAMIC OMP_WAIT_POLICY
    OMP_THREAD_LIMIT OMP_NESTED OMP_MAX_ACTIVE_LEVELS OMP_STACKSIZE OMP_CANCELLATION
    KMP_AFFINITY KMP_BLOCKTIME KMP_SETTINGS GOMP_CPU_AFFINITY GOMP_SPINCOUNT
    MKL_NUM_THREADS MKL_DOMAIN_NUM_THREADS MKL_DYNAMIC MKL_CBWR MKL_ENABLE_INSTRUCTIONS
    MKL_DISABLE_FAST_MM MKL_FAST_MEMORY_LIMIT MKL_NUM_STRIPES MKL_VERBOSE MKL_DEBUG_CPU_TYPE
    MKL_SERVICE_FORCE_INTEL MKL_THREADING_LAYER MKL_INTERFACE_LAYER OPENBLAS_NUM_THREADS
    GLOO_SOCKET_IFNAME GLOO_DEVICE_TRANSPORT GLOO_DISABLE_CONNECTION_RETRIES
    GLOO_ENABLE_STORE_V2_API TP_SOCKET_IFNAME TP_VERBOSE_LOGGING
"""


RECORDED: Final = frozenset(" ".join((_NCCL, _TORCH, _CUDA, _HOST)).split())


def recorded_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``environment`` that may be recorded, sorted by name."""
    return {name: environment[name] for name in sorted(RECORDED & environment.keys())}


WORKING_DIRECTORY = "working directory"
"""Whose repository a ``code`` is of where scalewise itself runs from none."""


SOURCE_SHA256 = "source_sha256"
"""In a ``code``: hash of scalewise's own sources, where no commit of theirs is known."""


CLASS_FILES = "class_files"
"""In a ``code``: file of each module of the user's own classes to its SHA-256."""


# Which network interface leads to another host.


def interface_towards(address: str) -> str | None:
    """The network interface that leads to ``address``; None where none does.

    gloo would otherwise listen where this host's own name points to, which on many hosts is the
    loopback interface: there, no other host finds it.
    """
    import psutil  # only a cell on several hosts asks

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing: the kernel only chooses the route
            own = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == own for known in addresses):
            return name
    return None


# Free TCP ports.


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on right now: of the loopback interface, or of ``address``."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


_PACKAGE = Path(str(importlib.resources.files("scalewise")))


_RECORDED_OTHERWISE = ("scalewise.", "torch.")
"""Classes whose state a commit or a version tells."""


def running_code(
    working_directory: Path, classes: Iterable[str] = (), search: Sequence[str] | None = None
) -> dict[str, Any]:
    """What is recorded as ``code``: :attr:`Provenance.code <scalewise.records.Provenance.code>`.

    The repository around ``working_directory`` counts only where scalewise runs from none.

    Args:
        working_directory: where the run starts.
        classes: the user's own, as :func:`own_classes` finds them.
        search: folders to look for their modules in; ``sys.path`` where it is None.
    """
    ours = scalewise_version()
    users = {} if "commit" in ours else code_version(working_directory)
    code = {**users, "tree": WORKING_DIRECTORY, **ours} if users else ours
    files = _class_files(classes, search)
    return {**code, CLASS_FILES: files} if files else code


def own_classes(plain: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes of neither scalewise nor torch that a cell's resolved configuration names."""
    return tuple(sorted({t for t in _targets(plain) if not t.startswith(_RECORDED_OTHERWISE)}))


def code_changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """How two fingerprints differ, a line each. A class file that one lacks is no difference."""
    for key, name in (("commit", "commit"), (SOURCE_SHA256, "scalewise's sources")):
        if was.get(key) != now.get(key):
            yield f"code: {name} {_short(was.get(key))} there, {_short(now.get(key))} here"
    changed = was.get("diff_sha256") != now.get("diff_sha256")
    if was.get("commit") == now.get("commit") and changed:
        yield "code: the same commit with other changes on top"
    files = now.get(CLASS_FILES, {})
    for name, told in was.get(CLASS_FILES, {}).items():
        if files.get(name, told) != told:
            yield f"code: your {name} {_short(told)} there, {_short(files[name])} here"


def _short(told: object) -> str:
    return str(told)[:10] if told else "unknown"


def _targets(plain: object) -> Iterator[str]:
    if isinstance(plain, Mapping):
        target = plain.get("_target_")
        if isinstance(target, str) and "." in target:
            yield target
        for value in plain.values():
            yield from _targets(value)
    elif isinstance(plain, (list, tuple)):
        for value in plain:
            yield from _targets(value)


def _class_files(classes: Iterable[str], search: Sequence[str] | None) -> dict[str, str]:
    """Each module's file, ``package/module.py``, to its SHA-256. What is not found is left out."""
    found: dict[str, str] = {}
    for module in sorted({name.rpartition(".")[0] for name in classes}):
        file = _module_file(module, search)
        if file is not None:
            end = "/__init__.py" if file.name == "__init__.py" else ".py"
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            found[module.replace(".", "/") + end] = content
    return found


def _module_file(module: str, search: Sequence[str] | None) -> Path | None:
    """The source of a module, found without importing the packages around it."""
    outermost, *inner = module.split(".")
    try:
        if search is None:
            spec = importlib.util.find_spec(outermost)
        else:
            spec = PathFinder.find_spec(outermost, list(search))
    except (ImportError, ValueError):  # ValueError: a module that was made at run time
        return None
    if spec is None:
        return None
    places = [Path(folder, *inner) for folder in spec.submodule_search_locations or ()]
    files = [f for place in places for f in (place / "__init__.py", place.with_suffix(".py"))]
    if not inner and spec.origin is not None:
        files = [Path(spec.origin)]
    return next((f for f in files if f.suffix == ".py" and f.is_file()), None)


def scalewise_version(package: Path = _PACKAGE) -> dict[str, object]:
    """Commit and changes of scalewise's checkout; where it runs from none, a hash of its sources.

    A package that lies in a repository which does not track it, as an environment in the user's
    own checkout does, has no commit.
    """
    ours = code_version(package, tracked="__init__.py")
    return ours or {SOURCE_SHA256: source_sha256(package)}


@functools.cache
def source_sha256(package: Path) -> str:
    """SHA-256 over relative paths and contents of the Python files of ``package``."""
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py"), key=lambda p: p.relative_to(package).as_posix()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(package).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def code_version(folder: Path, tracked: str | None = None) -> dict[str, object]:
    """Commit of the repository around ``folder``, and how its Python files differ from it.

    Notes and pages may be edited while a sweep runs: its cells stay repeats of each other.
    Empty where there is no repository, no git, or it does not track the file ``tracked``.
    """

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, check=True, timeout=20
        ).stdout

    try:
        commit = git("rev-parse", "HEAD").decode().strip()
        if tracked is not None:
            git("ls-files", "--error-unmatch", tracked)
        difference = git("diff", "HEAD", "--", ":(top)*.py")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {
        "commit": commit,
        "dirty": bool(difference),
        "diff_sha256": hashlib.sha256(difference).hexdigest() if difference else None,
    }
