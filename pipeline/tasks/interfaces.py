"""Names that a failing test calls -> the package's own functions behind them, with their signatures."""

import ast
from typing import NamedTuple

from pipeline.tasks.paths import source_files
from pipeline.tasks.syntax import parse_python
from pipeline.trees import Tree

MAX_NAMES = 3


class Interface(NamedTuple):
    """One function or class of the package, as tests reach it."""

    name: str
    """Dotted name as imported, e.g. toolz.itertoolz.groupby."""
    signature: str
    """First line of its definition without the colon; empty if it was not found."""


def package_names(tree: Tree) -> set[str]:
    """Tree -> names of its top-level modules and packages."""
    names = set()
    for path in source_files(tree):
        parts = path.removeprefix("src/").split("/")
        names.add(parts[0].removesuffix(".py"))
    return names


def find_interfaces(tree: Tree, test_path: str, called: tuple[str, ...]) -> list[Interface]:
    """Tree, a test file and the names it calls -> those that belong to the package, most relevant first."""
    imported = imported_names(parse_python(tree.get(test_path, b"")), package_names(tree))
    found: dict[str, Interface] = {}
    for name in called:
        root, _, rest = name.partition(".")
        if root in imported and len(found) < MAX_NAMES:
            dotted = f"{imported[root]}.{rest}" if rest else imported[root]
            found.setdefault(dotted, Interface(dotted, find_signature(tree, dotted)))
    return list(found.values())


def imported_names(module: ast.Module, packages: set[str]) -> dict[str, str]:
    """Test file -> local name -> dotted name, for imports from the packages."""
    names: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                names[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {local: dotted for local, dotted in names.items() if dotted.partition(".")[0] in packages}


def find_signature(tree: Tree, dotted: str) -> str:
    """Dotted name -> `def name(...)` or `class name(...)`, from its own module first, else wherever it is defined."""
    module, _, name = dotted.rpartition(".")
    place = module.replace(".", "/")
    own = [f"{place}.py", f"{place}/__init__.py", f"src/{place}.py", f"src/{place}/__init__.py"]
    sources = source_files(tree)
    for path in [*[path for path in own if path in sources], *sorted(sources)]:
        for node in parse_python(sources[path]).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
                return f"def {name}({ast.unparse(node.args)}){returns}"
            if isinstance(node, ast.ClassDef) and node.name == name:
                return _class_signature(node)
    return ""


def _class_signature(node: ast.ClassDef) -> str:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            arguments = ast.unparse(item.args).partition(", ")[2] if item.args.args else ast.unparse(item.args)
            return f"class {node.name}({arguments})"
    return f"class {node.name}"
