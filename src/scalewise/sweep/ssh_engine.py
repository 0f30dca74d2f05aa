"""Runs the cells of a sweep on several hosts that share its folder, without a scheduler.

Each host runs ``host_agent`` through a command such as ssh. Before anything starts, every host is
asked what it has; a cell wider than one host takes several.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scalewise.config import ConfigError
from scalewise.hardware import HardwareConfig
from scalewise.sweep.demand import Demand, demand
from scalewise.sweep.display import Display
from scalewise.sweep.job import Origin
from scalewise.sweep.lease import HostMismatch
from scalewise.sweep.order import Offer, Order, Question, answer_in, from_line, to_line
from scalewise.sweep.plan import Cell
from scalewise.sweep.remote import LOST_S, RemoteEngine
from scalewise.sweep.remote_cell import Link
from scalewise.sweep.ssh import SshConfig, host_address, host_name, last_said
from scalewise.sweep.ssh_link import CommandLink

_OFFER_S = 60.0
_AGENT = ("-P", "-m", "scalewise.sweep.host_agent")


class SshEngine(RemoteEngine):
    """One sweep on ``config.hosts``."""

    def __init__(self, folder: Path, config: SshConfig, display: Display) -> None:
        super().__init__(folder, config.policy, display, dict(config.env))
        self._config = config
        self._addresses = {host_name(host): host_address(host) for host in config.hosts}
        self._gone: dict[str, str] = {}
        """Hosts that were lost, and how."""
        self._offers: dict[tuple[str, str], Offer] = {}
        """By host and hardware profile."""

    # Before anything starts

    def _ask_for(self, cell: Cell) -> None:
        hardware = cell.request.cell.hardware
        offers = self._offers_for(hardware)
        able = [offer for offer in offers.values() if offer.devices]
        if not able:
            raise HostMismatch(next(iter(offers.values())).refusal)
        smallest = min(offer.devices for offer in able)
        wide = self._config.devices_per_node or smallest
        wanted = demand(cell.request.cell, replace(self._config, devices_per_node=wide))
        fitting = [h for h, offer in offers.items() if offer.devices >= wanted.devices_per_node]
        if len(fitting) < wanted.nodes:
            most = max(offer.devices for offer in able)
            raise HostMismatch(
                f"strategy.devices: found {wanted.width}, which takes {wanted.nodes} hosts with "
                f"{wanted.devices_per_node} devices; of {len(offers)} hosts {len(fitting)} have as "
                f"many (the largest: {most})"
            )
        self._queue.append((cell, wanted))

    def _offers_for(self, hardware: HardwareConfig) -> dict[str, Offer]:
        """What each host has for such cells. Raises :class:`ConfigError` where one is of no use."""
        key = repr(hardware)
        missing = [host for host in self._addresses if (host, key) not in self._offers]
        if missing:
            if hardware.kind == "cpu" and hardware.cores_per_device is None:
                hardware = replace(hardware, cores_per_device=self._config.cpus_per_device)
            token = self.folder.path.resolve() / f".shared-{uuid.uuid4().hex}"
            token.touch()
            try:
                for host, offer in self._asked(missing, Question(hardware, str(token))).items():
                    if not offer.sees_folder:
                        raise ConfigError(
                            f"hydra.launcher.hosts: {host} does not see {token.parent}; allowed: "
                            "a hydra.sweep.dir on a file system that all hosts share"
                        )
                    self._offers[host, key] = offer
            finally:
                token.unlink()
        return {host: self._offers[host, key] for host in self._addresses}

    def _asked(self, hosts: Sequence[str], question: Question) -> dict[str, Offer]:
        """Ask all at once; a host that does not answer is wrong input."""
        asking = {host: self._popen(host) for host in hosts}
        offers = {}
        try:
            for host, process in asking.items():
                try:
                    out, err = process.communicate(to_line(question), _OFFER_S)
                except subprocess.TimeoutExpired:
                    raise ConfigError(
                        f"hydra.launcher.hosts: {host} did not answer within {_OFFER_S:g} s"
                    ) from None
                told = answer_in(out)
                if told is None:
                    said = last_said(err.decode(errors="replace"))
                    why = said or f"exit status {process.returncode}"
                    raise ConfigError(
                        f"hydra.launcher.hosts: {host} gave no answer ({why}); try: "
                        f"{' '.join(self._command(host, 'offer')[:-1])} true"
                    )
                offers[host] = from_line(Offer, told)
        finally:
            for process in asking.values():
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        return offers

    def _popen(self, host: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = self._command(host, "offer")
        try:
            return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise ConfigError(f"hydra.launcher.connect: {error}") from None

    def _command(self, host: str, what: str) -> list[str]:
        origin = Origin.of_this_process()
        command = [self._config.python, *_AGENT, what]
        return self._config.reach(host, command, origin.python_path)

    # While cells run

    def _links(self, orders: Sequence[Order], wanted: Demand) -> Sequence[Link] | None:
        alive = [host for host in self._addresses if host not in self._gone]
        fitting = [h for h in alive if self._most_devices(h) >= wanted.devices_per_node]
        if len(fitting) < wanted.nodes:
            gone = "; ".join(f"{host}: {why}" for host, why in self._gone.items())
            raise HostMismatch(
                f"{wanted} were asked for, and too few hosts are left that have them ({gone})"
            )
        free = {host: self._free(host) for host in fitting}
        room = [host for host in fitting if free[host] >= wanted.devices_per_node]
        if len(room) < wanted.nodes:
            return None
        # Where the least is left over, so that wide cells find room elsewhere.
        chosen = sorted(room, key=lambda host: free[host])[: wanted.nodes]
        address = self._addresses[chosen[0]]
        return [
            CommandLink(
                host,
                self._command(host, "run"),
                replace(order, address=address, co_tenants=self._tenants(host)),
            )
            for host, order in zip(chosen, orders, strict=True)
        ]

    def _most_devices(self, host: str) -> int:
        return max(offer.devices for (name, _), offer in self._offers.items() if name == host)

    def _free(self, host: str) -> int:
        """Devices of a host that a cell may take now; none of it where it has to be alone."""
        here = [running for running in self._cells if host in running.hosts]
        if here and self.policy == "exclusive":
            return 0
        return self._most_devices(host) - sum(r.wanted.devices_per_node for r in here)

    def _tenants(self, host: str) -> tuple[str, ...]:
        return tuple(r.cell.planned.name for r in self._cells if host in r.hosts)

    def _lost_host(self, host: str, why: str) -> None:
        self._gone[host] = why
        self.display.note(
            f"lost     {host}: {why}; its cells go to the other hosts, {LOST_S:g} s from now, "
            "when it has ended its own"
        )
