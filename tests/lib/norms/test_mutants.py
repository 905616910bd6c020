"""Each wrong norm of the zoo is killed, and by a check whose message names the mistake; every check kills one."""

from functools import cache

import mutants
import norm_checks
import pytest

ZOOS = {
    "layer_norm": (mutants.LAYER_NORMS, norm_checks.true_layer_norm),
    "rms_norm": (mutants.RMS_NORMS, norm_checks.true_rms_norm),
}
CASES = [(kind, name) for kind, (zoo, _) in ZOOS.items() for name in zoo]


@cache
def killed(kind, name):
    zoo, truth = ZOOS[kind]
    return norm_checks.failures(zoo[name][0], truth)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_wrong_norm_is_killed_by_name(kind, name):
    found, word = killed(kind, name), ZOOS[kind][0][name][1]
    assert found, "no check tells this mistake from the right norm"
    assert any(word in message for message in found.values()), f"killed, but no message says {word!r}: {found}"


@pytest.mark.parametrize("check", norm_checks.CHECKS, ids=lambda check: check.__name__)
def test_every_check_kills_something(check):
    assert any(check.__name__ in killed(*case) for case in CASES), f"{check.__name__} lets every wrong norm pass"
