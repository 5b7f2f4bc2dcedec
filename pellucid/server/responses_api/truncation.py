"""`truncation`: the prompt of a conversation, or with "auto" as much of its end as fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pellucid.server.conversation import Conversation, Prepared
from pellucid.server.errors import ApiError, context_length_exceeded
from pellucid.server.preparation import prepare
from pellucid.server.responses_api.request import Plan
from pellucid.server.state import ServerState


async def prepare_within(state: ServerState, plan: Plan) -> Prepared:
    """Raises ApiError.

    Instructions stay, whole turns go, each with its question: many templates take no conversation that begins with an
    answer. Where the last turn alone is too long, it is cut before one of its calls, never between a call and its
    result, if the template takes that. Room is left for max_output_tokens (at most half of the context), a quarter of
    the context where none are given.
    """
    conversation = plan.conversation
    if plan.body.truncation != "auto":
        return await prepare(state, conversation)
    messages = conversation.messages
    num_kept = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    cuts = [i for i in range(num_kept, len(messages)) if messages[i]["role"] != "tool"]
    if not cuts:
        return await prepare(state, conversation)
    context = state.ready.max_model_len
    wanted = plan.body.max_output_tokens
    room = context - (context // 4 if wanted is None else min(wanted, context // 2))
    search = _Search(state, conversation, num_kept, room)
    turns = [i for i in cuts if i == cuts[0] or messages[i]["role"] == "user"]
    best = await search.longest(turns) or await search.longest([i for i in cuts if i > turns[-1]], may_be_refused=True)
    if best is None:
        raise context_length_exceeded(context, search.num_tokens, param="input")
    return best


class _Search:
    """num_tokens: of the shortest prompt that was tried and is too long."""

    def __init__(self, state: ServerState, conversation: Conversation, num_kept: int, room: int) -> None:
        self.num_tokens = state.ready.max_model_len + 1
        self._state = state
        self._conversation = conversation
        self._num_kept = num_kept
        self._room = room

    async def longest(self, cuts: Sequence[int], *, may_be_refused: bool = False) -> Prepared | None:
        """The longest that fits of those that go on with a message of `cuts`. Raises ApiError; may_be_refused: not
        where the template refuses, which is then no better than too long."""
        best: Prepared | None = None
        low, high = 0, len(cuts) - 1
        attempt = 0  # most conversations fit whole
        while low <= high:
            found = await self._attempt(cuts[attempt], may_be_refused)
            if found is not None:
                best, high = found, attempt - 1
            else:
                low = attempt + 1
            attempt = (low + high) // 2
        return best

    async def _attempt(self, cut: int, may_be_refused: bool) -> Prepared | None:
        messages = self._conversation.messages
        shorter = replace(self._conversation, messages=messages[: self._num_kept] + messages[cut:])
        try:
            prepared = await prepare(self._state, shorter)
        except ApiError as error:
            if error.code == "context_length_exceeded" or may_be_refused:
                return None
            raise
        num_tokens = len(prepared.prompt_token_ids)
        if num_tokens <= self._room:
            return prepared
        self.num_tokens = min(self.num_tokens, num_tokens)
        return None
