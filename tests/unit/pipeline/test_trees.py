"""Trees survive packing and patching, and hostile archives leave nothing but safe files."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.trees import (
    MAX_FILE_BYTES,
    Tree,
    apply_diff,
    diff_trees,
    is_test_path,
    pack_tree,
    unpack_tree,
    without_root,
)

NAME = st.text("abcXYZ019_-. ", min_size=1, max_size=8).filter(lambda name: name.strip(". ") == name)
FOLDER = st.sampled_from(["", "pkg/", "pkg/deep/", "with space/"])
LINE = st.one_of(
    st.sampled_from(["", "a", "b", "same", "--- a/x", "+++ b/x", "@@ -1 +1 @@", "-", "+", " ", "\\ No newline"]),
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=12),
)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Text of a few lines, with or without a newline at its end, never empty."""
    lines = draw(st.lists(LINE, min_size=1, max_size=12))
    text = "\n".join(lines) + draw(st.sampled_from(["", "\n"]))
    return (text or "\n").encode()


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Files none of which is the folder of another."""
    names = st.builds(lambda folder, name: f"{folder}{name}.py", FOLDER, NAME)
    return draw(st.dictionaries(names, contents(), max_size=4))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tree, Tree]:
    """A tree and an edited one, most of whose lines are the same."""
    old = draw(trees())
    new = dict(old)
    for path in draw(st.lists(st.sampled_from(sorted(old)), max_size=3)) if old else []:
        lines = old[path].decode().split("\n")
        place = draw(st.integers(0, len(lines) - 1))
        lines[place : place + draw(st.integers(0, 2))] = draw(st.lists(LINE, max_size=2))
        edited = "\n".join(lines).encode()
        if edited and draw(st.integers(0, 4)):
            new[path] = edited
        else:
            new.pop(path, None)
    return old, new | draw(trees())


@given(pairs())
def test_a_diff_leads_from_one_tree_to_the_other(pair: tuple[Tree, Tree]) -> None:
    old, new = pair
    assert apply_diff(old, diff_trees(old, new)) == new


@given(pairs())
def test_a_diff_leads_back_from_the_other_side(pair: tuple[Tree, Tree]) -> None:
    old, new = pair
    assert apply_diff(new, diff_trees(new, old)) == old


def test_a_diff_does_not_fit_another_tree() -> None:
    diff = diff_trees({"a.py": b"1\n2\n3\n"}, {"a.py": b"1\n2\n4\n"})
    with pytest.raises(UserError, match=r"the diff does not fit a\.py at line 1"):
        apply_diff({"a.py": b"1\n2\n5\n"}, diff)


@pytest.mark.parametrize("path", ["pkg/a b.py", "pkg/\u00e4.py", 'quote".py'])
def test_a_diff_keeps_odd_names(path: str) -> None:
    old, new = {path: b"1\n"}, {path: b"2\n"}
    assert apply_diff(old, diff_trees(old, new)) == new
    assert apply_diff({}, diff_trees({}, new)) == new


@given(st.dictionaries(st.builds("{}{}.x".format, FOLDER, NAME), st.binary(max_size=50), max_size=5))
def test_packing_keeps_every_byte(tree: Tree) -> None:
    assert unpack_tree(pack_tree(tree)) == tree


def test_packing_is_the_same_for_equal_trees() -> None:
    assert pack_tree({"a": b"1", "b/c": b"2"}) == pack_tree({"b/c": b"2", "a": b"1"})


def test_folders_and_files_get_the_owner() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack_tree({"a/b/c.py": b""}, uid=7))) as archive:
        assert [(member.name, member.uid, member.isdir()) for member in archive] == [
            ("a", 7, True),
            ("a/b", 7, True),
            ("a/b/c.py", 7, False),
        ]


def archive(*members: tarfile.TarInfo, mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as written:  # type: ignore[call-overload]
        for member in members:
            written.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 1) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, size if kind == tarfile.REGTYPE else 0
    return made


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_only_safe_regular_files_come_out_of_an_archive(mode: str) -> None:
    data = archive(
        member("good/a.py"),
        member("/absolute"),
        member("../up"),
        member("good/../../up"),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("hard", tarfile.LNKTYPE, "good/a.py"),
        member("pipe", tarfile.FIFOTYPE),
        member("device", tarfile.CHRTYPE),
        member("folder", tarfile.DIRTYPE),
        member("good/b.py"),
        mode=mode,
    )
    assert unpack_tree(data) == {"good/a.py": b"x", "good/b.py": b"x"}


@pytest.mark.parametrize(
    "data", [b"nonsense", b"", archive(member("a", size=5000))[:3000]], ids=["noise", "none", "cut"]
)
def test_a_broken_archive_is_refused_with_the_remedy(data: bytes) -> None:
    with pytest.raises(UserError, match=r"(?s)archive is broken .* fetch it again"):
        unpack_tree(data)


def test_an_archive_that_is_too_large_is_refused() -> None:
    with pytest.raises(UserError, match="archive is too large at big"):
        unpack_tree(archive(member("big", size=MAX_FILE_BYTES + 1)))


def test_the_top_folder_of_an_sdist_is_taken_off() -> None:
    assert without_root({"x-1/a.py": b"1", "x-1/b/c.py": b"2"}) == {"a.py": b"1", "b/c.py": b"2"}
    assert without_root({"x/a.py": b"1", "y/c.py": b"2"}) == {"x/a.py": b"1", "y/c.py": b"2"}
    assert without_root({"x/a.py": b"1", "setup.py": b"2"}) == {"x/a.py": b"1", "setup.py": b"2"}


@pytest.mark.parametrize(
    ("path", "is_test"),
    [
        ("tests/test_a.py", True),
        ("pkg/tests/data.txt", True),
        ("test_a.py", True),
        ("pkg/a_test.py", True),
        ("conftest.py", True),
        ("pkg/contest.py", False),
        ("pkg/latest.py", False),
        ("pkg/attest/a.py", False),
        ("pkg/protest.py", False),
    ],
)
def test_tests_are_known_by_their_names(path: str, is_test: bool) -> None:
    assert is_test_path(path) is is_test
