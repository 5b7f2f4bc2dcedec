"""The compiled module, where there is one."""

from __future__ import annotations

import importlib
import os
from typing import Any

# GGUF formats whose blocks are multiplied as they are. The others become dense when they are loaded.
NATIVE_BLOCK_FORMATS = frozenset({"q4_0", "q4_1", "q8_0", "q4_k", "q6_k"})


def load_native() -> tuple[Any | None, str]:
    """(pellucid_native, "") or (None, why it is not to be had, in a few words)."""
    if os.environ.get("PELLUCID_NO_NATIVE", "") not in ("", "0"):
        return None, "PELLUCID_NO_NATIVE is set"
    try:
        return importlib.import_module("pellucid_native"), ""
    except ImportError as error:
        if getattr(error, "name", None) == "pellucid_native":
            return None, "pellucid_native is not installed (pip install ./native)"
        return None, f"pellucid_native does not load: {error}"


def require_native() -> Any:
    """The module. Raises RuntimeError saying why it is not to be had."""
    native, reason = load_native()
    if native is None:
        raise RuntimeError(f"the CPU kernels are not available: {reason}")
    return native
