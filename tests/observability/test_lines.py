from __future__ import annotations

import io

from pellucid.observability.lines import write_line


class Pipe(io.RawIOBase):
    """Keeps each write by itself, as other processes' writes would fall between them."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        self.writes.append(bytes(data))
        return len(data)


def test_a_line_is_one_write_where_python_is_unbuffered() -> None:
    pipe = Pipe()
    write_line("STEP step=1", io.TextIOWrapper(pipe, write_through=True))  # type: ignore[type-var]
    assert pipe.writes == [b"STEP step=1\n"]
