"""The house keeps its shape: budgets, direction of imports, one door per engine, no work at import."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pipeline", "filters", "mixes", "trainer", "flows")
MAX_FILE_LINES, MAX_FUNCTION_LINES = 450, 80
DOORS = {
    "prefect": "flows/",
    "torch": "trainer/",
    "transformers": "trainer/",
    "docker": "pipeline/containers/",
    "duckdb": "pipeline/store.py",
    "datasketch": "pipeline/decontaminate/",
    "tree_sitter": "pipeline/decontaminate/",
}
BANNED_FILES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def parsed() -> Iterator[tuple[str, ast.Module]]:
    for path in modules():
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_imports_flow_one_way() -> None:
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


def test_each_outside_engine_has_one_door() -> None:
    wrong = [
        f"{name} imports {engine}"
        for name, tree in parsed()
        for engine, door in DOORS.items()
        if engine in imported(tree) and not name.startswith(door)
    ]
    assert wrong == []


def test_files_and_functions_stay_small() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}: {lines} lines"
        for path in modules()
        if (lines := len(path.read_text().splitlines())) > MAX_FILE_LINES
    ]
    too_long += [
        f"{name}:{node.lineno} {node.name}: {lines} lines"
        for name, tree in parsed()
        for node in functions(tree)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert too_long == []


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [path for path in modules() if path.stem in BANNED_FILES] == []


def test_every_module_and_public_function_says_what_goes_in_and_out() -> None:
    silent = [name for name, tree in parsed() if not ast.get_docstring(tree)]
    silent += [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in parsed()
        for node in ast.iter_child_nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_no_docstring_is_longer_than_twelve_lines() -> None:
    long = [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in parsed()
        for node in functions(tree)
        if len((ast.get_docstring(node) or "").splitlines()) > 12
    ]
    assert long == []


def test_a_broad_except_occurs_once() -> None:
    places = [
        f"{name}:{node.lineno}"
        for name, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) == "Exception")
    ]
    assert [place.partition(":")[0] for place in places] == ["pipeline/errors.py"]


def test_no_function_body_stands_twice() -> None:
    bodies = defaultdict(list)
    for name, tree in parsed():
        for node in functions(tree):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if body and (body[-1].end_lineno or 0) - body[0].lineno >= 5:
                bodies[ast.dump(ast.Module(body=body, type_ignores=[]))].append(f"{name}:{node.lineno}")
    assert [places for places in bodies.values() if len(places) > 1] == []


@pytest.mark.parametrize("package", ["pipeline", "filters", "mixes"])
def test_light_rooms_import_without_heavy_engines_and_in_silence(package: str) -> None:
    names = [
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        for path in modules()
        if path.is_relative_to(ROOT / package)
    ]
    code = (
        "import sys, importlib\n"
        "for name in ('torch', 'vllm', 'prefect', 'transformers'): sys.modules[name] = None\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_packages_come_from_this_repository() -> None:
    for package in PACKAGES:
        assert Path(__import__(package).__file__).is_relative_to(ROOT)


def test_help_is_quick_to_load() -> None:
    code = (
        "import flows.cli, sys; print([name for name in ('torch', 'prefect', 'duckdb', 'rich') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr


def test_documents_name_only_files_that_exist() -> None:
    missing = []
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for name in re.findall(
            r"`((?:pipeline|filters|mixes|trainer|flows|tests|configs|docs)/[\w./-]+)`", document.read_text()
        ):
            if not (ROOT / name).exists():
                missing.append(f"{document.name}: {name}")
    assert missing == []


def test_no_path_of_one_machine_is_written_down() -> None:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    found = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        is_text = path.suffix in {".py", ".md", ".toml", ".yaml", ".sh", ".jinja", ".html"} and path.exists()
        if is_text and re.search(r"(?<![\w.$}>])/(work|farm|opt/wheels|root|home)/", path.read_text()):
            found.append(name)
    assert found == []
