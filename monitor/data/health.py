"""Is training well? Sentences from a run's recent numbers. Standard library only. Pure: nothing is stored, whoever shows it computes it.

The rules judge medians over the newest ten seconds of records (twenty records at least), so that a single odd one changes nothing. They are heuristics, each
says in its explanation what it looks at. `bad` is only said after a twentieth of the run, and for what has not been seen in a run that learned: the
thresholds were set on the shipped configurations, which must show no `bad`, and on runs broken on purpose (learning rates of 1, 0.1, 0.05 and 1e-6),
which must.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from monitor.data.model import Known
from monitor.data.series import Table, Window
from monitor.data.snapshot import Finding, Gpu, Level, System
from monitor.data.system import POWER_LIMIT
from monitor.data.timeline import label
from operant.runs.folder import integer_of, number_of
from operant.text import count, number, safe

SETTLED_SHARE: Final = 0.05
"""Before this share of the run nothing is called bad: first numbers are odd in every run."""
_SETTLED_ITERATIONS = 50  # the same, where nobody knows how long the run will be
_EARLY, _HALF = 0.2, 0.5
_HIGH_KL, _WILD_KL, _SMALL_KL, _STILL_KL = 0.05, 0.15, 3e-5, 1e-6
_HIGH_CLIP, _WILD_CLIP = 0.4, 0.7
_WEAK_CRITIC = 0.5
_COLLAPSED, _UNDECIDED = 0.02, 0.95  # of the largest entropy
_NORM_JUMP, _SLOWER, _IDLE_GPU = 10.0, 0.75, 0.6
_NEXT_TO_BEST, _LOST_HALF, _LOST_MOST = 0.02, 0.5, 0.8
_RECENT, _MINUTE = (10.0, 20), (60.0, 20)  # seconds, and at least so many records
_MEASURES: Final = ("approx_kl", "clip_fraction", "explained_variance", "entropy", "gradient_norm", "sps")
_ORDER: Final[dict[Level, int]] = {"bad": 0, "warn": 1, "ok": 2}


class Circumstances(NamedTuple):
    """What the rules need beside the recent numbers; None and empty for what is not known."""

    share: float | None = None  # of the steps that are done
    iterations: float = 0.0
    actions: int | None = None  # a policy chooses between so many; None: unknown or continuous
    entropy_highest: float | None = None
    learning_rate_share: float = 1.0  # of its highest
    usual: Mapping[str, float] = MappingProxyType({})  # medians of the last minute, of sps and gradient_norm
    evaluation: tuple[float, float, float] | None = None  # where the run began (training or evaluation, the lower), the best evaluation and the newest
    target: float | None = None
    gpu: Gpu | None = None
    checkpoint_failures: int = 0
    history_error: bool = False
    not_finite: tuple[str, ...] = ()  # metrics that had values which were not finite

    @property
    def settled(self) -> bool:
        """Far enough for something to be called bad."""
        return self.share >= SETTLED_SHARE if self.share is not None else self.iterations >= _SETTLED_ITERATIONS

    @property
    def lost(self) -> float:
        """The share of what was gained since the beginning that the newest evaluation lacks."""
        if self.evaluation is None:
            return 0.0
        began, best, newest = self.evaluation
        return (best - newest) / (best - began) if best > began else 0.0

    @property
    def at_its_best(self) -> bool:
        """The target is reached, or the newest evaluation is next to the best one."""
        if self.evaluation is None:
            return False
        began, best, newest = self.evaluation
        return (self.target is not None and newest >= self.target) or (best > began and self.lost < _NEXT_TO_BEST)

    def past(self, share: float) -> bool:
        """Whether at least this share of the run is done, where that is known."""
        return self.share is not None and self.share >= share


def circumstances(known: Known, system: System | None, step: float | None = None) -> Circumstances:
    """Those of a run now, or at a step."""
    timeline, document = known.timeline, known.run.document
    if timeline is None:
        return Circumstances()
    curves, place = timeline.table.curves, timeline.table.last if step is None else timeline.table.place(step)
    done, steps = (0.0, 0.0, 0.0) if place is None else place, integer_of(document, "steps")
    minute = timeline.table.window(*_MINUTE, ("sps", "gradient_norm", "learning_rate", "entropy"), step=step)
    usual = {name: _median(values) for name in ("sps", "gradient_norm") if (values := _finite(minute.values.get(name, [])))}
    highest = {name: curves[name].highest(step) for name in ("entropy", "learning_rate") if name in curves}
    rate, rates = highest.get("learning_rate"), _finite(minute.values.get("learning_rate", []))
    status = known.look.status if step is None else None
    live = known.state.live and step is None
    return Circumstances(
        share=min(1.0, done[0] / steps) if steps else None,
        iterations=done[2],
        actions=integer_of(document, "actions") or _actions(highest.get("entropy"), _finite(minute.values.get("entropy", []))),
        entropy_highest=highest.get("entropy"),
        learning_rate_share=rates[-1] / rate if rate and rates and rate > 0 else 1.0,
        usual=usual,
        evaluation=timeline.evaluations(step),
        target=number_of(document, "target"),
        gpu=system.gpu if system is not None and live else None,
        checkpoint_failures=0 if status is None else status.checkpoint_failures,
        history_error=bool(status is not None and live and status.history_errno),
        not_finite=tuple(name for name, curve in curves.items() if curve.not_finite) if step is None else (),
    )


def _actions(highest: float | None, entropies: Sequence[float]) -> int | None:
    """How many actions a policy chooses between, by the entropy it began with: ln n, a little less. Told apart from a normal distribution only for few."""
    if highest is None or not entropies or min(entropies) < 0:
        return None
    return next((n for n in (2, 3, 4) if 0.97 * math.log(n) <= highest <= 1.001 * math.log(n)), None)


def recent(table: Table, step: float | None = None) -> Window:
    """The records that are judged: those of the last ten seconds up to a step (None: the newest), twenty at least."""
    return table.window(*_RECENT, _MEASURES, step=step)


def findings(recent: Window, now: Circumstances) -> tuple[Finding, ...]:
    """What there is to say, the gravest first."""
    values = {name: finite for name, some in recent.values.items() if (finite := _finite(some))}
    said = [finding for rule in _RULES if (finding := rule(values, now)) is not None]
    if not now.settled:
        said = [finding._replace(level="warn") if finding.level == "bad" else finding for finding in said]
    return tuple(sorted(said, key=lambda finding: _ORDER[finding.level]))


# --------------------------------------------------------------------------------------------------------------------------------------- rules


def _kl(values: dict[str, list[float]], now: Circumstances) -> Finding | None:
    if "approx_kl" not in values:
        return None
    kl = _median(values["approx_kl"])
    level: Level = "ok"
    advice, wanted = "", f"below {number(_HIGH_KL)}"
    if kl > _HIGH_KL:
        level, advice = "bad" if kl > _WILD_KL else "warn", "updates tear the policy about: lower algo.learning_rate, or fewer algo.epochs"
    elif kl < _SMALL_KL and now.learning_rate_share > 0.2:
        level, advice = "bad" if kl < _STILL_KL else "warn", "the policy stands still: raise algo.learning_rate, unless its entropy is gone"
        wanted = f"above {number(_SMALL_KL)}"
    return Finding(
        level, f"KL {number(kl)}", wanted, advice,
        "How far an iteration's updates move the policy: the mean of (ratio - 1) - log ratio (Schulman 2020). Runs that learn have 0.0003 to 0.04, most at the "
        "start, and less as the learning rate is annealed. Beyond 0.05 the samples no longer fit the policy that learns from them.",
    )  # fmt: skip


def _clip(values: dict[str, list[float]], now: Circumstances) -> Finding | None:
    if "clip_fraction" not in values:
        return None
    clipped = _median(values["clip_fraction"])
    level: Level = "bad" if clipped > _WILD_CLIP else "warn" if clipped > _HIGH_CLIP else "ok"
    advice = "most of each step is cut off: lower algo.learning_rate, or fewer algo.epochs" if level != "ok" else ""
    return Finding(
        level, f"clip fraction {number(clipped)}", f"below {_HIGH_CLIP:g}", advice,
        "The share of samples whose probability ratio left 1 ± algo.clip, so that PPO no longer learns from them. 0.01 to 0.35 is usual.",
    )  # fmt: skip


def _critic(values: dict[str, list[float]], now: Circumstances) -> Finding | None:
    if "explained_variance" not in values:
        return None
    explained = _median(values["explained_variance"])
    level: Level = "ok"
    advice = ""
    if not now.at_its_best and explained < 0 and now.past(_EARLY):
        level, advice = "bad", "the critic predicts worse than a constant would: lower algo.learning_rate, or set algo.normalize_rewards=true"
    elif not now.at_its_best and explained < _WEAK_CRITIC and now.past(_HALF):
        level, advice = "warn", "the critic lags: raise algo.value_coefficient or algo.epochs, or widen net.hidden"
    forgiven = "at its best" if now.at_its_best else "too early to tell"
    wanted = forgiven if level == "ok" and explained < _WEAK_CRITIC else f"above {_WEAK_CRITIC:g}"
    return Finding(
        level, f"explained variance {number(explained)}", wanted, advice,
        "How much of the spread of the returns the critic explains: 1 all of it, 0 no more than a constant, less than 0 worse than that. Usual in the first "
        "tenth of a run, where returns are rare, and of a policy at its best, whose returns are all alike.",
    )  # fmt: skip


def _entropy(values: dict[str, list[float]], now: Circumstances) -> Finding | None:
    if "entropy" not in values:
        return None
    entropies = values["entropy"]
    entropy = _median(entropies)
    if now.actions is None:
        # A normal distribution's entropy may have any sign, so only a policy that began among few actions can be measured; but none stays next to zero.
        most = max(math.log(2), now.entropy_highest or 0.0)
    else:
        most = math.log(now.actions)
    level: Level = "ok"
    advice = ""
    failing = now.target is None or now.evaluation is None or now.evaluation[2] < now.target
    most_of_them = sorted(entropies)[3 * len(entropies) // 4]
    if min(entropies) >= 0 and most_of_them < _COLLAPSED * most and failing:
        level = "bad" if not now.past(_HALF) or most_of_them < 0.001 * most else "warn"
        advice = "the policy no longer tries anything else: raise algo.entropy_coefficient, or lower algo.learning_rate"
    elif now.actions is not None and entropy > _UNDECIDED * most and now.past(_EARLY):
        level, advice = "warn", "the policy has not begun to choose: raise algo.learning_rate, lower algo.entropy_coefficient, or the reward says too little"
    of = f" of {number(most)}" if now.actions is not None else ""
    wanted = f"{number(_COLLAPSED * most)} to {number(_UNDECIDED * most)}" if now.actions is not None else "falling slowly"
    return Finding(
        level, f"entropy {number(entropy)}{of}", wanted, advice,
        "How undecided the policy is, in nats: ln n where all n actions are alike, 0 where one is certain; of a normal distribution any number. It falls as "
        "the policy learns. Near 0 while the goal is far, exploration has ended too early; near ln n after a fifth of the run, nothing was learned.",
    )  # fmt: skip


def _gradient(values: dict[str, list[float]], now: Circumstances) -> Finding | None:
    if "gradient_norm" not in values:
        return None
    newest, usual = values["gradient_norm"][-1], now.usual.get("gradient_norm", math.nan)
    jumped = newest > _NORM_JUMP * usual > 0
    return Finding(
        "warn" if jumped else "ok", f"gradient norm {number(newest)}", f"below {number(_NORM_JUMP * usual)}" if usual > 0 else "",
        "ten times the last minute's median: if it stays, lower algo.learning_rate or algo.max_gradient_norm" if jumped else "",
        "The length of the loss's gradient before it is clipped to algo.max_gradient_norm. Its size depends on the task; what matters is a jump.",
    )  # fmt: skip


def _finiteness(values: dict[str, list[float]], now: Circumstances) -> Finding | None:
    if not now.not_finite:
        return None
    named = ", ".join(label(name) for name in now.not_finite[:4])
    return Finding(
        "bad", f"not finite: {named}", "only numbers", "lower algo.learning_rate or algo.max_gradient_norm, or set algo.normalize_rewards=true",
        "NaN or an infinity where there must be a number. It does not go away by itself: go back to a checkpoint from before.",
    )  # fmt: skip


def _evaluation(values: dict[str, list[float]], now: Circumstances) -> Finding | None:
    if now.evaluation is None:
        return None
    _, best, newest = now.evaluation
    lost = now.lost
    level: Level = "ok"
    advice = ""
    if lost > _LOST_HALF and now.past(_EARLY):
        level = "bad" if lost > _LOST_MOST else "warn"
        advice = f"it was {number(best)}: most of what was learned is lost. The best policy is kept (operant eval RUN --checkpoint best)"
    elif now.target is not None and newest < now.target and now.past(0.9):
        near = "all steps are done" if now.past(1.0) else "the end is near"
        level, advice = "warn", f"{near} and the target is not reached: more run.steps, or another seed"
    wanted = f"target {number(now.target).removesuffix('.0')}" if now.target is not None else f"near the best, {number(best)}"
    return Finding(
        level, f"eval {number(newest)}", wanted, advice,
        "The mean return of whole greedy episodes in a world of their own. Half of what was gained since the beginning lost again is a warning.",
    )  # fmt: skip


def _speed(values: dict[str, list[float]], now: Circumstances) -> Finding | None:
    usual = now.usual.get("sps")
    if usual is None or "sps" not in values:
        return None
    sps = _median(values["sps"])
    slower = sps < _SLOWER * usual
    return Finding(
        "warn" if slower else "ok", f"SPS {count(sps)}", f"near {count(usual)}",
        f"{100 * (1 - sps / usual):.0f} % slower than the minute before: something else uses this machine, or its clock is held down" if slower else "",
        "Environment steps a second of training, as the median of the newest records, against that of the last minute.",
    )  # fmt: skip


def _gpu(values: dict[str, list[float]], now: Circumstances) -> Finding | None:
    gpu = now.gpu
    if gpu is None:
        return None
    if gpu.throttled is not None and gpu.throttled != POWER_LIMIT:  # which a GPU that is well used meets
        return Finding(
            "warn", f"GPU clock held down: {safe(gpu.throttled, 40)}", "full clock", "cooling, or the power supply: nvidia-smi -q -d PERFORMANCE says more",
            "NVML's reason for a clock below its maximum. Training is slower than this GPU could be; its numbers are not touched.",
        )  # fmt: skip
    if gpu.utilisation is None:
        return None
    idle = gpu.utilisation < _IDLE_GPU
    return Finding(
        "warn" if idle else "ok", f"GPU {100 * gpu.utilisation:.0f} % busy", f"above {100 * _IDLE_GPU:.0f} %",
        "the GPU waits: raise env.lanes or algo.horizon" if idle else "",
        "The share of the last second in which a kernel ran (NVML). It says nothing about how well the kernels fill the GPU.",
    )  # fmt: skip


def _safety(values: dict[str, list[float]], now: Circumstances) -> Finding | None:
    failures = now.checkpoint_failures
    if failures:
        return Finding(
            "bad" if failures >= 3 else "warn", f"{failures} checkpoint{'s' if failures > 1 else ''} not saved", "0",
            "see the log: a full disk, a quota, or a folder that cannot be written",
            "Checkpoints in a row that could not be written. Training goes on; a resume would begin at the last one that is safe.",
        )  # fmt: skip
    if now.history_error:
        return Finding(
            "warn", "history not written", "written", "free some disk: older records are lost when the ring is full",
            "Records beyond the newest thousand are kept in the run's history, and the disk does not take them. Training is not touched.",
        )  # fmt: skip
    return None


_RULES: Final = (_finiteness, _evaluation, _kl, _entropy, _critic, _clip, _gradient, _speed, _gpu, _safety)


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
