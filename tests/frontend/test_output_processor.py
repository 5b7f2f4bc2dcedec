"""Whatever the steps bring at once and whenever the reader reads, the same text and tokens come out, aligned."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from vocabularies import byte_level

from pellucid.core.messages import EngineCoreOutput, EngineReady, FinishReason, TokenLogprob
from pellucid.frontend.output_processor import RequestProcessor
from pellucid.frontend.outputs import CompletionOutput
from pellucid.frontend.requests import RequestPreparer
from pellucid.sampling.params import SamplingParams

TABLE = byte_level()
READY = EngineReady(
    max_model_len=1000,
    num_blocks=100,
    block_size=16,
    vocab_size=300,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    device="",
    dtype="",
    kernels="",
)


def processor(**params: Any) -> RequestProcessor:
    prepared = RequestPreparer(TABLE, [1], READY).prepare("r", [72], SamplingParams(max_tokens=500, **params))
    return RequestProcessor(prepared, TABLE)


def logprob(token_id: int) -> TokenLogprob:
    return TokenLogprob([token_id], [-token_id / 7], [1])


def run(
    tokens: list[int],
    step_sizes: list[int],
    reads: list[bool],
    reason: FinishReason = FinishReason.LENGTH,
    **params: Any,
) -> tuple[CompletionOutput, list[CompletionOutput]]:
    """Feed the tokens in steps, read where `reads` says so; returns what was read as one, and the deltas."""
    request = processor(logprobs=0, **params)
    deltas: list[CompletionOutput] = []
    start, step = 0, 0
    while start < len(tokens) and not request.is_finished:
        size = step_sizes[step % len(step_sizes)]
        new = tokens[start : start + size]
        start += size
        request.process(
            EngineCoreOutput(
                request_id="r",
                new_token_ids=new,
                logprobs=[logprob(t) for t in new],
                finish_reason=reason if start >= len(tokens) else None,
            )
        )
        if reads[step % len(reads)]:
            deltas += request.take().outputs
        step += 1
    deltas += request.take().outputs
    whole = CompletionOutput(
        index=0,
        text="".join(d.text for d in deltas),
        token_ids=[t for d in deltas for t in d.token_ids],
        logprobs=[lp for d in deltas for lp in d.logprobs or []],
        finish_reason=deltas[-1].finish_reason,
        stop_reason=deltas[-1].stop_reason,
        seed=0,
    )
    return whole, deltas


texts = st.text(alphabet="ab é€😀", min_size=1, max_size=20).map(lambda t: list(t.encode()))
token_lists = st.one_of(texts, st.lists(st.integers(0, 268), min_size=1, max_size=20))
step_sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)
reads = st.lists(st.booleans(), min_size=1, max_size=5)
stops = st.lists(st.text(alphabet="ab é€", min_size=1, max_size=3), max_size=3).map(tuple)


@given(token_lists, step_sizes, reads, stops, st.integers(0, 8), st.booleans(), st.sampled_from(FinishReason))
def test_steps_and_reads_cannot_change_the_result(
    tokens: list[int],
    step_sizes: list[int],
    reads: list[bool],
    stops: tuple[str, ...],
    min_tokens: int,
    include: bool,
    reason: FinishReason,
) -> None:
    params = {"stop": stops, "min_tokens": min_tokens, "include_stop_str_in_output": include}
    one_by_one, _ = run(tokens, [1], [True], reason, **params)
    at_once, _ = run(tokens, [len(tokens)], [False], reason, **params)
    some, deltas = run(tokens, step_sizes, reads, reason, **params)
    assert one_by_one == at_once == some
    assert all(d.finish_reason is None for d in deltas[:-1])
    assert some.logprobs == [logprob(t) for t in some.token_ids]
    assert some.token_ids == tokens[: len(some.token_ids)]
    if some.stop_reason is None:
        assert some.token_ids == tokens
        if reason is not FinishReason.STOP:
            assert some.text == TABLE.decode(tokens)
    else:
        assert some.finish_reason is FinishReason.STOP
        assert some.stop_reason in stops
        assert len(some.token_ids) > min_tokens
        assert some.text.endswith(str(some.stop_reason)) or not include


@given(token_lists, stops)
@example([194, 264, 0], ("aa",))
def test_a_delta_holds_the_tokens_of_its_text(tokens: list[int], stops: tuple[str, ...]) -> None:
    """After each delta, the tokens released so far decode to the text released so far, or lead to more of it."""
    _, deltas = run(tokens, [1], [True], stop=stops)
    text, token_ids = "", []
    for delta in deltas[:-1]:
        text += delta.text
        token_ids += delta.token_ids
        # the last token may end within a code point, which alone decodes to U+FFFD and in the text is whole
        decoded, whole = TABLE.decode(token_ids).rstrip("\ufffd"), text.rstrip("\ufffd")
        assert decoded.startswith(whole) or text.startswith(decoded)
        # a token is not released before its text is
        assert len(TABLE.decode(token_ids)) <= len(text)


def test_a_partial_character_holds_its_tokens_back_and_a_stop_prefix_too() -> None:
    _, deltas = run([*b"a", *"€".encode(), *b"xyz"], [1], [True], stop=("xyW",))
    assert [(d.text, bytes(d.token_ids)) for d in deltas] == [
        ("a", b"a"),
        ("€", "€".encode()),
        ("xyz", b"xyz"),
    ]


def test_the_tokens_of_a_stop_string_are_reported_although_its_text_is_cut() -> None:
    whole, _ = run(list(b"one END two"), [1], [True], stop=("END",))
    assert (whole.text, bytes(whole.token_ids), whole.stop_reason) == ("one ", b"one END", "END")


def test_a_stop_string_tells_the_engine_to_stop_unless_it_has() -> None:
    request = processor(stop=("b",))
    assert request.process(EngineCoreOutput(request_id="r", new_token_ids=list(b"abc")))
    assert not request.process(EngineCoreOutput(request_id="r", new_token_ids=list(b"d")))
    request = processor(stop=("b",))
    last = EngineCoreOutput(request_id="r", new_token_ids=list(b"ab"), finish_reason=FinishReason.LENGTH)
    assert not request.process(last)
    assert request.take().outputs[0].finish_reason is FinishReason.STOP


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "ab")])
def test_the_stop_token_is_counted_and_is_text_only_when_asked_for(include: bool, text: str) -> None:
    request = processor(stop_token_ids=(98,), include_stop_str_in_output=include)
    request.process(
        EngineCoreOutput(request_id="r", new_token_ids=[97, 98], finish_reason=FinishReason.STOP, stop_reason=98)
    )
    [output] = request.take().outputs
    assert (output.text, output.token_ids, output.stop_reason) == (text, [97, 98], 98)


def test_without_detokenization_tokens_come_at_once_and_text_never() -> None:
    whole, deltas = run(list("€a".encode()), [1], [True], detokenize=False)
    assert whole.text == ""
    assert [len(d.token_ids) for d in deltas] == [1, 1, 1, 1]


def test_an_error_keeps_what_was_certain() -> None:
    request = processor()
    request.process(EngineCoreOutput(request_id="r", new_token_ids=[*b"ab", 0xE2]))
    request.process(EngineCoreOutput(request_id="r", finish_reason=FinishReason.ERROR, error="logits are NaN"))
    output = request.take()
    assert output.finished
    assert output.outputs[0].text.startswith("ab")
    assert output.outputs[0].error == request.error == "logits are NaN"


def test_prompt_logprobs_come_once_and_cached_tokens_are_those_of_the_first_continuation() -> None:
    request = processor(n=2, prompt_logprobs=0)
    request.process(EngineCoreOutput(request_id="r#1", new_token_ids=[97], num_cached_tokens=16))
    request.process(
        EngineCoreOutput(request_id="r#0", new_token_ids=[97], num_cached_tokens=3, prompt_logprobs=[logprob(5)])
    )
    output = request.take()
    assert output.num_cached_tokens == 3
    assert output.prompt_logprobs == [None, logprob(5)]
    request.process(EngineCoreOutput(request_id="r#0", new_token_ids=[98], num_cached_tokens=3))
    output = request.take()
    assert output.prompt_logprobs is None
    assert [c.index for c in output.outputs] == [0]
