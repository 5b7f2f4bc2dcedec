"""What can go wrong with one row while its batch mates are fine."""

from __future__ import annotations


class SamplingError(Exception):
    """This request alone has no next token; str() is what its user will read."""
