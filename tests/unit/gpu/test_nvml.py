"""The NVML seam, through the real pynvml and the fake driver."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.nvml.scenario import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    TIMEOUT,
    VERSION_MISMATCH,
    Scenario,
    environment,
    gpu_uuid,
    mig_uuid,
)
from scalewise.gpu import NvmlUnavailable, open_nvml
from scalewise.gpu.metrics import GPM_METRICS, throttle_words
from scalewise.gpu.nvml_queries import GpuLost

Use = Callable[[Scenario], Path]


def test_the_core_lane_reads_every_value_in_its_unit(fake_nvml: Use) -> None:
    fake_nvml(Scenario().h200(2))
    with open_nvml() as nvml:
        _, second = nvml.devices()
        sample = nvml.sample(second)
        assert nvml.driver_version() == "999.01"
    assert (second.name, second.uuid, second.cores) == ("NVIDIA H200", gpu_uuid(1), (2, 3))
    assert (second.memory_total_mib, second.power_limit_w) == (143_771, 700)
    assert sample.utilization_percent == 89
    assert sample.memory_used_mib == 11_264
    assert sample.power_w == 600
    assert sample.temperature_c == 61
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz) == (1980, 3201)
    assert sample.throttle_reasons == ("power cap",)
    assert sample.energy_j is None, "3.5 ms a call: not in the core lane"
    assert not nvml.unavailable and not nvml.faults


def test_the_slow_lane_adds_counters_and_processes(fake_nvml: Use) -> None:
    scenario = Scenario().h200(1).add("process 0 4242 5120")
    scenario.points(0, "ecc_uncorrected", {0: 3}).points(0, "remapped_rows", {0: 2})
    # What Hopper answers in place of fields 138 and 139.
    scenario.counter(0, "nvlink_tx_bytes", base=3 * 2**20, rate=0)
    fake_nvml(scenario)
    with open_nvml() as nvml:
        sample = nvml.sample(nvml.devices()[0], slow=True)
    assert sample.energy_j is not None and 5000 < sample.energy_j < 5000 + 600 * 60
    assert (sample.ecc_corrected, sample.ecc_uncorrected, sample.remapped_rows) == (0, 3, 2)
    assert sample.nvlink_tx_mib == 3
    assert sample.nvlink_rx_mib is None and "nvlink_rx_mib" in nvml.unavailable
    assert sample.processes is not None
    assert [(p.pid, p.memory_mib) for p in sample.processes] == [(4242, 5120)]


def test_gpm_needs_two_samples_more_than_100_ms_apart(fake_nvml: Use) -> None:
    fake_nvml(Scenario().h200(1).points(0, "sm_activity", {0: 96.5}))
    with open_nvml() as nvml:
        (gpu,) = nvml.devices()
        assert nvml.sample(gpu, gpm=True).sm_activity_percent is None
        assert nvml.sample(gpu, gpm=True).sm_activity_percent is None, "too early: not asked"
        time.sleep(0.12)
        sample = nvml.sample(gpu, gpm=True)
    assert sample.sm_activity_percent == 96.5
    assert (sample.tensor_activity_percent, sample.dram_activity_percent) == (37.5, 61)
    assert (sample.nvlink_tx_mib_per_s, sample.nvlink_rx_mib_per_s) == (12345, 12340)
    assert not nvml.unavailable and not nvml.faults


def test_a_gpu_without_gpm_says_so_once_for_each_of_its_metrics(fake_nvml: Use) -> None:
    fake_nvml(Scenario().h200(1, gpm=False))
    with open_nvml() as nvml:
        sample = nvml.sample(nvml.devices()[0], gpm=True)
    assert sample.sm_activity_percent is None
    assert nvml.unavailable == dict.fromkeys(GPM_METRICS, "not supported (GPU 0)")


def test_permission_refused_is_a_reason_and_leaves_the_other_metrics(fake_nvml: Use) -> None:
    scenario = Scenario().h200(2)
    fake_nvml(scenario.fault(1, "power_mw", NO_PERMISSION).fault(1, "gpm", NO_PERMISSION))
    with open_nvml() as nvml:
        first, second = (nvml.sample(d, gpm=True) for d in nvml.devices())
    assert (first.power_w, second.power_w) == (600, None)
    assert second.utilization_percent == 89
    assert nvml.unavailable["power_w"] == "insufficient permissions (GPU 1)"
    assert nvml.unavailable["sm_activity_percent"] == "insufficient permissions (GPU 1)"


def test_an_unexpected_error_is_kept_as_a_fault_and_asked_again(fake_nvml: Use) -> None:
    scenario = Scenario().h200(1)
    now = time.monotonic() - scenario.origin
    fake_nvml(scenario.fault(0, "temperature", TIMEOUT, until=now + 0.3))
    with open_nvml() as nvml:
        (gpu,) = nvml.devices()
        assert nvml.sample(gpu).temperature_c is None
        assert nvml.faults == {"GPU 0 temperature_c": "timeout"}
        assert not nvml.unavailable
        time.sleep(0.35)
        assert nvml.sample(gpu).temperature_c == 61


@pytest.mark.parametrize("code", [GPU_IS_LOST, DRIVER_NOT_LOADED, VERSION_MISMATCH])
def test_a_gpu_that_is_gone_raises_gpu_lost(fake_nvml: Use, code: int) -> None:
    scenario = Scenario().h200(2)
    later = time.monotonic() - scenario.origin + 0.2
    fake_nvml(scenario.fault(1, "*", code, at=later))
    with open_nvml() as nvml:
        first, second = nvml.devices()
        time.sleep(0.25)
        with pytest.raises(GpuLost) as lost:
            nvml.sample(second)
        assert lost.value.uuid == gpu_uuid(1)
        assert nvml.sample(first).power_w == 600


def test_a_gpu_lost_before_the_start_is_left_out_and_named(fake_nvml: Use) -> None:
    fake_nvml(Scenario().h200(3).fault(1, "*", GPU_IS_LOST))
    with open_nvml() as nvml:
        assert [d.index for d in nvml.devices()] == [0, 2]
    assert nvml.faults == {"GPU 1": "GPU is lost"}


def test_mig_instances_are_found_and_tell_what_they_can(fake_nvml: Use) -> None:
    fake_nvml(Scenario().h200(2).mig(1, 3).mig(1, 5).fault("1.5", "power_mw", INVALID_ARGUMENT))
    with open_nvml() as nvml:
        whole, parent, *instances = nvml.all_devices()
        assert (whole.index, parent.index) == (0, 1)
        assert [d.uuid for d in instances] == [mig_uuid(1, 3), mig_uuid(1, 5)]
        assert [d.mig_ids for d in instances] == [(3, 0), (5, 0)]
        assert instances[0].parent_uuid == parent.uuid
        sample = nvml.sample(instances[1])
        assert not nvml.faults
    assert sample.memory_used_mib == 2560
    assert sample.power_w is None, "an invalid argument of a MIG handle is not a fault"
    assert sample.utilization_percent is None
    assert nvml.unavailable["utilization_percent"] == "not supported (GPU 1)"


def test_links_and_peers_in_the_words_of_nvidia_smi(fake_nvml: Use) -> None:
    scenario = Scenario()
    for index in range(4):
        scenario.device(str(index), gpu_uuid(index), 24_576, "NVIDIA A10G")
    scenario.add("link 0 1 4").add("ancestor 0 2 30").add("peer 0 2 4").add("ancestor 1 2 10")
    fake_nvml(scenario)
    with open_nvml() as nvml:
        a, b, c, d = nvml.devices()
        assert nvml.link(a, b) == nvml.link(b, a) == "NV4"
        assert nvml.link(a, c) == "PHB"
        assert nvml.link(b, c) == "PIX"
        assert nvml.link(a, d) == "SYS"
        assert nvml.peer_access(a, b) == "ok"
        assert nvml.peer_access(a, c) == "disabled by a driver setting"


def test_links_through_switches_are_counted(fake_nvml: Use) -> None:
    fake_nvml(Scenario().h200(2))
    with open_nvml() as nvml:
        assert nvml.link(*nvml.devices()) == "NV18"


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0x1, ()),
        (0x4 | 0x1, ("power cap",)),
        (0x60, ("thermal slowdown (software)", "thermal slowdown (hardware)")),
        (0x8000, ("reason 0x8000",)),
    ],
)
def test_throttle_reasons_in_words(mask: int, words: tuple[str, ...]) -> None:
    assert throttle_words(mask) == words


def test_no_gpus_behind_a_driver_is_said(fake_nvml: Use) -> None:
    fake_nvml(Scenario())
    with pytest.raises(NvmlUnavailable, match="this host has no GPU"):
        open_nvml()


def test_a_driver_that_does_not_start_is_said(fake_nvml: Use) -> None:
    fake_nvml(Scenario().h200(1).fault("*", "init", VERSION_MISMATCH))
    with pytest.raises(NvmlUnavailable, match=r"version mismatch \(NVML error 18\)$"):
        open_nvml()


def _run(code: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )


def test_importing_needs_no_driver_and_does_not_load_pynvml() -> None:
    done = _run("import sys, scalewise.gpu.nvml; print('pynvml' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_the_fake_goes_in_by_library_path_too(tmp_path: Path) -> None:
    scenario = Scenario().h200(3).write(tmp_path / "scenario.txt")
    code = "from scalewise.gpu.nvml import open_nvml; print(len(open_nvml().devices()))"
    done = _run(code, environment(scenario))
    assert done.stdout.strip() == "3", done.stderr


def test_a_host_without_a_driver_says_so_in_one_line() -> None:
    done = _run(
        "from scalewise.gpu.nvml import *\n"
        "try: print('a driver:', open_nvml().driver_version())\n"
        "except NvmlUnavailable as error: print(error)"
    )
    if done.stdout.startswith("a driver:"):
        pytest.skip("this host has an NVIDIA driver")
    assert done.stdout.startswith("no NVIDIA GPU can be read on this host: "), done.stderr
    assert done.stdout.count("\n") == 1
