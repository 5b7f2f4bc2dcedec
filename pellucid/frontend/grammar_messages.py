"""What a front end and its grammar process say to each other, in the frames of engine/wire.py."""

from __future__ import annotations

import msgspec

from pellucid.engine.wire import FrameReader
from pellucid.sampling.params import StructuredOutputsParams


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True, tag="vocabulary"):
    """The first frame. tokens: of every id of the model's logits, b"" for one without a token."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_ids: list[int]


class Try(msgspec.Struct, frozen=True, kw_only=True, tag="try"):
    constraint: StructuredOutputsParams


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The vocabulary is loaded."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True, tag="verdict"):
    """The answer to a Try. refusal: why it can't be obeyed; None where it can."""

    refusal: str | None = None


ToGrammars = Vocabulary | Try
FromGrammars = Ready | Verdict


def grammars_side_reader() -> FrameReader[ToGrammars]:
    return FrameReader(msgspec.msgpack.Decoder(ToGrammars))


def front_end_side_reader() -> FrameReader[FromGrammars]:
    return FrameReader(msgspec.msgpack.Decoder(FromGrammars))
