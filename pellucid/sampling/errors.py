"""What can go wrong with one row while its batch mates are fine."""

from __future__ import annotations

NO_TOKEN_LEFT = "no token is left to sample: allowed_token_ids, bad_words, min_tokens and constraints exclude every one"

# A constraint that the vocabulary has no token for (a byte it lacks, say) shows only there.
CANNOT_CONTINUE = "the output cannot be continued by its constraint"


class SamplingError(Exception):
    """This request alone has no next token; str() is what its user will read."""
