"""The NVML seam, through the real pynvml and the fake driver."""

import subprocess
import sys
import time

import pytest

from fakes.nvml.fixture import FakeNvml
from fakes.nvml.scenario import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    SM_ACTIVITY,
    TIMEOUT,
    VERSION_MISMATCH,
    Scenario,
    gpu_uuid,
)
from scalewise.gpu import open_nvml
from scalewise.gpu.leases import gpu_slots, visible_devices
from scalewise.gpu.metrics import GPM_METRICS, throttle_words
from scalewise.gpu.nvml import GpuLost


def test_the_core_group_reads_every_value_in_its_unit(fake_nvml: FakeNvml) -> None:
    fake_nvml(Scenario().h200(2))
    with open_nvml() as nvml:
        first, second = nvml.devices()
        sample = nvml.sample(second)
        assert nvml.driver_version() == "999.01"
        assert nvml.link(first, second) == "NV18", "through switches"
    assert (second.name, second.uuid, second.cores) == ("NVIDIA H200", gpu_uuid(1), (2, 3))
    assert [slot.cores for slot in gpu_slots((first, second), (1, 2, 3))] == [(1,), (2, 3)]
    assert (second.memory_total_mib, second.power_limit_w) == (143_771, 700)
    assert (sample.utilization_percent, sample.memory_used_mib) == (89, 11_264)
    assert (sample.power_w, sample.temperature_c) == (600, 61)
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz) == (1980, 3201)
    assert sample.throttle_reasons == ("power cap",)
    assert sample.energy_j is None, "3.5 ms a call: not in the core group"
    assert not nvml.unavailable and not nvml.faults


def test_the_slow_group_adds_counters_and_processes(fake_nvml: FakeNvml) -> None:
    scenario = Scenario().h200(1).add("process 0 4242 5120")
    scenario.value(0, "ecc_uncorrected", 3).value(0, "remapped_rows", 2).value(1, "energy_mj", 1500)
    # What Hopper answers in place of fields 138 and 139.
    scenario.value(0, "nvlink_tx_bytes", 3 * 2**20)
    scenario.value(0, "pcie_tx_bytes", 5 * 2**20).value(0, "pcie_rx_bytes", 7 * 2**20)
    fake_nvml(scenario.gpu(1, 24_576, "NVIDIA A10G").value(1, "nvlink_tx_kib", 9 * 2**10))
    with open_nvml() as nvml:
        sample, other = (nvml.sample(one, slow=True) for one in nvml.devices())
    assert (other.nvlink_tx_mib, other.energy_j) == (9, 1.5)
    assert sample.energy_j is not None and 5000 < sample.energy_j < 5000 + 600 * 60
    assert (sample.ecc_corrected, sample.ecc_uncorrected, sample.remapped_rows) == (0, 3, 2)
    assert (sample.nvlink_tx_mib, sample.pcie_tx_mib, sample.pcie_rx_mib) == (3, 5, 7)
    assert sample.nvlink_rx_mib is None and "nvlink_rx_mib" in nvml.unavailable
    assert sample.processes is not None
    assert [(p.pid, p.memory_mib) for p in sample.processes] == [(4242, 5120)]


def test_gpm_needs_two_samples_more_than_100_ms_apart(fake_nvml: FakeNvml) -> None:
    fake_nvml(Scenario().h200(1).value(0, SM_ACTIVITY, 96.5).fault(0, "gpm.60", NOT_SUPPORTED))
    with open_nvml() as nvml:
        (gpu,) = nvml.devices()
        assert nvml.sample(gpu, gpm=True).sm_activity_percent is None
        assert nvml.sample(gpu, gpm=True).sm_activity_percent is None, "too early: not asked"
        time.sleep(0.12)
        sample = nvml.sample(gpu, gpm=True)
    assert sample.sm_activity_percent == 96.5
    assert (sample.tensor_activity_percent, sample.dram_activity_percent) == (37.5, 61)
    assert sample.engine_activity_percent == 97.5
    assert (sample.nvlink_tx_mib_per_s, sample.nvlink_rx_mib_per_s) == (12345, None)
    assert nvml.unavailable == {"nvlink_rx_mib_per_s": "not supported (GPU 0)"}
    assert not nvml.faults


def test_what_is_not_there_is_a_reason_and_an_unexpected_error_a_fault(fake_nvml: FakeNvml) -> None:
    scenario = Scenario().h200(2, gpm=False).fault(1, "power_mw", NO_PERMISSION)
    now = time.monotonic() - scenario.origin
    fake_nvml(scenario.fault(0, "temperature", TIMEOUT, until=now + 0.3))
    with open_nvml() as nvml:
        first, second = (nvml.sample(d, gpm=True) for d in nvml.devices())
        assert (first.power_w, second.power_w, second.utilization_percent) == (600, None, 89)
        assert nvml.unavailable == {
            **dict.fromkeys(GPM_METRICS, "not supported (GPU 0)"),
            "power_w": "insufficient permissions (GPU 1)",
        }
        assert (first.temperature_c, nvml.faults) == (None, {"GPU 0 temperature_c": "timeout"})
        time.sleep(0.35)
        assert nvml.sample(nvml.devices()[0]).temperature_c == 61, "asked again"


@pytest.mark.parametrize("code", [GPU_IS_LOST, DRIVER_NOT_LOADED, VERSION_MISMATCH])
def test_a_gpu_that_is_gone_raises_gpu_lost(fake_nvml: FakeNvml, code: int) -> None:
    scenario = Scenario().h200(3)
    later = time.monotonic() - scenario.origin + 0.2
    fake_nvml(scenario.fault(1, "*", code, at=later).fault(2, "*", GPU_IS_LOST))
    with open_nvml() as nvml:
        first, second = nvml.devices()
        assert nvml.faults == {"GPU 2": "GPU is lost"}, "before the start"
        time.sleep(0.25)
        with pytest.raises(GpuLost) as lost:
            nvml.sample(second)
        assert (lost.value.uuid, nvml.sample(first).power_w) == (gpu_uuid(1), 600)


def test_a_gpu_in_mig_mode_is_none_of_ours(fake_nvml: FakeNvml) -> None:
    fake_nvml(Scenario().h200(2).mig(1))
    with open_nvml() as nvml:
        assert [d.index for d in nvml.devices()] == [0]
        assert "MIG mode" in nvml.faults["GPU 1"] and "-i 1 -mig 0" in nvml.faults["GPU 1"]


def test_links_and_peers_in_the_words_of_nvidia_smi(fake_nvml: FakeNvml) -> None:
    scenario = Scenario()
    for index in range(4):
        scenario.gpu(index, 24_576, "NVIDIA A10G")
    scenario.add("link 0 1 4").add("ancestor 0 2 30").add("peer 0 2 4").add("ancestor 1 2 10")
    fake_nvml(scenario)
    with open_nvml() as nvml:
        a, b, c, d = nvml.devices()
        assert nvml.link(a, b) == nvml.link(b, a) == "NV4"
        assert (nvml.link(a, c), nvml.link(b, c)) == ("PHB", "PIX")
        assert (nvml.link(a, d), nvml.peer_access(a, b)) == ("SYS", "ok")
        assert nvml.peer_access(a, c) == "disabled by a driver setting"


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [gpu_uuid(0), gpu_uuid(1)]),
        ("1,0", [gpu_uuid(1), gpu_uuid(0)]),
        (gpu_uuid(1), [gpu_uuid(1)]),
        ("MIG-00000000-0000-0000-0002-000000000005", []),
        ("", []),
        ("-1", []),
        ("0,7,1", [gpu_uuid(0)]),
        ("0,0", []),
        ("GPU-0", []),  # the beginning of more than one
    ],
)
def test_visible_devices(fake_nvml: FakeNvml, variable: str | None, expected: list[str]) -> None:
    fake_nvml(Scenario().h200(3).mig(2))
    env = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    with open_nvml() as nvml:
        assert [d.uuid for d in visible_devices(nvml, env)] == expected


def test_throttle_reasons_in_words() -> None:
    assert throttle_words(0x1) == (), "idle is none"
    assert throttle_words(0x4 | 0x2 | 0x1) == ("application clocks", "power cap")
    assert throttle_words(0x60) == ("thermal slowdown (software)", "thermal slowdown (hardware)")
    assert throttle_words(0x8000) == ("reason 0x8000",)


def test_importing_loads_no_driver_and_a_host_without_one_says_so_in_one_line() -> None:
    code = (
        "import sys; from scalewise.gpu import NvmlUnavailable, open_nvml\n"
        "assert 'pynvml' not in sys.modules\n"
        "try: print('a driver:', open_nvml().driver_version())\n"
        "except NvmlUnavailable as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert line.startswith(("a driver: ", "no NVIDIA GPU can be read on this host: "))
