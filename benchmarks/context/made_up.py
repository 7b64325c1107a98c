"""Conversations that nobody has tuned anything on: small talk with a fact now and then, drawn from a seed.

The facts are of the kinds that people ask an assistant about later: names, places, figures, days, and plain
words. Each is told once or twice, in one of several ways, and asked for in other words.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from .memory import Scenario

TURNS = 80
_FACTS = 30


class _Kind(NamedTuple):
    ways: tuple[str, ...]
    question: str
    answers: tuple[str, ...]


_KINDS = (
    _Kind(
        ("My {who} moved to {} for the new job.", "These days {} is where my {who} lives."),
        "In which town does my {who} live?",
        ("Porto", "Gdansk", "Leeds", "Tampa", "Bergen", "Osaka", "Turin", "Quito", "Malmo", "Perth"),
    ),
    _Kind(
        ("My {who} is called {}.", "You would like {}, that is my {who}."),
        "What is the name of my {who}?",
        ("Ines", "Tobias", "Marguerite", "Anselm", "Priya", "Kofi", "Yusuf", "Hedda", "Rosalind", "Bao"),
    ),
    _Kind(
        ("I paid {} euros for the {thing}.", "The {thing} came to {} euros with everything."),
        "How much did I pay for the {thing}?",
        ("412", "89.50", "1,240", "37", "265", "718", "54.20", "930", "146", "3,300"),
    ),
    _Kind(
        (
            "We pick up the {thing} on the {} of next month.",
            "The {thing} will be ready on the {}.",
        ),
        "On which day can the {thing} be picked up?",
        ("3rd", "9th", "11th", "14th", "17th", "19th", "22nd", "24th", "26th", "28th"),
    ),
    _Kind(
        ("The code of the {place} is {}.", "If you ever need to get into the {place}, type {}."),
        "What is the code of the {place}?",
        ("4471", "QX-90", "B7712", "30518", "K-22-9", "8846", "ZT-04", "61273", "R5590", "7702"),
    ),
    _Kind(
        ("The {thing} is made of {}.", "What I love about the {thing} is the {} it is built from."),
        "What is the {thing} made of?",
        ("walnut", "copper", "bamboo", "granite", "felt", "porcelain", "brass", "wicker", "linen", "cork"),
    ),
    _Kind(
        ("My {who} is allergic to {}.", "Never offer {} to my {who}, it ends in hospital."),
        "What is my {who} allergic to?",
        (
            "peanuts",
            "pollen",
            "shellfish",
            "penicillin",
            "celery",
            "mustard",
            "sesame",
            "latex",
            "soy",
            "eggs",
        ),
    ),
    _Kind(
        ("My {who} plays the {}.", "Every evening my {who} practises the {} for an hour."),
        "Which instrument does my {who} play?",
        ("cello", "oboe", "accordion", "harp", "trombone", "banjo", "lute", "bassoon", "zither", "viola"),
    ),
)
_WHO = (
    "sister", "brother", "aunt", "neighbour", "landlord", "dentist", "colleague", "cousin",
    "grandfather", "niece", "boss", "plumber",
)  # fmt: skip
_THING = (
    "table", "lamp", "boat", "bicycle", "stove", "clock", "mirror", "fence", "desk", "kettle", "carpet",
    "tent", "piano", "shelf",
)  # fmt: skip
_PLACE = ["garage", "cellar", "bike shed", "office", "gym locker", "studio", "back gate", "post box"]

_OPENERS = (
    "To be honest,", "As I said the other day,", "By the way,", "You know,", "Looking back,", "All in all,",
    "Between you and me,", "For what it is worth,", "Lately", "On the whole,", "Most mornings",
)  # fmt: skip
_SUBJECTS = (
    "I find that", "people tell me", "my friends think", "it turns out that", "everybody agrees that",
    "I keep noticing how", "the papers claim", "nobody seems to mind that", "I have learned that",
)  # fmt: skip
_THEMES = (
    "the weather", "a quiet weekend", "good coffee", "the traffic downtown", "a long walk", "the new season",
    "cooking at home", "a proper breakfast", "the evening news", "a tidy room", "the old cinema", "gardening",
    "the summer holidays", "a decent pair of shoes", "public transport", "the local market", "early mornings",
    "a good night's sleep", "the football club", "learning languages", "painting walls", "board games",
)  # fmt: skip
_VERBS = (
    "makes all the difference", "takes more time than it should", "is worth the trouble", "never gets old",
    "has become rather expensive", "brings people together", "needs a bit of patience", "goes a long way",
    "can be surprisingly calming", "is not what it used to be", "always lifts my mood", "deserves praise",
)  # fmt: skip


def converse(seed: int, turns: int = TURNS) -> Scenario:
    """A conversation and the questions about it, always the same for one seed."""
    draw = random.Random(f"turnlog memory {seed}")
    told, questions = _draw_facts(draw)
    at = sorted(draw.sample(range(turns), len(told)))
    facts = dict(zip(at, told, strict=True))
    texts: list[str] = []
    for number in range(turns):
        sentences = [_small_talk(draw) for _ in range(draw.randint(3, 7))]
        if number in facts:
            sentences.insert(draw.randrange(len(sentences) + 1), facts[number])
        texts.append(" ".join(sentences))
    return {"scenario": f"made up {seed}", "turns": texts, "questions": questions}


def _draw_facts(draw: random.Random) -> tuple[list[str], list[dict[str, object]]]:
    told: list[str] = []
    questions: list[dict[str, object]] = []
    used: set[str] = set()
    while len(questions) < _FACTS:
        kind = draw.choice(_KINDS)
        names = {"who": draw.choice(_WHO), "thing": draw.choice(_THING), "place": draw.choice(_PLACE)}
        question, answer = kind.question.format(**names), draw.choice(kind.answers)
        if question in used or answer in used:
            continue
        used |= {question, answer}
        told.append(draw.choice(kind.ways).format(answer, **names))
        questions.append({"question": question, "answers": [answer]})
    return told, questions


def _small_talk(draw: random.Random) -> str:
    theme, other = draw.sample(_THEMES, 2)
    tail = draw.choice((f", and so does {other}", f", much like {other}", "", ""))
    return f"{draw.choice(_OPENERS)} {draw.choice(_SUBJECTS)} {theme} {draw.choice(_VERBS)}{tail}."
