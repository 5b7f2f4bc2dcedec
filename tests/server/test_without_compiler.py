"""Where nobody has compiled the native kernels, the torch kernels serve."""

from __future__ import annotations

from pathlib import Path

from harness import serving
from small_model import NAME, make_checkpoint


def test_the_torch_kernels_serve_and_the_start_says_so_and_why(tmp_path: Path) -> None:
    options = [str(make_checkpoint(tmp_path)), "--served-model-name", NAME, "--num-kv-blocks", "64"]
    with serving(*options, PELLUCID_NO_NATIVE="1") as server:
        answer = server.post("/v1/completions", model=NAME, prompt="The mill", max_tokens=5, temperature=0).json()
        assert answer["usage"]["completion_tokens"] == 5
        assert answer["choices"][0]["finish_reason"] == "length"
    (line,) = (line for line in server.output if "kernels" in line)
    assert ", torch kernels: PELLUCID_NO_NATIVE is set; context " in line
