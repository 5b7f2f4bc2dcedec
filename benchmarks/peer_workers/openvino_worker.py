"""usage: openvino_worker.py OPENVINO_DIR ; OpenVINO GenAI's continuous batching pipeline, two threads."""

from __future__ import annotations

import sys

from protocol import keep_stdout_clean, serve

keep_stdout_clean()

import numpy as np  # noqa: E402
import openvino  # noqa: E402
import openvino_genai as genai  # noqa: E402

scheduler = genai.SchedulerConfig()
scheduler.cache_size = 2
scheduler.max_num_seqs = 64
scheduler.max_num_batched_tokens = 4096
scheduler.enable_prefix_caching = True
pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", {"INFERENCE_NUM_THREADS": 2})


def run(prompts: list[list[int]], output_len: int) -> None:
    config = genai.GenerationConfig()
    config.do_sample = False
    config.ignore_eos = True
    config.max_new_tokens = config.min_new_tokens = output_len
    inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
    pipeline.generate(inputs, [config] * len(inputs))


serve(run, 40000)
