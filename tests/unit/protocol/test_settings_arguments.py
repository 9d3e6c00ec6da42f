"""`arguments` is the inverse of `parse`."""

from enum import StrEnum
from typing import Annotated

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from protocol.settings import arguments, parse


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Settings(Struct, frozen=True, kw_only=True):
    name: str
    count: Annotated[int, Meta(ge=-5)] = 3
    share: float = 0.5
    colour: Colour = Colour.RED
    eager: bool = False
    eager_too: bool = True
    nothing: int | None = None
    option: tuple[str, ...] = ()


SETTINGS = st.builds(
    Settings,
    name=st.text(st.characters(codec="ascii"), min_size=1),
    count=st.integers(-5, 10**12),
    share=st.floats(allow_nan=False),
    colour=st.sampled_from(Colour),
    eager=st.booleans(),
    eager_too=st.booleans(),
    nothing=st.none() | st.integers(-(10**9), 10**9),
    option=st.lists(st.from_regex(r"[a-z]+=[^-\s]*", fullmatch=True)).map(tuple),
)


@given(SETTINGS)
def test_a_child_reads_back_what_its_parent_meant(settings: Settings) -> None:
    line = arguments(settings)
    assert parse(Settings, line, {}, prog="child", description="") == settings


def test_the_childs_environment_changes_nothing() -> None:
    settings = Settings(name="x")
    environment = {"TANDEM_COUNT": "9", "TANDEM_EAGER": "true", "TANDEM_OPTION": "a=1"}
    line = arguments(settings)
    assert parse(Settings, line, environment, prog="child", description="") == settings
