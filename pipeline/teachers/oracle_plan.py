"""Task, its base tree and a seed -> the turns in which the oracle solves it: look, read, edit, check, submit.

The wording and the way of editing vary with (task id, seed) and with nothing else, so a plan can be made anew for
every request and stays the same.
"""

import hashlib
import random
import re
from typing import NamedTuple

import unidiff

from pipeline.tasks.syntax import parse_python
from pipeline.trees import Tree
from pipeline.types import Task

MAX_COMMAND_CHARS = 60_000
"""Of one edit: a shell argument must stay under 128 KiB."""
MARGIN_LINES = 12
"""Shown above and below a change when reading."""
MAX_CONTEXT_LINES = 3
PLAIN_PYTHON = re.compile(r"[\w./+-]+\.py")
"""Paths that mean the same inside any quotes."""
SUBMIT_COMMAND = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"


class Turn(NamedTuple):
    """What the oracle says and does in one reply."""

    reasoning: str
    thought: str
    commands: list[str]
    """Independent of each other; none may hold a line of three backticks."""


class _Edit(NamedTuple):
    old: str
    new: str


LOOK = (
    ("I need an overview first.", "Let me look at the layout of the repository and find the code concerned."),
    ("Start by seeing what is here.", "I'll start by listing the files and searching for the relevant code."),
    ("Before any change I should know the project.", "First I want to see how this project is organised."),
)
READ = (
    ("The code in question is in {path}.", "Now I'll read the relevant part of `{path}`."),
    ("The search points to {path}.", "The problem should be in `{path}`. Let me read it closely."),
    ("I should read the code before I judge it.", "Let me look at `{path}` around the code described."),
)
EDIT = (
    (
        "This part does not do what the description asks for; the smallest change that does is best.",
        "I see what is wrong. I'll change `{path}` so that it behaves as described.",
    ),
    (
        "Compared with the description, the behaviour of this code differs. I can correct just that.",
        "The code in `{path}` does not match the described behaviour, so I'll correct it.",
    ),
    ("I know the place now; the rest of the file stays as it is.", "Here is the fix, made in place in `{path}`."),
)
CHECK = (
    ("The edit should be seen and the file should still parse.", "Let me check the change and that the file parses."),
    ("Verify before submitting.", "I'll look at the resulting difference and make sure nothing is broken."),
)
WRITE = (
    ("The change is right; the patch comes next.", "The change looks right. I'll write the patch file."),
    ("Now the patch, with only the source files in it.", "Now I'll create the patch from the files I changed."),
)
VIEW = (
    ("The patch must hold only the intended change.", "Let me verify the content of the patch."),
    ("One look at the patch before it is handed in.", "I'll inspect `patch.txt` before submitting."),
)
SUBMIT = (
    ("Everything is in place.", "The patch holds exactly the intended change. Submitting."),
    ("Done.", "The patch is as it should be, so I submit it."),
)
OVERVIEW = (
    "ls -la",
    "git status --short && ls",
    "find . -name '*.py' -not -path './.git/*' | sort | head -50",
)


def make_plan(task: Task, tree: Tree, seed: int) -> list[Turn]:
    """Task with a gold patch -> the turns that solve it through a shell in the folder of the base tree."""
    rng = random.Random(hashlib.sha256(f"{task.id}/{seed}".encode()).digest())
    patch = list(unidiff.PatchSet.from_string(task.gold_patch))
    paths = [_path(file) for file in patch]
    shown = paths[0]
    quoted = " ".join(_quote(path) for path in paths)
    turns = [
        _turn(
            rng,
            LOOK,
            shown,
            [rng.choice(OVERVIEW), f"grep -rn {_quote(_subject(task, shown))} --include='*.py' . | head -20"],
        ),
    ]
    reads = [_read_command(rng, file) for file in patch if not file.is_added_file]
    if reads:
        turns.append(_turn(rng, READ, shown, reads[:3]))
    turns += [_turn(rng, EDIT, shown, [command]) for command in edit_commands(patch, tree, rng)]
    turns.append(_turn(rng, CHECK, shown, [_check_command(patch)]))
    added = [_quote(_path(file)) for file in patch if file.is_added_file]
    write = (f"git add -N {' '.join(added)} && " if added else "") + f"git diff -- {quoted} > patch.txt"
    if rng.random() < 0.5:
        turns += [_turn(rng, WRITE, shown, [write]), _turn(rng, VIEW, shown, ["cat patch.txt"])]
    else:
        turns.append(_turn(rng, WRITE, shown, [f"{write} && cat patch.txt"]))
    turns.append(_turn(rng, SUBMIT, shown, [SUBMIT_COMMAND]))
    return turns


def _turn(rng: random.Random, wordings: tuple[tuple[str, str], ...], path: str, commands: list[str]) -> Turn:
    reasoning, thought = rng.choice(wordings)
    return Turn(reasoning.format(path=path), thought.format(path=path), commands)


def _path(file: unidiff.PatchedFile) -> str:
    name: str = file.source_file if file.is_removed_file else file.target_file
    return name[2:]


def _subject(task: Task, path: str) -> str:
    """What to search for: the changed function where the task names one, else the module."""
    name = task.entity.rsplit("::", 1)[-1].rsplit(".", 1)[-1] if "::" in task.entity else ""
    return f"def {name}" if re.fullmatch(r"\w+", name) else path.rsplit("/", 1)[-1].removesuffix(".py")


def _quote(text: str) -> str:
    return text if re.fullmatch(r"[\w./+-]+", text) else "'" + text.replace("'", "'\\''") + "'"


def _read_command(rng: random.Random, file: unidiff.PatchedFile) -> str:
    first = max(1, min(hunk.source_start for hunk in file) - MARGIN_LINES)
    last = max(hunk.source_start + hunk.source_length for hunk in file) + MARGIN_LINES
    path = _quote(_path(file))
    return rng.choice((f"sed -n '{first},{last}p' {path}", f"nl -ba {path} | sed -n '{first},{last}p'"))


def _check_command(patch: list[unidiff.PatchedFile]) -> str:
    names = [_path(file) for file in patch if not file.is_removed_file]
    sources = [name for name in names if PLAIN_PYTHON.fullmatch(name)]
    command = "git diff --stat && git diff"
    if sources:
        program = f"import ast; [ast.parse(open(path).read()) for path in {sources!r}]; print('parsed')"
        command += f' && python3 -c "{program}"'
    return command


def edit_commands(patch: list[unidiff.PatchedFile], tree: Tree, rng: random.Random) -> list[str]:
    """Patch -> commands that apply it, each short enough for a shell: replacements by a script, or `git apply`."""
    commands: list[str] = []
    prefers_script = rng.random() < 0.7
    for file in patch:
        edits = find_edits(file, tree.get(_path(file), b"")) if prefers_script else []
        command = _script(_path(file), edits) if edits else _heredoc("git apply --whitespace=nowarn -", str(file))
        if commands and len(commands[-1]) + len(command) < MAX_COMMAND_CHARS:
            commands[-1] += f"\n{command}"
        else:
            commands.append(command)
    # Chained edits in one command must not hide an earlier failure.
    return [f"set -e\n{command}" if command.count("<<'") > 1 else command for command in commands]


def _heredoc(program: str, text: str) -> str:
    mark = next(mark for mark in ("EOF", "PATCH", "END_OF_EDIT") if f"\n{mark}\n" not in f"\n{text}")
    return f"{program} <<'{mark}'\n{text}{mark}"


def find_edits(file: unidiff.PatchedFile, content: bytes) -> list[_Edit]:
    """Changes to one file -> replacements of text that occurs once, or none where they would not give the same file."""
    if file.is_added_file or file.is_removed_file or b"\r" in content or not content.isascii():
        return []
    text = content.decode()
    edits = []
    for hunk in file:
        edit = next((edit for edit in _candidates(hunk) if edit.old and edit.new and text.count(edit.old) == 1), None)
        if edit is None or any(_is_hard_to_quote(part) for part in edit):
            return []
        text = text.replace(edit.old, edit.new)
        edits.append(edit)
    return edits


def _is_hard_to_quote(text: str) -> bool:
    return "\\" in text or "'''" in text or "```" in text or not text.endswith("\n")


def _candidates(hunk: unidiff.Hunk) -> list[_Edit]:
    """Hunk -> the same change with less or more context around it; none where an end of file lacks its newline."""
    lines = list(hunk)
    if any(line.line_type == "\\" for line in lines):
        return []
    changed = [place for place, line in enumerate(lines) if line.line_type != " "]
    first, last = changed[0], changed[-1] + 1
    windows = [lines[max(0, first - n) : last + n] for n in range(MAX_CONTEXT_LINES + 1)]
    return [_Edit(_side(window, "-"), _side(window, "+")) for window in windows]


def _side(lines: list[unidiff.patch.Line], kind: str) -> str:
    return "".join(line.value for line in lines if line.line_type in (" ", kind))


def _script(path: str, edits: list[_Edit]) -> str:
    steps = "".join(
        f"old = '''\\\n{edit.old}'''\nnew = '''\\\n{edit.new}'''\n"
        "assert text.count(old) == 1\ntext = text.replace(old, new)\n"
        for edit in edits
    )
    program = (
        f"from pathlib import Path\n\npath = Path({path!r})\ntext = path.read_text()\n{steps}path.write_text(text)\n"
    )
    assert parse_python(program).body, "the script is Python"
    return _heredoc("python3 -", program)
