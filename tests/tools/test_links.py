"""`operant doctor --links`: what lies between GPUs, and the lines that start a run on several."""

from __future__ import annotations

import json

import torch


def test_it_says_what_is_between_the_gpus_and_how_to_start_on_several(here, monkeypatch):
    asked = here("doctor", "--links", "--json")
    found = {row["name"]: row["found"] for row in json.loads(asked.out)["findings"]}
    assert asked.code == 0 and found["prepare"] == "operant train --prepare"
    assert found["torchrun"].startswith("torchrun --nproc-per-node=") and found["srun"].startswith("srun --ntasks=")
    # As on a machine with three GPUs, of which two read each other's memory.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, two: 2 not in (one, two))
    rows = {row["name"]: row for row in json.loads(here("doctor", "--links", "--json").out)["findings"]}
    assert rows["0 - 1"]["status"] == "ok" and "peer access" in rows["0 - 1"]["found"]
    assert rows["0 - 2"]["status"] == "note" and "NCCL" in rows["0 - 2"]["advice"]
    assert rows["operant"]["found"] == "operant train --gpus 2"
