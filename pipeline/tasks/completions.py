"""Documented function -> single-turn task to write it again; reply text -> tree with the function that was written."""

import random
import re
from typing import NamedTuple

import libcst as cst

from pipeline.tasks.mutations import parse_module
from pipeline.tasks.paths import source_files
from pipeline.tasks.syntax import parse_python
from pipeline.trees import Tree
from pipeline.types import Statement

FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
MAX_REPLY_CHARS = 40_000
MIN_STATEMENTS = 2
"""Statements a body must have beside its docstring to be worth asking for."""
OPENINGS = (
    "Write the body of the Python function `{name}`.",
    "The Python function `{name}` has lost its body. Write it again.",
    "Complete the Python function `{name}` so that it does what its docstring says.",
)


class Completion(NamedTuple):
    """One function without its body."""

    path: str
    function: str
    """Qualified name."""
    source: str
    """The whole file, the body replaced by `raise NotImplementedError`."""


class Insertion(NamedTuple):
    """A reply put into the tree, or the tree as it was and why."""

    tree: Tree
    problem: str
    """Empty when the function was replaced."""


def make_completions(tree: Tree, count: int, seed: int) -> list[Completion]:
    """Tree -> up to `count` documented functions of its source files without their bodies, spread over files."""
    places = []
    for path, content in sorted(source_files(tree).items()):
        module = parse_module(content)
        if module is not None:
            places += [(path, name, module) for name in find_documented(module)]
    random.Random(seed).shuffle(places)
    found: list[Completion] = []
    while places and len(found) < count:
        used = [completion.path for completion in found]
        path, name, module = min(places, key=lambda place: used.count(place[0]))
        places.remove((path, name, module))
        found.append(Completion(path, name, _without_body(module, name).code))
    return found


def find_documented(module: cst.Module) -> list[str]:
    """Module -> qualified names, each defined once, of functions with a docstring and a real body."""
    functions = _functions(module)
    return [
        name
        for name, nodes in functions.items()
        if len(nodes) == 1
        and nodes[0].get_docstring()
        and isinstance(nodes[0].body, cst.IndentedBlock)
        and _num_statements(nodes[0]) > MIN_STATEMENTS
    ]


def function_code(tree: Tree, entity: str) -> str:
    """Tree and "path::name" -> text of that function without decorators, its indentation removed."""
    path, name = entity.split("::")
    module = cst.parse_module(tree[path])
    return _dedented(module, _functions(module)[name][0])


def state_completion(tree: Tree, entity: str, seed: int, max_chars: int) -> Statement:
    """Broken tree and "path::name" -> the request: signature, docstring, and as much of the module as fits."""
    path, name = entity.split("::")
    module = cst.parse_module(tree[path])
    shown = module.code if len(module.code) <= max_chars else _outline(module, name)
    if len(shown) > max_chars:
        shown = _header(module)
    opening = random.Random(seed).choice(OPENINGS).format(name=name)
    stub = _dedented(module, _functions(module)[name][0]).strip("\n")
    text = (
        f"{opening} It belongs to `{path}`:\n\n```python\n{stub}\n```\n\n"
        f"The module around it:\n\n```python\n{shown.strip()}\n```\n\n"
        "Answer with the complete function, signature and docstring included, in one ```python block. Names of the "
        "module may be used; further imports belong inside the function. Hidden tests of the project decide."
    )
    return Statement(text=text, origin="generator")


def completion_reply(code: str) -> str:
    """Text of a function -> a reply that answers the request."""
    return f"```python\n{code.strip()}\n```"


def insert_function(tree: Tree, entity: str, reply: str) -> Insertion:
    """Tree, "path::name" and a reply -> tree with that function's signature and body as the reply has them.

    Decorators stay the repository's own. A reply without a usable function changes nothing.
    """
    path, name = entity.split("::")
    written = _written_function(reply, name.rsplit(".", 1)[-1])
    if isinstance(written, str):
        return Insertion(tree, written)
    module = cst.parse_module(tree[path])
    place = _functions(module)[name][0]
    changed = place.with_changes(
        params=written.params, returns=written.returns, body=written.body, asynchronous=written.asynchronous
    )
    replaced = module.deep_replace(place, changed)
    assert isinstance(replaced, cst.Module), "a module stays a module"
    return Insertion({**tree, path: replaced.bytes}, "")


def _written_function(reply: str, name: str) -> cst.FunctionDef | str:
    """Reply -> the last definition of that name in its last block that has one, or why there is none."""
    if len(reply) > MAX_REPLY_CHARS:
        return "reply_too_long"
    blocks = FENCE.findall(reply) or [reply]
    for block in reversed(blocks):
        code = _dedent(block)
        # CPython's parser refuses deep nesting before the other one could overflow the stack on it.
        module = parse_module(code.encode()) if parse_python(code).body else None
        found = (
            [nodes for known, nodes in _functions(module).items() if known.rsplit(".", 1)[-1] == name] if module else []
        )
        if found:
            return found[-1][-1]
    return "no_function_in_reply"


def _dedent(block: str) -> str:
    """Code block -> the same without the indentation of its first line, where all lines share it."""
    lines = block.strip("\n").split("\n")
    margin = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    return "\n".join(line.removeprefix(margin) for line in lines) + "\n"


class _FunctionFinder(cst.CSTVisitor):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.found: dict[str, list[cst.FunctionDef]] = {}

    def visit_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802 - libcst's name
        self.names.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:  # noqa: N802
        self.names.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:  # noqa: N802
        self.found.setdefault(".".join([*self.names, node.name.value]), []).append(node)
        return False


def _functions(module: cst.Module) -> dict[str, list[cst.FunctionDef]]:
    """Module -> qualified name -> its definitions; functions inside functions are not listed."""
    finder = _FunctionFinder()
    module.visit(finder)
    return finder.found


def _num_statements(function: cst.FunctionDef) -> int:
    """Statements of a body, the docstring and those inside compound statements counted."""
    return sum(isinstance(node, cst.BaseStatement) for node in _descend(function.body))


def _descend(node: cst.CSTNode) -> list[cst.CSTNode]:
    return [node, *(found for child in node.children for found in _descend(child))]


def _emptied(function: cst.FunctionDef) -> cst.FunctionDef:
    """Function -> the same with its docstring as the only sense left in it."""
    assert isinstance(function.body, cst.IndentedBlock), "one-line functions are not listed"
    body = [function.body.body[0]] if function.get_docstring() else []
    body.append(cst.SimpleStatementLine([cst.Raise(cst.Name("NotImplementedError"))]))
    return function.with_changes(body=function.body.with_changes(body=body, footer=[]))


def _without_body(module: cst.Module, name: str) -> cst.Module:
    function = _functions(module)[name][0]
    changed = module.deep_replace(function, _emptied(function))
    assert isinstance(changed, cst.Module), "a module stays a module"
    return changed


class _OtherBodies(cst.CSTTransformer):
    """Cuts every function but one down to its signature."""

    def __init__(self, kept: cst.FunctionDef) -> None:
        self.kept = kept

    def leave_FunctionDef(  # noqa: N802 - libcst's name
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        if original_node is self.kept:
            return updated_node
        return updated_node.with_changes(body=_dots())


def _outline(module: cst.Module, name: str) -> str:
    return module.visit(_OtherBodies(_functions(module)[name][0])).code


def _header(module: cst.Module) -> str:
    """Module -> its imports and the first lines of all its functions and classes."""
    lines = []
    for statement in module.body:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            bare = statement.with_changes(body=_dots(), leading_lines=[], decorators=[])
            lines.append(module.code_for_node(bare))
        elif isinstance(statement, cst.SimpleStatementLine) and isinstance(
            statement.body[0], cst.Import | cst.ImportFrom
        ):
            lines.append(module.code_for_node(statement.with_changes(leading_lines=[])))
    return "".join(lines)


def _dots() -> cst.SimpleStatementSuite:
    return cst.SimpleStatementSuite([cst.Expr(cst.Ellipsis())])


def _dedented(module: cst.Module, function: cst.FunctionDef) -> str:
    bare = function.with_changes(decorators=[], leading_lines=[], lines_after_decorators=[])
    return module.code_for_node(bare)
