"""Rank 0 and the ranks that it leads: how they start, agree on what to train, and take part in what the training loop
does. Knows no loop's decisions.

Every rank has its lanes, the whole policy and the whole optimizer. Rank 0 runs the training loop and owns the run
folder; the others do its commands: an iteration, their part of a checkpoint, the end.
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


class Teller(Protocol):
    """Who speaks for the run: a trainer."""

    writer: Any  # of the metrics file

    def ending(self) -> None:
        """The run stops, as soon as the loop looks."""

    def say(self, line: str, *, level: str = "info", code: str = "note") -> None:
        """A line for the log and the events."""


class Team:
    """Rank 0's end of all ranks: of one rank alone it does nothing."""

    def __init__(self, folder: Path, asked_stop: Callable[[str], object], others: ranks.Others) -> None:
        """`asked_stop` is told of a signal that came to another rank. `others` are those that have been started
        already: as many as seemed to be asked for.
        """
        self.exchange: Exchange = SOLO
        self.teller: Teller | None = None  # once there is one
        self._folder, self._asked_stop = folder, asked_stop
        self._leader: peers.Leader | None = None
        self._others = others

    # START

    def open(self, here: ranks.Place, command: Sequence[str], timeout_s: float) -> None:
        """Let the other ranks come; where no launcher starts them, and others than these have been started, start them
        by `command`.
        """
        if self._leader is not None:
            return
        if here.launcher is None and self._others.ranks != here.ranks:
            self._others.close(0.0)
            self._others = ranks.Others(command, self._folder, here.ranks)
        if here.ranks == 1:
            return
        self._leader = peers.Leader(
            self._folder, here.ranks, versions=ranks.versions(), timeout_s=timeout_s, everywhere=here.everywhere
        )
        self._leader.on_lost, self._leader.on_stop = self._lost, self._stop

    def join(
        self,
        config: Any,
        values: Mapping[str, Any],
        device: torch.device,
        step: int | None,
        document: Mapping[str, Any],
    ) -> None:
        """Wait for the other ranks, tell them what is trained, from the checkpoint of a step or anew, and make the
        exchange.

        `config` is an `operant.config.load.Config`, `values` what the other ranks must have been asked for, too,
        `document` the run's. Raises ConfigError where they cannot share the lanes, MachineError where one does not
        come.
        """
        if self._leader is None:
            return
        building.require_shared(config, self._leader.ranks)
        self._leader.wait(ranks.JOIN_S, self._missing)
        address = self._leader.addresses[0]
        store = distributed.host_store("" if len(self._leader.addresses) > 1 else address)
        self._leader.tell(
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
            store, 0, self._leader.ranks, device, everywhere=len(self._leader.addresses) > 1
        )

    def _missing(self) -> None:
        if ended := self._others.ended():
            raise MachineError(f"rank {ended[0]} ended before it had joined: {ended[1]}")

    # WHAT ALL RANKS DO TOGETHER

    def tell(self, do: str, **fields: Any) -> None:
        """What the other ranks do next: "iterate", or "state"."""
        if self._leader is not None:
            self._leader.tell(do, **fields)

    def state(self, algo: Algorithm, tier: Tier) -> dict[str, Tensor]:
        """The tensors of a tier on the CPU, those of all ranks' lanes."""
        self.tell("state", tier=tier)
        return distributed.whole_state(algo, tier, self.exchange)

    def words(self, algo: Algorithm) -> str:
        """How many ranks there are, how they exchange, and whether the bits are those of one rank: for the log, and
        into the run's document.
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
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self._leader is None

    @property
    def figures(self) -> dict[int, dict[str, float]]:
        """What the other ranks have said of their machines last."""
        return {} if self._leader is None else self._leader.figures

    # END

    def end(self, error: BaseException | None = None) -> None:
        """The others' end, with the reason where the work is not done."""
        if self._leader is not None:
            leader, self._leader = self._leader, None
            code = error.exit_code if isinstance(error, OperantError) else 1
            leader.end(None if error is None else f"rank 0: {error}", code)
        self._others.close()

    def _stop(self, name: str) -> None:
        """A signal has come to another rank: the run stops after its iteration, as if it had come to rank 0."""
        self._asked_stop(name)
        if self.teller is not None:
            self.teller.ending()
            self.teller.say(f"{name}: it stops after this iteration, with a checkpoint", code="stop")

    def _lost(self, lost: peers.Lost) -> None:
        """From the thread that watches: say why, and end. The run's state stays open, which makes it a crashed one,
        unless a rank could tell its error.
        """
        how = self._others.ending(lost.rank) if lost.code is None else ""
        cause = f"{lost.sentence} ({how})" if how else lost.sentence
        try:
            with contextlib.suppress(MachineError):
                runs.update_document(self._folder, lost=cause)
            if self.teller is not None:
                if lost.code is not None:
                    self.teller.writer.set_state("failed", exit_code=lost.code)
                self.teller.say(
                    f"{cause}. To go on from the last checkpoint: operant resume {self._folder.name}",
                    level="error",
                    code="fault",
                )
            else:
                log.error("error: %s", cause)
        finally:
            os._exit(lost.code or 1)


# THE OTHERS


class Member:
    """Another rank: it joins, builds its part, and does what rank 0 says."""

    def __init__(self, folder: Path, here: ranks.Place, parent: int) -> None:
        """`parent` has started this process. Raises MachineError where rank 0 cannot be found, or lets it not in."""
        self._folder, self.here = folder, here
        self._peer = peers.Follower(
            folder, here.rank, here.ranks, versions=ranks.versions(), join_s=ranks.JOIN_S, on_lost=_leave, parent=parent
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: self._peer.ask_stop(signal.Signals(number).name))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def agreed(self) -> dict[str, Any]:
        """What rank 0 trains."""
        return self._peer.receive()

    def train(self, agreed: dict[str, Any], config: Any, values: Mapping[str, Any], device: torch.device) -> None:
        """Build this rank's part of what rank 0 trains, and do its commands until the end. Raises ConfigError where
        rank 0 trains something else.
        """
        own, theirs = values, agreed["values"]
        problems = [
            f"{key}: rank {self.here.rank} on {socket.gethostname()} has {own.get(key)!r}, rank 0 {theirs.get(key)!r}"
            for key in sorted({*own, *theirs})
            if own.get(key) != theirs.get(key)
        ]
        if problems:
            raise ConfigError(
                "the ranks' configuration", problems, advice="all ranks of a run train by one configuration"
            )
        config = replace(
            building.with_lanes(config, agreed["lanes"]), algo=type(config.algo).model_validate(agreed["algo"])
        )
        self._peer.timeout_s = agreed["timeout_s"]
        address, port = agreed["store"]
        store = distributed.reach_store(address, port)
        exchange = distributed.join(store, self.here.rank, self.here.ranks, device, everywhere=self.here.everywhere)
        algo = building.build(config, device, chosen=agreed["chosen"], exchange=exchange)
        if agreed["step"] is None:
            algo.start()
        else:
            state.resume(algo, self._folder / "checkpoints", agreed["uuid"], agreed["step"], exchange)
        self._work(algo, exchange)

    def _work(self, algo: Algorithm, exchange: Exchange) -> None:
        """Do rank 0's commands until the end."""
        done = 0
        self._peer.figures = lambda: distributed.figures(algo.device, exchange, done)
        episode_sums = distributed.EpisodeSums(algo, exchange)

        def sum_up() -> None:
            episode_sums()

        # as rank 0 has it: in a short iteration there is no time for a dozen launches
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
        """The end, told to rank 0 where it is an error."""
        if error is None:
            self._peer.leave()
        else:
            sentence = str(error) if isinstance(error, OperantError) else f"{type(error).__name__}: {error}"
            self._peer.fail(sentence, error.exit_code if isinstance(error, OperantError) else 1)


def _leave(lost: peers.Lost) -> None:
    log.error("%s: this rank ends", lost.sentence)
    os._exit(lost.code or 1)
