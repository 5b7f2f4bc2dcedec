"""The grammar process: `pellucid grammars --fd N`, in which a front end has constraints on output tried.

A compiler that runs into a loop holds its thread for ever, and one that overflows its stack or asks for too much memory
ends its process. Here that is this process, which holds nothing but a vocabulary: the front end kills it where it takes
too long, and starts another.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from functools import cached_property

from pellucid.engine.become import become, inherited_line
from pellucid.engine.wire import encode_frame
from pellucid.frontend.grammar_messages import Ready, Try, Verdict, Vocabulary, grammars_side_reader
from pellucid.structured.compiler import compile_grammar
from pellucid.structured.errors import ConstraintError
from pellucid.structured.vocabulary import GrammarVocabulary

MEMORY_BYTES = 1 << 30  # beyond what it has when the vocabulary is loaded
STACK_BYTES = 4 << 20  # half of what the engine's threads have: what passes here passes there


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pellucid grammars", description="Tries a front end's constraints.")
    parser.add_argument("--fd", type=int, required=True, help="the socket inherited from the front end")
    args = parser.parse_args(argv)
    become("pellucid grammars")
    _serve(inherited_line(args.fd))
    return 0


def _serve(sock: socket.socket) -> None:
    """Until the end of file: the front end is gone, or wants no more."""
    reader = grammars_side_reader()
    vocabulary: GrammarVocabulary | None = None
    while data := sock.recv(1 << 18):
        for message in reader.feed(data):
            if isinstance(message, Vocabulary):
                vocabulary = GrammarVocabulary(_Tokens(message), message.eos_token_ids, len(message.tokens))
                _limit_resources()
                sock.sendall(encode_frame(Ready()))
            else:
                assert vocabulary is not None
                sock.sendall(encode_frame(_try(message, vocabulary)))


def _try(message: Try, vocabulary: GrammarVocabulary) -> Verdict:
    try:
        compile_grammar(message.constraint, vocabulary)
    except ConstraintError as error:
        return Verdict(refusal=str(error))
    return Verdict()


def _limit_resources() -> None:
    """A core dump of a crash that a client can cause at will would fill the disk."""
    import resource

    def lower(kind: int, limit: int) -> None:
        soft, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))

    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_STACK, STACK_BYTES)
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as file:
            num_pages = int(file.read().split()[0])
        lower(resource.RLIMIT_AS, num_pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES)


class _Tokens:
    """A vocabulary as GrammarVocabulary wants it. Whether a grammar makes sense does not depend on how a text is cut
    into tokens, so that taking the longest will do.
    """

    def __init__(self, message: Vocabulary) -> None:
        self._tokens = message.tokens
        self.vocab_size = len(message.tokens)
        self.special_token_ids = frozenset(message.special_token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens[token_id]

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {token: i for i, token in enumerate(self._tokens) if i not in self.special_token_ids}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        data, found = text.encode(), []
        while data:
            lengths = range(min(self._longest, len(data)), 0, -1)
            length = next((n for n in lengths if data[:n] in self._ids), None)
            if length is not None:  # a byte that no token has is left out
                found.append(self._ids[data[:length]])
            data = data[length or 1 :]
        return found
