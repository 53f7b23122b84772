"""Runs that nobody trained: folders with a document, a history and a metrics file of given numbers, as a trainer leaves
them. No torch.
"""

from __future__ import annotations

import json
from pathlib import Path

from operant import runs
from operant.runs import FLAG_EVAL, History, Metric, Writer

METRICS = (
    Metric("return", higher_better=True),
    Metric("loss"),
    Metric("eval/return", higher_better=True),
    Metric("seconds/update", unit="s"),
)


def made(
    root: Path,
    name: str,
    rows,
    *,
    config: str = "",
    metrics=METRICS,
    state: str | None = "finished",
    reason: int = 0,
    session: int = 1,
    rewind_to=None,
    **document,
):
    """A run of records `rows`, (step, values) each; a value of eval/return marks an evaluation. `session` 2 goes on
    with the run of this name.
    """
    run = runs.load(root / name) if session > 1 else runs.create(root, name, "x", {})
    runs.update_document(run.path, **{"env": "cartpole", "algo": "ppo", "steps": 1000, "seed": 1, **document})
    run = runs.load(run.path)
    writer = Writer(run.metrics_path, metrics, run_uuid=run.uuid, session=session, version="0")
    history = History(
        run.path / "history", run.metrics_path, writer=writer, run_uuid=run.uuid, session=session, rewind_to=rewind_to
    )
    history.start()
    names = [metric.name for metric in metrics]
    evaluations = runs.evaluated(run.path) if session > 1 else []
    for step, values in rows:
        evaluated = "eval/return" in names and values[names.index("eval/return")] == values[names.index("eval/return")]
        writer.publish(step, values, flags=FLAG_EVAL if evaluated else 0)
        if evaluated:
            evaluations.append({"step": step, "mean": values[names.index("eval/return")]})
    assert history.close()
    if state is not None:
        writer.set_state(state, reason=reason)
    writer.close()
    if config:
        (run.path / "config.toml").write_text(config)
    (run.path / "eval").mkdir(exist_ok=True)
    (run.path / "eval" / "evaluations.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in evaluations))
    return run
