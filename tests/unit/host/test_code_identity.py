"""Which code runs, where it is in a repository, in somebody else's, or in none."""

import hashlib
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from scalewise import host
from scalewise.config import own_classes
from scalewise.host import identity as identity_module
from scalewise.host.identity import code_version, identify, source_sha256


def repository(folder: Path) -> str:
    """Commits all that is in ``folder``, but for what it ignores; returns the commit."""
    by = "-c user.name=a -c user.email=a@b"
    for given in ("init -q", "add -A", f"{by} commit -q --allow-empty -m x"):
        subprocess.run(["git", "-C", str(folder), *given.split()], check=True)
    return str(code_version(folder)["commit"])


def package(folder: Path, content: str = "A = 1\n") -> Path:
    (folder / "part").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "part" / "a.py").write_text(content)
    return folder


def test_without_a_repository_the_sources_tell_the_code(tmp_path: Path) -> None:
    assert code_version(tmp_path) == {}
    first = host.scalewise_version(package(tmp_path / "first"))
    assert list(first) == [host.SOURCE_SHA256]
    again = package(tmp_path / "again")
    (again / "__pycache__").mkdir()
    (again / "__pycache__" / "a.pyc").write_bytes(b"of another path")
    assert host.scalewise_version(again) == first
    assert host.scalewise_version(package(tmp_path / "changed", "A = 2\n")) != first
    moved = package(tmp_path / "moved")
    shutil.move(moved / "part" / "a.py", moved / "a.py")
    assert host.scalewise_version(moved) != first


def test_a_repository_that_does_not_track_the_package_is_not_its_own(tmp_path: Path) -> None:
    """As an environment within the user's checkout, which he has git ignore."""
    (tmp_path / ".gitignore").write_text(".venv\n")
    (tmp_path / "train.py").write_text("")
    installed, tracked = package(tmp_path / ".venv" / "lib"), package(tmp_path / "src")
    commit = repository(tmp_path)
    assert host.scalewise_version(installed) == {host.SOURCE_SHA256: source_sha256(installed)}
    assert host.scalewise_version(tracked)["commit"] == commit


def test_a_page_that_is_edited_while_a_sweep_runs_changes_no_code(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("a")
    package(tmp_path / "src")
    repository(tmp_path)
    clean = code_version(tmp_path)
    (tmp_path / "notes.md").write_text("b")
    assert code_version(tmp_path) == clean
    (tmp_path / "src" / "part" / "a.py").write_text("A = 2\n")
    changed = code_version(tmp_path / "src")
    assert changed["dirty"]
    assert changed["diff_sha256"] != clean["diff_sha256"]


def test_a_users_commit_is_recorded_as_none_of_scalewises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = repository(tmp_path)
    monkeypatch.setattr(host.identity, "scalewise_version", lambda: {"commit": "ours"})
    assert host.running_code(tmp_path) == {"commit": "ours"}
    monkeypatch.setattr(host.identity, "scalewise_version", lambda: {host.SOURCE_SHA256: "0"})
    assert host.running_code(tmp_path) == {
        "commit": users, "dirty": False, "diff_sha256": None,
        "tree": host.WORKING_DIRECTORY, host.SOURCE_SHA256: "0",
    }  # fmt: skip
    shutil.rmtree(tmp_path / ".git")
    assert host.running_code(tmp_path) == {host.SOURCE_SHA256: "0"}


def test_the_classes_are_those_of_neither_scalewise_nor_torch() -> None:
    plain = {
        "model": {"_target_": "mine.Net", "layer": {"_target_": "other.Layer"}},
        "dataset": {"_target_": "scalewise.datasets.tabular.Tabular"},
        "optimizer": {"_target_": "torch.optim.SGD"},
        "callbacks": [{"_target_": "mine.Callback"}, {"_target_": "of_no_module"}],
    }
    assert own_classes(plain) == ("mine.Callback", "mine.Net", "other.Layer")


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("mine_of_all", "mine_of_all.py"),
        ("nets_of_all", "nets_of_all/__init__.py"),
        ("nets_of_all.parts.mine", "nets_of_all/parts/mine.py"),
        ("exp_of_all.nets.mine", "exp_of_all/nets/mine.py"),
    ],
)
def test_a_class_is_known_by_the_file_of_its_module_which_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, file: str
) -> None:
    nets = ("nets_of_all/__init__.py", "nets_of_all/parts/mine.py")
    for name in ("mine_of_all.py", *nets, "exp_of_all/nets/mine.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"raise RuntimeError({name!r})\n")
    search = [str(tmp_path)]
    monkeypatch.setattr(host.identity, "scalewise_version", lambda: {"commit": "ours"})
    content = hashlib.sha256((tmp_path / file).read_bytes()).hexdigest()
    found = host.running_code(tmp_path, [f"{module}.Net", f"{module}.Data"], search)
    assert found == {"commit": "ours", host.CLASS_FILES: {file: content}}
    monkeypatch.syspath_prepend(str(tmp_path))
    assert host.running_code(tmp_path, [f"{module}.Net"]) == found
    assert module.partition(".")[0] not in sys.modules
    absent = ["no_such_module.Net", "no.such.Net", "sys.Net", "__main__.Net"]
    assert host.running_code(tmp_path, absent, search) == {"commit": "ours"}


def test_what_a_module_imports_is_known_by_its_file_and_what_is_installed_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "trained_by_all.py").write_text("import yaml, parts_of_all.layer\n")
    layer = tmp_path / "parts_of_all" / "layer.py"
    layer.parent.mkdir()
    layer.write_text("A = 1\n")
    (tmp_path / "test_of_all.py").write_text("")
    before = host.imported_modules()
    importlib.import_module("trained_by_all")
    found = host.imported_modules() - before
    assert found == {"trained_by_all", "parts_of_all", "parts_of_all.layer"}
    files = host.module_files(found)
    assert set(files) == {"trained_by_all.py", "parts_of_all/layer.py"}
    assert host.files_now(files) == files
    layer.write_text("A = 2\n")
    assert {name for name, told in host.files_now(files).items() if told != files[name]} == {
        "parts_of_all/layer.py"
    }
    assert not host.imported_modules() & {"scalewise.host", "os", "yaml", "torch"}


def test_each_part_of_the_fingerprint_tells_of_a_change() -> None:
    files = {host.CLASS_FILES: {"mine.py": "1"}}
    was = {"commit": "a", "diff_sha256": None, host.SOURCE_SHA256: "0", **files}
    now = [
        {**was, "commit": "b", "diff_sha256": "2"},  # of a test, or of a page
        {**was, host.SOURCE_SHA256: "3"},
        {**was, host.CLASS_FILES: {"mine.py": "4"}},
    ]
    assert [len(list(host.code_changes(was, one))) for one in now] == [0, 1, 1]
    (line,) = host.code_changes(was, now[-1])
    assert "mine.py" in line
    unknown = {**was, host.CLASS_FILES: {"other.py": "5"}}
    assert not list(host.code_changes(was, was)) + list(host.code_changes(was, unknown))


# A file is told from what it was, however large it is.
MIB = 1 << 20


def test_only_files_and_indexed_folders_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,a,b\n")
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "index.json").write_text("{}")
    (tmp_path / "plain").mkdir()
    arguments = {"path": "a.csv", "root": "plain", "size": 3, "gone": "b.csv", "none": None}
    told = host.data_identity({**arguments, "folder": "tokens", "nul": "a\0b", "no": ""}, tmp_path)
    assert set(told) == {"path", "folder"}
    assert told["path"].startswith("6 bytes (sha256 ")
    assert host.data_identity({"path": str(tmp_path / "a.csv")}) == {"path": told["path"]}
    (tmp_path / "a.csv").write_text("1,a,c\n")
    assert host.data_identity({"path": str(tmp_path / "a.csv")}) != {"path": told["path"]}
    (tmp_path / "a.csv").write_bytes(bytes(5 * MIB // 2))
    whole = {"path": "2621440 bytes (sha256 6de7493c5c90)"}
    assert host.data_identity({"path": "a.csv"}, tmp_path) == whole


@pytest.mark.parametrize(("size", "unseen"), [(40 * MIB, 5 * MIB), (3 * MIB + 9, MIB + 1)])
def test_of_large_files_begin_middle_and_end_count(tmp_path: Path, size: int, unseen: int) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(size)
    before = host.data_identity({"path": str(path)})
    for place, is_seen in ((0, True), (size // 2, True), (size - 1, True), (unseen, False)):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        after = host.data_identity({"path": str(path)})
        assert (before != after) == is_seen, place
        before = after


# Which host this is, from trees of files as hosts, virtual machines and containers show them.
BOOT = "6662b647-f7f9-49a6-8dfb-cc9460e52ad1"
MAC = "3c:ec:ef:12:34:56"
GPU = "GPU-5b1d7f3e-2a4c-4b8e-9c2d-0f1e2d3c4b5a"


class Host:
    """The ``/proc`` and ``/sys`` of a host, as far as an identity is read from them."""

    def __init__(self, root: Path, boot: str = BOOT) -> None:
        self.root = root
        self._put("proc/sys/kernel/random/boot_id", boot)

    def card(self, name: str, address: str, *, bus: str = "pci", assigned: str = "0") -> Self:
        card = f"sys/class/net/{name}"
        self._put(f"{card}/address", address)
        self._put(f"{card}/addr_assign_type", assigned)
        device = self.root / card / "device"
        device.mkdir()
        (self.root / "sys/bus" / bus).mkdir(parents=True, exist_ok=True)
        (device / "subsystem").symlink_to(self.root / "sys/bus" / bus)
        return self

    def gpu(self, uuid: str, bus: str = "0000:1b:00.0") -> Self:
        text = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00"
        self._put(f"proc/driver/nvidia/gpus/{bus}/information", text)
        return self

    def _put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    @property
    def identity(self) -> str:
        return identify(self.root)


@pytest.fixture(autouse=True)
def one_name_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_module.socket, "gethostname", lambda: "localhost")


def test_hosts_of_one_name_and_of_one_image_are_told_apart(tmp_path: Path) -> None:
    others = [
        Host(tmp_path / "d").card("eth0", MAC),
        Host(tmp_path / "e").card("eth0", MAC.replace("56", "57")),
        Host(tmp_path / "f").gpu(GPU),
        Host(tmp_path / "g").gpu(GPU.replace("5b1d", "5b1e")),
        Host(tmp_path / "h", boot=BOOT.replace("6662", "6663")),
        Host(tmp_path / "i"),
    ]
    for one in others:
        one._put("etc/machine-id", "3d1219c7c4c5404aaa1f6d2a48adfda4")
    assert len({one.identity for one in others}) == len(others)
    kinds = [one.identity.partition("-")[0] for one in others]
    assert kinds == ["mac"] * 2 + ["gpu"] * 2 + ["boot"] * 2


def test_a_host_keeps_its_identity_over_reboots(tmp_path: Path) -> None:
    after = Host(tmp_path / "after", boot=BOOT.replace("6", "7")).card("eth0", MAC)
    assert Host(tmp_path / "before").card("eth0", MAC).gpu(GPU).identity == after.identity
    containers = [Host(tmp_path / f"c{i}", boot=f"boot {i}").gpu(GPU) for i in range(2)]
    assert containers[0].identity == containers[1].identity


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("02:fc:00:00:00:01", {}),  # of a hypervisor, which gives it to each of its machines
        (MAC, {"assigned": "1"}),  # random
        (MAC, {"assigned": "3"}),  # set by an administrator, or by a bond
        (MAC, {"bus": "usb"}),  # a management controller's, the same in many servers
        ("00:00:00:00:00:00", {}),
        ("80:00:02:08:fe:80:00:00:00:00:00:00:3c:ec:ef:03:00:12:34:56", {}),  # InfiniBand
        ("", {}),
    ],
)
def test_an_address_that_others_may_have_too_tells_nothing(
    tmp_path: Path, address: str, options: dict[str, str]
) -> None:
    assert Host(tmp_path).card("eth0", address, **options).identity.startswith("boot-")


def test_the_order_in_which_devices_are_found_does_not_matter(tmp_path: Path) -> None:
    other = GPU.replace("5b1d", "0b1d")
    one = Host(tmp_path / "a").gpu(GPU, "0000:1b:00.0").gpu(other, "0000:2b:00.0")
    two = Host(tmp_path / "b").gpu(other, "0000:1b:00.0").gpu(GPU, "0000:2b:00.0")
    assert one.identity == two.identity
    unknown = Host(tmp_path / "c").gpu(GPU).gpu("GPU-????????-????-????", "0000:2b:00.0")
    assert unknown.identity.startswith("boot-"), "its own UUID shows once somebody has used it"


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nameless = identify(tmp_path)
    assert nameless.startswith("name-")
    monkeypatch.setattr(identity_module.socket, "gethostname", lambda: "another")
    assert identify(tmp_path) != nameless
    assert "another" not in identify(tmp_path)


def test_containers_of_one_host_write_files_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"(mac|gpu|boot|name)-[0-9a-f]{12}", host.host_id())
    here = host.place_id()
    assert here.startswith(f"{host.host_id()}-")
    monkeypatch.setattr(identity_module.socket, "gethostname", lambda: "another")
    assert host.place_id() != here
    assert host.place_id().startswith(f"{host.host_id()}-")


def test_what_is_recorded_of_an_environment_names_nobody() -> None:
    kept = {
        "CUDA_HOME": "/usr/local/cuda", "NCCL_ALGO": "allreduce:tree",
        "NVIDIA_TF32_OVERRIDE": "0", "OMP_NUM_THREADS": "2",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }  # fmt: skip
    left_out = {
        "CUDA_API_KEY": "x", "HOME": "x", "NCCL_COMM_ID": "10.0.0.1:99", "NCCL_DEBUG_FILE": "/me/x",
        "NCCL_HOSTID": "x", "TORCHELASTIC_RUN_ID": "1", "TORCH_HOME": "/home/me",
    }  # fmt: skip
    assert host.recorded_in({**left_out, **kept}) == kept
