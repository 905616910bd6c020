"""What the repository's host runs is what runs at a desk: make targets, and nothing written twice."""

import re

import pytest
import yaml
from toybook import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.M))
MAKE = re.compile(r"make ([a-z-]+|\$\{\{ matrix\.(\w+) \}\})")


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request):
    return yaml.safe_load(request.param.read_text("utf-8"))


def steps(workflow):
    return [(job, step) for job in workflow["jobs"].values() for step in job["steps"]]


def test_there_are_workflows():
    assert len(WORKFLOWS) >= 3


def test_every_step_runs_a_target_of_the_makefile(workflow):
    for job, step in steps(workflow):
        if "run" not in step:
            continue
        match = MAKE.fullmatch(step["run"])
        assert match, f"{step['run']!r} is not one call of make: what it does belongs to the Makefile"
        called = job["strategy"]["matrix"][match[2]] if match[2] else [match[1]]
        assert set(called) <= TARGETS, f"{step['run']!r} calls what the Makefile has not: {set(called) - TARGETS}"


def test_actions_have_a_major_version_and_are_the_hosts_own(workflow):
    used = [step["uses"] for _, step in steps(workflow) if "uses" in step]
    odd = [name for name in used if not re.fullmatch(r"actions/[\w-]+@v\d+", name)]
    assert not odd, "another's action runs with the job's permissions; if it must, pin it by its digest"


def test_a_job_may_read_and_no_more_unless_it_says_so(workflow):
    assert workflow["permissions"] == {"contents": "read"}
    for job, step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False, "the token stays on disk for every later step"
        assert job["timeout-minutes"] <= 180, "a job without a limit runs for six hours"
    assert "group" in workflow["concurrency"]


def test_a_slip_can_be_reported_by_a_link_that_names_the_place():
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE/slip.yml").read_text("utf-8"))
    fields = [field["id"] for field in form["body"]]
    assert fields == ["where", "what", "contradiction", "version"], "links from pages fill the field `where`"
