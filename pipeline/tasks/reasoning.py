"""Seed -> a generated reasoning task with an exact answer; reply -> whether its last `Answer:` line is right.

Each family is one function: random source -> Puzzle (question, answer, worked solution). Names, numbers and lists come
from the seed, so that every family has thousands of distinct instances.
"""

import datetime
import hashlib
import itertools
import random
import re
from collections.abc import Callable
from typing import NamedTuple

from pipeline.store import Lake
from pipeline.tasks.config import DEFAULTS, TaskConfig
from pipeline.tasks.splits import split_of
from pipeline.trees import pack_tree
from pipeline.types import Source, Statement, Task, with_id

GENERATOR_VERSION = "1"
ANSWER_LINE = re.compile(r"^\W*answer\W*?:\s*(.+?)\s*$", re.IGNORECASE)
PEOPLE = ("Ada", "Ben", "Chloe", "Dario", "Elif", "Femi", "Greta", "Hugo", "Ines", "Jonas", "Kaya", "Luis", "Mira")
THINGS = ("apples", "pencils", "stamps", "marbles", "books", "tickets", "cups", "candles", "coins", "shells")
WORDS = re.findall(
    r"\w+",
    "loom thread weaver shuttle cotton linen pattern spindle ribbon needle fabric velvet canvas stitch carpet button "
    "orchard harbour lantern meadow pebble saddle timber willow anchor basket copper feather garden hammer island",
)
FORMAT = "Think step by step if you like. Then end with one line of the form `Answer: {form}`."


class Puzzle(NamedTuple):
    """One question with everything known about it."""

    question: str
    form: str
    """What stands after `Answer:`, in words."""
    answer: str
    solution: str
    """Short reasoning that leads to the answer, the answer line not included."""


def _shopping(chance: random.Random) -> Puzzle:
    buyer, thing, other = chance.choice(PEOPLE), *chance.sample(THINGS, 2)
    count, price, count2, price2 = (chance.randint(2, 19) for _ in range(4))
    first, second = count * price, count2 * price2
    paid = first + second + chance.randint(1, 60)
    return Puzzle(
        f"{buyer} buys {count} {thing} at {price} coins each and {count2} {other} at {price2} coins each, and pays "
        f"with {paid} coins. How many coins does {buyer} get back?",
        "<number>",
        str(paid - first - second),
        f"The {thing} cost {count} * {price} = {first}. The {other} cost {count2} * {price2} = {second}. "
        f"Together {first} + {second} = {first + second}. Change: {paid} - {first + second} = {paid - first - second}.",
    )


def _sharing(chance: random.Random) -> Puzzle:
    giver, thing, friends, each = (
        chance.choice(PEOPLE),
        chance.choice(THINGS),
        chance.randint(3, 12),
        chance.randint(3, 25),
    )
    left, lost = chance.randint(0, friends - 1), chance.randint(1, 15)
    total = friends * each + left
    return Puzzle(
        f"{giver} had {total + lost} {thing}, lost {lost} of them, and shared the others equally among {friends} "
        f"friends. How many {thing} did each friend get, and how many were left over?",
        "<each>, <left over>",
        f"{each}, {left}",
        f"{total + lost} - {lost} = {total}. {total} divided by {friends} is {each} with remainder {left}, because "
        f"{friends} * {each} = {friends * each} and {total} - {friends * each} = {left}.",
    )


def _sorting(chance: random.Random) -> Puzzle:
    numbers = chance.sample(range(1, 200), chance.randint(6, 9))
    limit, is_even = chance.randint(20, 120), chance.random() < 0.5
    kept = [n for n in numbers if n > limit and n % 2 == (0 if is_even else 1)]
    kind = "even" if is_even else "odd"
    is_down = chance.random() < 0.5
    ordered = sorted(kept, reverse=is_down)
    text = ", ".join(map(str, ordered)) or "none"
    return Puzzle(
        f"From the list {numbers} keep the {kind} numbers greater than {limit} and sort them in "
        f"{'descending' if is_down else 'ascending'} order. Write `none` if nothing is left.",
        "<numbers separated by commas>",
        text,
        f"Greater than {limit}: {', '.join(str(n) for n in numbers if n > limit) or 'none'}. Of these, {kind}: "
        f"{', '.join(map(str, kept)) or 'none'}. Sorted: {text}.",
    )


def _dates(chance: random.Random) -> Puzzle:
    start = datetime.date(chance.randint(1990, 2040), 1, 1) + datetime.timedelta(days=chance.randint(0, 364))
    days = chance.randint(15, 320)
    is_forward = chance.random() < 0.5
    steps, place, left = [], start, days
    while left:
        if is_forward:
            step = min(left, (_next_month(place) - place).days)
            place += datetime.timedelta(days=step)
        else:
            step = min(left, place.day)
            place -= datetime.timedelta(days=step)
        left -= step
        steps.append(f"{step} days lead to {place.isoformat()}, {left} to go")
    return Puzzle(
        f"Which date is {days} days {'after' if is_forward else 'before'} {start.isoformat()}?",
        "<date as YYYY-MM-DD>",
        place.isoformat(),
        "Count month by month: " + "; ".join(steps) + ".",
    )


def _next_month(day: datetime.date) -> datetime.date:
    return datetime.date(day.year + day.month // 12, day.month % 12 + 1, 1)


def _letters(chance: random.Random) -> Puzzle:
    word = "".join(chance.sample(WORDS, 2))
    letter = chance.choice(sorted(set(word)))
    places = [number for number, found in enumerate(word, 1) if found == letter]
    return Puzzle(
        f"How many times does the letter `{letter}` occur in `{word}`, and at which position does it first occur, "
        "counting from 1?",
        "<count>, <position>",
        f"{len(places)}, {places[0]}",
        f"The letters are {' '.join(word)}. `{letter}` stands at {', '.join(map(str, places))}: {len(places)} in all, "
        f"the first at {places[0]}.",
    )


def _reversal(chance: random.Random) -> Puzzle:
    words = chance.sample(WORDS, 4)
    number = chance.randint(1, 4)
    chosen = words[number - 1]
    return Puzzle(
        f"Take word number {number} of `{' '.join(words)}`, reverse its letters, and write the result in capitals.",
        "<word>",
        chosen[::-1].upper(),
        f"Word number {number} is {chosen}. Reversed it is {chosen[::-1]}. In capitals: {chosen[::-1].upper()}.",
    )


def _sequence(chance: random.Random) -> Puzzle:
    start, factor, add = chance.randint(1, 40), chance.randint(2, 5), chance.randint(1, 40)
    terms = [start]
    while len(terms) < 6:
        terms.append(terms[-1] * factor + add)
    return Puzzle(
        f"A sequence starts {', '.join(map(str, terms[:4]))}. Each term is the one before times {factor}, plus a "
        "constant. What is the sixth term?",
        "<number>",
        str(terms[5]),
        f"{terms[0]} * {factor} = {terms[0] * factor}, so the constant is {terms[1]} - {terms[0] * factor} = {add}. "
        f"Fifth: {terms[3]} * {factor} + {add} = {terms[4]}. Sixth: {terms[4]} * {factor} + {add} = {terms[5]}.",
    )


def _order(chance: random.Random) -> Puzzle:
    people = chance.sample(PEOPLE, 5)
    facts = [f"{older} is older than {younger}" for older, younger in itertools.pairwise(people)]
    chance.shuffle(facts)
    number = chance.randint(2, 4)
    return Puzzle(
        f"{'. '.join(facts)}. Who is number {number} when the five are listed from oldest to youngest?",
        "<name>",
        people[number - 1],
        f"The facts link into one chain: {' > '.join(people)}. Number {number} is {people[number - 1]}.",
    )


def _format(chance: random.Random) -> Puzzle:
    words = chance.sample(WORDS, chance.randint(4, 6))
    mark, size = chance.choice("-/|+="), chance.randint(2, 3)
    parts = [word[:size].upper() for word in sorted(words)]
    return Puzzle(
        f"Sort the words {', '.join(words)} alphabetically, take the first {size} letters of each in capitals, and "
        f"join them with `{mark}` without spaces.",
        "<text>",
        mark.join(parts),
        f"Sorted: {', '.join(sorted(words))}. First {size} letters: {', '.join(parts)}. Joined with {mark}: "
        f"{mark.join(parts)}.",
    )


FAMILIES: dict[str, Callable[[random.Random], Puzzle]] = {
    "shopping": _shopping,
    "sharing": _sharing,
    "sorting": _sorting,
    "dates": _dates,
    "letters": _letters,
    "reversal": _reversal,
    "sequence": _sequence,
    "order": _order,
    "format": _format,
}


def make_reasoning_task(lake: Lake, seed: int, config: TaskConfig = DEFAULTS) -> Task:
    """Seed -> one task; families take turns, and each is one "repository" for the splits."""
    family = list(FAMILIES)[seed % len(FAMILIES)]
    puzzle = FAMILIES[family](random.Random(seed))
    empty = lake.put_blob(pack_tree({}))
    name = f"reasoning/{family}"
    return with_id(
        Task(
            kind="single_turn",
            domain="reasoning",
            source=Source(
                kind="generator",
                name=name,
                version=GENERATOR_VERSION,
                sha256=hashlib.sha256(f"{name} {GENERATOR_VERSION}".encode()).hexdigest(),
                licence="Apache-2.0",
                url="",
            ),
            repo=name,
            repo_id="",
            image_id="",
            strategy="reasoning",
            modifier=family,
            entity=family,
            seed=seed,
            base_tree=empty,
            hidden_tree=empty,
            gold_patch="",
            answer={"value": puzzle.answer, "solution": puzzle.solution},
            fail_to_pass=[],
            pass_to_pass=[],
            flake={},
            test_command=[],
            timeout_sec=10,
            step_budget=1,
            statement=Statement(text=f"{puzzle.question}\n\n{FORMAT.format(form=puzzle.form)}", origin="generator"),
            contamination_id="",
            split=split_of(name, config),
            status="valid",
        )
    )


def check_answer(task: Task, reply: str) -> bool:
    """Reply -> whether its last non-empty line is `Answer:` with the exact answer; case and spaces do not count."""
    lines = [line for line in reply.strip().splitlines() if line.strip()]
    match = ANSWER_LINE.match(lines[-1]) if lines else None
    return match is not None and _plain(match[1]) == _plain(task.answer["value"])


def explain(task: Task) -> str:
    """Task -> the worked solution and its answer line, as the oracle says it."""
    return f"{task.answer['solution']}\n\nAnswer: {task.answer['value']}"


def _plain(text: str) -> str:
    return re.sub(r"\s+", "", text.strip("`*\"' .")).casefold()
