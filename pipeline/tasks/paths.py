"""Path -> what part it plays in a task: source to break and mend, tests to hide, change logs to leave out."""

import re

from pipeline.trees import Tree, is_test_path

CHANGELOG = re.compile(
    r"(^|/)(change(s|[-_]?log)|history|news|releases?|release[-_]notes)(\.(md|markdown|rst|txt|adoc|html?))?$"
    r"|(^|/)(changelog\.d|newsfragments)/",
    re.IGNORECASE,
)
NOT_SOURCE = re.compile(
    r"^(docs?|examples?|benchmarks?|bench|scripts|tools)/|(^|/)(setup|conf|versioneer|_version|noxfile|tasks)\.py$"
)


def is_source_path(path: str) -> bool:
    """Path -> whether it is code of the package itself."""
    return path.endswith(".py") and not is_test_path(path) and not NOT_SOURCE.search(path)


def source_files(tree: Tree) -> Tree:
    """Tree -> its package code only."""
    return {path: content for path, content in tree.items() if is_source_path(path)}


def without_changelogs(tree: Tree) -> Tree:
    """Tree -> tree without files that would tell what a release fixed."""
    return {path: content for path, content in tree.items() if not CHANGELOG.search(path)}
