"""The chapters carry no more code than is meant."""

from press.lines import too_long


def test_the_chapters_are_for_readers(book):
    assert list(too_long(book)) == []
