"""From a conversation to what the engine is asked, and how its answer is read: tools, reasoning, constraints."""

from __future__ import annotations

from pellucid.server.conversation import Conversation, Prepared
from pellucid.server.prompts import render_chat
from pellucid.server.state import ServerState


async def prepare(state: ServerState, conversation: Conversation) -> Prepared:
    """Raises ApiError where the template refuses the conversation, or the prompt does not fit."""
    token_ids = await render_chat(state.engine(), conversation)
    return Prepared(token_ids, conversation.constraint)
