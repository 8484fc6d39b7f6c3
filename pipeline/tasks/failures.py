"""Failure text of a test and the test's own source -> what was called, what came out, what was expected.

The texts are pytest's: a `name = value` header with the parameters, `E` lines with the introspected assertion, and
`file:line:` for each frame.
"""

import ast
import copy
import re
from typing import NamedTuple

from pipeline.tasks.interfaces import imported_names, package_names
from pipeline.tasks.syntax import parse_expression, parse_python
from pipeline.trees import Tree

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
MAX_SETUP_LINES = 6
MAX_TEXT = 240
COMPARED = re.compile(r"^(?:AssertionError: )?assert (.*)$", re.DOTALL)
RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit|Interrupt|Iteration|Missing\w*)\b.*)$")
OPAQUE = re.compile(r"<locals>|<function|object>|^environ\(")
"""Values whose text says nothing to a reader."""
DID_NOT_RAISE = re.compile(r"DID NOT RAISE (.*)$")


class Failure(NamedTuple):
    """One failing test in the words of its own assertion; parts that cannot be read are empty."""

    test: str
    behaviour: str
    """The test's name in words."""
    setup: str
    """Lines of the test that the call needs."""
    call: str
    """Expression under test, parameters put in."""
    observed: str
    """Value that came out."""
    expected: str
    """Value that should have come out."""
    error: str
    """Exception that ended the test, where it was not the assertion."""
    names: tuple[str, ...]
    """Names called by the statement that failed, then those of the rest of the test."""


class Reading(NamedTuple):
    """What is known while a failing statement is read."""

    parameters: dict[str, ast.expr]
    """Name -> literal value."""
    package: set[str]
    """Local names imported from the package under test."""


class Frame(NamedTuple):
    """The deepest place of a failure inside the test file that pytest shows in full."""

    text: str
    line: int
    """1-based; 0 if the failure text names none."""


def read_failure(test: str, message: str, tree: Tree) -> Failure:
    """Test id, its failure text and the tree with the tests -> the failure; never fails, it only knows less."""
    path, *parts = test.split("::")
    name = parts[-1].split("[")[0] if parts else ""
    behaviour = " ".join(word for word in name.removeprefix("test").strip("_").split("_") if word)
    blank = Failure(test, behaviour, "", "", "", "", "", ())
    lines = _error_lines(message)
    module = parse_python(tree.get(path, b""))
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    function = next((node for node in functions if node.name == name), None)
    if function is None:
        return blank._replace(error=_error(lines))
    frame = _test_frame(message, path)
    around = [node for node in functions if node.lineno <= frame.line <= (node.end_lineno or 0)]
    place = max(around, key=lambda node: node.lineno, default=function)
    statement = _failing_statement(place, frame.line)
    if statement is None:
        return blank._replace(error=_error(lines), names=_called(function))
    reading = Reading(_parameters(frame.text), set(imported_names(module, package_names(tree))))
    failure = blank._replace(
        setup=_setup(place, statement, reading), names=(*_called(statement), *_called(place), *_called(function))
    )
    if isinstance(statement, ast.Assert) and lines and COMPARED.match(lines[0]):
        return _read_assertion(failure, statement, lines, reading)
    if any(DID_NOT_RAISE.search(line) for line in lines):
        return _read_missing_raise(failure, statement, lines, reading)
    return failure._replace(call=_call_text(statement, reading), error=_error(lines))


def _test_frame(message: str, path: str) -> Frame:
    found = Frame(message, 0)
    for text in re.split(r"^(?:_ )+_?$", message, flags=re.MULTILINE):
        if match := re.search(rf"^{re.escape(path)}:(\d+): (?!in )|^{re.escape(path)}:(\d+):$", text, re.MULTILINE):
            found = Frame(text, int(match[1] or match[2]))
    return found


def _error_lines(message: str) -> list[str]:
    """Failure text -> its `E` lines without the mark; addresses cut, they differ from run to run."""
    found = re.findall(r"^E(?:   |$)(.*)$", message, re.MULTILINE)
    return [ADDRESS.sub("", line).strip() for line in found]


def _error(lines: list[str]) -> str:
    for line in lines:
        if match := RAISED.match(line):
            return _clip(match[1])
    return _clip(lines[0]) if lines else ""


def _clip(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def _failing_statement(function: ast.FunctionDef, line: int) -> ast.stmt | None:
    """The smallest statement of the function that covers the line."""
    covering = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.stmt) and node is not function and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return min(covering, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)


def _parameters(message: str) -> dict[str, ast.expr]:
    """Header lines `a = 1, b = 'x'` of the test's own frame -> name -> value, where it is a literal."""
    found: dict[str, ast.expr] = {}
    for line in message.split("\n"):
        if re.match(r"\s*(@|def |>|E )", line):
            break
        if not re.match(r"\w+ = ", line):
            continue
        call = parse_expression(f"f({line})")
        if not isinstance(call, ast.Call):
            continue
        found |= {item.arg: item.value for item in call.keywords if item.arg and _is_literal(item.value)}
    return found


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return not any(isinstance(part, ast.Constant) and part.value is ... for part in ast.walk(node))


class _PutIn(ast.NodeTransformer):
    """Names of parameters -> their values."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def _text(node: ast.expr | ast.stmt, reading: Reading) -> str:
    return ast.unparse(_PutIn(reading.parameters).visit(copy.deepcopy(node)))


def _call_text(statement: ast.stmt, reading: Reading) -> str:
    """Statement -> the expression in it that does the work; compound statements have none."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        sides = [test.left, *test.comparators] if isinstance(test, ast.Compare) else [test]
        return _text(max(sides, key=lambda side: _work(side, reading)), reading)
    if isinstance(statement, ast.Assign | ast.Expr | ast.Return) and statement.value is not None:
        return _text(statement.value, reading)
    return ""


def _work(node: ast.expr, reading: Reading) -> int:
    """Expression -> how likely it is the one under test: 2 names the package, 1 computes something, 0 is plain."""
    parts = list(ast.walk(node))
    if any(isinstance(part, ast.Name) and part.id in reading.package for part in parts):
        return 2
    return int(any(isinstance(part, ast.Call | ast.Subscript | ast.Attribute) for part in parts))


def _setup(function: ast.FunctionDef, statement: ast.stmt, reading: Reading) -> str:
    """Test and its failing statement -> the assignments and definitions before it that it needs, or "" if too many."""
    needed = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    kept: list[str] = []
    for before in reversed([node for node in function.body if node.lineno < statement.lineno]):
        if isinstance(before, ast.FunctionDef):
            bound = {before.name}
        elif isinstance(before, ast.Assign | ast.AnnAssign | ast.AugAssign):
            stored = [node for node in ast.walk(before) if isinstance(node, ast.Name)]
            bound = {node.id for node in stored if isinstance(node.ctx, ast.Store)}
        else:
            continue
        if bound & needed:
            kept.insert(0, _text(before, reading))
            needed |= {node.id for node in ast.walk(before) if isinstance(node, ast.Name)}
    setup = "\n".join(kept)
    return setup if setup.count("\n") < MAX_SETUP_LINES and len(setup) <= 2 * MAX_TEXT else ""


def _called(node: ast.AST) -> tuple[str, ...]:
    """Syntax tree -> dotted names of what it calls, in source order, each once."""
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    calls.sort(key=lambda part: (part.lineno, part.col_offset))
    names = [ast.unparse(part.func) for part in calls]
    return tuple(dict.fromkeys(name for name in names if re.fullmatch(r"[\w.]+", name)))


def _read_assertion(failure: Failure, statement: ast.Assert, lines: list[str], reading: Reading) -> Failure:
    match = COMPARED.match(lines[0])
    assert match is not None, "the caller looked"
    test = statement.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is):
        left, right = _values(match[1], lines)
        ours, other = test.left, test.comparators[0]
        if _work(other, reading) > _work(ours, reading) or isinstance(ours, ast.Constant):
            ours, other, left, right = other, ours, right, left
        if left and right and not (OPAQUE.search(left) or OPAQUE.search(right)):
            is_shown = _work(other, reading) > 0 or (isinstance(other, ast.Name) and other.id not in reading.parameters)
            expected = right if is_shown else _text(other, reading)
            return failure._replace(call=_text(ours, reading), observed=_clip(left), expected=_clip(expected))
    value = match[1] if re.fullmatch(r"(not )?(True|False|None|\[\]|\{\}|\d+)", match[1]) else ""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        observed = value.removeprefix("not ")
        return failure._replace(call=_text(test.operand, reading), observed=observed, expected="a false value")
    return failure._replace(call=_text(test, reading), observed=value, expected="True")


def _values(shown: str, lines: list[str]) -> tuple[str, str]:
    """`L == R` as pytest shows it -> both sides; long strings come whole from its diff lines. Empty if unclear."""
    parts = re.split(r" (?:==|is) ", shown)
    if len(parts) != 2:
        return "", ""
    left, right = parts[0].strip(), parts[1].strip()
    if "..." in shown:
        minus = [line[2:] for line in lines[1:] if line.startswith("- ")]
        plus = [line[2:] for line in lines[1:] if line.startswith("+ ")]
        if len(minus) == len(plus) == 1 and left[:1] in "'\"" and right[:1] in "'\"":
            left, right = repr(plus[0]), repr(minus[0])
    return left, right


def _read_missing_raise(failure: Failure, statement: ast.stmt, lines: list[str], reading: Reading) -> Failure:
    match = next(found for line in lines if (found := DID_NOT_RAISE.search(line)))
    wanted = re.sub(r"<class '(?:builtins\.)?([\w.]+)'>", r"\1", match[1])
    inner = statement.body[0] if isinstance(statement, ast.With) and statement.body else statement
    return failure._replace(
        call=_call_text(inner, reading), observed="no exception", expected=f"the exception `{wanted}`"
    )
