"""File tree <-> bytes, and tree <-> unified diff, in memory: nothing of a foreign tree touches the host's disk.

A tree is `dict[str, bytes]`: relative POSIX path -> content. Links, devices and modes are not part of it.
"""

import difflib
import io
import lzma
import re
import tarfile
import zlib
from pathlib import Path, PurePosixPath

import unidiff

from pipeline.errors import UserError

Tree = dict[str, bytes]

MAX_FILE_BYTES = 5_000_000
MAX_FILES = 20_000
TEST_PATH = re.compile(
    r"(^|/)(tests?|testing)/|(^|/)test_[^/]*\.py$|(^|/)[^/]*_test\.py$|(^|/)tests?\.py$|(^|/)conftest\.py$"
)


def is_test_path(path: str) -> bool:
    """Path -> whether it belongs to the tests by its name."""
    return bool(TEST_PATH.search(path))


def pack_tree(tree: Tree, *, uid: int = 0, mtime: int = 0) -> bytes:
    """Tree -> tar, byte for byte the same for equal trees; folders are listed, so that they get the owner too."""
    buffer = io.BytesIO()
    folders = sorted({str(parent) for path in tree for parent in PurePosixPath(path).parents if str(parent) != "."})
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for folder in folders:
            member = tarfile.TarInfo(folder)
            member.type, member.mode, member.uid, member.gid, member.mtime = tarfile.DIRTYPE, 0o755, uid, uid, mtime
            archive.addfile(member)
        for path in sorted(tree):
            member = tarfile.TarInfo(path)
            member.size, member.mode, member.uid, member.gid, member.mtime = len(tree[path]), 0o644, uid, uid, mtime
            archive.addfile(member, io.BytesIO(tree[path]))
    return buffer.getvalue()


def unpack_tree(archive_bytes: bytes) -> Tree:
    """Tar, compressed or not -> tree. Only regular files with safe relative paths; anything else is left out.

    Raises: UserError when the archive is broken or larger than the limits.
    """
    tree: Tree = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive_bytes)) as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if not member.isreg() or path.is_absolute() or ".." in path.parts:
                    continue
                if member.size > MAX_FILE_BYTES or len(tree) >= MAX_FILES:
                    raise UserError(f"archive is too large at {path}: take a smaller source or raise the limits")
                file = archive.extractfile(member)
                assert file is not None, "a regular file has content"
                tree[str(path)] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        first_line = str(error).partition("\n")[0]
        raise UserError(f"archive is broken ({first_line}): remove it and fetch it again") from None
    return tree


def read_folder(folder: Path) -> Tree:
    """Folder -> tree; links, caches and version control are left out."""
    skipped = {".git", "__pycache__", ".venv", ".tox"}
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and not skipped & set(path.parts)
    }


def without_root(tree: Tree) -> Tree:
    """Tree whose paths share one top folder (as in an sdist) -> tree without it."""
    roots = {path.split("/", 1)[0] for path in tree}
    if len(roots) != 1 or not all("/" in path for path in tree):
        return tree
    return {path.split("/", 1)[1]: content for path, content in tree.items()}


def diff_trees(old: Tree, new: Tree) -> str:
    """Two trees -> unified diff with three lines of context; binary and empty files cannot be expressed: left out."""
    parts = []
    for path in sorted(old.keys() | new.keys()):
        before, after = old.get(path), new.get(path)
        if before == after:
            continue
        before_text, after_text = _text(before), _text(after)
        if before_text is None or after_text is None:
            continue
        left = "/dev/null" if before is None else f"a/{path}"
        right = "/dev/null" if after is None else f"b/{path}"
        lines = difflib.unified_diff(_lines(before_text), _lines(after_text), left, right)
        for line in lines:
            parts.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(parts)


def _text(content: bytes | None) -> str | None:
    if content is None:
        return ""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+$", text)


def apply_diff(tree: Tree, diff: str) -> Tree:
    """Tree and unified diff -> changed tree. Strict: every context line must match at its stated place.

    Raises: UserError when the diff does not fit the tree.
    """
    result = dict(tree)
    for patched in unidiff.PatchSet.from_string(diff):
        is_new, is_gone = patched.source_file == "/dev/null", patched.target_file == "/dev/null"
        path = patched.target_file[2:] if is_new else patched.source_file[2:]
        lines = [] if is_new else _lines(tree.get(path, b"").decode())
        changed = _apply_hunks(lines, patched, path)
        if is_gone:
            result.pop(path, None)
        else:
            result[path] = changed.encode()
    return result


def _apply_hunks(lines: list[str], hunks: unidiff.PatchedFile, path: str) -> str:
    output: list[str] = []
    position = 0
    for hunk in hunks:
        start = hunk.source_start - 1 if hunk.source_length else hunk.source_start
        output += lines[position:start]
        source, target = _side(hunk, " -"), _side(hunk, " +")
        if lines[start : start + len(source)] != source:
            raise UserError(f"the diff does not fit {path} at line {start + 1}: it was made for another tree")
        output += target
        position = start + len(source)
    return "".join(output + lines[position:])


def _side(hunk: unidiff.Hunk, kept: str) -> list[str]:
    """Hunk -> its lines of one side, the newline cut where a "No newline" marker follows."""
    lines: list[str] = []
    previous = ""
    for line in hunk:
        if line.line_type == "\\":
            if previous in kept and lines:
                lines[-1] = lines[-1].removesuffix("\n")
        elif line.line_type in kept:
            lines.append(line.value)
        previous = line.line_type
    return lines
