"""The sum of parts: what the gateway's pieces cost each on its own, with nothing around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.load.figures import Figures
    from tests.load.loading import Load
    from tests.load.stack import Stack

PARTS: Final = ()
SUM: Final = "sum of parts"


class Parts:
    """Measures them under one load."""

    def __init__(self, stack: Stack, load: Load) -> None:
        self.tokens_per_event = 1.0

    def measure(self, row: str) -> Figures:
        return {"cpu_us": 0.0}
