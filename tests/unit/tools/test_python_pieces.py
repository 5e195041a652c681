"""Files of an interpreter come and go in pieces, whatever their length."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.python.container_engine import EngineBroken, FileRefused
from gateway.tools.python.worker_process import get_file, put_file

if TYPE_CHECKING:
    from collections.abc import Mapping

PIECE_BYTES = 4


class Folder:
    """An interpreter with files; `asked` are the orders that it got."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []

    async def order(self, kind: str, path: str, /, **given: object) -> Mapping[str, Any]:
        self.asked.append(kind)
        start = given["at"]
        assert isinstance(start, int)
        if kind == "get":
            size = given["size"]
            assert isinstance(size, int)
            piece = self.files[path][start : start + size]
            return {"content": base64.b64encode(piece).decode()}
        content = given["content"]
        assert isinstance(content, str)
        before = self.files.get(path, b"")[:start]
        self.files[path] = before + base64.b64decode(content, validate=True)
        return {}


@pytest.mark.slow
@given(content=st.binary(max_size=20))
async def test_a_file_comes_back_as_it_was(content: bytes) -> None:
    folder = Folder()
    await put_file(folder.order, "a", content, piece_bytes=PIECE_BYTES)
    assert folder.files == {"a": content}
    found = await get_file(folder.order, "a", piece_bytes=PIECE_BYTES, bytes_max=len(content))
    assert found == content
    assert folder.asked.count("put") == max(1, -(-len(content) // PIECE_BYTES))


async def test_a_file_that_is_too_long_is_read_no_further() -> None:
    folder = Folder()
    folder.files["a"] = bytes(100)
    with pytest.raises(FileRefused, match="a is longer than 5 bytes"):
        await get_file(folder.order, "a", piece_bytes=PIECE_BYTES, bytes_max=5)
    assert folder.asked == ["get", "get"]


@pytest.mark.parametrize("content", ["*", 1, None, "YQ"])
async def test_an_answer_that_is_no_piece_breaks_the_engine(content: object) -> None:
    async def order(_kind: str, _path: str, /, **_given: object) -> Mapping[str, Any]:
        return {"content": content}

    with pytest.raises(EngineBroken):
        await get_file(order, "a", piece_bytes=PIECE_BYTES, bytes_max=5)
