"""The README's snippet runs as it is printed."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def snippet():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.S)
    return code


def test_the_snippet_runs(capsys):
    exec(compile(snippet(), README.name, "exec"), {})
    found, *_ = printed = capsys.readouterr().out.splitlines()
    assert found.count("NormSite(") == 5 and printed[-1] == "torch.Size([8, 64])"
    assert any(line.split() == ["part", "credit", "direct", "total", "kappa"] for line in printed)
    assert sum(" head " in line for line in printed) == 8 and any(" baseline " in line for line in printed)
    (change,) = (line for line in printed if "MaxBackward" in line)
    assert float(re.search(r"tensor\(([^,]+),", change)[1]) < 1e-4, "another function"
