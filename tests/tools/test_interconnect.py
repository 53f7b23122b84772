"""`operant doctor --links`: links between GPUs, and commands that start a run on several."""

from __future__ import annotations

import json

import pytest
import torch

from operant.tools import exchange_probe


def test_links_lists_gpu_links_and_launch_commands(here, monkeypatch):
    asked = here("doctor", "--links", "--json")
    found = {row["name"]: row["found"] for row in json.loads(asked.out)["findings"]}
    assert asked.code == 0 and found["prepare"] == "operant train --prepare"
    assert found["torchrun"].startswith("torchrun --nproc-per-node=") and found["srun"].startswith("srun --ntasks=")
    # As on a machine with three GPUs, of which two read each other's memory.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, two: 2 not in (one, two))
    times = exchange_probe.ExchangeTimes("NVLink", {2: 3.0, 9_600: 5.0, 80_000: 6.5, 700_000: 20.0})
    monkeypatch.setattr(exchange_probe, "measure", lambda ranks, *, gpu: times if (ranks, gpu) == (2, True) else None)
    rows = {row["name"]: row for row in json.loads(here("doctor", "--links", "--json").out)["findings"]}
    assert rows["0 - 1"]["status"] == "ok" and "peer access" in rows["0 - 1"]["found"]
    assert rows["0 - 2"]["status"] == "note" and "NCCL" in rows["0 - 2"]["advice"]
    assert rows["operant"]["found"] == "operant train --gpus 2"
    assert (
        rows["exchange"]["found"]
        == "2 GPUs by NVLink: 3 us for 2, 5 us for 9,600, 6.5 us for 80,000, 20 us for 700,000 values"
    )
    assert "0.80 of 0.33 ms" in rows["efficiency"]["found"]
    monkeypatch.setattr(
        exchange_probe, "measure", lambda ranks, *, gpu: exchange_probe.ExchangeTimes("", {}, "rank 1: no room")
    )
    rows = {row["name"]: row for row in json.loads(here("doctor", "--links", "--json").out)["findings"]}
    assert (
        rows["exchange"]["status"] == "note"
        and "rank 1: no room" in rows["exchange"]["found"]
        and "efficiency" not in rows
    )


@pytest.mark.soak
def test_an_exchange_between_processes_is_measured_and_a_limit_ends_it():
    found = exchange_probe.measure(2, gpu=False)
    assert (
        found.name == "gloo"
        and set(found.us) == set(exchange_probe.SIZES)
        and min(found.us.values()) > 0.0
        and not found.problem
    )
    assert exchange_probe.measure(2, gpu=False, limit_s=0.01).problem == "not finished within 0.01 s"
    assert "rank" in exchange_probe.measure(2, gpu=True).problem  # of which there is none
