"""The long measurements behind the book's recorded numbers.

An experiment is a function that measures one point of a grid and returns rows; the registry does the rest::

    from experiments.registry import experiment

    @experiment("losses", "Loss in nats per byte after 200 steps.", dict(rate=(1e-3, 3e-3), seed=range(3)), minutes=5,
                corpus="the standard library's documentation strings", seeds="0 to 2, for weights and batches")
    def losses(rate: float, seed: int) -> dict:
        return dict(loss=train(rate, seed))

``python -m experiments losses`` (``make experiments ONLY=losses``) measures all points in a pool of processes and
writes ``figures/data/losses.csv``, one row per point with the grid's columns first, and ``losses.json``, its
provenance.  A new module in this folder is found without being listed.  A chapter reads ``ng.recorded("losses")``.

* A function returns *rows* as a dict, a list of dicts or a DataFrame; if ``what`` is a dict that describes several
  records by name, it returns a dict of such rows by record.  ``summary`` makes the table of a single record from the
  rows of all points.
* After an *interruption*, the same command continues: finished points are kept in ``_build/experiments``.
* A record is *fresh* if its stamp, with a digest of each module that the measurement uses, matches the present code.
  Comments, docstrings, pictures and this machinery do not count.  ``--check`` lists stale and missing records and then
  fails.  Without names, the command measures these, the cheapest first.  To repeat a fresh one, delete its record.
* ``--restamp`` declares that a change of the code cannot have changed the named records.  Say why in the commit.
* Each process uses one thread unless the function asks for more.  ``workers=1`` is for measurements of speed: it runs
  one point after the other, each in a fresh process.
"""
