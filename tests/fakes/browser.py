"""A real headless Chromium, driven over a pipe by its DevTools protocol: one start, many pages."""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
          "--disable-background-networking", "--disable-component-update",
          "--disable-sync")  # fmt: skip
_WAIT_S = 60.0


def print_at_once(page: Path, to: Path, profile: Path) -> None:
    """Print a page to a PDF as soon as it has loaded, in a browser of its own."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", f"--print-to-pdf={to}"]
    subprocess.run([*command, page.as_uri()], check=True, capture_output=True, timeout=_WAIT_S)


class Browser:
    """One page at a time; ``said`` is what its console, its errors and its requests said."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        its_in, self._out = os.pipe()
        self._in, its_out = os.pipe()
        # The protocol is spoken on the descriptors 3 and 4.
        script = f'exec "$0" "$@" 3<&{its_in} 4>&{its_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, *_FLAGS, "--remote-debugging-pipe",
             f"--user-data-dir={profile}"],
            pass_fds=(its_in, its_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(its_in)
        os.close(its_out)
        self._count, self._rest, self._session = 0, b"", ""
        self.said: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of the browser. What happens meanwhile is added to ``said``."""
        self._count += 1
        asked: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == self._count:
                assert "error" not in told, told
                result: dict[str, Any] = told["result"]
                return result
            self._note(told)

    def open(
        self, page: Path | str, fragment: str = "", size: tuple[int, int] = (1400, 1000),
        scheme: str = "",
    ) -> float:  # fmt: skip
        """Show a file or what a URL gives; returns the seconds until its load event."""
        self.said.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1],
                  deviceScaleFactor=1, mobile=size[0] < 600)  # fmt: skip
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])  # fmt: skip
        self.call("Page.navigate", url="about:blank")
        begin = time.monotonic()
        url = page if isinstance(page, str) else page.as_uri()
        self.call("Page.navigate", url=url + fragment)
        self.until("document.readyState === 'complete' && location.protocol !== 'about:'")
        return time.monotonic() - begin

    def scroll(self) -> None:
        """Down the page and up again: what waits to come into view is drawn."""
        self.evaluate("""(async () => {
            for (let y = 0; y < document.body.scrollHeight; y += 500) {
                scrollTo(0, y); await new Promise((done) => setTimeout(done, 60));
            }
            scrollTo(0, 0);
        })()""")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page. Raises AssertionError for its exception."""
        told = self.call("Runtime.evaluate", expression=script, awaitPromise=True,
                         returnByValue=True)  # fmt: skip
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait for an expression to hold."""
        end = time.monotonic() + _WAIT_S
        while not self.evaluate(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press and release a key, by its name."""
        code = {"Tab": 9, " ": 32}[key]
        for kind, more in (("keyDown", {"text": key} if key == " " else {}), ("keyUp", {})):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                      **more)  # fmt: skip

    def picture(self, to: Path) -> None:
        """The whole page as a PNG."""
        told = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        to.write_bytes(base64.b64decode(told["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in, 1 << 20)
            assert more, "the browser ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        return told

    def _note(self, told: dict[str, Any]) -> None:
        method, what = told.get("method", ""), told.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded",
                      "Page.javascriptDialogOpening"):  # fmt: skip
            self.said.append(f"{method}: {json.dumps(what)[:500]}")
        if method == "Network.requestWillBeSent":
            url = what["request"]["url"]
            # A picture that plotly draws in memory is fetched from nowhere.
            if what.get("type") != "Document" and not url.startswith(("data:", "blob:")):
                self.said.append(f"fetched {url[:200]}")
