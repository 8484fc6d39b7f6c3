"""Repo -> candidates -> validated tasks, each with an instruction that does not give its solution away.

config.py       how many, which kinds, what is good enough
paths.py        which files are source, tests, change logs
candidates.py   propose: Repo -> Candidates, nothing run yet
  mutations.py    strategy syntax_tree_bug: one small bug in one function
  completions.py  strategy function_completion: a documented function without its body, and replies put back
validation.py   validate: tests before and after in the sandbox -> Task or the reason why not; duplicates
  failures.py     failure text -> what was called, came out, was expected
  interfaces.py   which functions of the package a test calls
  statements.py   failing tests -> a user's report, checked for leaks
reasoning.py    generated questions with exact answers; they need no repository
splits.py       repository name -> sft, rlvr or held_out
"""

from pipeline.tasks.candidates import Candidate, propose
from pipeline.tasks.completions import completion_reply, insert_function
from pipeline.tasks.config import TaskConfig
from pipeline.tasks.reasoning import check_answer, explain, make_reasoning_task
from pipeline.tasks.splits import split_of
from pipeline.tasks.validation import ReferenceRuns, deduplicate, validate

__all__ = [
    "Candidate",
    "ReferenceRuns",
    "TaskConfig",
    "check_answer",
    "completion_reply",
    "deduplicate",
    "explain",
    "insert_function",
    "make_reasoning_task",
    "propose",
    "split_of",
    "validate",
]
