"""Numbers as people write them."""

import pytest

from pellucid.cli.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("32K", 32768),
        ("32k", 32000),
        ("2GiB", 2 << 30),
        ("1.5GB", 1_500_000_000),
        ("512 MiB", 512 << 20),
        ("95.085GiB", 102096741335),
    ],
)
def test_sizes_read_as_people_write_them(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "1.5", "-4K", "4 parsecs", "1e3", "0x10"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"write for example|fraction"):
        parse_size(text)
