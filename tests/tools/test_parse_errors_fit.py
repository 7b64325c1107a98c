"""However many calls cannot be read, and in whatever script, the answer is recorded and the model told."""

from __future__ import annotations

import pytest

from loop.scenarios import SESSION, Stage
from turnlog.loop import replay
from turnlog.testing import Turn


@pytest.mark.spec("D-6", "M-5")
@pytest.mark.parametrize("key", ["a", "漢字" * 50, "😀" * 100, "\\\\" * 80, "\\u0001" * 100])
@pytest.mark.parametrize("number", [1, 6, 30])
async def test_calls_that_cannot_be_read_do_not_end_the_run(key: str, number: int) -> None:
    stage = Stage()
    twice = f'{{"{key}": 1, "{key}": 2}}'
    turn = Turn(tool_calls=[{"name": "add", "raw_args": twice}] * number)
    result = await stage.agent([turn, "I see."]).run("Add.", session=SESSION)
    assert result.status == "completed", result.last_error
    results = [e for e in await stage.store.load(SESSION) if e.kind == "tool_results"]
    assert len(results) == number
    for entry in results:
        assert entry.payload.outcomes[0].error_code == "ToolInvalidArgs"
    assert (await replay(stage.store, SESSION)).identical
    assert stage.effects == []
