"""Headers that address nobody, as a run writes them at once."""

from __future__ import annotations

import pytest

from gateway.models.harmony.tokenizer import CALL_PREFIX, CHANNEL, CONSTRAIN, FINAL_HEADER, MESSAGE
from tests.fakes.harmony_script import harmony


@pytest.mark.parametrize(
    ("ids", "size"),
    [
        ((*FINAL_HEADER, 1, 2), len(FINAL_HEADER)),
        ((CHANNEL, 12606, 815, MESSAGE, 1), 4),
        ((CHANNEL, MESSAGE), 2),
        (FINAL_HEADER[:-1], 0),
        ((*CALL_PREFIX, *FINAL_HEADER), 0),
        ((CHANNEL, 17196, CONSTRAIN, MESSAGE), 0),
    ],
)
def test_a_header_of_a_channel_alone_is_known_by_its_ids(ids: tuple[int, ...], size: int) -> None:
    assert harmony().plain_header(ids, 0) == size
    assert harmony().plain_header((7, *ids), 1) == size
