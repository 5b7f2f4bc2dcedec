"""What the sampler knows of one request, from its first step to its last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pellucid.sampling import masks
from pellucid.sampling.errors import SamplingError
from pellucid.sampling.logits_processors import LogitsProcessor
from pellucid.sampling.params import SamplingParams
from pellucid.sampling.penalties import Penalties


class SamplingState:
    """Everything here follows from the request's value, so it can be dropped and made anew at any time.

    token_ids: the request's own list of prompt and output tokens, which grows as the request does.
    stop_token_ids: what would end it (EOS unless it is to be ignored, and its stop tokens), kept out until min_tokens.
    What the output must obey is told before each step by `obey`.
    """

    def __init__(
        self,
        params: SamplingParams,
        token_ids: list[int],
        num_prompt_tokens: int,
        eos_token_ids: Sequence[int] = (),
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        assert params.seed is not None  # the engine admits no other
        self.params = params
        self.seed = params.seed
        self.token_ids = token_ids
        self.num_prompt_tokens = num_prompt_tokens
        self.is_greedy = params.is_greedy
        self.top_k = max(params.top_k, 0)
        self.token_bitmask: np.ndarray | None = None
        self._must_end = False
        self._error: str | None = None
        self._processors = processors
        self._prompt_token_ids = token_ids[:num_prompt_tokens] if processors else []
        self._penalties = Penalties(params, num_prompt_tokens)
        self._stop_token_ids = sorted({*(() if params.ignore_eos else eos_token_ids), *params.stop_token_ids})
        self._stops = frozenset(self._stop_token_ids)
        self._allowed = None if params.allowed_token_ids is None else np.array(params.allowed_token_ids, np.int64)
        self._bad_words = params.bad_words_token_ids or ()
        bias = params.logit_bias or {}
        self._bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._always_adjusts = bool(
            processors or self._allowed is not None or self._bad_words or bias or self._penalties.active
        )
        # Whether even a token that nothing could replace must be sampled: it is to be told with its log-probability, a
        # processor wants to see every position, or the parameters might forbid it.
        self.needs_all_logits = bool(
            params.logprobs is not None or processors or self._allowed is not None or self._bad_words
        )

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def adjusts(self) -> bool:
        """Whether `adjust` would change anything in this step."""
        return self._always_adjusts or self.token_bitmask is not None or self._is_too_short or self._error is not None

    def obey(self, token_bitmask: np.ndarray | None, *, must_end: bool = False, error: str | None = None) -> None:
        """For the next step. token_bitmask: see masks.apply_bitmask; None for no constraint, and applied by the sampler
        after `adjust`. must_end: it leaves nothing but the end, also before min_tokens. error: why there is none.
        """
        self.token_bitmask, self._must_end, self._error = token_bitmask, must_end, error

    def adjust(self, row: np.ndarray) -> None:
        """From the model's logits to those that are sampled from, in place. row: float32 [vocab_size], a copy.

        The order is vLLM's, with the operator's processors first: they cannot bring back what a request forbids.
        Raises SamplingError where a processor fails, or no token may follow.
        """
        if self._error is not None:
            raise SamplingError(self._error)
        self._process(row)
        if self._allowed is not None:
            masks.allow_only(row, self._allowed)
        if self._bad_words:
            longest = max(len(word) for word in self._bad_words)
            recent = self.token_ids[max(self.num_prompt_tokens, len(self.token_ids) - longest) :]
            masks.ban(row, masks.endings_of_bad_words(self._bad_words, recent))
        if self._is_too_short:
            masks.ban(row, self._stop_token_ids)
        if len(self._bias):
            row[self._bias_ids] += self._bias
        if self._penalties.active:
            self._penalties.apply(row, self.token_ids)

    @property
    def _is_too_short(self) -> bool:
        is_short = self.num_output_tokens < self.params.min_tokens and bool(self._stop_token_ids)
        return is_short and not self._must_end

    def is_stop(self, token_id: int) -> bool:
        """Whether it ends the request, or would if min_tokens did not keep it out."""
        return token_id in self._stops

    def may_follow(self, token_id: int, num_ahead: int, *, must_end: bool) -> bool:
        """Whether a token that the bitmask leaves alone would be sampled, whatever the logits, as long as not
        needs_all_logits. num_ahead: how many tokens after the output so far. must_end: as told to `obey` then.
        """
        is_short = self.num_output_tokens + num_ahead < self.params.min_tokens
        return must_end or not (is_short and token_id in self._stops)

    def _process(self, row: np.ndarray) -> None:
        if not self._processors:
            return
        logits = torch.from_numpy(row)
        output_token_ids = self.token_ids[self.num_prompt_tokens :]
        for processor in self._processors:
            logits = processor(list(self._prompt_token_ids), list(output_token_ids), logits)
        row[:] = logits.detach().to("cpu", torch.float32).numpy()
