"""The wheel in an environment of its own, which has no folder of the repository: what is installed works."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from test_readme import snippet

SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs(root, tmp_path_factory) -> Path:
    """Where the programs of that environment are; dependencies are this session's."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(["uv", "build", "--quiet", "--no-build-isolation", "--out-dir", folder, root], check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    programs, (wheel,) = folder / "venv/bin", folder.glob("*.whl")
    subprocess.run([programs / "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True, env={})
    site = subprocess.check_output([programs / "python", "-c", SITE], text=True, env={})
    Path(site.strip(), "dependencies.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    return programs


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["python", "-c", "import normgeom; print(normgeom.__file__)"], "/venv/lib"),
        (["normgeom", "--help"], "survey"),
        (["python", "-c", snippet()], "torch.Size([8, 64])"),
        (["python", "-c", "import normgeom as ng; print(ng.recorded('training-loss').provenance)"], "GPT-2"),
    ],
    ids=["import", "command", "README", "records"],
)
def test_what_is_installed_works(programs, tmp_path, command, said):
    run = [programs / command[0], *command[1:]]
    done = subprocess.run(run, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.returncode == 0 and said in done.stdout, done.stderr
