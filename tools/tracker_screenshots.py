"""Take the pictures of docs/trackers.md: real runs, as Trackio and WandB show them.

    pip install pyte                        # reads what WandB draws into a terminal
    python tools/tracker_screenshots.py     # needs chromium; trains four cells first

WandB's web pages need its server, so its picture is of `wandb leet`, its view of offline runs in a
terminal. The last line there, which holds a path of this machine, is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import html
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyte
from PIL import Image

from scalewise.records import SweepFolder
from scalewise.tracking.tracker import SweepName

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
LARGEST = 150_000
"""Bytes of a picture."""
TRAINING = (
    "-m", "experiment=matrix_gpt2_tiny", "strategy=single,ddp", "repeats=2", "tracking=both",
)  # fmt: skip
CURVES = "^(train_loss|step_time_ms|global_samples_per_s)$"
COLUMNS, LINES = 132, 26
STARTS_S, KEY_S = 6.0, 1.0
"""How long WandB's terminal view may take to read the runs, and to answer a key."""
BROWSER = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--virtual-time-budget=20000",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURES)
    out = parser.parse_args().out
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium: found none on PATH; on Debian, apt-get install chromium")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        environment = os.environ | {
            "TRACKIO_DIR": str(folder / "trackio"),
            "WANDB_MODE": "offline",
            "HOME": place,
        }
        sweep = folder / "sweep"
        train = [sys.executable, str(ROOT / "train.py"), *TRAINING, f"hydra.sweep.dir={sweep}"]
        subprocess.run(train, env=environment, check=True)
        plan = SweepFolder(sweep).load_plan()
        called = SweepName.of(SweepFolder(sweep), plan)
        runs = [called.run(planned.name, 1) for planned in plan.cells]
        shots = Browser(chromium, folder)
        with dashboard(environment) as url:
            base, _, query = url.partition("?")
            curves = f"{base}?{query}&plots_per_row=3&metric_filter={CURVES}"
            shots.take(curves, out / "trackio_metrics.png", (1400, 640), runs)
            system = f"{base.rstrip('/')}/system?{query}&sidebar=hidden"
            shots.take(system, out / "trackio_system.png", (1400, 540), ["PROCESS 1", *runs])
        # The first is the answer: the two runs below it too, no details at the right, these curves.
        keys = ["\x1b[B", " ", "\x1b[B", " ", "]", "/", f"{CURVES[:-2]}|phases/.*)$", "\r"]
        screen = terminal(
            [sys.executable, "-m", "wandb", "leet", str(sweep / "wandb")], keys, environment
        )
        page = folder / "wandb.html"
        page.write_text(as_html(screen), encoding="utf-8")
        shots.take(page.as_uri(), out / "wandb_leet.png", (1135, 445), ["step_time_ms"])
    return 0


@contextlib.contextmanager
def dashboard(environment: dict[str, str]) -> Iterator[str]:
    """The URL of a Trackio dashboard on a free port, while the block runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    view = [sys.executable, "-m", "scalewise", "trackio-view", "--port", str(port)]
    with subprocess.Popen(view, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.removeprefix("Trackio dashboard: ").strip()
        finally:
            process.terminate()


class Browser:
    """Headless Chromium, with a new profile a page."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder

    def take(self, url: str, path: Path, size: tuple[int, int], shown: Sequence[str]) -> None:
        """Write a picture of a page; raise if a text of ``shown`` is not on it or it is large."""
        with tempfile.TemporaryDirectory(dir=self._folder) as profile:
            command = [
                self._program,
                *BROWSER,
                f"--user-data-dir={profile}",
                f"--window-size={size[0]},{size[1]}",
                f"--screenshot={path}",
                "--dump-dom",
                url,
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
        text = re.sub(r"<[^>]*>", "", done.stdout)
        if missing := [name for name in shown if name not in text]:
            raise SystemExit(f"{path.name}: {', '.join(missing)} is not on the page")
        with Image.open(path) as picture:
            picture.convert("RGB").quantize(256).save(path, optimize=True)
        if (found := path.stat().st_size) > LARGEST:
            raise SystemExit(f"{path.name}: found {found} bytes; allowed: {LARGEST}")


def terminal(
    command: Sequence[str], keys: Sequence[str], environment: dict[str, str]
) -> pyte.Screen:
    """What a program has drawn into a terminal after ``keys`` were typed."""
    screen = pyte.Screen(COLUMNS, LINES)
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, environment | {"TERM": "xterm-256color"})
    size = struct.pack("HHHH", LINES, COLUMNS, 0, 0)
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, size)
    stream = pyte.ByteStream(screen)
    follow(descriptor, stream, STARTS_S)
    for key in keys:
        os.write(descriptor, key.encode())
        follow(descriptor, stream, KEY_S)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(descriptor)
    return screen


def follow(descriptor: int, stream: pyte.ByteStream, seconds: float) -> None:
    """Draw what comes within ``seconds``, and answer as a dark terminal does."""
    answers = {b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\", b"\x1b[6n": b"\x1b[1;1R"}
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            drawn = os.read(descriptor, 65536)
            for question, answer in answers.items():
                if question in drawn:
                    os.write(descriptor, answer)
            stream.feed(drawn)


def as_html(screen: pyte.Screen) -> str:
    """The screen but its last line, every character in a box of one width."""
    rows = ("".join(box(screen.buffer[y][x]) for x in range(COLUMNS)) for y in range(LINES - 1))
    return (
        "<meta charset=utf-8><style>body{background:#111;margin:10px;"
        "font:14px/17px DejaVu Sans Mono,DejaVu Sans,monospace}"
        "div{height:17px;white-space:nowrap}"
        "b{display:inline-block;width:1ch;height:17px;overflow:hidden;white-space:pre;"
        "vertical-align:top;font-weight:normal}</style>"
        + "".join(f"<div>{row}</div>" for row in rows)
    )


def box(character: pyte.screens.Char) -> str:
    """One character in its colours."""
    front, back = (colour(character.fg, "#ddd"), colour(character.bg, "#111"))
    if character.reverse:
        front, back = back, front
    return f'<b style="color:{front};background:{back}">{html.escape(character.data)}</b>'


def colour(name: str, default: str) -> str:
    """A colour of pyte's, in CSS: a name, or six hexadecimal digits."""
    if name == "default":
        return default
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return name.removeprefix("bright").replace("brown", "goldenrod")


if __name__ == "__main__":
    raise SystemExit(main())
