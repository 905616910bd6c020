"""Programs that write recorded measurements to figures/data: `python -m records --help`."""
