"""A sample of what `./dev fuzz` does, without what guides it: seeds, what is near them, and noise."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS


def near(seed: bytes) -> st.SearchStrategy[bytes]:
    """A seed with some bytes cut out, changed or doubled."""
    places = st.integers(0, len(seed))
    return st.builds(
        lambda start, end, put: seed[: min(start, end)] + put + seed[max(start, end) :],
        places,
        places,
        st.one_of(st.binary(max_size=8), st.sampled_from([b"\0" * 512, b"9" * 40, b"\xff" * 12, seed[:512]])),
    )


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_are_read_or_refused(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds:
        target.run(seed)

    @settings(max_examples=100)
    @given(st.one_of(st.binary(max_size=600), *map(near, target.seeds)))
    def try_it(data: bytes) -> None:
        target.run(data)

    try_it()
