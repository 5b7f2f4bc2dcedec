"""Which kernels run, and that the reason is said."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from pellucid.kernels.cpu.native import load_native
from pellucid.kernels.select import select_kernels

HAS_NATIVE, REASON = load_native()
needs_native = pytest.mark.skipif(HAS_NATIVE is None, reason=REASON or "it is there")


@needs_native
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_auto_takes_the_compiled_kernels(dtype: torch.dtype) -> None:
    choice = select_kernels("auto", "cpu", dtype, num_threads=1)
    assert (choice.kernels.name, choice.kernels.dtype) == ("cpu", dtype)
    assert "1 threads" in choice.reason


def test_auto_falls_back_to_torch_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELLUCID_NO_NATIVE", "1")
    choice = select_kernels("auto", "cpu", torch.bfloat16)
    assert choice.kernels.name == "torch"
    assert "PELLUCID_NO_NATIVE" in choice.reason
    with pytest.raises(RuntimeError, match="PELLUCID_NO_NATIVE"):
        select_kernels("cpu", "cpu", torch.bfloat16)


def test_a_dtype_without_compiled_kernels_runs_on_torch() -> None:
    choice = select_kernels("auto", "cpu", torch.float16)
    assert choice.kernels.name == "torch"
    assert "float16" in choice.reason


def test_torch_is_taken_when_asked_for_and_nonsense_is_refused() -> None:
    assert select_kernels("torch").kernels.name == "torch"
    with pytest.raises(ValueError, match="fast"):
        select_kernels("fast")
    with pytest.raises(ValueError, match="meta"):
        select_kernels("cpu", "meta")


@needs_native
def test_an_instruction_set_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELLUCID_ISA", "portable")
    assert "portable" in select_kernels("cpu", num_threads=1).reason
    monkeypatch.setenv("PELLUCID_ISA", "sse9")
    with pytest.raises(ValueError, match="available"):
        select_kernels("cpu")


def test_pellucid_works_without_the_compiled_module() -> None:
    """A machine without a compiler: the import fails, the torch kernels serve."""
    code = (
        "import sys; sys.modules['pellucid_native'] = None\n"
        "from pellucid.kernels.select import select_kernels\n"
        "choice = select_kernels()\n"
        "assert choice.kernels.name == 'torch', choice\n"
        "print(choice.reason)"
    )
    env = {name: value for name, value in os.environ.items() if name != "PELLUCID_NO_NATIVE"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert "pellucid_native" in result.stdout
