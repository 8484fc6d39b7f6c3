"""Numbers, ids and foreign text -> the words that a reader of the report sees."""

import re
from typing import Any

from markupsafe import Markup

SHORT_ID = 12
MINUTE_SEC = 60
KEPT_SPACE = "\u00a0"
"""Space that no line breaks at."""
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Control, zero-width and direction characters: they could hide or reorder what the page shows."""


def visible(value: Any) -> Any:
    """Value about to be printed -> the same, its invisible characters spelled out as escapes."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", value)
    return value


def count(number: float) -> str:
    """1234567 -> 1,234,567."""
    return f"{number:,.0f}"


def share(value: float) -> str:
    """0.4312 -> 43.1 %."""
    return f"{value * 100:.1f}{KEPT_SPACE}%"


def points(value: float) -> str:
    """Difference of two shares, 0.0012 -> +0.12."""
    return f"{value * 100:+.2f}"


def seconds(value: float) -> str:
    """Seconds -> 12.3 s, or minutes and seconds."""
    if value < MINUTE_SEC:
        return f"{value:.1f}{KEPT_SPACE}s"
    minutes, rest = divmod(round(value), MINUTE_SEC)
    return f"{minutes}{KEPT_SPACE}min {rest}{KEPT_SPACE}s"


def nats(value: float) -> str:
    """Loss -> three decimals."""
    return f"{value:.3f}"


def small(value: float) -> str:
    """Tiny difference -> two significant digits."""
    return f"{value:.1e}" if value else "0"


def plural(number: int, noun: str) -> str:
    """3, "sample" -> 3 samples."""
    if number == 1:
        return f"1 {noun}"
    ending = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {ending}"


def tenth(value: float) -> str:
    """Mean of counts -> one decimal."""
    return f"{value:,.1f}"


def hundredth(value: float) -> str:
    """Number -> two decimals."""
    return f"{value:.2f}"


def short(identity: str) -> str:
    """Hash -> its first digits."""
    return identity[:SHORT_ID]


FILTERS = {
    function.__name__: function
    for function in (count, share, points, seconds, nats, small, plural, tenth, hundredth, short)
}
"""Names under which templates use these."""
