"""Failing tests -> the instruction an agent reads: a user's report of what goes wrong, never how to mend it."""

import random
import re
from collections import Counter
from typing import NamedTuple

import unidiff

from pipeline.tasks.failures import Failure, read_failure
from pipeline.tasks.interfaces import Interface, find_interfaces
from pipeline.trees import Tree
from pipeline.types import Statement

MAX_EXAMPLES = 3
MAX_BEHAVIOURS = 6
MAX_INTERFACES = 3
MAX_CALL = 300
"""Characters of a call that an example may show."""
MIN_WORDS, MAX_WORDS = 60, 250
MIN_LEAK_LINE, MIN_LEAK_PART = 12, 30
"""Characters: shorter lines and parts are words that any report may use."""
TITLES = (
    "{subject} does not behave as it should",
    "Wrong behaviour of {subject}",
    "Problem with {subject}",
    "Bug: unexpected outcome from {subject}",
)
INTROS = (
    "I use `{package}` {version} in a project of mine, and {subject} does not do what I rely on.",
    "With `{package}` {version} I get surprising results from {subject}.",
    "After setting up `{package}` {version}, code that calls {subject} goes wrong.",
    "{subject} in `{package}` {version} gives me trouble.",
)
EXAMPLE_INTROS = ("This is what I see:", "Here is what happens:", "To reproduce:", "What I tried:")
GIVES = (
    "`{call}` gives `{observed}`, but I expected {expected}.",
    "`{call}` should be {expected}; it is `{observed}`.",
)
RAISES = ("`{call}` fails with `{error}`.", "Running `{call}` ends in `{error}`.")
CLOSINGS = (
    "Everything that works today must keep working. Please find the cause in the source of the package and correct "
    "it there; the public interface stays as it is, and no tests need to be written or changed.",
    "Please look for the cause in the package's own code and mend it, without changing signatures or breaking what "
    "already works. The project's tests will be run afterwards; there is no need to edit them.",
    "Could you correct this in the source? Other behaviour of the package is fine and should not change, nor should "
    "the way its functions are called. Tests are kept elsewhere, so only the package itself needs a change.",
)


class Report(NamedTuple):
    """A statement, and the signatures behind it."""

    statement: Statement
    interface: str
    """Signatures that the failing tests call, one a line."""


def state_failure(
    *,
    package: str,
    version: str,
    broken: Tree,
    solved: Tree,
    messages: dict[str, str],
    fail_to_pass: list[str],
    patch: str,
    seed: int,
) -> Report:
    """Broken and solved tree, each with all tests, failure texts and gold patch -> a report of 60 to 250 words.

    Examples that would give away a line of the patch are left out.
    """
    chance = random.Random(seed)
    failures = [read_failure(test, messages.get(test, ""), broken) for test in fail_to_pass]
    interfaces = _interfaces(broken, failures)
    subject = _subject(interfaces, package)
    examples = _examples(failures, chance, patch)
    title = chance.choice(TITLES).format(subject=subject)
    intro = chance.choice(INTROS).format(package=package, version=version, subject=subject)
    lead, closing = chance.choice(EXAMPLE_INTROS), chance.choice(CLOSINGS)
    behaviours = _behaviours(failures)
    signatures = "\n".join(dict.fromkeys(found.signature for found in _interfaces(solved, failures) if found.signature))
    while True:
        parts = [title, intro[0].upper() + intro[1:]]
        if examples:
            parts += [lead, "\n\n".join(examples)]
        parts += [_behaviour_sentence(behaviours), _interface_sentence(interfaces), closing]
        text = "\n\n".join(part for part in parts if part)
        if len(text.split()) <= MAX_WORDS or not examples:
            return Report(Statement(text=text, origin="failing_tests"), signatures)
        examples.pop()


def find_leaks(statement: str, patch: str) -> list[str]:
    """Statement and gold patch -> added lines, or long parts of them, that the statement gives away.

    Text that the broken code has too gives nothing away.
    """
    said = _plain(statement)
    leaks = []
    for patched in unidiff.PatchSet.from_string(patch):
        lines = [line for hunk in patched for line in hunk]
        known = "\n".join(_plain(line.value) for line in lines if not line.is_added)
        for line in lines:
            added = _plain(line.value)
            if line.is_added and _is_given_away(added, said, known):
                leaks.append(added)
    return leaks


def _is_given_away(added: str, said: str, known: str) -> bool:
    if len(added) >= MIN_LEAK_LINE and added in said and added not in known:
        return True
    parts = (added[start : start + MIN_LEAK_PART] for start in range(len(added) - MIN_LEAK_PART + 1))
    return any(part in said and part not in known for part in parts)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _interfaces(tree: Tree, failures: list[Failure]) -> list[Interface]:
    """The function each failing test calls first, most frequent first."""
    found: Counter[Interface] = Counter()
    for failure in failures:
        path = failure.test.split("::")[0]
        found.update(find_interfaces(tree, path, failure.names)[:1])
    return [interface for interface, _ in found.most_common(MAX_INTERFACES)]


def _subject(interfaces: list[Interface], package: str) -> str:
    return f"`{interfaces[0].name}`" if interfaces else f"the package `{package}`"


def _examples(failures: list[Failure], chance: random.Random, patch: str) -> list[str]:
    """Failures -> up to three examples, of different tests where possible, none of which leaks."""
    told: list[str] = []
    behaviours: list[str] = []
    for failure in sorted(failures, key=_telling):
        text = _example(failure, chance)
        is_repeated = behaviours.count(failure.behaviour) >= (2 if len(failures) > MAX_EXAMPLES else MAX_EXAMPLES)
        if text and text not in told and not is_repeated and not find_leaks(text, patch):
            told.append(text)
            behaviours.append(failure.behaviour)
        if len(told) == MAX_EXAMPLES:
            break
    return told


def _telling(failure: Failure) -> tuple[bool, bool, int, int]:
    """Sort key: complete and short examples first."""
    is_bare = "(" not in failure.call and not failure.setup
    return not failure.call, is_bare, len(failure.setup), len(failure.call)


def _example(failure: Failure, chance: random.Random) -> str:
    call = " ".join(failure.call.split())
    if not call or len(call) > MAX_CALL:
        return f"- The case of {failure.behaviour} ends in `{failure.error}`." if failure.error else ""
    if failure.error:
        text = chance.choice(RAISES).format(call=call, error=failure.error)
    elif failure.observed:
        is_value = not re.match(r"(a|the) ", failure.expected)
        expected = f"`{failure.expected}`" if is_value else failure.expected
        text = chance.choice(GIVES).format(call=call, observed=failure.observed, expected=expected)
    else:
        text = f"`{call}` should hold, but it does not."
    return f"After\n\n```python\n{failure.setup}\n```\n\n{text}" if failure.setup else f"- {text}"


def _behaviours(failures: list[Failure]) -> list[str]:
    return list(dict.fromkeys(failure.behaviour for failure in failures if failure.behaviour))[:MAX_BEHAVIOURS]


def _behaviour_sentence(behaviours: list[str]) -> str:
    if not behaviours:
        return ""
    return f"What is affected, in short: {'; '.join(behaviours)}."


def _interface_sentence(interfaces: list[Interface]) -> str:
    known = [f"`{found.name}` (`{found.signature}`)" for found in interfaces if found.signature]
    return f"I call it through {', '.join(known)}." if known else ""
