"""Rank 0's control of the other ranks (`Team`), and the loop of those ranks (`Member`).

Every rank owns a share of the lanes and a full copy of policy and optimizer. Rank 0 runs the training loop and owns the
run folder; the others execute its commands: an iteration, their part of a checkpoint, the end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from operant import runs
from operant.compute.graphs import Graphed
from operant.errors import ConfigError, MachineError, OperantError
from operant.training import build as building
from operant.training import distributed, peers, ranks, state
from operant.training.distributed import SOLO, Algorithm, Exchange, Tier

log = logging.getLogger("operant")


class Reporter(Protocol):
    """Interface through which the team reaches the trainer's log, events and state."""

    writer: Any  # writer of the metrics file

    def announce_stop(self) -> None:
        """Announce that the run stops after its current iteration."""

    def say(self, line: str, *, level: str = "info", code: str = "note") -> None:
        """Write a line to the run's log and to its events, with a `level` ("info", "warn" or "error") and a `code` that
        names the kind of event.
        """


class Team:
    """Rank 0's control of all ranks of a run: start, join, commands, end. Does nothing in a run of one rank."""

    def __init__(self, folder: Path, request_stop: Callable[[str], object], local_ranks: ranks.LocalRanks) -> None:
        """`request_stop` is called with the name of a signal that another rank received. `local_ranks` are the ranks
        already started, as many as the configuration seemed to request.
        """
        self.exchange: Exchange = SOLO
        self.reporter: Reporter | None = None  # set by the trainer
        self._folder, self._request_stop = folder, request_stop
        self._leader: peers.Leader | None = None
        self._local_ranks = local_ranks

    # START

    def open(self, placement: ranks.Placement, command: Sequence[str], timeout_s: float) -> None:
        """Start accepting connections from the other ranks; one that is silent for `timeout_s` counts as lost. Without
        a launcher, restart the ranks by `command` if their number is wrong.
        """
        if self._leader is not None:
            return
        if placement.launcher is None and self._local_ranks.ranks != placement.ranks:
            self._local_ranks.close(0.0)
            self._local_ranks = ranks.LocalRanks(command, self._folder, placement.ranks)
        if placement.ranks == 1:
            return
        self._leader = peers.Leader(
            self._folder,
            placement.ranks,
            versions=ranks.versions(),
            timeout_s=timeout_s,
            multi_node=placement.multi_node,
        )
        self._leader.on_lost, self._leader.on_stop = self._on_lost, self._on_stop

    def join(
        self,
        config: Any,
        values: Mapping[str, Any],
        device: torch.device,
        step: int | None,
        document: Mapping[str, Any],
    ) -> None:
        """Wait for the other ranks, send them the configuration and the checkpoint's step (None: a new run), and join
        the exchange. Raises ConfigError if the ranks cannot share the lanes, MachineError if one does not join.

        `config` is an `operant.config.load.Config`, `values` the keys that must be equal on all ranks, `document` the
        run's.
        """
        if self._leader is None:
            return
        building.require_shared(config, self._leader.ranks)
        self._leader.wait(ranks.JOIN_S, self._require_alive)
        address = self._leader.addresses[0]
        store = distributed.host_store("" if len(self._leader.addresses) > 1 else address)
        self._leader.command(
            "train",
            lanes=config.lanes,
            threads=config.run.threads,
            timeout_s=config.run.peer_timeout,
            values=values,
            algo=config.algo.model_dump(mode="json"),
            store=[address, store.port],
            step=step,
            uuid=document["uuid"],
            chosen=document.get("chosen"),
        )
        self.exchange = distributed.join(
            store, 0, self._leader.ranks, device, multi_node=len(self._leader.addresses) > 1
        )

    def _require_alive(self) -> None:
        """Check that no other rank (process) has exited before joining. Raises MachineError."""
        if ended := self._local_ranks.ended():
            raise MachineError(f"rank {ended[0]} ended before it had joined: {ended[1]}")

    # COLLECTIVE OPERATIONS

    def command(self, do: str, **fields: Any) -> None:
        """Send the next command to the other ranks: "iterate" (one iteration) or "state" (their part of a
        checkpoint).
        """
        if self._leader is not None:
            self._leader.command(do, **fields)

    def state(self, algo: Algorithm, tier: Tier) -> dict[str, Tensor]:
        """Gather the tensors of a tier ("policy", "train" or "all") on the CPU, by name, with the lanes of all
        ranks.
        """
        self.command("state", tier=tier)
        return distributed.whole_state(algo, tier, self.exchange)

    def sentence(self, algo: Algorithm) -> str:
        """Describe the ranks for the log: their number, the exchange, and whether results are bit-identical to those of
        one rank; "" with one rank. Also records the last in run.json.
        """
        if self.exchange.ranks == 1:
            return ""
        reason = getattr(algo, "bits_by_ranks", None)
        runs.update_document(self._folder, bits_by_ranks=reason)
        bits = "the same bits as on one" if reason is None else f"the last bits depend on their number, as {reason}"
        untimed = "" if self.exchange.spent_s() is not None else ", whose time is not measured"
        return (
            f", shared by {self.exchange.ranks} ranks by "
            f"{getattr(self.exchange, 'name', 'an exchange')}{untimed}: {bits}"
        )

    @property
    def single(self) -> bool:
        """Whether the run has only one rank (process)."""
        return self._leader is None

    @property
    def rank_metrics(self) -> dict[int, dict[str, float]]:
        """Newest metrics that the other ranks reported, by rank."""
        return {} if self._leader is None else self._leader.rank_metrics

    # END

    def end(self, error: BaseException | None = None) -> None:
        """Tell the other ranks to exit: because the work is done, or because of `error`."""
        if self._leader is not None:
            leader, self._leader = self._leader, None
            code = error.exit_code if isinstance(error, OperantError) else 1
            leader.end(None if error is None else f"rank 0: {error}", code)
        self._local_ranks.close()

    def _on_stop(self, name: str) -> None:
        """Stop the run after the current iteration, because another rank received the signal `name`."""
        self._request_stop(name)
        if self.reporter is not None:
            self.reporter.announce_stop()
            self.reporter.say(f"{name}: stops after this iteration with a checkpoint", code="stop")

    def _on_lost(self, lost: peers.Lost) -> None:
        """Report a lost rank and exit the process; the watching thread calls it. The run's state stays open, which
        marks it as crashed, unless the rank reported its error.
        """
        how = self._local_ranks.exit_text(lost.rank) if lost.code is None else ""
        cause = f"{lost.message} ({how})" if how else lost.message
        try:
            with contextlib.suppress(MachineError):
                runs.update_document(self._folder, lost=cause)
            if self.reporter is not None:
                if lost.code is not None:
                    self.reporter.writer.set_state("failed", exit_code=lost.code)
                self.reporter.say(f"{cause}. {ranks.resume_advice(self._folder)}", level="error", code="fault")
            else:
                log.error("error: %s", cause)
        finally:
            os._exit((lost.code or 1) & 0xFF)


# OTHER RANKS


class Member:
    """Rank other than 0: joins rank 0, builds its share of the run and executes rank 0's commands."""

    def __init__(self, folder: Path, placement: ranks.Placement, parent: int) -> None:
        """Join rank 0. `parent` is the process that started this one. Raises MachineError if rank 0 is not found or
        refuses this rank.
        """
        self._folder, self.placement = folder, placement
        self._peer = peers.Follower(
            folder,
            placement.rank,
            placement.ranks,
            versions=ranks.versions(),
            join_s=ranks.JOIN_S,
            on_lost=_exit_lost,
            parent=parent,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: self._peer.ask_stop(signal.Signals(number).name))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def receive_setup(self) -> dict[str, Any]:
        """Wait for rank 0's description of the run, and return its fields for `train`."""
        return self._peer.receive()

    def train(self, setup: dict[str, Any], config: Any, values: Mapping[str, Any], device: torch.device) -> None:
        """Build this rank's share of the run and execute rank 0's commands until the end. `setup` is the description
        that `receive_setup` returned, `values` the keys that must be equal on all ranks. Raises ConfigError if they
        differ from rank 0's.
        """
        own, theirs = values, setup["values"]
        problems = [
            f"{key}: rank {self.placement.rank} on {socket.gethostname()} has {own.get(key)!r}, "
            f"rank 0 {theirs.get(key)!r}"
            for key in sorted({*own, *theirs})
            if own.get(key) != theirs.get(key)
        ]
        if problems:
            raise ConfigError(
                "the ranks' configuration", problems, advice="all ranks of a run train by one configuration"
            )
        config = replace(
            building.with_lanes(config, setup["lanes"]), algo=type(config.algo).model_validate(setup["algo"])
        )
        self._peer.timeout_s = setup["timeout_s"]
        address, port = setup["store"]
        store = distributed.reach_store(address, port)
        exchange = distributed.join(
            store, self.placement.rank, self.placement.ranks, device, multi_node=self.placement.multi_node
        )
        algo = building.build(config, device, chosen=setup["chosen"], exchange=exchange)
        if setup["step"] is None:
            algo.start()
        else:
            state.resume(algo, self._folder / "checkpoints", setup["uuid"], setup["step"], exchange)
        self._execute_commands(algo, exchange)

    def _execute_commands(self, algo: Algorithm, exchange: Exchange) -> None:
        """Execute rank 0's commands ("iterate", "state", "end") on this rank's share of the run until the end."""
        done = 0
        self._peer.rank_metrics = lambda: distributed.rank_metrics(algo.device, exchange, done)
        episode_sums = distributed.EpisodeSums(algo, exchange)

        def sum_up() -> None:
            episode_sums()

        # captured as on rank 0: a short iteration leaves no time for a dozen launches
        sums = Graphed(sum_up, algo.device)
        while (command := self._peer.receive())["do"] != "end":
            if command["do"] == "iterate":
                building.set_scheduled(algo, command["step"], command["score"])
                for phase in algo.phases:
                    phase.run()
                sums()
                done += 1
            elif command["do"] == "state":
                distributed.whole_state(algo, command["tier"], exchange)

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the run and close the connection. An `error` is reported to rank 0 first."""
        if error is None:
            self._peer.leave()
        else:
            sentence = str(error) if isinstance(error, OperantError) else f"{type(error).__name__}: {error}"
            self._peer.fail(sentence, error.exit_code if isinstance(error, OperantError) else 1)


def _exit_lost(lost: peers.Lost) -> None:
    """Log the loss of rank 0 and exit the process."""
    log.error("%s: this rank ends", lost.message)
    os._exit((lost.code or 1) & 0xFF)
