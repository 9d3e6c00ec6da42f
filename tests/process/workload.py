"""Varied prompts, their undisturbed answers, and the comparison with what a disturbed run gave."""

import asyncio
from dataclasses import dataclass

from tests.process import oracle
from tests.process.server import Answer, Ask, Client

TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived a fisherman who",
    "def fibonacci(n):\n    ",
    "List the first ten prime numbers: 2, 3, 5,",
    "In 1969, astronauts landed on the Moon. This event",
    "La lune est belle ce soir, et les étoiles",
    "Water boils at 100 degrees because",
    "Dear Sir or Madam,\n\nI am writing to",
)
PREAMBLE = "The following is a long list of facts about rivers, mountains and cities. " * 12


def asks(max_tokens: int) -> list[Ask]:
    """Return different requests, short and longer ones, some of which share a prefix."""
    short = [Ask(oracle.encode(text), max_tokens) for text in TEXTS]
    longer = [Ask(oracle.encode(PREAMBLE + text), max_tokens) for text in TEXTS[:4]]
    return short + longer


async def undisturbed(client: Client, wanted: list[Ask]) -> dict[Ask, str]:
    """Return each answer, asked alone."""
    return {ask: (await client.stream(ask)).text for ask in wanted}


@dataclass
class Report:
    """How answers compared with their undisturbed runs."""

    equal: int = 0
    ties: int = 0
    """Answers that differ, each explained by a tie (see `oracle`)."""

    def __str__(self) -> str:
        return f"{self.equal} streams equal their undisturbed runs, {self.ties} differ at a tie"


async def compare(answers: list[tuple[Ask, Answer]], expected: dict[Ask, str]) -> Report:
    """Judge every answer. Raises oracle.Differs for one that no tie explains."""
    report, judged = Report(), set()
    for ask, answer in answers:
        if answer.text == expected[ask]:
            report.equal += 1
            continue
        report.ties += 1
        if (ask, answer.text) not in judged:
            judged.add((ask, answer.text))
            await asyncio.to_thread(oracle.judge, ask.prompt, answer.text, ask.max_tokens)
    return report
