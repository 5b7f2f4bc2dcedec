"""What the engine puts out, through the parser, into the state machine; and the tokens behind the text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pellucid.core.messages import FinishReason
from pellucid.frontend.answer import AnswerDelta, AnswerParser
from pellucid.frontend.outputs import CompletionOutput
from pellucid.frontend.tokenizer import Tokenizer
from pellucid.server.conversation import JsonObject
from pellucid.server.logprobs import TokenTexts, chat_logprobs
from pellucid.server.responses_api.events import Event, ResponseEvents


class AnswerReader:
    """num_top_logprobs: None where no logprobs are wanted."""

    def __init__(
        self,
        state: ResponseEvents,
        parser: AnswerParser,
        tokenizer: Tokenizer,
        texts: TokenTexts,
        num_top_logprobs: int | None,
    ) -> None:
        self.state = state
        self._parser = parser
        self._tokenizer = tokenizer
        self._texts = texts
        self._num_top = num_top_logprobs
        self._tokens = ContentTokens()
        self._reason = FinishReason.STOP
        self._reasoning: list[str] = []

    def take(self, choice: CompletionOutput) -> list[Event]:
        if choice.logprobs is not None and self._num_top is not None:
            self._tokens.push(chat_logprobs(choice.logprobs, self._num_top, self._texts)["content"])
        events = self._say(self._parser.push(choice.text))
        if choice.finish_reason is not None:
            self._reason = choice.finish_reason
            events += self._say(self._parser.finish())
            self.state.response["seed"] = choice.seed  # with it the same answer can be had again
        return events

    async def end(self, usage: JsonObject) -> list[Event]:
        """usage: as Generation gives it. The last events, but for the terminal one."""
        return self.state.end(self._reason, await self._usage(usage), cut_off=self._parser.in_call)

    def _say(self, deltas: Sequence[AnswerDelta]) -> list[Event]:
        return [event for delta in deltas for event in self._add(delta)]

    def _add(self, delta: AnswerDelta) -> list[Event]:
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        if self._num_top is None:
            return self.state.add(delta)
        self._tokens.take(delta.reasoning)
        return self.state.add(delta, self._tokens.take(delta.content))

    async def _usage(self, usage: JsonObject) -> JsonObject:
        text = "".join(self._reasoning)
        num_reasoning = 0
        if text:  # counted by its text: the answer's tokens do not say which part they belong to
            encode = self._tokenizer.encode
            num_reasoning = len(await asyncio.to_thread(encode, text, add_special_tokens=False))
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
                "cache_write_tokens": 0,
            },
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": min(num_reasoning, usage["completion_tokens"])},
            "total_tokens": usage["total_tokens"],
        }


class ContentTokens:
    """Which tokens a piece of content is made of. The parser takes markers and white space away, so that a token is
    only passed over when the content does not go on with it.
    """

    def __init__(self) -> None:
        self._tokens: list[JsonObject] = []  # not said yet
        self._ahead = b""  # what the last token said beyond the last piece

    def push(self, tokens: list[JsonObject]) -> None:
        self._tokens += [token for token in tokens if token["bytes"]]

    def take(self, text: str) -> list[JsonObject]:
        rest = text.encode()
        if self._ahead:
            shared = min(len(rest), len(self._ahead))
            rest, self._ahead = rest[shared:], self._ahead[shared:]
        taken: list[JsonObject] = []
        used = 0
        for token in self._tokens:
            if not rest:
                break
            used += 1
            raw = bytes(token["bytes"])
            if rest.startswith(raw):
                taken.append(token)
                rest = rest[len(raw) :]
            elif raw.startswith(rest):
                taken.append(token)
                self._ahead, rest = raw[len(rest) :], b""
        del self._tokens[:used]
        return taken
