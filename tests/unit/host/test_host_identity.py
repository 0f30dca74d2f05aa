"""Which host this is, from trees of files as hosts, virtual machines and containers show them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scalewise.host import host_id, place_id, recorded_in
from scalewise.host import identity as identity_module
from scalewise.host.identity import identify

BOOT = "6662b647-f7f9-49a6-8dfb-cc9460e52ad1"
MAC = "3c:ec:ef:12:34:56"
GPU = "GPU-5b1d7f3e-2a4c-4b8e-9c2d-0f1e2d3c4b5a"


class Host:
    """The ``/proc`` and ``/sys`` of a host, as far as an identity is read from them."""

    def __init__(self, root: Path, boot: str = BOOT) -> None:
        self.root = root
        self._put("proc/sys/kernel/random/boot_id", boot)

    def card(self, name: str, address: str, *, bus: str = "pci", assigned: str = "0") -> Host:
        card = f"sys/class/net/{name}"
        self._put(f"{card}/address", address)
        self._put(f"{card}/addr_assign_type", assigned)
        device = self.root / card / "device"
        device.mkdir()
        (self.root / "sys/bus" / bus).mkdir(parents=True, exist_ok=True)
        (device / "subsystem").symlink_to(self.root / "sys/bus" / bus)
        return self

    def gpu(self, uuid: str, bus: str = "0000:1b:00.0") -> Host:
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


def test_this_host_has_an_identity_that_does_not_name_it() -> None:
    assert re.fullmatch(r"(mac|gpu|boot|name)-[0-9a-f]{12}", host_id())
    assert host_id() == host_id()


def test_hosts_of_one_name_and_of_one_image_are_told_apart(tmp_path: Path) -> None:
    others = [
        Host(tmp_path / "d").card("eth0", MAC),
        Host(tmp_path / "e").card("eth0", MAC.replace("56", "57")),
        Host(tmp_path / "f").gpu(GPU),
        Host(tmp_path / "g").gpu(GPU.replace("5b1d", "5b1e")),
        Host(tmp_path / "h", boot=BOOT.replace("6662", "6663")),
        Host(tmp_path / "i"),
    ]
    for host in others:
        host._put("etc/machine-id", "3d1219c7c4c5404aaa1f6d2a48adfda4")
    assert len({host.identity for host in others}) == len(others)
    kinds = [host.identity.partition("-")[0] for host in others]
    assert kinds == ["mac"] * 2 + ["gpu"] * 2 + ["boot"] * 2


def test_a_host_keeps_its_identity_over_reboots(tmp_path: Path) -> None:
    before = Host(tmp_path / "before").card("eth0", MAC).gpu(GPU)
    after = Host(tmp_path / "after", boot=BOOT.replace("6", "7")).card("eth0", MAC)
    assert before.identity == after.identity
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


def test_what_cannot_be_read_leaves_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameless = identify(tmp_path)
    assert nameless.startswith("name-")
    monkeypatch.setattr(identity_module.socket, "gethostname", lambda: "another")
    assert identify(tmp_path) != nameless
    assert "another" not in identify(tmp_path)


def test_containers_of_one_host_write_files_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = place_id()
    assert here.startswith(f"{host_id()}-")
    monkeypatch.setattr(identity_module.socket, "gethostname", lambda: "another")
    assert place_id() != here
    assert place_id().startswith(f"{host_id()}-")


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
    assert recorded_in({**left_out, **kept}) == kept
