"""The pages that newcomers read are about what is there."""

import re
from pathlib import Path

import pytest

from ops.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "worker", "scheduler", "tokenizer_service", "ops")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def sections() -> dict[str, str]:
    """Return what the architecture page says of each package."""
    text = (ROOT / "docs" / "architecture.md").read_text().split("## Where things are")[1]
    found = re.findall(r"^### `(\w+)`[^\n]*\n(.*?)(?=^### |\Z)", text, re.MULTILINE | re.DOTALL)
    return dict(found)


def test_every_package_has_its_section() -> None:
    assert tuple(sections()) == PACKAGES


def named(package: str) -> set[str]:
    """Return modules and folders that a section names."""
    words = set(re.findall(r"`([\w/]+)`", sections()[package]))
    return words - {package}


@pytest.mark.parametrize("package", PACKAGES)
def test_what_the_architecture_page_names_is_there(package: str) -> None:
    there = {path.relative_to(ROOT / package) for path in (ROOT / package).rglob("*")}
    tails = {"/".join(p.with_suffix("").parts[-n:]) for p in there for n in (1, 2)}
    assert named(package) <= tails


@pytest.mark.parametrize("package", PACKAGES)
def test_every_top_module_and_folder_is_named(package: str) -> None:
    names = named(package) | {name.split("/")[0] for name in named(package)}
    for path in (ROOT / package).iterdir():
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists():
            assert path.stem in names, path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_names_only_commands_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    used = re.findall(r"(?:bin/|`)tandem ([a-z]+)", text)
    assert {"serve", "swap", "doctor"} <= set(used) <= set(COMMANDS)


def test_make_targets_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z][a-z-]*)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
