"""What the hosting service reads: pinned, well-formed, and naming no repository."""

import json
import re
import subprocess

import pytest
import yaml
from helpers import ROOT

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
TEMPLATES = sorted(ROOT.glob(".github/ISSUE_TEMPLATE/a-*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_with_the_version_beside(path):
    used = re.findall(r"uses:\s*(.+)", path.read_text(encoding="utf-8"))
    assert used or path.stem == "none"
    for action in used:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_runs_exists(path):
    text = path.read_text(encoding="utf-8")
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    for target in re.findall(r"run: make ([\w-]+)", text):
        assert f"make {target} " in listed
    for name in re.findall(r"(?:tests|book|code|\.ci)/[\w./-]+", text):
        assert (ROOT / name).exists(), name


def test_the_files_that_the_makefile_names_exist():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    made = "code/normbook/lab/claims.json"
    names = set(re.findall(r"(?<![\w/])(?:tests|book|code)/[\w./-]*\w", text)) - {made}
    assert len(names) > 5
    assert not [name for name in names if not (ROOT / name).exists()]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_an_issue_template_asks_for_what_is_needed(path):
    template = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "title", "body"} <= template.keys()
    asked = [part["id"] for part in template["body"] if part.get("validations", {}).get("required")]
    assert len(asked) >= 3
    assert "make report" in path.read_text(encoding="utf-8")


def test_the_containers_use_the_pins():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    assert "make book" in container["postCreateCommand"]
    assert (ROOT / ".binder/requirements.txt").read_text() == "-r ../requirements.txt\n"


def test_make_help_lists_every_command():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    phony = re.search(r"^\.PHONY:(.*)$", makefile, re.M)[1].split()
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    assert {f"make {name}" for name in phony} == set(re.findall(r"make [\w-]+(?=\s\s)", listed))
