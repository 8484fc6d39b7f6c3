"""Name of a harness -> the harness."""

from collections.abc import Callable

from pipeline.errors import UserError
from pipeline.harnesses import completion, mini_swe_agent
from pipeline.harnesses.contract import Harness
from pipeline.harnesses.mini_swe_agent import MiniConfig

HARNESSES: dict[str, Callable[[MiniConfig], Harness]] = {
    mini_swe_agent.NAME: lambda config: mini_swe_agent.MiniSweAgent(config=config),
    completion.NAME: lambda config: completion.Completion(),
}


def find_harness(name: str, config: MiniConfig) -> Harness:
    """Name and settings -> harness.

    Raises: UserError for an unknown name.
    """
    if name not in HARNESSES:
        raise UserError(f"there is no harness {name!r}: choose one of {', '.join(sorted(HARNESSES))}")
    return HARNESSES[name](config)
