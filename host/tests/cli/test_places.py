"""How much is in a home is told without reading a disk for minutes."""

from pathlib import Path

import pytest

from sandport.cli import places


@pytest.mark.parametrize(("folders", "files"), [(30, 0), (0, 30), (15, 15)])
def test_a_measure_ends_with_the_number_of_entries_whatever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: int, files: int
) -> None:
    """A tree of empty folders was walked to its end."""
    root = tmp_path / "workers" / "local"
    root.mkdir(parents=True)
    root.joinpath(*["d"] * folders).mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (root / f"f{number}").touch()
    for most, whole in ((20, False), (30, True)):
        monkeypatch.setattr(places, "_MOST_ENTRIES", most)
        (place,) = places.look_at_places(tmp_path).places
        assert place.whole == whole
