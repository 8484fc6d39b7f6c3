"""Python text -> syntax tree of the standard library, one thread at a time.

CPython 3.11 counts the depth of `ast.parse` in one place for all threads: two at once end in a SystemError.
"""

import ast
import functools
import threading

_PARSER = threading.Lock()
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What `ast.parse` says of text that is no Python of this version, or nests too deeply."""


@functools.lru_cache(maxsize=64)
def parse_python(content: bytes | str) -> ast.Module:
    """Text -> syntax tree, an empty one where it cannot be read. Shared by all callers: copy before changing it."""
    with _PARSER:
        try:
            return ast.parse(content)
        except UNREADABLE:
            return ast.Module(body=[], type_ignores=[])


def parse_expression(text: str) -> ast.expr | None:
    """Text -> expression, or None where it is none."""
    body = parse_python(text).body
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
