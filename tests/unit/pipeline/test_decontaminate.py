"""Decontamination: names with all their spellings, shingles that survive renaming, verdicts with evidence."""

import hashlib
from typing import Any

import numpy as np
import pytest

from pipeline.decontaminate import build_reference, check_repo, load_names, load_reference, matched_paths
from pipeline.decontaminate.minhash import CandidateIndex
from pipeline.decontaminate.tokens import compare, shingle
from pipeline.errors import UserError
from pipeline.store import Lake
from pipeline.trees import Tree, pack_tree
from pipeline.types import Repo, with_id
from tests.unit.builders import source

NAMES = load_names()
OPERATORS = ["+", "-", "*", "//", "%", "**", "|", "&", "^", "<<", ">>", "@", "and", "or", "<", "in"]


def module(number: int) -> bytes:
    """A file of eight functions; other numbers have other operators, so nothing of their structure is shared."""
    parts = []
    for place in range(8):
        digest = hashlib.sha256(f"{number} {place}".encode()).digest()
        chain = " ".join(f"{OPERATORS[byte % 16]} items_{byte // 64}" for byte in digest)
        parts.append(f"def load_{number}_{place}(items):\n    total = items {chain}\n    return total\n")
    return "\n\n".join(parts).encode()


def repo(lake: Lake, name: str, tree: Tree, **overrides: Any) -> Repo:
    return with_id(
        Repo(
            source=source(name=name, **overrides),
            name=name,
            tree=lake.put_blob(pack_tree(tree)),
            num_files=len(tree),
            num_bytes=0,
            python_requires=[],
            test_command=[],
        )
    )


def flask_tree() -> Tree:
    return {f"src/flask/m{number}.py": module(number) for number in range(10)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("https://github.com/Pallets/Flask.git", "pallets/flask"),
        ("git@github.com:kennethreitz/requests.git", "psf/requests"),
        ("PyCQA/pylint", "pylint-dev/pylint"),
        ("swesmith/django__django.0a1b2c3d", "django/django"),
        ("https://gitlab.com/some/project/-/issues", "some/project"),
        ("https://example.test/", ""),
    ],
)
def test_names_are_reduced_to_one_spelling(name: str, expected: str) -> None:
    assert NAMES.canonical(name) == expected


@pytest.mark.parametrize(
    ("package", "page", "expected"),
    [
        ("Flask", "https://palletsprojects.com/p/flask", "pallets/flask"),
        ("my-flask-copy", "https://github.com/pallets/flask", "pallets/flask"),
        ("ansible-core", "", "ansible/ansible"),
        ("flask", "https://github.com/someone/flask", "pallets/flask"),
        ("jq", "https://github.com/mwilliamson/jq.py", ""),
        ("toolz", "https://github.com/pytoolz/toolz", ""),
    ],
)
def test_benchmark_repositories_are_known_by_page_package_and_fork(package: str, page: str, expected: str) -> None:
    assert NAMES.match(package, page)[0] == expected


def test_normalised_shingles_survive_renaming_and_comments_do_not_count() -> None:
    code = module(1)
    renamed = b"# a comment\n" + code.replace(b"total", b"amount").replace(b"items", b"rows").replace(
        b"file", b"handle"
    )
    ours, theirs = shingle(renamed), shingle(code)
    assert compare(ours.normal, theirs.normal) == (1.0, 1.0)
    assert compare(ours.raw, theirs.raw).containment < 0.5


def test_containment_is_of_the_reference_and_exact() -> None:
    ours, reference = np.array([1, 2, 3, 4], np.uint64), np.array([2, 3, 9, 10], np.uint64)
    assert compare(ours, reference) == (2 / 6, 0.5)
    assert compare(ours, reference[:2]) == (0.5, 1.0)
    assert compare(ours, np.zeros(0, np.uint64)) == (0.0, 0.0)


def test_broken_and_deeply_nested_source_is_still_shingled() -> None:
    assert len(shingle(b"def f(:\n  return [1, 2, 3, 4, 5\n").raw) > 0
    assert len(shingle(b"x = " + b"(" * 20_000).raw) > 0


def test_lsh_proposes_near_copies_and_not_strangers() -> None:
    near = shingle(module(2) + module(3)).raw
    index = CandidateIndex([shingle(module(number)).raw for number in range(6)])
    assert {2, 3} <= set(index.query(near)) and index.query(
        shingle(b"class A:\n    " + b"x = y ** z\n    " * 30).raw
    ) == []


def test_a_renamed_copy_is_caught_by_content_with_evidence(lake: Lake) -> None:
    reference = build_reference(lake, [repo(lake, "flask", flask_tree())], NAMES)
    tree = {path.replace("flask", "teapot"): text.replace(b"items", b"rows") for path, text in flask_tree().items()}
    found = check_repo(repo(lake, "teapot", tree), tree, reference, NAMES)
    assert (found.is_contaminated, found.rule, found.benchmark) == (True, "content", "swe_bench")
    assert found.matched_share == 1.0
    assert found.reason.startswith("teapot is pallets/flask under another name: 10 of 10 comparable files match, e.g. ")
    assert matched_paths(found) == set(tree)


def test_a_named_benchmark_repository_is_caught_even_without_matching_files(lake: Lake) -> None:
    reference = build_reference(lake, [repo(lake, "flask", flask_tree())], NAMES)
    found = check_repo(repo(lake, "django", {}, url="https://github.com/django/django"), {}, reference, NAMES)
    assert (found.is_contaminated, found.rule, found.benchmark_repo) == (True, "name", "django/django")


def test_a_stranger_is_clean(lake: Lake) -> None:
    reference = build_reference(lake, [repo(lake, "flask", flask_tree())], NAMES)
    tree = {f"own/n{number}.py": module(100 + number) for number in range(8)}
    found = check_repo(repo(lake, "own", tree), tree, reference, NAMES)
    assert (found.is_contaminated, found.rule, found.matched_files) == (False, "none", [])


def test_one_vendored_file_is_listed_but_does_not_condemn_the_repository(lake: Lake) -> None:
    reference = build_reference(lake, [repo(lake, "flask", flask_tree())], NAMES)
    tree = {f"own/n{number}.py": module(100 + number) for number in range(9)} | {"own/_vendor/m3.py": module(3)}
    found = check_repo(repo(lake, "own", tree), tree, reference, NAMES)
    assert (found.is_contaminated, found.matched_share) == (False, 0.1)
    assert matched_paths(found) == {"own/_vendor/m3.py"}
    assert "carries files of pallets/flask" in found.reason


def test_copied_boilerplate_is_not_evidence(lake: Lake) -> None:
    reference = build_reference(lake, [repo(lake, "flask", flask_tree() | {"docs/conf.py": module(50)})], NAMES)
    tree = {"docs/conf.py": module(50), "own/a.py": module(101)}
    assert check_repo(repo(lake, "own", tree), tree, reference, NAMES).matched_files == []


def test_the_stored_index_holds_no_code_and_loads_as_it_was(lake: Lake) -> None:
    reference = build_reference(lake, [repo(lake, "flask", flask_tree())], NAMES)
    data = lake.get_blob(reference.id)
    assert b"items" not in data and b"def " not in data
    loaded = load_reference(lake, reference.id)
    assert [file.path for file in loaded.files] == sorted(flask_tree())
    for left, right in zip(loaded.files, reference.files, strict=True):
        assert np.array_equal(left.shingles.raw, right.shingles.raw) and left.blob_sha == right.blob_sha
    assert build_reference(lake, [repo(lake, "flask", flask_tree())], NAMES).id == reference.id


def test_a_reference_must_be_a_benchmark_repository(lake: Lake) -> None:
    with pytest.raises(UserError, match="reference own is in no benchmark list"):
        build_reference(lake, [repo(lake, "own", {})], NAMES)
