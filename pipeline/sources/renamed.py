"""Tree of a package -> the same code under another package name, as a careless or hostile copy would be."""

import re
from pathlib import PurePosixPath

from pipeline.errors import UserError
from pipeline.trees import Tree

METADATA = re.compile(r"(^|/)(PKG-INFO$|[^/]*\.egg-info/)")


def rename_package(tree: Tree, name: str, renamed_to: str) -> Tree:
    """Tree -> tree with the top-level package renamed in its folder and wherever its name stands in text.

    Raises: UserError when the tree has no top-level package of that name.
    """
    old, new = name.lower().replace("-", "_"), renamed_to.lower().replace("-", "_")
    if not new.isidentifier():
        raise UserError(f"sources: `renamed_to` = {renamed_to!r} is not a package name: use letters and underscores")
    if not any(_has_top_folder(path, old) for path in tree):
        raise UserError(f"sources: {name} has no top-level package `{old}` to rename: remove `renamed_to`")
    word = re.compile(rb"\b" + old.encode() + rb"\b")
    renamed = {}
    for path, content in tree.items():
        if not METADATA.search(path):
            parts = [new if part == old else part for part in PurePosixPath(path).parts]
            renamed["/".join(parts)] = word.sub(new.encode(), content)
    return renamed


def _has_top_folder(path: str, package: str) -> bool:
    parts = PurePosixPath(path).parts
    return package in parts[:1] or parts[:2] == ("src", package)
