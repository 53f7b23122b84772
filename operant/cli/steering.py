"""Commands that control a run: `stop`, `pause`, `unpause`, `checkpoint`.

Each sends a request through the run's control folder. `stop` falls back to a signal without an answer.
"""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.common import TYPER, JsonOption, RootOption, RunName, RunNames, out, print_json, say
from operant.errors import MachineError, NotFoundError, OperantError, UsageError
from operant.text import safe

if TYPE_CHECKING:
    from operant.runs import Run, Scope
    from operant.runs.control import Answer, Ticket

app = typer.Typer(**TYPER)

_ACKNOWLEDGE_S, _PATIENCE_S, _KILL_S = 1.0, 3.0, 5.0
_STOP_S = 25.0  # time for a trainer to begin stopping
_ENDING_S = 300.0  # time for its last iteration and checkpoint; it may take longer, but the command returns
_ANSWER_S = 60.0  # lifetime of a request: a trainer that is still importing handles it when it begins
_POLL_S = 0.05
_CHECKPOINT = re.compile(r"checkpoints/step-[0-9]+")


@app.command()
def stop(
    names: RunNames = None,
    every: Annotated[bool, typer.Option("--all", help="all of your runs that are training")] = False,
    now: Annotated[bool, typer.Option("--now", help=f"kill after {_KILL_S:.0f} s, without a checkpoint")] = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Stop runs, groups, sweeps; runs save a checkpoint first.

    Each run finishes its iteration first. Returns 0 once all have ended, 1 after five minutes; Ctrl-C ends only the
    waiting.
    """
    from operant import runs
    from operant.cli import grouped

    if every == bool(names):
        raise UsageError("name the runs to stop, or give --all")
    scope = runs.scope(root)
    if every:
        grouped.stop_all(scope, now=now)
        found = [run for run in runs.list_runs(*scope) if runs.state(run).live and runs.is_local(run.document)]
        if not found:
            say("no run is training now")
    else:
        found = list({run.path: run for name in names or () for run in _runs_named(name, scope, now)}.values())
    stops = [_RunStopper(run) for run in found]
    while any(not one.over for one in stops):
        for one in stops:
            one.advance(now=now)
        time.sleep(_POLL_S)
    if as_json:
        print_json({"schema": 1, "runs": [runs.describe(runs.load(run.path) or run) for run in found]})
    if problems := [one.problem for one in stops if one.problem]:
        raise (problems[0] if len(problems) == 1 else OperantError("\n".join(map(str, problems))))


def _runs_named(name: str, scope: Scope, now: bool) -> list[Run]:
    """Return the run in `scope` named `name`, or the runs of a group or sweep, which is asked to start no further run.
    `now`: a sweep's runs are killed after a few seconds.
    """
    from operant import runs
    from operant.cli import grouped

    members = grouped.stop_members(name, scope, now=now)
    return [runs.resolve(name, *scope)] if members is None else members


class _RunStopper:
    """Sequence of steps that stops one run: a request, then signals if the trainer does not answer. The constructor
    sends the request, or prints that the run is not training. Call `advance` until `over`; `problem` is then the error
    of a stop that failed.
    """

    def __init__(self, run: Run) -> None:
        from operant import runs

        self._run, self._begin_s = run, time.monotonic()
        self._ticket: Ticket | None = None
        self._accepted = self._refused = self._killed = self._delay_reported = False
        self.over = False
        self.problem: OperantError | None = None
        state = runs.state(run)
        if not state.live and state.word != "remote":
            say(f"{safe(run.id)} is not training: {state.word}")
            self.over = True
            return
        self._ask()

    def _ask(self) -> None:
        """Send the request to stop; if the run's folder cannot be written, SIGTERM."""
        from operant.runs import control

        try:
            self._ticket = control.send(self._run, "stop")
        except NotFoundError:  # ended meanwhile, or the trainer has not begun: decided by the next call of `advance`
            return
        except MachineError as error:
            if isinstance(error, control.UnwritableError) and self._signal(signal.SIGTERM):
                self._accepted = True
                say(f"{error}. SIGTERM was sent instead")
            else:
                self.over, self.problem = True, error

    def advance(self, *, now: bool) -> None:
        """Check the run's state and take the next step that is due: request the stop again, send SIGTERM without an
        answer or after a refusal, with `now` send SIGKILL after a few seconds, or give up and set `problem`.
        """
        from operant import runs

        if self.over:
            return
        waited_s = time.monotonic() - self._begin_s
        state = runs.state(runs.load(self._run.path) or self._run)
        cause = f" ({state.cause})" if state.cause else ""
        name, kill_command = safe(self._run.id), f"operant stop {safe(self._run.short)} --now"
        if not state.live and runs.probe(self._run.path) and waited_s <= _STOP_S:
            return  # the process ends a moment after its final state; its exit code is known then
        if not state.live:
            self._report_end(state.word)
        elif not self._refused and (refusal := self._refusal()) is not None:
            self._refused, message = True, f"{name} refuses to stop: {refusal}"
            if self._signal(signal.SIGTERM):
                say(f"{message}. SIGTERM was sent instead")
            else:
                self.over, self.problem = True, OperantError(f"{message}. Without a checkpoint: {kill_command}")
        elif now and waited_s > _KILL_S and not self._killed:
            self._killed = self._signal(signal.SIGKILL)
        elif self._ticket is None and not self._accepted and waited_s <= _STOP_S:
            self._ask()
        elif _ACKNOWLEDGE_S < waited_s <= _STOP_S and not self._accepted:
            self._accepted = self._is_acknowledged() or self._signal(signal.SIGTERM, instead=True)
        elif waited_s > _ENDING_S:
            self.over, self.problem = (
                True,
                OperantError(
                    f"{name} was asked to stop and has not ended after {_ENDING_S:.0f} s: {state.word}{cause}. To wait "
                    f"longer: operant wait {safe(self._run.short)}. To end it now without a checkpoint: {kill_command}"
                ),
            )
        elif state.word == "stopping":
            if waited_s > _PATIENCE_S and not self._delay_reported and not now:
                self._delay_reported = True
                say(
                    f"{name}: {state.word}{cause}: it ends after this iteration and saves a checkpoint.  "
                    f"Stop now without a checkpoint: {kill_command}"
                )
        elif waited_s > _STOP_S:
            self.over, self.problem = (
                True,
                OperantError(
                    f"{name} was asked to stop and has not ended after {_STOP_S:.0f} s: {state.word}{cause}. Without a "
                    f"checkpoint: {kill_command}"
                ),
            )

    def _is_acknowledged(self) -> bool:
        """Whether the trainer has answered the request to stop."""
        return self._answer() is not None

    def _refusal(self) -> str | None:
        """Return the reason that the trainer gave for refusing to stop; None if it has not refused."""
        answer = self._answer()
        return answer.text if answer is not None and answer.result == "refused" else None

    def _answer(self) -> Answer | None:
        """Return the trainer's answer to the request; None without one."""
        from operant.runs import control

        return control.answer(self._run, self._ticket, 0.0) if self._ticket is not None else None

    def _signal(self, number: signal.Signals, *, instead: bool = False) -> bool:
        """Send a signal to the trainer; `instead`: also withdraw the request. Returns False if it cannot be sent, as
        from another container.
        """
        from operant import runs
        from operant.runs import control

        sent = runs.signal_worker(self._run, number)
        if sent and instead and self._ticket is not None:
            control.withdraw(self._run, self._ticket)
        return sent

    def _report_end(self, word: str) -> None:
        """Print that the run has ended, with its state, its last checkpoint and the next command."""
        from operant import runs

        described = runs.describe(runs.load(self._run.path) or self._run)
        step = described["last_checkpoint_step"]
        saved = f"checkpoint at step {step:,}" if step is not None else "no checkpoint"
        following = f".  next: operant resume {safe(self._run.short)}" if step is not None else ""
        say(f"{safe(self._run.id)}: {word}, {saved}{following}")
        self.over = True


@app.command()
def pause(run: RunName, root: RootOption = None) -> None:
    """Pause a run between two updates.

    A paused run keeps its memory. Its results stay bit-identical.
    """
    found, text = _ask(run, "pause", root)
    say(f"{safe(found.id)}: {text}.  next: operant unpause {safe(found.short)}")


@app.command()
def unpause(run: RunName, root: RootOption = None) -> None:
    """Continue a paused run."""
    found, text = _ask(run, "unpause", root)
    say(f"{safe(found.id)}: {text}")


@app.command()
def checkpoint(run: RunName, root: RootOption = None) -> None:
    """Save a checkpoint now and print its path.

    A run also saves one every checkpoint.every iterations, and when the last one is checkpoint.seconds (60) old.
    """
    found, text = _ask(run, "checkpoint", root)
    if not _CHECKPOINT.fullmatch(text):
        raise OperantError(f"{safe(found.id)}: {text}")
    out(found.path / text)


def _ask(name: str, verb: str, root: str | None) -> tuple[Run, str]:
    """Send the request `verb` (pause, unpause, checkpoint) to the run called `name` and wait until it is done. Returns
    the run and the trainer's answer. `root`: value of --runs. Raises OperantError if the request is refused or not
    done.
    """
    from operant import runs
    from operant.runs import control

    def tell(accepted: control.Answer) -> None:
        say(f"{safe(run.id)}: {accepted.text or f'no answer yet, it is {state_of(run).word}'}")

    def state_of(run: Run) -> runs.State:
        return runs.state(runs.load(run.path) or run)

    run = runs.resolve(name, *runs.scope(root))
    answer = control.ask(run, verb, _ANSWER_S, tell)
    if answer.result == "done":
        return run, answer.text
    if answer.result in ("none", "accepted"):
        state = state_of(run)
        if not state.live:
            raise NotFoundError(f"{safe(run.id)} has ended: {state.word}")
        raise OperantError(
            f"{safe(run.id)} did not {verb} within {_ANSWER_S:.0f} s: {state.word}. See: operant logs {safe(run.short)}"
        )
    raise OperantError(f"{safe(run.id)}: {answer.text or answer.result}")
