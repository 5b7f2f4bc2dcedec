"""Constraints on output, tried before a request is taken: what can't be compiled is refused here, with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pellucid.sampling.params import StructuredOutputsParams
from pellucid.structured.compiler import COMPILE_TIMEOUT_S, GrammarCompiler
from pellucid.structured.errors import ConstraintError
from pellucid.structured.vocabulary import GrammarTokenizer, GrammarVocabulary


class ConstraintChecker:
    """Any thread may call it. The vocabulary is built with the first constraint."""

    def __init__(self, tokenizer: GrammarTokenizer, eos_token_ids: Sequence[int], vocab_size: int) -> None:
        self._compiler = GrammarCompiler(lambda: GrammarVocabulary(tokenizer, eos_token_ids, vocab_size))

    def check(self, constraint: StructuredOutputsParams) -> None:
        """Raises ConstraintError."""
        self._compiler.compile(constraint)

    async def check_off_the_loop(self, constraint: StructuredOutputsParams) -> None:
        """The same on a thread, for at most COMPILE_TIMEOUT_S."""
        work = self._compiler.run(lambda: self.check(constraint))
        try:
            await asyncio.wait_for(asyncio.wrap_future(work), COMPILE_TIMEOUT_S)
        except asyncio.TimeoutError:
            message = f"it could not be compiled within {COMPILE_TIMEOUT_S:g} s"
            raise ConstraintError("constraint", message) from None
