"""usage: vllm_worker.py HF_DIR ; vLLM's CPU build, bfloat16, two threads, prefix caching on."""

from __future__ import annotations

import os
import sys

from protocol import keep_stdout_clean, serve

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="2", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="WARNING", VLLM_CPU_OMP_THREADS_BIND="0-1"
)

if __name__ == "__main__":
    keep_stdout_clean()
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = LLM(sys.argv[1], dtype="bfloat16", max_model_len=4096, enable_prefix_caching=True, max_num_seqs=64)

    def run(prompts: list[list[int]], output_len: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True, detokenize=False)
        llm.generate([TokensPrompt(prompt_token_ids=prompt) for prompt in prompts], params, use_tqdm=False)

    serve(run, 40000)
