"""Days that exist: the compiler's own "date" knows the length of the months, but no leap years, and a year 0000."""

from __future__ import annotations

from typing import Any

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
# How a text of the format begins; the rest of it is the compiler's to see to.
_A_DAY_THAT_EXISTS = f"^(?:{_YEAR}-(?:0[13-9]|1[0-2]|02-[01]|02-2[0-8])|{_LEAP_YEAR}-02-29)"
_FORMATS = ("date", "date-time")
_NO_SCHEMAS = ("const", "enum", "default", "examples")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")  # schemas under names of their makers' choice


def with_days_that_exist(schema: Any) -> Any:
    """The schema with a pattern wherever it has the format `date` or `date-time` (RFC 3339, section 5.7)."""
    if isinstance(schema, list):
        return [with_days_that_exist(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, dict):
            result[key] = {name: with_days_that_exist(item) for name, item in value.items()}
        else:
            result[key] = value if key in _NO_SCHEMAS else with_days_that_exist(value)
    if schema.get("format") in _FORMATS:
        others = result.get("allOf", [])
        if "pattern" not in schema:
            result["pattern"] = _A_DAY_THAT_EXISTS
        elif isinstance(others, list):  # what else it may be is the compiler's to refuse
            result["allOf"] = [*others, {"pattern": _A_DAY_THAT_EXISTS}]
    return result
