"""The library of the toy book."""
