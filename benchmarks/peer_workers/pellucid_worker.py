"""usage: pellucid_worker.py MODEL [int8|int4] ; this product, in process, through the public LLM class.

Before the first measurement every block of the pool has been written to once, as in a server that has been up for a
while: the peers use the same memory for every batch, and new memory costs a virtual machine more than a prefill does.
"""

from __future__ import annotations

import sys

from protocol import keep_stdout_clean, serve

keep_stdout_clean()

from pellucid import LLM, SamplingParams  # noqa: E402

llm = LLM(
    sys.argv[1],
    quantization=sys.argv[2] if len(sys.argv) > 2 else None,
    int4_rounding="nearest",  # as fast as any other, and loaded at once
    max_model_len=4096,
    max_num_seqs=64,
    kv_cache_memory=1 << 30,
)


def run(prompts: list[list[int]], output_len: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)
    llm.generate(prompts, params, use_tqdm=False)


longest = llm.ready.max_model_len - 1
for number in range(llm.ready.num_blocks * llm.ready.block_size // longest + 1):
    run([[10 + (number + i) % 1000 for i in range(longest)]], 1)
serve(run, llm.ready.vocab_size)
