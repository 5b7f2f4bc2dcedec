"""Typed and bounded reading of a mapping that came from a model's file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pellucid.loader.errors import ModelConfigError

_REQUIRED = object()


class Fields:
    """origin: the file, for the errors. Each getter takes a default; without one the field must be there.

    Raises ModelConfigError where a value is missing, of another type or out of its bounds. null counts as absent.
    """

    def __init__(self, values: Any, origin: str) -> None:
        if not isinstance(values, Mapping):
            raise ModelConfigError(f"{origin}: expected an object, found {type(values).__name__}")
        self.values: Mapping[str, Any] = values
        self.origin = origin

    def error(self, name: str, expected: str) -> ModelConfigError:
        return ModelConfigError(f"{self.origin}: {name} is {self.values.get(name)!r}, expected {expected}")

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ModelConfigError(f"{self.origin}: {name} is missing")
        return default

    def integer(self, name: str, default: Any = _REQUIRED, *, low: int = 1, high: int) -> Any:
        """int, or the default as it is."""
        value = self._get(name, default)
        if value is default:
            return value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: Any = _REQUIRED, *, low: float, high: float) -> Any:
        """float, or the default as it is."""
        value = self._get(name, default)
        if value is default:
            return value
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not low <= value <= high:
            raise self.error(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def boolean(self, name: str, default: Any = _REQUIRED) -> Any:
        value = self._get(name, default)
        if value is not default and not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> Any:
        value = self._get(name, default)
        if value is not default and not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One id or a list of them; () where the field is absent."""
        value = self._get(name, ())
        ids = value if isinstance(value, (list, tuple)) else [value]
        if len(ids) > 1000 or any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < 1 << 31 for i in ids):
            raise self.error(name, "a token id or a list of them")
        return tuple(dict.fromkeys(ids))
