"""The rules of the house, held by reading the source: which way imports go, what is light, where the host may wait for
the device, what is never written.

Subjects are found, not listed: a new module, environment or algorithm is under these rules by existing.
"""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import shutil
import subprocess
import sys
import tokenize
import zipfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import operant

PACKAGE = Path(operant.__file__).resolve().parent
HOME = PACKAGE.parent
CHECKOUT = (HOME / "pyproject.toml").is_file()

FILES = sorted([*PACKAGE.rglob("*.py"), *(HOME / "monitor").rglob("*.py")])


def module_name(path: Path) -> str:
    """`operant.envs.cartpole`, and `operant.envs` for its `__init__`."""
    parts = path.relative_to(HOME).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@functools.cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """All nodes of a module."""
    return tuple(ast.walk(tree(name)))


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, without those that only a type checker sees."""
    left = [node]
    while left:
        children = [child for child in ast.iter_child_nodes(left.pop()) if not is_for_types(child)]
        yield from children
        left += children


def modules_in(nodes: Iterable[ast.AST], name: str) -> frozenset[str]:
    """The full names of the modules that import statements among `nodes` name."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative imports are not used here"
            found |= {
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES else str(node.module)
                for alias in node.names
            }
    return frozenset(found)


@functools.cache
def imports(name: str) -> frozenset[str]:
    """Modules that a module imports, at its top or within a function."""
    return modules_in(statements(tree(name)), name)


@functools.cache
def own_imports(name: str) -> frozenset[str]:
    """The project's modules that a module imports, those that only a type checker sees included; the root, which holds
    the version, left out.
    """
    return frozenset(
        other for other in modules_in(nodes(name), name) if other in MODULES and other not in ("operant", name)
    )


# IMPORTS GO ONE WAY

ROOT = {"errors", "text", "settings", "old_names", "similar", "env_names", "limits"}
LEARNING = {"compute", "host", "physics", "envs", "worlds", "nn", "data", "kernels"}
TRAINING = LEARNING | {"runs", "config", "algos", "training"}
RANKS: dict[str, set[str]] = {
    "errors": set(),
    "old_names": set(),
    "text": {"errors"},
    "settings": {"errors"},
    "similar": {"text"},
    "limits": {"errors", "text"},
    "env_names": set(),
    "runs": ROOT,
    "compute": ROOT,
    "host": ROOT | {"compute.user_file"},
    "physics": ROOT | {"compute"},
    "envs": ROOT | {"compute", "host", "physics"},
    "worlds": ROOT | {"compute", "envs", "host", "physics"},
    "gym": {"worlds"},
    "nn": ROOT | {"compute", "envs"},
    "data": ROOT | {"compute", "envs", "nn", "worlds"},
    "kernels": ROOT | {"compute", "nn"},
    "algos": ROOT | LEARNING | {"runs.metrics"},  # algos/__init__, algos/base and algos/simple
    "algos.*": ROOT | LEARNING | {"algos", "runs.metrics"},
    "config": ROOT | {"host", "runs", "compute", "envs", "nn", "algos"},
    "training": ROOT | TRAINING,
    "play": ROOT | TRAINING | {"export.program"},  # plays an exported policy
    "tools": ROOT | TRAINING,
    "export": ROOT | TRAINING,
    "sweep": ROOT | TRAINING,
    "plot": ROOT | {"runs", "config"},
    "display": ROOT | {"runs"},
    "library": ROOT | TRAINING | {"display", "play", "plot"},
    "cli": ROOT | TRAINING | {"display", "play", "tools", "export", "sweep", "plot", "monitor"},
    "monitor": ROOT | {"runs"},
}
"""Packages that each package may import in addition to itself. A package without an entry is an error."""


def package(name: str) -> str:
    """The row of RANKS for a module: its package, `algos` for algos/base, `algos.*` for what belongs to one
    algorithm.
    """
    parts = name.split(".")
    if parts[0] == "monitor":
        return "monitor"
    if parts[1] == "algos" and len(parts) > 2 and parts[2] not in ("base", "simple"):
        return "algos.*"
    return parts[1]


def may_import(name: str, other: str) -> bool:
    """Whether a module may import another by the ranks of their packages."""
    here, there = package(name), package(other)
    if here == there == "algos.*":  # never a sibling's
        return name.split(".")[2] == other.split(".")[2]
    exact = other.removeprefix("operant.")
    return there in {here} | RANKS[here] or any(exact == room or exact.startswith(f"{room}.") for room in RANKS[here])


NOT_YET = {}
"""Imports that are still to be cut."""


def every(names):
    """One test over many modules, which tells of each that breaks the rule: thousands of tests would take longer to
    count than to run.
    """

    def over(rule):
        def test():
            broken = []
            for name in names:
                try:
                    rule(name)
                except AssertionError as error:
                    broken.append(f"{name}: {error}")
            assert broken == []

        test.__name__, test.__doc__ = rule.__name__, rule.__doc__
        return test

    return over


@every([name for name in MODULES if name != "operant"])
def test_a_module_imports_by_rank(name):
    assert package(name) in RANKS, f"{name} is under no rule: give its package a row in RANKS"
    assert [
        other for other in sorted(own_imports(name)) if not may_import(name, other) and (name, other) not in NOT_YET
    ] == []


def test_the_cuts_that_are_still_to_be_made_are_no_others():
    assert {pair for pair in NOT_YET if pair[1] not in own_imports(pair[0])} == set()


def test_imports_have_no_cycle():
    """Imports within functions count; those for a type checker alone do not: a backend names its algorithm's class."""
    graph = {
        name: {other for other in imports(name) if other in MODULES and other not in ("operant", name)}
        for name in MODULES
    }
    ready_before: set[str] = set()
    while ready := {name for name in graph if name not in ready_before and graph[name] <= ready_before}:
        ready_before |= ready
    assert sorted(set(graph) - ready_before) == []


def test_the_packages_root_imports_nothing():
    assert [node for node in nodes("operant") if isinstance(node, ast.Import | ast.ImportFrom)] == []


def light() -> set[str]:
    """Modules that need no installed package, whether this list or their docstring says so."""
    told = {name for name in MODULES if "standard library only" in (ast.get_docstring(tree(name)) or "").lower()}
    return {
        "operant.errors",
        "operant.text",
        *(name for name in MODULES if name.startswith("operant.runs.") and "checkpoints" not in name),
    } | told


def test_what_says_standard_library_only_needs_nothing_else():
    # -S: no installed package can be found; what is imported within a function would only fail later.
    program = (
        f"import sys, importlib; sys.path.insert(0, {str(HOME)!r}); [importlib.import_module(name) for name in "
        f"{sorted(light())}]"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in light():
        outside = {other.split(".")[0] for other in imports(name)} - sys.stdlib_module_names - {"operant", "monitor"}
        assert outside == set(), name


@pytest.mark.slow
def test_operant_host_is_imported_only_when_an_outside_environment_is_used():
    """Learners, shipped environments and the training loop load none of it; a configuration needs the names alone."""
    learning = ["operant.algos." + name for name in ("ppo", "pqn", "dqn", "sac", "td3")]
    program = "\n".join(
        (
            f"import sys, importlib; sys.path.insert(0, {str(HOME)!r})",
            "def host(): return {name for name in sys.modules if name.startswith('operant.host')}",
            f"[importlib.import_module(name) for name in {[*learning, 'operant.envs.cartpole', 'operant.worlds']}]",
            "assert not host(), host()",
            "from operant.config import load",
            "from operant.training import build, loop",
            "build.build(load.load(None, ['env.lanes=8', 'algo.horizon=8', 'net.hidden=[4]']), 'cpu')",
            "assert host() <= {'operant.host', 'operant.host.names'}, host()",
        )
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# MODULES


@every(MODULES)
def test_a_module_says_what_it_is_for(name):
    assert len(ast.get_docstring(tree(name)) or "") > 30


@every([name for name in MODULES if name.startswith("operant.")])
def test_a_class_variable_names_its_type(name):
    """On Python 3.10 pydantic cannot evaluate a `ClassVar` without one as a string annotation."""
    found = [node for node in nodes(name) if isinstance(node, ast.AnnAssign)]
    assert not [node.lineno for node in found if ast.unparse(node.annotation) == "ClassVar"], name


@every(MODULES)
def test_nothing_happens_at_import(name):
    """Definitions, constants and imports: no call whose result nobody keeps."""
    allowed = ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.FunctionDef | ast.ClassDef
    for node in tree(name).body:
        guard = isinstance(node, ast.If) and (is_for_types(node) or "__name__" in ast.unparse(node.test))
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        # What an extra installs may be missing: then the module says so, in place of a traceback.
        optional = isinstance(node, ast.Try) and {ast.unparse(part.type) for part in node.handlers if part.type} == {
            "ImportError"
        }
        commands = name.startswith("operant.cli.") and ast.unparse(node).startswith("app.add_typer(")
        assert isinstance(node, allowed) or guard or text or optional or commands, (
            f"{name}:{node.lineno}: {ast.unparse(node)[:80]}"
        )


_DIRECTIVES = re.compile(r"#\s*(fmt:|noqa|type:|ruff:|pragma|sync:)")


@every(MODULES)
def test_there_is_no_code_in_comments(name):
    text = MODULES[name].read_text(encoding="utf-8")
    marks = ((line, found) for line in text.splitlines() for found in re.finditer("#", line))
    if not any(is_code(line[found.start() :].lstrip("# ")) for line, found in marks):
        return  # no comment can be code; tokenizing is slow
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not _DIRECTIVES.match(token.string):
            assert not is_code(token.string.lstrip("# ")), f"{name}:{token.start[0]}: {token.string}"


def is_code(text: str) -> bool:
    """Whether a comment is a statement somebody switched off: an assignment, an import, a call alone, the head of a
    block.
    """
    if re.match(r"(if|for|while|with|def|class|else|try|elif|return)\b.*:$", text):
        return True
    try:
        nodes = ast.parse(text).body
    except SyntaxError:
        return False
    kinds = ast.Assign | ast.AugAssign | ast.Import | ast.ImportFrom | ast.Return | ast.Delete | ast.Raise
    return any(
        isinstance(node, kinds) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await))
        for node in nodes
    )


def test_what_counts_as_code_in_a_comment():
    assert all(map(is_code, ["x = 1", "self.step(x)", "import torch", "if x:", "return y"]))
    assert not any(
        map(
            is_code,
            ["(T, N)", "the rollout's observations", "why: it is faster", "1 + 1 = 2", "N", "r + gamma V(s') - V(s)"],
        )
    )


# THE HOT LOOP

WAITING = {"item", "cpu", "tolist", "numpy", "synchronize", "nonzero_static"}
LOOP = LEARNING - {"envs", "host"} | {"algos", "algos.*", "training"}
NOT_THE_LOOP = {"operant.worlds.gym", "operant.worlds.sb3"}  # adapters outwards
NOT_THE_LOOP |= {
    "operant.worlds.bounds",
    "operant.worlds.quick_check",
    "operant.training.auto_lanes",
}  # trials before a run
NOT_A_WAIT = {
    ("operant.compute.kernel", "tensor.numpy()"),  # a view of memory that is the host's already
    ("operant.training.meters", "self._host.tolist()"),  # pinned memory, read after the event that says it has arrived
}


@every([name for name in MODULES if name != "operant" and package(name) in LOOP and name not in NOT_THE_LOOP])
def test_every_wait_for_the_device_is_marked(name):
    lines = MODULES[name].read_text(encoding="utf-8").splitlines()
    for node in nodes(name):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        to_host = node.func.attr == "to" and any(
            isinstance(word, ast.Constant) and word.value == "cpu" for word in node.args
        )
        if node.func.attr in WAITING or to_host:
            marked = any(
                "# sync:" in lines[line - 1] for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
            )
            assert marked or (name, ast.unparse(node)) in NOT_A_WAIT, f"{name}:{node.lineno}: {ast.unparse(node)}"


QUICK = ("operant.config.early", "operant.config.request", "operant.cli.completion", "operant.sweep.report")
QUICK += ("operant.sweep.plan",)


@pytest.mark.parametrize("name", QUICK)
def test_modules_of_quick_commands_import_neither_torch_nor_numba(name):
    reached, left = set(), [name]
    while left:
        module = left.pop()
        parents = {module.rpartition(".")[0]} & MODULES.keys()
        for other in (modules_in(tree(module).body, module) | parents) - reached:
            reached.add(other)
            left += [other] if other in MODULES else []
    assert {"operant.config.recipes", "operant"} & reached, f"{name} reaches only {reached}"
    assert not {other for other in reached if other.partition(".")[0] in ("torch", "numba", "triton")}


def test_only_kernel_knows_numbas_two_backends():
    # `ptx` and `check` compile for a GPU to look at what comes out, `jit_cache` keeps it, `cuda_ranges` improves it;
    # `doctor` asks whether there is one. None of them runs a lane.
    readers = ("compute.cuda_ranges", "compute.jit_cache", "compute.ptx", "tools.check", "tools.doctor")
    may_know = {"operant.compute.kernel": {"cuda", "prange"}} | {f"operant.{name}": {"cuda"} for name in readers}
    for name in MODULES:
        known = {
            alias.name
            for node in nodes(name)
            if isinstance(node, ast.ImportFrom) and node.module == "numba"
            for alias in node.names
        }
        known |= {other.split(".")[1] for other in imports(name) if other.startswith("numba.cuda")}
        assert known & {"cuda", "prange"} <= may_know.get(name, set()), name


# REGISTRIES AND CONFIGURATIONS


def test_no_module_lists_the_environments_or_the_algorithms():
    from operant import algos, envs

    for subjects, room in ((set(envs.names()), "envs"), (set(algos.names()), "algos")):
        for name in MODULES:
            if name.startswith(f"operant.{room}."):
                continue
            named = {
                node.value for node in nodes(name) if isinstance(node, ast.Constant) and isinstance(node.value, str)
            } & subjects
            assert len(named) <= 1, f"{name} lists {named}"


def test_an_environment_is_one_file(tmp_path, monkeypatch, capsys):
    """A file dropped into the folder is found, listed, and configurable, with no other edit."""
    from operant import cli, envs
    from operant.config import load as config

    (tmp_path / "scratch_env.py").write_text(
        (PACKAGE / "envs" / "pendulum.py").read_text().replace('gymnasium="Pendulum-v1"', "gymnasium=None")
    )
    monkeypatch.setattr(envs, "__path__", [*envs.__path__, str(tmp_path)])
    assert "scratch_env" in envs.names() and envs.find("scratch_env").name == "scratch_env"
    assert config.load(None, ["env.name=scratch_env"]).env.name == "scratch_env"
    monkeypatch.setattr(sys, "argv", ["operant", "envs", "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "scratch_env" in [row["name"] for row in json.loads(capsys.readouterr().out)]
    monkeypatch.delitem(sys.modules, "operant.envs.scratch_env")


def test_configurations_are_frozen():
    from operant import algos
    from operant.config import load as config
    from operant.nn import mlp  # noqa: F401  (they define sections)
    from operant.settings import Section

    for name in algos.names():
        algos.load(name)
    sections = [Section]
    for section in sections:
        sections += section.__subclasses__()
        assert section.model_config["frozen"] is True and section.model_config["extra"] == "forbid", section
    assert len(sections) > 6
    loaded = config.load(None)
    for part, key in ((loaded, "algo_name"), (loaded.run, "seed"), (loaded.algo, "gamma"), (loaded.net, "kind")):
        with pytest.raises(Exception, match=r"frozen|cannot assign"):
            setattr(part, key, getattr(part, key))


def test_every_section_is_a_section():
    for name in MODULES:
        for node in nodes(name):
            if isinstance(node, ast.ClassDef) and "BaseModel" in map(ast.unparse, node.bases):
                assert (name, node.name) == ("operant.settings", "Section")


# THE CHECKOUT


@pytest.mark.skipif(not CHECKOUT, reason="installed, not checked out")
def test_no_file_names_the_machine_it_was_written_on():
    own = {
        place
        for place in map(str, (HOME, Path.home(), sys.prefix))
        if place.count("/") > 1 or place == str(Path.home())
    }
    pattern = re.compile(
        "|".join(rf"{re.escape(place)}(?![\w-])" for place in own if len(place) > 3) + r"|/home/\w+/|/Users/\w+/"
    )
    skipped = {".git", ".venv", "build", "dist", "runs", "__pycache__"}
    for path in HOME.rglob("*"):
        parts = path.relative_to(HOME).parts
        if (
            path.is_file()
            and path != Path(__file__).resolve()
            and not any(part in skipped or part.endswith(("_cache", ".egg-info")) for part in parts)
        ):
            with_text = (
                path.suffix in (".py", ".md", ".toml", ".yml", ".yaml", ".cfg", ".tcss") or path.parent.name == ".ci"
            )
            found = with_text and pattern.search(path.read_text(encoding="utf-8", errors="replace"))
            assert not found, f"{path.relative_to(HOME)}: {found and found[0]}"


@pytest.mark.skipif(not CHECKOUT or find_spec("hatchling") is None, reason="needs a checkout and hatchling")
def test_a_wheel_holds_the_configurations_and_finds_them_from_anywhere(tmp_path):
    copy = tmp_path / "copy"
    wanted = ["operant", "monitor", "configs", "pyproject.toml", "README.md", "LICENSE"]
    copy.mkdir()
    for name in wanted:
        if (HOME / name).is_dir():
            shutil.copytree(HOME / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (HOME / name).is_file():
            shutil.copy(HOME / name, copy / name)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    built = subprocess.run(build, cwd=copy, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
        names = set(archive.namelist())
    shipped = sorted(f"{path.parent.name}/{path.stem}" for path in (HOME / "configs").glob("*/*.toml"))
    assert {f"operant/configs/{name}.toml" for name in shipped} <= names
    policies = [path for path in (PACKAGE / "zoo").rglob("*") if path.is_file()]
    assert policies and {path.relative_to(HOME).as_posix() for path in policies} <= names
    assert not [
        name for name in names if name.split("/")[0] not in ("operant", "monitor") and ".dist-info/" not in name
    ]
    (tmp_path / "elsewhere").mkdir()
    program = (
        "import json, operant; from operant.config import recipes\n"
        "print(json.dumps([operant.__file__, recipes.shipped(), [str(recipes.find_source(name)) for name in "
        "recipes.shipped()]]))"
    )
    command = [sys.executable, "-B", "-c", program]
    done = subprocess.run(
        command,
        cwd=tmp_path / "elsewhere",
        env={"PYTHONPATH": str(tmp_path / "installed"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    module, found, sources = json.loads(done.stdout)
    assert Path(module).is_relative_to(tmp_path / "installed")
    assert found == shipped and all(Path(source).is_relative_to(tmp_path / "installed") for source in sources)
