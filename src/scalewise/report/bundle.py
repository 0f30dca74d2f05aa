"""A sweep as one archive to send: its records, without what names a person or a machine.

An allow list says which files travel; data, checkpoints, logs and trackers' files never do.
Names of hosts, users, projects and accounts, paths, addresses and GPU UUIDs become hashes. They are
salted anew for each archive: equal in it, and of no use to whoever guesses names.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import pwd
import re
import secrets
import socket
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from scalewise.config import TrackingConfig, conf_dir
from scalewise.host import CLASS_FILES, plural
from scalewise.records import CellFolder, RecordError

MOST_BYTES: Final = 20 * 10**6
_MOST_UNPACKED: Final = 200 * 10**6
_MOST_FILES: Final = 20_000
"""Whoever reads a bundle needs about five times its bytes of memory, and a file each."""
_READ_WHOLE: Final = (".json", ".yaml")
_ENTRY_BYTES: Final = 400
"""What a file's name takes in the archive, twice, at most."""
_MANIFEST: Final = "bundle.json"
_RECORDS: Final = tuple(
    f"{name}.json"
    for name in ("sweep", "quarantine", "provenance", "result", "running", "tracking", "decision",
                 "imported", "find_batch", "doctor")
)  # fmt: skip
_PARTS: Final = (
    ("records", (*_RECORDS, "config.yaml", "ranks/*.json", "ranks/*.err", "attempts/*.json")),
    ("heartbeats", ("heartbeat/rank*",)),
    ("step series", ("steps/rank*.bin",)),
    ("metric series", ("metrics/rank*.jsonl",)),
    ("lists of samples", ("audit/rank*.npz",)),
    ("kernel profiles", ("profile/rank*.json",)),
    ("device series", ("gpu/*.jsonl",)),
)
"""What travels, the first first: the last are left out where there is no room."""
_PERSONAL: Final = {"host": "host", "project": "project", "entity": "account", "tags": "tag",
                    "location": "place"}  # fmt: skip
_FIXED: Final = {"kind", "outcome", "cause", "scaling", "source", "status", "policy", "started",
                 "rule", "requested", "ran", "what", "timeline"}  # fmt: skip
"""Keys whose values are words of the records, whatever else they may name."""
_NAMES_NOBODY: Final = {"root", "localhost", TrackingConfig.project, "scalewise", "/", ""}
_VERSIONS: Final = ("packages", "driver", "cuda", "nccl", "python", "platform")

_HOST_ID = re.compile(r"(?:(mac|gpu|boot|name|dmi)-)?([0-9a-f]{12})(?:-([0-9a-f]{4}))?")
_URL = re.compile(r"(\w+)://[^\s'\"<>]+")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+")
_QUOTED_PATH = re.compile(r"(?<=')[^'\n]*/[^'\n]*(?=')|(?<=\")[^\"\n]*/[^\"\n]*(?=\")")
_SLASHED = re.compile(r"[^\s=,:;|'\"()\[\]{}<>]*/[^\s=,:;|'\"()\[\]{}<>]*")
_SECRET = re.compile(
    r"(?i)((?:token|secret|passw(?:or)?d|api_?key)['\"]?\s*[=:]\s*['\"]?)"
    r"(?!\d+\b)([^\s'\",;&]{6,})|\b(?:hf_|sk-|gh[pousr]_|AKIA)\w{10,}"
)
"""What a message gives as a token or a password, and what has the form of a known one."""
_SECRET_NAME = re.compile(r"(?i)(token|secret|password|key)$")
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F-]{4,}")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_NO_PATH = re.compile(
    r"\d+/\d+|\w+/(?:s|step|sample|device|GPU)|/+|"
    r"(?:steps|metrics|audit|ranks|gpu|logs|attempts|heartbeat|profile)/[\w.-]+"
)
"""Fractions, rates, and files of a cell."""
_LIBRARY = re.compile(r"/(?:site-packages|dist-packages|python3\.\d+|src(?=/scalewise/))/(.+)")
"""Below these stands public code."""
_HASHED_URL = re.compile(r"^//url-[0-9a-f]{8}$")
_HOME = re.compile(r"/(?:home|Users)/([^/\s'\":,]+)")


class BundleError(ValueError):
    """No bundle can be written or read. The message is one line."""


@dataclass(frozen=True)
class Bundle:
    """An archive that was written."""

    path: Path
    size_bytes: int
    files: int
    hidden: dict[str, int]
    """How many names of each kind were replaced."""
    kept: tuple[str, ...]
    """Names that could not be: they are words of the records too."""
    left_out: tuple[str, ...]
    """What had no room, in words."""


def write_bundle(
    folder: Path, out: Path, *, hash_names: bool = False, hide: Sequence[str] = ()
) -> Bundle:
    """Write the sweep in ``folder`` into the archive ``out``.

    Args:
        folder: of a sweep, or of one cell.
        out: a new zip file.
        hash_names: also replace the names of models, data sets and strategies of yours.
        hide: more words to replace.

    Raises:
        BundleError: ``folder`` holds no record, or ``out`` is there already.
        OSError: a file cannot be read or written.
    """
    files = [(what, path) for what, patterns in _PARTS for path in _found(folder, patterns)]
    if not files:
        raise BundleError(f"{folder}: found no record; allowed: the folder of a sweep or of a cell")
    names = _Names(folder, [path for _, path in files], hash_names, hide)
    lost: Counter[str] = Counter()
    unpacked = 0
    try:
        # Beside its place first: a bundle that was cut off is none.
        part = out.with_name(f"{out.name}.part")
        with (
            out.open("xb"),
            zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as to,
        ):
            for count, (what, path) in enumerate(files):
                data = _clean(path, names)
                room = MOST_BYTES - to.start_dir - _ENTRY_BYTES * (count + 2)
                full = (
                    unpacked + len(data) > _MOST_UNPACKED - _ENTRY_BYTES
                    or count + 1 >= _MOST_FILES
                    or (len(data) > MOST_BYTES and path.suffix in _READ_WHOLE)
                )
                if full or (len(data) > room and len(zlib.compress(data, 9)) > room):
                    lost[what] += 1
                    continue
                unpacked += len(data)
                inside = path.relative_to(folder).parts
                to.writestr(_entry("/".join(map(names.words, inside))), data)
            total = Counter(what for what, _ in files)
            left_out = tuple(f"{count} of {total[what]} {what}" for what, count in lost.items())
            told = {"scalewise": version("scalewise"), "left_out": left_out}
            to.writestr(_entry(_MANIFEST), json.dumps(told))
    except FileExistsError:
        raise BundleError(f"{out}: found a file; allowed: a new one") from None
    except BaseException:
        out.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
        raise
    part.replace(out)
    size = out.stat().st_size
    sent = len(files) - lost.total()
    return Bundle(out, size, sent, names.hidden(), names.kept, left_out)


def unpack_bundle(path: Path, into: Path) -> tuple[str, ...]:
    """Unpack an archive into the new folder ``into``; returns what it had no room for.

    Raises BundleError for an archive that is none, or whose files would lead elsewhere or fill the
    disk.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check(path, entries)
            archive.extractall(into)
            left_out = tuple(map(str, json.loads(archive.read(_MANIFEST))["left_out"]))
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, EOFError,
            NotImplementedError, RuntimeError) as error:  # fmt: skip
        if isinstance(error, BundleError):
            raise
        raise BundleError(
            f"{path}: found no whole bundle ({error}); allowed: what `scalewise bundle` wrote"
        ) from error
    for running in into.rglob("running.json"):
        os.utime(running, (0, 0))  # nobody runs it here
    return left_out


def _check(path: Path, entries: Sequence[zipfile.ZipInfo]) -> None:
    size = sum(entry.file_size for entry in entries)
    if size > _MOST_UNPACKED or len(entries) > _MOST_FILES:
        raise BundleError(
            f"{path}: found {len(entries):,} files of {size:,} bytes; allowed: up to "
            f"{_MOST_FILES:,} of {_MOST_UNPACKED:,}"
        )
    for entry in entries:
        inside = PurePosixPath(entry.filename)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if entry.file_size > MOST_BYTES and inside.suffix in _READ_WHOLE:
            raise BundleError(
                f"{path}: found {entry.filename!r} of {entry.file_size:,} bytes; allowed: "
                f"records of up to {MOST_BYTES:,}"
            )
        if inside.is_absolute() or ".." in inside.parts or kind not in (0, stat.S_IFREG):
            raise BundleError(
                f"{path}: found {entry.filename!r}; allowed: plain files inside the bundle"
            )


def _entry(name: str) -> zipfile.ZipInfo:
    """Without a time: that of a file would say when a person worked."""
    made = zipfile.ZipInfo(name)
    made.compress_type = zipfile.ZIP_DEFLATED
    return made


def _found(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Plain files, in the sweep's folder and in those of its cells."""
    cells = sorted({path.parent for name in ("config.yaml", "attempts")
                    for path in folder.glob(f"*/{name}")})  # fmt: skip
    for place in (folder, *cells):
        for pattern in patterns:
            yield from (
                p for p in sorted(place.glob(pattern)) if p.is_file() and not p.is_symlink()
            )


def _clean(path: Path, names: _Names) -> bytes:
    """The bytes of a record as they may travel. Binary series hold numbers alone."""
    data = path.read_bytes()
    if path.suffix in (".bin", ".npz", ""):
        return data
    text = data.decode("utf-8", "replace")
    if path.suffix == ".yaml":
        try:
            config = CellFolder(path.parent).load_config()
        except RecordError:
            return names.text(text).encode()
        return yaml.safe_dump(names.value(config), sort_keys=False, allow_unicode=True).encode()
    if path.suffix == ".jsonl":
        return "".join(_clean_json(line, names) for line in text.splitlines(keepends=True)).encode()
    return _clean_json(text, names).encode()


def _clean_json(text: str, names: _Names) -> str:
    end = "\n" if text.endswith("\n") else ""
    try:
        return json.dumps(names.value(json.loads(text)), separators=(",", ":")) + end
    except (ValueError, RecursionError):
        return names.text(text)  # torn: whoever reads it is to see that too


class _Names:
    """What is replaced in a sweep, and by what."""

    def __init__(
        self, folder: Path, files: Sequence[Path], hash_names: bool, hide: Sequence[str]
    ) -> None:
        self._salt = secrets.token_bytes(16)
        self._told: dict[str, str] = {}
        self._known: dict[tuple[str, bool], str] = {}
        found: dict[str, str] = dict.fromkeys(hide, "hidden")
        found |= {str(one): "path" for one in (folder.resolve(), Path.cwd(), Path.home())}
        found[folder.resolve().name] = "path"
        found |= dict.fromkeys(_users(folder), "user")
        found |= {
            value: "secret"
            for name, value in os.environ.items()
            if _SECRET_NAME.search(name) and len(value) > 5
        }
        host = socket.gethostname()
        found |= {host: "host", host.partition(".")[0]: "host"}
        vocabulary: set[str] = set()
        for path in files:
            if path.parent.name == "gpu":
                found[path.stem] = "host"
            elif path.suffix in (".json", ".yaml", ".err"):
                record = _read(path)
                self._learn(record, "", found, vocabulary)
                if path.suffix == ".yaml":
                    subjects = _subjects(record)
                    found |= subjects if hash_names else {}
                    vocabulary.update(() if hash_names else subjects)
                elif hash_names and isinstance(record, dict):
                    found |= _modules(record)
        wanted = {word: kind for word, kind in found.items() if word not in _NAMES_NOBODY}
        self.kept = tuple(sorted(vocabulary & wanted.keys()))
        self._kinds = {w: kind for w, kind in wanted.items() if w not in self.kept}
        longest = sorted(self._kinds, key=len, reverse=True)
        self._pattern = re.compile(
            f"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, longest)) or '(?!)'})(?![A-Za-z0-9])"
        )

    def hidden(self) -> dict[str, int]:
        """How many were replaced, by kind."""
        return dict(Counter(self._told.values()))

    def value(self, found: Any, key: str = "") -> Any:
        """The same value with its texts cleaned."""
        match found:
            case dict():
                return {
                    name if re.fullmatch(r"\w+", name := str(key)) else self.words(name): (
                        self.value(one, name)
                    )
                    for key, one in found.items()
                }
            case list():
                return [self.value(one, key) for one in found]
            case str():
                is_version = key in _VERSIONS
                is_place = key == "location" and "://" not in found and found
                at = (found, is_version)
                if at not in self._known:
                    self._known[at] = self.words(found) if is_version else self.text(found)
                return self._hash(found, "place") if is_place else self._known[at]
            case _:
                return found

    def words(self, text: str) -> str:
        """Known names, wherever they stand as a word."""
        return self._pattern.sub(lambda m: self._hash(m[0], self._kinds[m[0]]), text)

    def text(self, text: str) -> str:
        """Any text without names, paths and addresses."""
        text = _SECRET.sub(
            lambda m: (m[1] or "") + self._hash(m[2] if m[1] else m[0], "secret"), text
        )
        text = _URL.sub(lambda m: f"{m[1]}://{self._hash(m[0], 'url')}", text)
        text = _MAIL.sub(lambda m: self._hash(m[0], "mail"), text)
        text = _UUID.sub(lambda m: f"{m[1]}-{self._hash(m[0], 'device')[-8:]}", text)
        text = _ADDRESS.sub(lambda m: self._hash(m[0], "address"), text)
        if text.startswith(("/", "~/")) and ": " not in text and "\n" not in text:
            return self._path(text)
        text = self.words(text)
        text = _QUOTED_PATH.sub(lambda m: self._path(m[0]), text)
        whole = not re.search(r"\s", text)
        return _SLASHED.sub(lambda m: self._path(m[0]) if _is_path(m[0], whole) else m[0], text)

    def _path(self, path: str) -> str:
        public = _LIBRARY.search(path)
        return self._hash(path, "path") + (f"/{public[1]}" if public else "")

    def _hash(self, word: str, kind: str) -> str:
        self._told[word] = kind
        if kind == "host" and (found := _HOST_ID.fullmatch(word)):
            # Of the same form: what a host's identity compares with is told by its kind.
            return "-".join(
                part if i == 0 else self._digits(part)[: len(part)]
                for i, part in enumerate(found.groups())
                if part
            )
        return f"{kind}-{self._digits(word)[:8]}"

    def _digits(self, word: str) -> str:
        return hashlib.blake2b(word.encode("utf-8", "replace"), key=self._salt,
                               digest_size=16).hexdigest()  # fmt: skip

    def _learn(self, value: Any, key: str, found: dict[str, str], vocabulary: set[str]) -> None:
        """Personal names of a record, and the words that only have one meaning."""
        if isinstance(value, dict):
            for name, one in value.items():
                self._learn(one, str(name), found, vocabulary)
        elif isinstance(value, list):
            for one in value:
                self._learn(one, key, found, vocabulary)
        elif isinstance(value, str):
            if key in _FIXED:
                vocabulary.add(value)
            if key in _PERSONAL and key != "location" and value != "none":
                found[value] = _PERSONAL[key]
            if value.startswith("/") and ": " not in value and "\n" not in value:
                found[value.rstrip("/")] = "path"
            found |= dict.fromkeys(_HOME.findall(value), "user")


def _is_path(text: str, whole: bool) -> bool:
    """Whether a text with a slash is one; ``whole``: nothing else stands beside it."""
    if _NO_PATH.fullmatch(text) or _HASHED_URL.search(text):
        return False
    led = text.startswith(("/", "./", "../", "~"))
    return whole or led or text.count("/") > 1 or bool(re.search(r"\.\w{1,5}$", text))


def _users(folder: Path) -> Iterator[str]:
    yield getpass.getuser()
    try:
        yield pwd.getpwuid(folder.stat().st_uid).pw_name
    except KeyError:
        return


def _read(path: Path) -> Any:
    """The content of a record; nothing where it cannot be read."""
    load: Callable[[], Any] = (
        CellFolder(path.parent).load_config
        if path.suffix == ".yaml"
        else lambda: json.loads(path.read_text("utf-8", "replace"))
    )
    try:
        return load()
    except (RecordError, ValueError, RecursionError):
        return None


def _subjects(config: Any) -> dict[str, str]:
    """Names of the model, the data set and, where it is not ours, the strategy."""
    found: dict[str, str] = {}
    for group in ("model", "dataset", "strategy"):
        known = config.get(group) if isinstance(config, dict) else None
        if not isinstance(known, dict):
            continue
        target = str(known.get("_target_") or "")
        found |= {str(known.get("name") or ""): group, target.rpartition(".")[2]: group}
        if not target.startswith("scalewise."):
            found[target] = group
        if group == "strategy":
            ours = {path.stem for path in (conf_dir() / group).glob("*.yaml")}
            found = {word: kind for word, kind in found.items() if word not in ours}
    return found


def _modules(provenance: dict[str, Any]) -> dict[str, str]:
    """The user's own modules, as files and as names."""
    code = provenance.get("code")
    files = code.get(CLASS_FILES) if isinstance(code, dict) else None
    named = map(PurePosixPath, files if isinstance(files, dict) else ())
    return {word: "module" for path in named for word in (str(path.with_suffix("")), path.stem)}


def described(bundle: Bundle) -> Iterator[str]:
    """What a person has to know before the archive is sent, one line each."""
    yield f"{bundle.path}: {bundle.files} files, {bundle.size_bytes / 1e6:.2f} MB"
    told = ", ".join(f"{n} {plural(n, kind)}" for kind, n in sorted(bundle.hidden.items()))
    yield f"Hashed: {told or 'nothing'}."
    yield "Not in it: data, checkpoints, logs, trackers' files, earlier tries and reports."
    yield from (f"left out to stay under 20 MB: {one}" for one in bundle.left_out)
    yield from (
        f"warning: {word!r} is a word of the records too, and stays" for word in bundle.kept
    )
    yield "Messages and tracebacks of failed cells are in it: read them before you send it."
