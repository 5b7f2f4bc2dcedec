"""The Responses dialect: what a client sends becomes a Conversation, and the answer a sequence of typed events."""
