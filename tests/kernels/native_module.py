"""The compiled module, or a skipped test file where there is none (no compiler, or PELLUCID_NO_NATIVE is set)."""

from __future__ import annotations

from typing import Any

import pytest

from pellucid.kernels.cpu.native import load_native


def native_or_skip() -> Any:
    native, reason = load_native()
    if native is None:
        pytest.skip(reason, allow_module_level=True)
    return native
