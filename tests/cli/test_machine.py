"""Commands about configurations, environments and the machine, what words ask for, and what commands import
and print.
"""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import environment, heavy_imports
from toys import MY_ENV

from operant import runs
from operant.cli import machine, program
from operant.config import load as config
from operant.config import recipes, request
from operant.errors import MachineError, NotFoundError, UsageError
from operant.tools import check, doctor
from operant.training import memory

# CONFIGURATIONS, ENVIRONMENTS, THE MACHINE


def test_dry_run_shows_origins_and_memory_and_starts_nothing(here, tmp_path):
    done = here("train", "--dry-run", "algo.horizon=8", "env.lanes=64", "--seed", "3")
    assert done.code == 0
    lines = {line.split(" = ")[0]: line for line in done.out.splitlines() if " = " in line}
    assert lines["horizon"].split("#")[1].strip() == "command line"
    assert lines["seed"].startswith("seed = 3 ") and lines["gamma"].split("#")[1].strip().partition(":")[0].endswith(
        "ppo/cartpole.toml"
    )
    assert lines["adam_epsilon"].endswith("# default")
    assert "device memory: about" in done.out and "the replay" not in done.out
    assert not (tmp_path / "runs").exists()
    reserved = here("train", "--dry-run", "--name", "latest")
    assert reserved.code == 2 and "run.name" in reserved.err and "not latest or live (got 'latest')" in reserved.err


def test_dry_run_reports_a_mistake_in_a_users_environment_as_a_problem(here, tmp_path):
    (tmp_path / "mine.py").write_text(MY_ENV.replace("float32(0.01)", "nonsense"))
    done = here("train", "--dry-run", "--env", tmp_path / "mine.py")
    assert done.code == 2 and "mine.py has 1 problem" in done.err and "nonsense" in done.err


def test_dry_run_says_what_a_replay_takes_and_where(here):
    words = (
        "train",
        "--dry-run",
        "pendulum",
        "algo.name=sac",
        "env.lanes=8",
        "algo.horizon=4",
        "algo.batch_size=16",
        "algo.replay_capacity=65536",
    )
    assert "# replay: 1.63 MiB of it" in here(*words).out
    assert "# replay: 1.63 MiB in host memory instead" in here(*words, "algo.replay_place=host").out


def test_config_show_prints_a_loadable_configuration(here, tmp_path):
    (tmp_path / "shown.toml").write_text(here("config", "show", "pendulum", "run.name=x", "net.hidden=[8, 4]").out)
    loaded = config.load(tmp_path / "shown.toml")
    assert (loaded.env.name, loaded.run.name, loaded.net.hidden) == ("pendulum", "x", (8, 4))
    values = json.loads(here("config", "show", "--json").out)["values"]
    assert values["run.seed"] == {
        "value": 1,
        "origin": "default",
        "description": "Seed of all random numbers; the same seed gives the same bits.",
    }


def test_memory_estimate_scales_from_few_lanes():
    whole = config.load(None, ["env.lanes=256", "algo.horizon=8", "algo.epochs=1", "env.name=pendulum"])
    estimated, measured = memory.estimate(whole, torch.device("cpu")), memory._measure(whole, 256)
    assert estimated.fixed_bytes == pytest.approx(measured.fixed_bytes, rel=0.02)
    assert estimated.update_bytes == pytest.approx(measured.update_bytes, rel=0.02)
    rollout_bytes = 8 * 256 * 4 * (3 + 3 + 1 + 1)  # observations, final observations, actions, rewards
    assert measured.fixed_bytes > rollout_bytes


def test_room_is_only_measured_where_it_may_be_short(monkeypatch):
    asked = []
    monkeypatch.setattr(
        memory, "estimate", lambda config, device, **words: asked.append(config.lanes) or memory.Footprint(1 << 44, 0)
    )
    memory.require_memory(config.load(None, []), torch.device("cpu"))
    assert asked == []
    with pytest.raises(MachineError, match=r"env\.lanes = 536,870,912 needs 16 TiB"):
        memory.require_memory(config.load(None, ["env.lanes=536870912", "algo.horizon=8"]), torch.device("cpu"))
    assert asked == [536_870_912]


@pytest.mark.slow
def test_only_a_run_on_a_gpu_needs_room_for_its_stacks(monkeypatch):
    pytest.importorskip("mujoco")
    card = SimpleNamespace(multi_processor_count=100, max_threads_per_multi_processor=2048)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    small = ("env.name=inverted_pendulum", "env.lanes=32", "algo.horizon=8", "algo.minibatches=1", "net.hidden=[8]")
    robot = config.load(None, small)
    without, with_stacks = (
        memory.estimate(robot, torch.device(name), updates=False).fixed_bytes for name in ("cpu", "cuda:0")
    )
    assert with_stacks - without == robot.environment.ready(robot.params).stack_bytes * 204_800


@pytest.mark.slow
def test_every_shipped_configuration_passes_its_own_check(here):
    for name in recipes.shipped():
        assert here("config", "check", name).out == "ok\n"


def test_the_schema_is_json(here):
    schema = json.loads(here("config", "schema").out)
    assert set(schema["properties"]) == {"run", "env", "algo", "net", "checkpoint", "eval", "sweep", "format"}
    assert json.dumps(schema["properties"]["algo"]).count('"gamma": {') >= 1


def test_config_list_names_every_recipe_with_the_first_sentence_of_its_file(here):
    listed = {row["name"]: row for row in json.loads(here("config", "list", "--json").out)}
    assert list(listed) == recipes.shipped()
    for row in listed.values():
        head = Path(row["path"]).read_text().split("\n\n")[0].replace("\n# ", " ").removeprefix("# ")
        assert row["description"].endswith(".") and head.startswith(row["description"]), row
    assert "CartPole-v1 by PPO." in listed["ppo/cartpole"]["description"]
    table = here("config", "list").out.splitlines()
    assert [line.split()[0] for line in table] == ["name", *listed]


def test_envs_lists_every_shipped_environment(here):
    from operant import envs

    listed = json.loads(here("envs", "--json").out)
    assert [row["name"] for row in listed] == envs.names()
    cartpole, go = (next(row for row in listed if row["name"] == name) for name in ("cartpole", "go"))
    assert (cartpole["gymnasium"], cartpole["actions"], cartpole["turns"], cartpole["step_s"]) == (
        "CartPole-v1",
        ["left", "right"],
        False,
        pytest.approx(0.02),
    )
    assert go["turns"] and len(go["actions"]) == 82
    table = here("envs").out
    assert "  left stay right left+jump jump right+jump\n" in table and "  a9 b9 ... pass\n" in table
    assert all(name in table for name in envs.names())


def test_check_distinguishes_valid_and_broken_environments(here, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(MY_ENV.replace("time_limit=100", "time_limit=0"))
    (tmp_path / "none.py").write_text("x = 1\n")
    broken = here("check", "broken.py")
    assert broken.code == 2 and broken.out.startswith("problem  declaration") and "time_limit is 0" in broken.out
    empty = here("check", "none.py")
    assert empty.code == 2 and "exports no environment" in empty.err
    assert (here("check", "nosuch.py").code, here("check", "nosuch").code) == (3, 2)
    # What a sound one is put through is tests/tools/test_check.py's; it takes long.
    monkeypatch.setattr(
        check,
        "check",
        lambda env, report=None: iter([check.Finding("declaration", True, f"{env.name}, {env.fields} field")]),
    )
    (tmp_path / "sound.py").write_text(MY_ENV)
    sound = here("check", "sound.py")
    assert sound.code == 0 and sound.out.split() == ["ok", "declaration", "sound,", "1", "field"]


def test_check_prints_findings_immediately(capsys):
    from operant.cli.machine import print_findings

    known = []

    def examine(env, report):
        for number, passed in enumerate((True, False, True)):
            report(f"look {number}")
            known.append(capsys.readouterr().out)
            yield check.Finding(f"look {number}", passed, "what was seen")

    assert not print_findings(examine, None)
    known.append(capsys.readouterr().out)
    assert [line.split()[:3] for line in known] == [
        [],
        ["ok", "look", "0"],
        ["problem", "look", "1"],
        ["ok", "look", "2"],
    ]
    assert not any("\r" in line or "..." in line for line in known), "into a file or a pipe go findings alone"


def test_check_shows_the_running_check_on_a_terminal(monkeypatch):
    from operant.cli.machine import print_findings

    class Stream(io.StringIO):
        def isatty(self):
            return True

    def examine(env, report):
        yield check.Finding("one", True, "seen")
        report("another")
        if env == "broken":
            raise KeyboardInterrupt
        yield check.Finding("another", True, "seen as well")

    monkeypatch.setenv("TERM", "xterm-256color")
    shown = "\r...      another\x1b[K\r\x1b[K"
    monkeypatch.setattr(sys, "stdout", stream := Stream())
    assert print_findings(examine, None)
    assert (
        stream.getvalue()
        == f"ok       one                        seen\n{shown}ok       another                    seen as well\n"
    )
    monkeypatch.setattr(sys, "stdout", stream := Stream())
    with pytest.raises(KeyboardInterrupt):
        print_findings(examine, "broken")
    assert stream.getvalue().endswith(shown), "nothing half-told stays behind"


def test_doctor_passes_on_this_machine(here, tmp_path):
    done = here("doctor", "--json")
    found = {finding["name"]: finding for finding in json.loads(done.out)["findings"]}
    assert done.code == 0, done.out
    assert {
        "python",
        "operant",
        "torch",
        "numba",
        "numba-cuda",
        "driver",
        "gpu",
        "triton",
        "terminal",
        "sessions",
        "runs",
        "disk",
        "cache",
    } == set(found)
    assert torch.__version__ in found["torch"]["found"]


def test_doctor_reports_problems_that_break_training(here, tmp_path, monkeypatch):
    (tmp_path / "a_file").write_text("")
    monkeypatch.setattr(doctor, "_terminal", lambda: 1 / 0)
    done = here("doctor", "--runs", "a_file/runs")
    assert done.code == 4
    line = next(line for line in done.out.splitlines() if line.split()[1] == "runs")
    assert line.startswith("problem") and "--runs" in line
    assert "check failed: ZeroDivisionError" in done.out


def test_doctor_advises_lingering_where_logind_kills_processes(tmp_path, monkeypatch):
    (tmp_path / "logind.conf").write_text("[Login]\nKillUserProcesses=no\n")
    (tmp_path / "logind.conf.d").mkdir()
    monkeypatch.setattr(doctor, "_LOGIND", (str(tmp_path),))
    assert doctor.sessions().status == doctor.OK
    (tmp_path / "logind.conf.d" / "kill.conf").write_text("[Login]\nKillUserProcesses=yes\n")
    assert doctor.sessions().advice.startswith("loginctl enable-linger ")


# REQUESTS


@pytest.mark.parametrize(
    ("words", "source", "overrides", "prefix"),
    [
        ((), "cartpole", (), "cartpole-ppo"),
        (("cartpole",), "cartpole", ("env.name=cartpole",), "cartpole-ppo"),
        (("CartPole-v1", "run.seed=2"), "cartpole", ("env.name=CartPole-v1", "run.seed=2"), "cartpole-ppo"),
        (("env.name=pendulum",), "pendulum", ("env.name=pendulum",), "pendulum-ppo"),
        (("nosuch",), None, ("env.name=nosuch",), "nosuch-ppo"),
    ],
)
def test_words_become_a_request(tmp_path, monkeypatch, words, source, overrides, prefix):
    monkeypatch.chdir(tmp_path)
    made = request.make(words, config=None, environment_file=None, settings={})
    assert (made.source and made.source.stem, made.overrides, made.prefix) == (source, overrides, prefix)
    assert made.directory == tmp_path and made.name is None


def test_an_environment_is_found_by_its_gymnasium_id():
    for name in ("MountainCarContinuous-v0", "mountaincar_continuous"):
        assert (
            request.make((name,), config=None, environment_file=None, settings={}).source.stem
            == "mountaincar_continuous"
        )


def test_options_win_over_overrides_and_files_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_env.py").write_text("")
    made = request.make(
        ("run.seed=1", "run.name=first"),
        config=None,
        environment_file="my_env.py",
        settings={"run.seed": 2, "run.name": None},
    )
    assert made.overrides == ("run.seed=1", "run.name=first", "run.seed=2")
    assert (made.source, made.environment_file, made.name, made.prefix) == (
        None,
        tmp_path / "my_env.py",
        "first",
        "my_env-ppo",
    )
    assert made.document() == {
        "config": None,
        "overrides": list(made.overrides),
        "environment_file": str(tmp_path / "my_env.py"),
        "directory": str(tmp_path),
    }
    assert (
        request.make(("my_env.py",), config=None, environment_file=None, settings={}).environment_file
        == tmp_path / "my_env.py"
    )
    with pytest.raises(UsageError):
        request.make(("my_env.py",), config=None, environment_file="my_env.py", settings={})
    with pytest.raises(NotFoundError):
        request.make((), config=None, environment_file="x" * 5000, settings={})


def test_a_working_directory_that_is_gone_is_a_machine_that_does_not_fit(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(MachineError, match="working directory"):
        request.make((), config=None, environment_file=None, settings={})


@pytest.mark.parametrize("where", ["a full disk", "a reader who has gone", "a folder that is gone"])
def test_where_nothing_can_be_written_or_found_there_is_no_traceback(tmp_path, where):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "operant.cli", "runs", "--json"]
    if where == "a folder that is gone":
        command = ["sh", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"', "sh", *command]
    with open("/dev/full" if where == "a full disk" else writer, "wb") as output:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == {
        "a full disk": (4, "error: the output cannot be written (No space left on device): free some disk space\n"),
        "a reader who has gone": (1, ""),
        "a folder that is gone": (
            4,
            "error: the working directory cannot be used (No such file or directory): change to another one\n",
        ),
    }[where]


@pytest.mark.parametrize(
    ("words", "missing", "code"),
    [(("show", "x"), "stderr", 3), (("show", "x"), "stdout", 3), (("monitor", "young"), "stdout", 0)],
)
def test_an_output_that_is_full_or_closed_leaves_the_exit_code(here, tmp_path, monkeypatch, words, missing, code):
    run = runs.create(tmp_path / "runs", "young", "x", {})
    runs.write_json(run.exit_path, {"exit": 0, "signal": None})
    monkeypatch.setattr(sys, missing, None)
    assert here(*words).code == code
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, missing, full)
        assert here(*words).code == code or (words[0], missing) == ("monitor", "stdout")


def test_full_disk_error_names_the_file(here, monkeypatch):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device", "sweeps/best.toml")

    monkeypatch.setattr(program, "run", full)
    done = here("runs")
    assert (done.code, done.err) == (
        4,
        "error: sweeps/best.toml cannot be written (No space left on device): free some disk space\n",
    )


# DOCUMENTATION


def test_docs_names_the_page_of_the_installation(here, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_SITE", tmp_path / "site")
    done = here("docs")
    assert done.code == 3 and "mkdocs build" in done.err
    (tmp_path / "site" / "algorithms").mkdir(parents=True)
    for page in ("index", "algorithms/index", "algorithms/ppo"):
        (tmp_path / "site" / f"{page}.html").write_text("<p>")
    for words, page in (((), "index"), (("ppo",), "algorithms/ppo"), (("algorithms/ppo",), "algorithms/ppo")):
        assert here("docs", *words).out.strip() == str(tmp_path / "site" / f"{page}.html")
    done = here("docs", "ppp")
    assert done.code == 3 and "did you mean" in done.err


# LIGHT AND QUIET


def test_commands_that_only_read_import_nothing_heavy(tmp_path):
    reading = "--version", "--help", "train --help", "runs", "runs --json", "show x", "logs x"
    heavy = {"torch", "numba", "numpy", "pydantic", "rich", "safetensors"}
    assert heavy_imports(tmp_path, [line.split() for line in reading], heavy) == ""


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_is_for_terminals_that_want_it(tmp_path, no_color, coloured):
    leader, follower = os.openpty()
    words = [sys.executable, "-m", "operant.cli", "show", "x"]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=environment(tmp_path) | {"NO_COLOR": no_color, "TERM": "xterm"},
        stderr=follower,
        check=False,
    )
    os.close(follower)
    told = os.read(leader, 4096)
    os.close(leader)
    assert done.returncode == 3 and b"no run named" in told
    assert (b"\x1b[31merror:" in told) == coloured


def test_nobody_reading_stdout_is_no_error(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "operant.cli", "--version"],
        env=environment(tmp_path),
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert b"Traceback" not in done.stderr
