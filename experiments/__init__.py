"""The long measurements behind the book's recorded numbers.

An experiment measures one point of a grid and returns its rows; the machine does the rest::

    from experiments.registry import experiment

    @experiment("losses", "Loss in nats a byte after 200 updates.", dict(rate=(1e-3, 3e-3), seed=range(3)), minutes=5,
                corpus="the standard library's documentation strings", seeds="0 to 2: of weights and batches")
    def losses(rate: float, seed: int) -> dict:
        return dict(loss=train(rate, seed))

``python -m experiments losses`` (``make experiments ONLY=losses``) measures all points in a pool of processes and
writes ``figures/data/losses.csv``, a row a point with the grid's columns first, and ``losses.json``, its provenance.  A
module in this folder needs no other mention.  What a chapter then reads is ``ng.recorded("losses")``.

* *Rows* are a dict, a list of dicts or a DataFrame.  Where ``what`` is a dict, of several records by name, they are a
  dict of such rows by record.  ``summary`` makes the table of a single record out of the rows of all points.
* *Interrupted*, the same command goes on: finished points are kept in ``_build/experiments``.
* *Fresh* is a record whose stamp, a digest of each module that it goes through, is that of the present code.  Comments
  and docstrings do not count; pictures and the machinery itself do not either.  ``--check`` names what is stale or
  missing, and fails.  Without names the command measures what is stale or missing, cheapest first.  To measure what is
  fresh again, delete its record.
* ``--restamp`` declares that a change of the code cannot have changed the named records.  Say why in the commit.
* Each process has one thread, unless the function asks for more.  ``workers=1`` is for speed: one point after the
  other, each in a fresh process.
"""
