"""How near the tests come to their bounds: run it as ``python tests/margins.py``.

It runs them under several roundings.

Every comparison that passes is a number below a bound.  A bound that was fitted to one processor's rounding is passed
narrowly, and on some other machine not at all.  The plugin notes, for each line that compares, the largest share of
the bound that was used: by ``assert a <= b`` with numbers in it, ``norm_checks.close``, ``torch.testing.assert_close``
and ``pytest.approx``.  Lines that use more than a quarter are listed, unless a comment that begins with ``# margin:``,
on the line or just above it, says why that is enough.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent
ENOUGH = 0.25  # of the bound
NAMED = "# margin:"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
BELOW = re.compile(rf"(?<![\w.])({NUMBER})\)? <=? ({NUMBER})(?![\w.(])")
SMALL = 0.2  # a bound above this is no matter of rounding


def pytest_addoption(parser):
    parser.addoption("--margins", metavar="FILE", help="JSON with the shares of this and of earlier runs")


def pytest_configure(config):
    if path := config.getoption("--margins"):
        config.pluginmanager.register(Margins(Path(path)), "margins of bounds")


class Margins:
    """Collects shares of bounds; merges them with what FILE holds."""

    def __init__(self, path: Path):
        self.path = path
        self.shares: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        self._watch(torch.testing, "assert_close", _share_of_close)

    def note(self, place: str, share: float) -> None:
        self.shares[place] = max(self.shares.get(place, 0.0), share)

    @pytest.hookimpl
    def pytest_assertion_pass(self, item, lineno, expl):
        for value, bound in BELOW.findall(expl.partition("\n")[0]):
            value, bound = float(value), float(bound)
            if 0 < bound <= SMALL:
                self.note(f"{_file(item.path)}:{lineno}", abs(value) / bound)

    def pytest_collection_finish(self):
        if "norm_checks" in sys.modules:
            module = sys.modules["norm_checks"]
            for name, other in list(sys.modules.items()):
                if name.startswith("test_") and getattr(other, "close", None) is module.close:
                    self._watch(other, "close", _share_of_norms)
        approx = type(pytest.approx(1.0))
        equal = approx.__eq__

        def watched(this, actual):
            if (share := _share_of_approx(this, actual)) is not None:
                self.note(_caller(), share)
            return equal(this, actual)

        approx.__eq__ = watched

    def pytest_sessionfinish(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.shares, indent=1, sort_keys=True))

    def _watch(self, module, name, share):
        wrapped = getattr(module, name)

        def watched(*args, **options):
            wrapped(*args, **options)
            if (value := share(*args, **options)) is not None:
                self.note(_caller(), value)

        setattr(module, name, watched)


def _share_of_close(actual, expected, *, rtol=None, atol=None, **options) -> float | None:
    if not (isinstance(actual, torch.Tensor) and isinstance(expected, torch.Tensor)) or rtol is None:
        return None
    allowed = atol + rtol * expected.detach().double().abs()
    return _largest((actual.detach().double() - expected.detach().double()).abs() / allowed)


def _share_of_norms(got, expected, tol, *_) -> float | None:
    return _largest((got.detach().double() - expected.detach().double()).abs() / tol)


def _share_of_approx(approx, actual) -> float | None:
    try:
        share = abs(float(approx.expected) - float(actual)) / float(approx.tolerance)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return share if share <= 1 else None


def _largest(shares: torch.Tensor) -> float | None:
    shares = shares[torch.isfinite(shares)]
    return float(shares.max()) if shares.numel() else None


def _file(path: Path) -> str:
    return Path(path).relative_to(TESTS).as_posix()


def _caller() -> str:
    frame = sys._getframe(1)
    while frame:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(TESTS) and path.name != "margins.py":
            return f"{_file(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return "?:0"


def roundings() -> dict[str, dict[str, str]]:
    """Settings of the environment under which this processor rounds in another way."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    known = {"avx2": "avx2", "avx512": "avx512f"}
    vectors = ["default", *(name for name, flag in known.items() if flag in flags)]
    if len(vectors) < 3:
        print(f"this processor has only {', '.join(vectors)} of default, avx2 and avx512: the others are not tried")
    settings = {name: {"ATEN_CPU_CAPABILITY": name} for name in vectors}
    return settings | {"two threads": {"OMP_NUM_THREADS": "2"}, "compatible MKL": {"MKL_CBWR": "COMPATIBLE"}}


def run(setting: dict[str, str], path: Path) -> int:
    """The numerical tests of the library in another order, its seed printed, with this plugin."""
    # tests that were compiled without the hook must not be taken from the cache
    setting = {"PYTHONPYCACHEPREFIX": str(path.with_name("pycache")), "OMP_NUM_THREADS": "1", **setting}
    hook, options = "enable_assertion_pass_hook=true", "addopts=-q --strict-markers -p no:cacheprovider"
    chosen = ["-m", "numerical and not slow and not compiles", str(TESTS / "lib")]
    command = ["-m", "pytest", "-p", "margins", f"--margins={path}", "-o", hook, "-o", options, *chosen]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, *command], env=environment | setting).returncode


def unnamed(path: Path) -> list[str]:
    """The lines that use more than :data:`ENOUGH` of their bound and do not say why."""
    found = []
    for place, share in sorted(json.loads(path.read_text()).items(), key=lambda entry: -entry[1]):
        file, _, line = place.rpartition(":")
        if ENOUGH < share < math.inf and (TESTS / file).exists():
            near = (TESTS / file).read_text("utf-8").splitlines()[max(0, int(line) - 4) : int(line)]
            if not any(NAMED in text for text in near):
                found.append(f"{share:6.1%}  tests/{place}  {near[-1].strip()}")
    return found


def main() -> int:
    path = TESTS.parent / "_build/margins/shares.json"
    path.unlink(missing_ok=True)
    failed = []
    for name, setting in roundings().items():
        print(f"{name}:", flush=True)
        if run(setting, path):
            failed.append(name)
    lines = unnamed(path)
    print(*lines, f"{len(lines)} bounds use more than {ENOUGH:.0%} and do not say why", sep="\n")
    print(f"red under: {', '.join(failed) or 'none'}")
    return bool(lines or failed)


if __name__ == "__main__":
    sys.exit(main())
