"""The whole book in one file: the built pages joined, printed as PDF."""
