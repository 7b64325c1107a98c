"""The contract kit for the local model, its server played by one that can be told what to answer."""

from __future__ import annotations

import json

import pytest

from models.test_openai_chat_contract import played, wire
from turnlog.models.local import LocalConfig, LocalModel
from turnlog.models.local._server import Endpoint
from turnlog.testing import Loopback, LoopbackAnswer, ModelCase, Wired, check_model


class SchemaServer(Loopback):
    """Plays its answer, but holds it to a schema where the request has one, as llama.cpp does."""

    @property
    def answers(self) -> list[LoopbackAnswer]:
        asked = self.requests[-1].json.get("response_format")
        if asked is None:
            return self._given
        schema = asked["json_schema"]["schema"]
        options = schema.get("anyOf")
        call = {"name": options[0]["properties"]["name"]["const"], "arguments": {}} if options else {}
        return [played(ModelCase(name="schema", about="an answer under a schema", text=json.dumps(call)))]

    @answers.setter
    def answers(self, given: list[LoopbackAnswer]) -> None:
        self._given = given


class PlayedModel(LocalModel):
    """A local model whose server is somewhere else."""

    url = ""

    def _check_config(self, config: LocalConfig) -> None:
        """Neither weights nor library are needed here."""

    async def _endpoint(self, config: LocalConfig) -> Endpoint:
        return Endpoint(base_url=self.url, api_key="a key of no worth")


@pytest.mark.spec("P-8")
async def test_the_contract_kit() -> None:
    async def make(case: ModelCase) -> Wired:
        server = await SchemaServer(played(case)).__aenter__()
        model = PlayedModel()
        model.url = server.url
        return await wire(server, model)

    report = await check_model(make)
    assert report.skipped == {}
