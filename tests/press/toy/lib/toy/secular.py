"""An exported module."""


def mean(gain, u=None):
    """The mean; :func:`toy.center` takes it away."""


def _helper():
    pass
