"""Repo -> candidate tasks: what was broken and how, nothing run yet."""

from dataclasses import dataclass

from pipeline.store import Lake
from pipeline.tasks.completions import make_completions
from pipeline.tasks.config import TaskConfig
from pipeline.tasks.mutations import make_bugs
from pipeline.tasks.paths import without_changelogs
from pipeline.trees import Tree, diff_trees, is_test_path, unpack_tree
from pipeline.types import Domain, Repo, TaskKind, with_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A broken version of one repository, to be validated."""

    id: str = ""
    repo_id: str
    kind: TaskKind
    domain: Domain
    strategy: str
    """syntax_tree_bug | release_pair | function_completion."""
    modifier: str
    """Kind of bug, or what was taken away."""
    entity: str
    """path::qualified name; for a release pair both versions."""
    seed: int
    bug_patch: str
    """Unified diff, solved tree without change logs -> broken tree with the solved tree's tests."""
    changed_tests: list[str]
    """Test files that came or changed with the solution; the agent's tree is without them."""


def propose(lake: Lake, repo: Repo, previous: Repo | None, config: TaskConfig) -> list[Candidate]:
    """Repo, and its previous release where there is one -> candidates of all configured strategies."""
    tree = solved_tree(lake, repo)
    candidates: list[Candidate] = []
    if "syntax_tree_bug" in config.strategies:
        candidates += _bugs(repo, tree, config)
    if "release_pair" in config.strategies and previous is not None:
        candidates += _release_pair(repo, tree, previous, unpack_tree(lake.get_blob(previous.tree)))
    if "function_completion" in config.strategies:
        candidates += _completions(repo, tree, config)
    return candidates


def solved_tree(lake: Lake, repo: Repo) -> Tree:
    """Repo -> its files without change logs."""
    return without_changelogs(unpack_tree(lake.get_blob(repo.tree)))


def _bugs(repo: Repo, tree: Tree, config: TaskConfig) -> list[Candidate]:
    return [
        with_id(
            Candidate(
                repo_id=repo.id,
                kind="swe",
                domain="agentic_code",
                strategy="syntax_tree_bug",
                modifier=bug.kind,
                entity=f"{bug.path}::{bug.function}",
                seed=config.seed + number,
                bug_patch=diff_trees({bug.path: tree[bug.path]}, {bug.path: bug.source.encode()}),
                changed_tests=[],
            )
        )
        for number, bug in enumerate(make_bugs(tree, config.max_bugs, config.seed))
    ]


def _release_pair(repo: Repo, tree: Tree, previous: Repo, previous_tree: Tree) -> list[Candidate]:
    """The previous release's files with this release's tests; nothing if its text files equal this release's.

    Tests are compared with the previous release's own: those that differ are what the solution brought.
    """
    kept = {path: content for path, content in without_changelogs(previous_tree).items() if not is_test_path(path)}
    tests = {path: content for path, content in tree.items() if is_test_path(path)}
    broken = kept | tests
    patch = diff_trees(tree, broken)
    if not patch:
        return []
    versions = f"{previous.source.version} -> {repo.source.version}"
    candidate = Candidate(
        repo_id=repo.id,
        kind="swe",
        domain="agentic_code",
        strategy="release_pair",
        modifier="previous_release",
        entity=f"{repo.name} {versions}",
        seed=0,
        bug_patch=patch,
        changed_tests=sorted(path for path in tests if previous_tree.get(path) != tests[path]),
    )
    return [with_id(candidate)]


def _completions(repo: Repo, tree: Tree, config: TaskConfig) -> list[Candidate]:
    return [
        with_id(
            Candidate(
                repo_id=repo.id,
                kind="single_turn",
                domain="single_turn_code",
                strategy="function_completion",
                modifier="remove_body",
                entity=f"{completion.path}::{completion.function}",
                seed=config.seed + number,
                bug_patch=diff_trees(
                    {completion.path: tree[completion.path]}, {completion.path: completion.source.encode()}
                ),
                changed_tests=[],
            )
        )
        for number, completion in enumerate(make_completions(tree, config.max_completions, config.seed))
    ]
