"""A session with pictures costs what is new at each call."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from context.context_log import CLAUDE, Log, call
from turnlog.context import ContextOptions, PictureCache, Projection, plan_fold
from turnlog.contract import (
    AgentError,
    Image,
    ImagePart,
    Message,
    MessagePart,
    ModelInput,
    text_part,
    user_message,
)


def picture(number: int) -> ImagePart:
    return ImagePart(payload=Image(mime_type="image/png", url=f"blob:sha256-{number:064x}"))


class Blobs:
    """Attaches bytes, and counts how often."""

    def __init__(self) -> None:
        self.asked = 0
        self.broken = False

    async def attach(self, message: Message) -> Message:
        self.asked += 1
        await asyncio.sleep(0)
        if self.broken:
            raise AgentError("SessionCorrupt", "the blob is gone")
        parts: list[MessagePart] = [
            ImagePart(payload=Image(mime_type="image/png", data="AAAA"))
            if isinstance(part, ImagePart)
            else part
            for part in message.parts
        ]
        return msgspec.structs.replace(message, parts=parts)


@pytest.mark.spec("C-8")
async def test_each_picture_is_attached_once_over_all_calls() -> None:
    log, blobs = Log(), Blobs()
    projection, cache = Projection(), PictureCache(blobs.attach)
    before: list[Message] = []
    for number in range(40):
        parts = [text_part(f"screen {number}"), picture(number)]
        projection.step(log.add(ModelInput(message=user_message(parts, run_id="run_1"))))
        projection.step(log.output(f"seen {number}"))
        shown = list(await cache.attached(projection.emit(CLAUDE).messages))
        assert len(shown) == 2 * (number + 1)
        assert all(new is old for new, old in zip(shown, before, strict=False))
        before = shown
    assert blobs.asked == 40
    assert all(
        part.payload.data == "AAAA" for one in before for part in one.parts if isinstance(part, ImagePart)
    )


@pytest.mark.spec("C-8")
async def test_after_a_fold_what_is_still_in_view_is_not_attached_again() -> None:
    log, blobs = Log(), Blobs()
    projection, cache = Projection(ContextOptions(fold_at=12_000)), PictureCache(blobs.attach)
    for number in range(6):
        projection.step(log.add(ModelInput(message=user_message([picture(number)], run_id="run_1"))))
        projection.step(log.output("looking", call(f"c{number}")))
        projection.step(log.results(**{f"c{number}": [text_part("a plan"), picture(100 + number)]}))
        await cache.attached(projection.emit(CLAUDE).messages)
    assert blobs.asked == 12
    fold = plan_fold(projection, target=CLAUDE, reason="overflow", overflow_step=2)
    assert fold is not None
    projection.step(log.add(fold))
    shown = await cache.attached(projection.emit(CLAUDE).messages)
    assert blobs.asked == 12
    assert len(shown) == len(projection.emit(CLAUDE).messages)


async def test_a_picture_that_cannot_be_had_leaves_the_cache_as_it_was() -> None:
    blobs = Blobs()
    cache = PictureCache(blobs.attach)
    first = user_message([picture(1)])
    await cache.attached([first])
    blobs.broken = True
    with pytest.raises(AgentError, match="gone"):
        await cache.attached([first, user_message([picture(2)])])
    blobs.broken = False
    shown = await cache.attached([first, user_message([picture(2)]), user_message("plain")])
    assert (len(shown), blobs.asked) == (3, 3)


async def test_two_calls_at_once_do_not_disturb_each_other() -> None:
    blobs = Blobs()
    cache = PictureCache(blobs.attach)
    messages = [user_message([picture(n)]) for n in range(4)]
    await cache.attached(messages[:1])
    shown = await asyncio.gather(*(cache.attached(messages[:count]) for count in (3, 4, 2)))
    assert [len(view) for view in shown] == [3, 4, 2]
    for view in shown:
        assert [part.payload.data for one in view for part in one.parts if isinstance(part, ImagePart)] == [
            "AAAA"
        ] * len(view)
