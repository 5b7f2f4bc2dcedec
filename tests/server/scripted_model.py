"""A server whose engine is real but for the model: the tokens are bytes, and what it says follows from the prompt.

Run as a program it serves (`python scripted_model.py --port 0 --step-ms 5 ...`, see `main`); `build` is what its engine
process builds. The text of a prompt orders what is to happen:
  "say TEXT"  says TEXT and ends;   anything else says the alphabet, over and over, until it is stopped;
  "fail"      the request breaks in its third step.
The template refuses a message "refuse", and after a first one "alternate" all that is not user, assistant, user, ...
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from pellucid.config import EngineConfig
from pellucid.core.engine_core import EngineCore
from pellucid.core.kv_cache_manager import KVCacheManager
from pellucid.core.messages import EngineLoading, EngineReady, TokenLogprob
from pellucid.core.request import Request
from pellucid.core.scheduler import Scheduler, SchedulerConfig
from pellucid.core.scheduler_output import RunnerOutput, SampledRequest, SchedulerOutput
from pellucid.observability.bus import EventBus
from pellucid.observability.event_log import attach_event_log

EOS = 256
BOS = 257
VOCAB_SIZE = 258
BLOCK_SIZE = 16
SAY = b"say "
TEMPLATE = (
    "{% set alternates = messages[0].content == 'alternate' %}"
    "{% for m in messages %}"
    "{% if m.content == 'refuse' %}{{ raise_exception('no such talk') }}{% endif %}"
    "{% if alternates and loop.index0 and (m.role == 'user') != (loop.index0 % 2 == 1) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{{ m.content }}{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
)


class Script(msgspec.Struct):
    """What a test sets, passed to the engine as the name of its model."""

    step_ms: float = 1.0
    num_blocks: int = 4096
    max_model_len: int = 2048
    gate: str = ""  # a file: no step is made before it exists
    loads: str = ""  # a file: loading lasts until it exists
    fails: str = ""  # loading ends with this error


def say(prompt: bytes, index: int) -> int:
    """The token at `index` of the answer to a prompt."""
    line = prompt.split(b"\n")[-1]
    if line.startswith(SAY):
        answer = line[len(SAY) :]
        return answer[index] if index < len(answer) else EOS
    return ord("a") + index % 26


def prompt_of(request: Request) -> bytes:
    return bytes(token_id for token_id in request.value.prompt_token_ids if token_id < 256)


class ScriptedRunner:
    def __init__(self, script: Script) -> None:
        self.script = script

    def execute(self, scheduled: SchedulerOutput) -> RunnerOutput:
        while self.script.gate and not os.path.exists(self.script.gate):
            time.sleep(0.005)
        time.sleep(self.script.step_ms / 1000)
        return RunnerOutput([self._result(share.request, share.start, share.num_tokens, share.samples)
                             for share in scheduled.requests])  # fmt: skip

    def _result(self, request: Request, start: int, num_tokens: int, samples: bool) -> SampledRequest:
        params, prompt = request.sampling_params, prompt_of(request)
        if prompt.endswith(b"fail") and request.num_output_tokens == 2:
            return SampledRequest(error="the model step failed: scripted")
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            last = min(start + num_tokens, request.num_prompt_tokens - 1)
            prompt_logprobs = [
                self._logprob(request.token_ids[i + 1], params.prompt_logprobs) for i in range(start, last)
            ]
        if not samples:
            return SampledRequest(prompt_logprobs=prompt_logprobs)
        token_id = say(prompt, request.num_output_tokens)
        if params.temperature > 0 and token_id < 128 and chr(token_id).isalpha():  # a seed shows in the case of letters
            token_id ^= 0x20 if hash((params.seed, request.num_output_tokens)) % 2 else 0
        logprobs = None if params.logprobs is None else [self._logprob(token_id, params.logprobs)]
        return SampledRequest(token_ids=[token_id], logprobs=logprobs, prompt_logprobs=prompt_logprobs)

    @staticmethod
    def _logprob(token_id: int, num_top: int) -> TokenLogprob:
        """The token that stands there is the likeliest; the others are its neighbours."""
        others = [(token_id + i) % 256 for i in range(1, num_top)]
        return TokenLogprob(
            token_ids=[token_id, *others],
            logprobs=[-0.25 - i for i in range(1 + len(others))],
            ranks=list(range(1, 2 + len(others))),
        )


def build(
    config: EngineConfig, on_progress: Callable[[EngineLoading], None] = lambda _: None
) -> tuple[EngineCore, EngineReady]:
    script = msgspec.json.decode(config.model, type=Script)
    on_progress(EngineLoading(stage="learning the script", fraction=0.5))
    while script.loads and not os.path.exists(script.loads):
        time.sleep(0.01)
    if script.fails:
        raise ValueError(script.fails)
    bus = EventBus()
    attach_event_log(bus, config.log_level)
    kv = KVCacheManager(script.num_blocks, BLOCK_SIZE, config.enable_prefix_caching, bus)
    limits = SchedulerConfig(config.max_num_seqs, 2048, script.max_model_len)
    core = EngineCore(Scheduler(limits, kv, bus), ScriptedRunner(script), VOCAB_SIZE, bus)
    ready = EngineReady(
        max_model_len=script.max_model_len,
        num_blocks=script.num_blocks,
        block_size=BLOCK_SIZE,
        vocab_size=VOCAB_SIZE,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=2048,
        device="none",
        dtype="none",
        kernels="scripted",
    )
    return core, ready


def make_tokenizer() -> Any:
    """Byte-level without merges: a token is a byte, and its id is its value."""
    from pellucid.frontend.chat_template import ChatTemplate
    from pellucid.frontend.tokenizer import BYTE_OF_CHARACTER, Tokenizer

    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=dict(BYTE_OF_CHARACTER), merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", "<bos>"])
    template = ChatTemplate({"default": TEMPLATE})
    return Tokenizer(backend, {"eos_token": "<eos>", "bos_token": "<bos>"}, template)


async def load(config: EngineConfig, options: Any, show: Callable[[str], None]) -> Any:
    """What `serve` is given in place of its own loader."""
    from pellucid.engine.subprocess_client import SubprocessEngineClient
    from pellucid.frontend.async_llm import AsyncLLM

    client = SubprocessEngineClient(config, builder="scripted_model:build")
    return AsyncLLM(
        client,
        make_tokenizer(),
        max_queue=options.max_queue,
        request_timeout_s=options.request_timeout_s,
    )


def main() -> int:
    """argv: JSON of {"script": {...}, "config": {...}, "options": {...}}."""
    from pellucid.server.options import ServerOptions
    from pellucid.server.run import serve

    given = msgspec.json.decode(sys.argv[1])
    config = EngineConfig(model=msgspec.json.encode(given["script"]).decode(), served_model_name="m", **given["config"])
    return serve(config, msgspec.convert(given["options"], ServerOptions), load=load)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    raise SystemExit(main())
