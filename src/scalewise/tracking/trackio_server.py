"""Where Trackio sends runs to beside the local project: its own server, or a Space.

``TRACKIO_SPACE_ID`` goes before ``TRACKIO_SERVER_URL``, as in Trackio itself. What cannot be sent
is in the local project all the same, and ``scalewise mirror`` sends it later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import huggingface_hub
import trackio
from huggingface_hub.errors import RepositoryNotFoundError
from trackio import utils
from trackio.remote_client import RemoteClient

from scalewise.config import in_one_line
from scalewise.tracking.tracker import TrackerError, server_answers

_NAMES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
_TIMEOUT_S = 5.0
_PAUSE_S = 30.0
"""After a failure nothing is sent for so long: a server that hangs must not cost every cell."""

Parcel = tuple[str, Mapping[str, Any]]
"""A call of Trackio's API and its arguments."""


@contextmanager
def local_only() -> Iterator[None]:
    """Trackio itself knows of no server in here."""
    held = {name: os.environ.pop(name) for name in _NAMES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)


class TrackioServer:
    """A server that takes rows, or a static Space that takes whole projects.

    No method raises for a network that is away: :meth:`send` keeps what it could not send.
    """

    def __init__(self, space: str | None, url: str | None) -> None:
        """Raises :class:`TrackerError` for a URL that cannot be one."""
        self.problem = ""
        """Why the last call failed; empty if it did not."""
        self._space = space
        self._client: RemoteClient | None = None
        self._is_static: bool | None = None
        self._again_at = 0.0
        self._url, self._write_token = "", None
        if url is None:
            return
        self._url, token = utils.parse_trackio_server_url(url)
        self._write_token = token or os.environ.get("TRACKIO_WRITE_TOKEN")
        if not url.startswith(("http://", "https://")):
            raise TrackerError(f"TRACKIO_SERVER_URL: found {url!r}; allowed: http:// or https://")
        if not self._write_token:
            raise TrackerError(
                "TRACKIO_SERVER_URL: found no write token; allowed: the URL that the server "
                "prints, with its ?write_token=, or TRACKIO_WRITE_TOKEN beside it"
            )

    @classmethod
    def from_environment(cls) -> TrackioServer | None:
        """The server that the user chose; None for the local project alone."""
        space, url = utils.resolve_space_id_and_server_url(None, None)
        return cls(space or None, url or None) if space or url else None

    @property
    def name(self) -> str:
        """Where a person finds it; without the token that permits writing."""
        return f"https://huggingface.co/spaces/{self._space}" if self._space else self._url

    def is_static(self) -> bool:
        """Whether it is a Space that takes no rows; False also while nobody can tell."""
        if self._is_static is None:
            self._reach()
        return bool(self._is_static)

    def send(self, parcels: list[Parcel]) -> None:
        """Send ``parcels`` in order; those that were taken are removed from the list."""
        while parcels and (client := self._reach()) is not None:
            api, arguments = parcels[0]
            try:
                client.predict(api_name=api, **arguments, hf_token=self._hf_token())
            except Exception as error:  # the seam to a server elsewhere
                self._fail(error)
                return
            del parcels[0]

    def ask(self, api: str, **arguments: Any) -> Any:
        """The answer to a question. Raises :class:`TrackerError` if there is none."""
        client = self._reach()
        try:
            if client is not None:
                return client.predict(api_name=api, **arguments)
        except Exception as error:
            self._fail(error)
        raise TrackerError(f"{self.name} does not answer: {self.problem}")

    def publish(self, project: str) -> None:
        """Give a static Space the project as it stands. Raises whatever Trackio does."""
        if self.is_static():
            trackio.sync(project, space_id=self._space, sdk="static", force=True)

    def _hf_token(self) -> str | None:
        return huggingface_hub.get_token() if self._space else None

    def _fail(self, error: Exception) -> None:
        self.problem = in_one_line(error, with_class=not isinstance(error, TrackerError))
        self._client = None
        self._again_at = time.monotonic() + _PAUSE_S

    def _reach(self) -> RemoteClient | None:
        """A client; None for a server that was away moments ago, and for a static Space."""
        if self._client is None and time.monotonic() >= self._again_at and not self._is_static:
            try:
                self._client = self._connect()
                self.problem = ""
            except Exception as error:
                self._fail(error)
        return self._client

    def _connect(self) -> RemoteClient | None:
        if self._space is None:
            if not server_answers(self._url, _TIMEOUT_S):
                raise TrackerError("it cannot be reached")
            return RemoteClient(
                self._url, write_token=self._write_token, httpx_kwargs={"timeout": _TIMEOUT_S}
            )
        if not server_answers(huggingface_hub.constants.ENDPOINT, _TIMEOUT_S):
            raise TrackerError("the Hub cannot be reached")
        self._space, *_ = utils.preprocess_space_and_dataset_ids(self._space, None, None)
        assert self._space is not None
        try:
            found = huggingface_hub.HfApi().space_info(self._space, timeout=_TIMEOUT_S)
        except RepositoryNotFoundError:
            raise TrackerError(
                f"no such Space, or not yours; trackio sync --space-id {self._space} creates it"
            ) from None
        self._is_static = found.sdk == "static"
        if self._is_static:
            return None
        token = self._hf_token()
        return RemoteClient(self._space, hf_token=token, httpx_kwargs={"timeout": _TIMEOUT_S})
