"""Files on the wire: PDFs natively where a model takes them, text as text, everything else as a note."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from models import bedrock_wire
from models.test_histories_of_any_shape import LLAMA, NOVA, over_http, through_botocore
from turnlog.contract import FileRef, FileRefPart, Message, text_part, user_message
from turnlog.models.anthropic import AnthropicModel
from turnlog.models.google import GoogleModel
from turnlog.models.openai_chat import OpenAIChatModel
from turnlog.models.openai_responses import OpenAIResponsesModel
from turnlog.testing import check_request

DATA = base64.b64encode(b"%PDF-1.4").decode()
OPENAI = "https://api.openai.com/v1"
NOTES_DATA = base64.b64encode(b"# Notes").decode()
PAPER = FileRefPart(payload=FileRef(path="a/p.pdf", mime_type="application/pdf", size=8, data=DATA))
NOTES = FileRefPart(
    payload=FileRef(
        path="n.md", mime_type="text/markdown", size=7, data=base64.b64encode(b"# Notes").decode()
    )
)
URL = f"data:application/pdf;base64,{DATA}"
CHAT_PART = {
    "type": "file",
    "file": {"filename": "a/p.pdf", "file_data": URL},
}
CASES: dict[str, tuple[str, str, Any, Callable[[Any], Any], Any]] = {
    "chat": (
        "openai-chat",
        "gpt-5.2",
        over_http(OpenAIChatModel, "gpt-5.2", b"", base_url=OPENAI),
        lambda body: body["messages"][1]["content"],
        CHAT_PART,
    ),
    "responses": (
        "openai-responses",
        "gpt-5.2",
        over_http(OpenAIResponsesModel, "gpt-5.2", b"", base_url=OPENAI),
        lambda body: body["input"][0]["content"],
        {"type": "input_file", "filename": "a/p.pdf", "file_data": URL},
    ),
    "anthropic": (
        "anthropic-messages",
        "claude-sonnet-4-5",
        over_http(AnthropicModel, "claude-sonnet-4-5", b""),
        lambda body: body["messages"][0]["content"],
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": DATA},
            "title": "a/p.pdf",
        },
    ),
    "gemini": (
        "gemini",
        "gemini-3-pro",
        over_http(GoogleModel, "gemini-3-pro", b""),
        lambda body: body["contents"][0]["parts"],
        {"inlineData": {"mimeType": "application/pdf", "data": DATA}},
    ),
    "bedrock": (
        "bedrock-converse",
        bedrock_wire.CLAUDE,
        through_botocore(bedrock_wire.CLAUDE),
        lambda body: body["messages"][0]["content"],
        {"document": {"format": "pdf", "name": "a p pdf 1", "source": {"bytes": b"%PDF-1.4"}}},
    ),
    "nova": (
        "bedrock-converse",
        NOVA,
        through_botocore(NOVA),
        lambda body: body["messages"][0]["content"],
        {"document": {"format": "pdf", "name": "a p pdf 1", "source": {"bytes": b"%PDF-1.4"}}},
    ),
}


def asked(*parts: Any) -> list[Message]:
    return [user_message([text_part("Read."), *parts])]


@pytest.mark.spec("P-5")
@pytest.mark.parametrize("case", CASES)
async def test_a_pdf_is_sent_natively_and_a_text_as_text(case: str) -> None:
    protocol, model, ask, content_of, block = CASES[case]
    body = await ask(asked(PAPER, NOTES), [])
    check_request(protocol, body, model=model)
    content = content_of(body)
    pdf = {name: value for name, value in content[1].items() if name != "cache_control"}
    assert pdf == block
    assert content[2]["text"] == "[file: n.md (text/markdown, 7 bytes)]\n# Notes\n[end of n.md]"


BLIND: dict[str, tuple[str, str, Any]] = {
    "another server": ("openai-chat", "m", over_http(OpenAIChatModel, "m", b"")),
    "told so": (
        "openai-chat",
        "gpt-5.2",
        over_http(OpenAIChatModel, "gpt-5.2", b"", base_url=OPENAI, files=False),
    ),
    "an old model": (
        "openai-chat",
        "gpt-3.5-turbo",
        over_http(OpenAIChatModel, "gpt-3.5-turbo", b"", base_url=OPENAI),
    ),
    "responses elsewhere": ("openai-responses", "m", over_http(OpenAIResponsesModel, "m", b"")),
    "messages elsewhere": ("anthropic-messages", "local", over_http(AnthropicModel, "local", b"")),
    "gemma": ("gemini", "gemma-3", over_http(GoogleModel, "gemma-3", b"")),
    "llama": ("bedrock-converse", LLAMA, through_botocore(LLAMA)),
}


@pytest.mark.spec("P-5")
@pytest.mark.parametrize("case", BLIND)
async def test_a_model_that_takes_no_pdf_is_told_of_it(case: str) -> None:
    protocol, model, ask = BLIND[case]
    body = await ask(asked(PAPER), [])
    check_request(protocol, body, model=model)
    note = "[file: a/p.pdf (application/pdf, 8 bytes): not shown, this model takes no files of this kind]"
    assert note in str(body)
    assert DATA not in str(body)


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        (AnthropicModel("claude-sonnet-4-5", api_key="k"), True),
        (AnthropicModel("claude-3-haiku-20240307", api_key="k"), False),
        (GoogleModel("gemini-3-pro", api_key="k"), True),
        (OpenAIChatModel("gpt-5.2", api_key="k"), True),
        (OpenAIChatModel("m", base_url="http://127.0.0.1:1", api_key="k"), False),
        (OpenAIResponsesModel("gpt-4o", api_key="k"), True),
    ],
)
def test_a_model_says_whether_it_takes_files(model: Any, takes: bool) -> None:
    assert model.supports("files") is takes


async def test_a_document_alone_comes_with_words_where_they_are_needed() -> None:
    body = await through_botocore(bedrock_wire.CLAUDE)([user_message([PAPER])], [])
    assert any("text" in block for block in body["messages"][0]["content"])
