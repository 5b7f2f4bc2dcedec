"""A model that was trained to say, with yes or no, whether a text answers a query: how it is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pellucid.core.messages import TokenLogprob
from pellucid.frontend.chat_template import ChatTemplate, ChatTemplateError
from pellucid.frontend.tokenizer import Tokenizer

YES, NO = "yes", "no"
MAX_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True)
class YesNoReranker:
    """template: of messages with the roles "query" and "document", to the prompt after which the model answers."""

    template: ChatTemplate
    yes_id: int
    no_id: int

    @staticmethod
    def load(path: str, tokenizer: Tokenizer) -> YesNoReranker:
        """path: the template's file, in Jinja. Raises ValueError with words for whoever starts the server."""
        try:
            with Path(path).open("rb") as file:
                source = file.read(MAX_TEMPLATE_BYTES + 1)
            if len(source) > MAX_TEMPLATE_BYTES:
                raise ValueError(f"it is larger than {MAX_TEMPLATE_BYTES} bytes")
            text = source.decode()
        except (OSError, ValueError) as error:
            raise ValueError(f"--reranker-template {path} can't be read: {error}") from error
        ids = [tokenizer.token_to_id(word) for word in (YES, NO)]
        if None in ids:
            raise ValueError(
                "--reranker-template needs a model with the tokens 'yes' and 'no', and this one lacks them"
            )
        reranker = YesNoReranker(ChatTemplate({"default": text}), *(i for i in ids if i is not None))
        try:
            probe = reranker.prompt("pellucid-query", "pellucid-document")
        except ChatTemplateError as error:
            raise ValueError(f"--reranker-template {path}: {error}") from error
        if "pellucid-query" not in probe or "pellucid-document" not in probe:
            raise ValueError(
                f"--reranker-template {path} does not write the messages with the roles 'query' and 'document'"
            )
        return reranker

    def prompt(self, query: str, document: str) -> str:
        """Raises ChatTemplateError."""
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        return self.template.render(messages)

    def relevance(self, entry: TokenLogprob) -> float:
        """P(yes) / (P(yes) + P(no)). entry: of the token after the prompt, with those of the two among them."""
        logprobs = dict(zip(entry.token_ids, entry.logprobs, strict=True))
        difference = logprobs[self.yes_id] - logprobs[self.no_id]
        small = math.exp(-abs(difference))
        return (1.0 if difference >= 0 else small) / (1.0 + small)
