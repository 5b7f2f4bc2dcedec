"""Frames on the socket pair between a front end and a process that it has started.

A frame is a four-byte big-endian length and so many bytes of msgpack: to and from the engine one of the closed structs
of core.messages, or the Configure with which a front end begins. Nothing else decodes, and no length beyond the bound
is believed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from pellucid.config import EngineConfig
from pellucid.core.messages import (
    AbortRequests,
    Control,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFailed,
    EngineHeartbeat,
    EngineLoading,
    EngineReady,
    Shutdown,
    Watch,
)

MAX_FRAME_BYTES = 256 * 1024 * 1024  # prompt_logprobs of a 100K-token prompt with 20 alternatives stay well below

_HEADER = struct.Struct(">I")

T = TypeVar("T")


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag="configure"):
    """The first frame an engine process reads: what to build."""

    config: EngineConfig


ToEngine = Configure | EngineCoreRequest | AbortRequests | Watch | Control | Shutdown
FromEngine = EngineCoreOutputs | EngineReady | EngineLoading | EngineFailed | EngineHeartbeat


class WireError(Exception):
    """The other side sent something that is no frame of ours, or a message is too large to send."""


class MessageTooLarge(WireError):
    """Nothing of it has been sent."""


_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: msgspec.Struct) -> bytes:
    """Raises MessageTooLarge where the message is larger than a frame may be."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise MessageTooLarge(f"a message of {len(body)} bytes is larger than a frame may be ({MAX_FRAME_BYTES} bytes)")
    return _HEADER.pack(len(body)) + body


class FrameReader(Generic[T]):
    """Bytes as they come from a socket, in; whole decoded messages out."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[T]:
        """Raises WireError on a length beyond the bound or a body that is none of the expected structs."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _HEADER.size:
                (length,) = _HEADER.unpack_from(self._buffer, start)
                if length > MAX_FRAME_BYTES:
                    raise WireError(f"a frame of {length} bytes is announced; the bound is {MAX_FRAME_BYTES}")
                end = start + _HEADER.size + length
                if len(self._buffer) < end:
                    break
                body = bytes(self._buffer[start + _HEADER.size : end])
                start = end
                try:
                    message = self._decoder.decode(body)
                except msgspec.MsgspecError as error:
                    raise WireError(f"a frame that is no message: {error}") from error
                yield message
        finally:
            del self._buffer[:start]


def engine_side_reader() -> FrameReader[ToEngine]:
    return FrameReader(msgspec.msgpack.Decoder(ToEngine))


def front_end_side_reader() -> FrameReader[FromEngine]:
    return FrameReader(msgspec.msgpack.Decoder(FromEngine))
