"""Each wrong norm of the zoo is killed, and by a check whose message names the mistake."""

import mutants
import norm_checks
import normgeom as ng
import pytest

_CASES = [
    pytest.param(wrong, truth, word, id=f"{kind}: {name}")
    for kind, zoo, truth in (
        ("layer_norm", mutants.LAYER_NORMS, norm_checks.true_layer_norm),
        ("rms_norm", mutants.RMS_NORMS, norm_checks.true_rms_norm),
    )
    for name, (wrong, word) in zoo.items()
]
_PAIRS = [(ng.layer_norm, norm_checks.true_layer_norm), (ng.rms_norm, norm_checks.true_rms_norm)]


@pytest.mark.parametrize("check", norm_checks.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("norm", "truth"), _PAIRS, ids=["layer_norm", "rms_norm"])
def test_the_right_norm_passes(check, norm, truth):
    check(norm, truth)


@pytest.mark.parametrize(("wrong", "truth", "word"), _CASES)
def test_a_wrong_norm_is_killed_by_name(wrong, truth, word):
    killed = norm_checks.failures(wrong, truth)
    assert killed, "no check tells this mistake from the right norm"
    told = [check for check, message in killed.items() if word in message]
    assert told, f"killed, but no message says {word!r}: {killed}"
    print("killed by", ", ".join(killed))


@pytest.mark.parametrize("check", norm_checks.CHECKS, ids=lambda check: check.__name__)
def test_every_check_kills_something(check):
    killed = [
        name
        for zoo, truth in (
            (mutants.LAYER_NORMS, norm_checks.true_layer_norm),
            (mutants.RMS_NORMS, norm_checks.true_rms_norm),
        )
        for name, (wrong, _) in zoo.items()
        if check.__name__ in norm_checks.failures(wrong, truth, only=[check])
    ]
    assert killed, f"{check.__name__} lets every wrong norm pass"
