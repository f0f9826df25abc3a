"""Rule 35: reference is what the code says, links lead somewhere, and no page names what isn't there."""

import re
from pathlib import Path

import pytest

from stoker.brain.state.wait_reason import WAIT_CODES
from tools import gen_reference
from tools.reference import rest, settings
from tools.reference.commands import every

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
LATER = {"kube"}
"""Words of commands that pages may mention as things to come."""


def test_the_generated_reference_is_what_the_code_says() -> None:
    assert list(gen_reference.stale()) == [], "run `make reference` and commit what changes"


def test_every_setting_has_its_sentence() -> None:
    assert settings.undocumented() == []


def test_everything_that_a_program_may_send_has_its_sentence() -> None:
    assert rest.undocumented() == []


def test_every_command_says_what_it_does() -> None:
    assert [path for path, command in every() if not command.help] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    known = {path.split()[1] for path, _ in every()}
    shown = re.findall(r"(?:^ {4}|`)stoker ([a-z]+)", page.read_text(), re.MULTILINE)
    assert [word for word in shown if word not in known | LATER] == []


def test_no_command_that_is_there_counts_as_one_to_come() -> None:
    assert LATER & {path.split()[1] for path, _ in every()} == set()


def test_every_command_that_a_hint_tells_people_to_run_exists() -> None:
    """A page may look ahead; a hint is followed at once."""
    known = {path.split()[1] for path, _ in every()}
    lines = [
        (path.relative_to(ROOT), word)
        for path in sorted((ROOT / "src").rglob("*.py"))
        for word in re.findall(r"`stoker ([a-z]+)", path.read_text())
    ]
    assert [line for line in lines if line[1] not in known] == []


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_that_the_guides_name_exists(name: str) -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|proto|txt))`", (ROOT / name).read_text())
    rooms = (ROOT, ROOT / "src" / "stoker", ROOT / "src" / "stoker" / "brain" / "state")
    placeholder = "admit/dispatch.py"
    missing = [path for path in named if not any((room / path).exists() for room in rooms)]
    assert missing == [], f"(as {placeholder} is found below brain/state)"


def test_every_reason_for_which_a_job_waits_is_on_the_page_for_people() -> None:
    page = (ROOT / "docs" / "howto" / "why-is-my-job-waiting.md").read_text()
    assert [code.value for code in WAIT_CODES if f"`{code.value}`" not in page] == []


@pytest.mark.parametrize(
    ("promised", "page"),
    [
        ("API reference", "reference/rest.md"),
        ("deployment guide", "howto/run-as-daemons.md"),
        ("troubleshooting guide", "howto/why-is-my-job-waiting.md"),
        ("getting started", "tutorial/first-job.md"),
    ],
)
def test_the_documents_that_the_seeds_promise_are_there_and_on_the_front_page(promised: str, page: str) -> None:
    assert (ROOT / "docs" / page).read_text().strip(), promised
    assert f"({page})" in (ROOT / "docs" / "README.md").read_text(), promised


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    assert [page.name for page in sorted(folder.glob("0*.md")) if f"({page.name})" not in index] == []


def test_every_page_of_the_documents_is_reachable_from_their_front_page() -> None:
    front = (ROOT / "docs" / "README.md").read_text() + (ROOT / "docs" / "adr" / "README.md").read_text()
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name != "README.md"]
    assert [page.name for page in sorted(pages) if page.name not in front] == []
