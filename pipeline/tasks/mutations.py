"""Source file -> the same file with one small bug in one function, all other text untouched.

Every kind of bug is one method of `_SiteFinder`: it says which syntax nodes it fits and what replaces them.
"""

import random
from collections import Counter
from typing import Any, NamedTuple

import libcst as cst

from pipeline.tasks.paths import source_files
from pipeline.trees import Tree

COMPARISONS: dict[type, tuple[type, ...]] = {
    cst.LessThan: (cst.LessThanEqual, cst.GreaterThan),
    cst.GreaterThan: (cst.GreaterThanEqual, cst.LessThan),
    cst.LessThanEqual: (cst.LessThan,),
    cst.GreaterThanEqual: (cst.GreaterThan,),
    cst.Equal: (cst.NotEqual,),
    cst.NotEqual: (cst.Equal,),
    cst.In: (cst.NotIn,),
    cst.NotIn: (cst.In,),
    cst.Is: (cst.IsNot,),
    cst.IsNot: (cst.Is,),
}
ARITHMETIC: dict[type[cst.BaseBinaryOp], type[cst.BaseBinaryOp]] = {
    cst.Add: cst.Subtract,
    cst.Subtract: cst.Add,
    cst.Multiply: cst.FloorDivide,
    cst.Divide: cst.Multiply,
    cst.FloorDivide: cst.Multiply,
    cst.Modulo: cst.FloorDivide,
}
AUGMENTED: dict[type[cst.BaseAugOp], type[cst.BaseAugOp]] = {
    cst.AddAssign: cst.SubtractAssign,
    cst.SubtractAssign: cst.AddAssign,
}
TEXT = (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString)
LOOSE = (cst.BooleanOperation, cst.IfExp, cst.Lambda, cst.NamedExpr)
"""Expressions that `not` does not bind as a whole."""
TYPE_CHECKS = {"isinstance", "issubclass", "hasattr", "getattr", "setattr"}
"""Swapping their arguments always raises: a bug that nobody would ship."""
MAX_DROPPED = 3
"""Statements in a branch that may be dropped whole."""
KINDS = (
    "flip_comparison",
    "swap_boolean_operator",
    "negate_condition",
    "shift_constant",
    "swap_arithmetic_operator",
    "drop_statement",
    "swap_arguments",
)


class Site(NamedTuple):
    """One place where one kind of bug fits."""

    kind: str
    function: str
    """Qualified name."""
    old: cst.CSTNode
    new: cst.CSTNode | None
    """None removes the old node."""


class Bug(NamedTuple):
    """One file with one bug."""

    path: str
    function: str
    kind: str
    source: str
    """The whole file, the bug in it."""


def make_bugs(tree: Tree, count: int, seed: int) -> list[Bug]:
    """Tree -> up to `count` bugs in its source files, spread over functions first and kinds second."""
    modules = {path: parsed for path, text in sorted(source_files(tree).items()) if (parsed := parse_module(text))}
    places = [(path, site) for path, module in modules.items() for site in find_sites(module)]
    random.Random(seed).shuffle(places)
    functions: Counter[tuple[str, str]] = Counter()
    kinds: Counter[str] = Counter()
    bugs: list[Bug] = []
    while places and len(bugs) < count:
        path, site = min(places, key=lambda place: (functions[place[0], place[1].function], kinds[place[1].kind]))
        places.remove((path, site))
        source = apply_site(modules[path], site)
        if source != modules[path].code and is_python(source):
            functions[path, site.function] += 1
            kinds[site.kind] += 1
            bugs.append(Bug(path, site.function, site.kind, source))
    return bugs


def parse_module(content: bytes) -> cst.Module | None:
    """Bytes -> syntax tree, or None where they are not Python of this version."""
    try:
        return cst.parse_module(content)
    except (cst.ParserSyntaxError, UnicodeDecodeError, RecursionError):
        return None


def is_python(source: str) -> bool:
    """Text -> whether it compiles; nothing is run."""
    try:
        compile(source, "source", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def find_sites(module: cst.Module) -> list[Site]:
    """Syntax tree -> every place inside a function where a bug fits, in source order."""
    finder = _SiteFinder()
    module.visit(finder)
    return finder.sites


def apply_site(module: cst.Module, site: Site) -> str:
    """Syntax tree and site -> text of the file with that bug."""
    changed = module.deep_remove(site.old) if site.new is None else module.deep_replace(site.old, site.new)
    assert isinstance(changed, cst.Module), "a module stays a module"
    return changed.code


class _SiteFinder(cst.CSTVisitor):
    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.names: list[str] = []
        self.num_functions = 0
        """How many functions enclose the node at hand."""

    def add(self, kind: str, old: cst.CSTNode, new: cst.CSTNode | None) -> None:
        if self.num_functions:
            self.sites.append(Site(kind, ".".join(self.names), old, new))

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802 - libcst's name
        self.names.append(node.name.value)
        self.num_functions += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:  # noqa: N802
        self.names.pop()
        self.num_functions -= 1

    def visit_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802
        self.names.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:  # noqa: N802
        self.names.pop()

    def visit_Annotation(self, node: cst.Annotation) -> bool:  # noqa: N802
        return False

    def visit_ComparisonTarget(self, node: cst.ComparisonTarget) -> None:  # noqa: N802
        operator: Any = node.operator
        for other in COMPARISONS.get(type(operator), ()):
            changed = other(whitespace_before=operator.whitespace_before, whitespace_after=operator.whitespace_after)
            self.add("flip_comparison", operator, changed)

    def visit_BooleanOperation(self, node: cst.BooleanOperation) -> None:  # noqa: N802
        operator = node.operator
        other = cst.Or if isinstance(operator, cst.And) else cst.And
        changed = other(whitespace_before=operator.whitespace_before, whitespace_after=operator.whitespace_after)
        self.add("swap_boolean_operator", operator, changed)

    def visit_If(self, node: cst.If) -> None:  # noqa: N802
        self.add("negate_condition", node.test, negate(node.test))

    def visit_IfExp(self, node: cst.IfExp) -> None:  # noqa: N802
        self.add("negate_condition", node.test, negate(node.test))

    def visit_Integer(self, node: cst.Integer) -> None:  # noqa: N802
        number = node.evaluated_value
        if number <= 1000 and node.value.isdigit():
            self.add("shift_constant", node, node.with_changes(value=str(number + 1)))
            if number:
                self.add("shift_constant", node, node.with_changes(value=str(number - 1)))

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:  # noqa: N802
        operator = node.operator
        if type(operator) in ARITHMETIC and not isinstance(node.left, TEXT) and not isinstance(node.right, TEXT):
            other = ARITHMETIC[type(operator)]
            spaces = {"whitespace_before": cst.SimpleWhitespace(" "), "whitespace_after": cst.SimpleWhitespace(" ")}
            self.add("swap_arithmetic_operator", operator, other(**spaces))

    def visit_AugAssign(self, node: cst.AugAssign) -> None:  # noqa: N802
        if type(node.operator) in AUGMENTED:
            self.add("swap_arithmetic_operator", node.operator, AUGMENTED[type(node.operator)]())

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:  # noqa: N802
        # A block left empty is written as `pass` by libcst.
        for statement in node.body:
            if is_droppable(statement):
                self.add("drop_statement", statement, None)

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        if isinstance(node.func, cst.Name) and node.func.value in TYPE_CHECKS:
            return
        first, second = (*node.args, None, None)[:2]
        if first is None or second is None or any(arg.star or arg.keyword for arg in (first, second)):
            return
        if not first.value.deep_equals(second.value):
            swapped = [first.with_changes(value=second.value), second.with_changes(value=first.value)]
            self.add("swap_arguments", node, node.with_changes(args=[*swapped, *node.args[2:]]))


def negate(test: cst.BaseExpression) -> cst.BaseExpression:
    """Condition -> its negation; a condition that starts with `not` loses it."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return test.expression
    inner = test
    if isinstance(test, LOOSE) and not test.lpar:
        inner = test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.UnaryOperation(cst.Not(), inner)


def is_droppable(statement: cst.BaseStatement) -> bool:
    """Statement -> whether the function still makes sense to read without it."""
    if isinstance(statement, cst.If):
        return statement.orelse is None and len(statement.body.body) <= MAX_DROPPED
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    only = statement.body[0]
    return isinstance(only, cst.AugAssign | cst.Continue | cst.Break) or (
        isinstance(only, cst.Expr) and isinstance(only.value, cst.Call)
    )
