"""What is drawn, for 1 to 16 GPUs, narrow and wide."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fakes.nvml.scenario import Scenario
from scalewise.cli import main
from scalewise.gpu.top import Frame, _is_alarming, _pair, balance_of, render
from scalewise.records import GRADES, DeviceSample, SampledDevice


def _frame(count: int, *, gpm: bool = True, lost: int | None = None) -> Frame:
    devices = tuple(
        SampledDevice(f"GPU-{i}", i, "NVIDIA H200", None, 143_771, 700) for i in range(count)
    )
    samples = {
        d.id: DeviceSample(
            d.id, utilization_percent=100 - d.index, memory_used_mib=10_240 + 1024 * d.index,
            power_w=650, temperature_c=60 + d.index, sm_clock_mhz=1980,
            throttle_reasons=("power cap",) if d.index < 3 else (),
            sm_activity_percent=90.0 if gpm else None,
            tensor_activity_percent=40.0 if gpm else None,
            dram_activity_percent=16.0 if gpm else None,
            nvlink_tx_mib_per_s=123_456.0 if gpm else None,
            nvlink_rx_mib_per_s=65_536.0 if gpm else None,
        )
        for d in devices
        if d.index != lost
    }  # fmt: skip
    return Frame(1.7e9, devices, samples, ("GPU 1 is lost",) if lost else ())


def _draw(frame: Frame, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as drawn:
        console.print(render(frame, "driver 1", width))
    return drawn.get().splitlines()


@pytest.mark.parametrize("count", [1, 8, 16])
@pytest.mark.parametrize("width", [80, 140, 220])
def test_every_gpu_has_a_row_and_nothing_overflows(count: int, width: int) -> None:
    lines = _draw(_frame(count), width)
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines[2 : 2 + count]] == [str(i) for i in range(count)]
    assert not any("…" in line for line in lines[1 : 2 + count]), "no number is cut off"


def test_narrow_keeps_what_matters_and_wide_shows_more() -> None:
    (narrow, row), (wide, all_of_it) = (_draw(_frame(2), width)[1:3] for width in (80, 140))
    assert "10.0/140 650/700" in " ".join(row.split())
    assert all(title in narrow for title in ("util%", "memory GiB", "power W", "°C", "SM%"))
    assert "NVLink" in wide and "NVLink" not in narrow
    assert "120.6/64.0" in all_of_it
    room = len(wide.rstrip())
    heads = [_draw(_frame(2), n)[1].split() for n in (room, room - 1)]
    assert heads[0] == wide.split() != heads[1]
    assert _pair(DeviceSample("0", nvlink_tx_mib_per_s=1.0), "nvlink") == "-"
    assert "SM%" not in _draw(_frame(2, gpm=False), 140)[1], "an empty column"


@pytest.mark.parametrize(
    ("used", "celsius", "alarms"),
    [(0.95, 84, False), (0.951, None, True), (0.0, 85, True), (0.0, 90, True), (None, None, False)],
)
def test_memory_and_heat_alarm(used: float | None, celsius: float | None, alarms: bool) -> None:
    (device,) = _frame(1).devices
    used_mib = used and used * device.memory_total_mib
    sample = DeviceSample(device.id, memory_used_mib=used_mib, temperature_c=celsius)
    assert _is_alarming(device, sample) is alarms


def test_throttling_balance_and_notes_are_in_words() -> None:
    text = "\n".join(_draw(_frame(8, lost=5), 140))
    assert "held back  GPU 0, 1, 2: power cap" in text
    assert "SM 0.0 %" in text
    said = "memory 95,232 MiB, power 4550 W, utilisation 97 % on average, hottest 67 °C"
    assert f"all  {said}" in text
    assert not any(grade in text for grade in GRADES), "only arrival judges load"
    assert "GPU 1 is lost" in text
    assert "lost  GPU 5" in text


def test_once_prints_a_table_or_in_one_line_that_there_is_no_gpu(
    fake_nvml: Callable[[Scenario], Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "0")
    fake_nvml(Scenario().h200(2))
    assert main(["top", "--once"]) == 0
    said = capsys.readouterr().out
    assert "GPU  name" in said and "held back  GPU 0, 1: power cap" in said
    fake_nvml(Scenario())
    assert main(["top", "--once"]) == 1
    error = "error: the NVIDIA driver is loaded, but this host has no GPU\n"
    assert capsys.readouterr() == ("", error)


def test_balance_is_the_cv_of_what_every_device_tells() -> None:
    def sample(n: int, power: float | None) -> DeviceSample:
        return DeviceSample(str(n), utilization_percent=(50, 100)[n], power_w=power)

    found = balance_of([sample(0, 600), sample(1, None)])
    assert found == {"utilization_percent": pytest.approx(33.33, abs=0.01)}
    assert balance_of([sample(0, 600)]) == {}
    assert balance_of([replace(sample(n, 0), utilization_percent=0) for n in (0, 1)]) == {}
