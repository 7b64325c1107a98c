"""An MCP server by hand, over stdio, that keeps to the protocol only as far as it is told to:
``python hostile.py MODE [FILE]``. FILE is where it notes the calls that it has seen."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else "plain"
NOTES = sys.argv[2] if len(sys.argv) > 2 else os.devnull
OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
QUESTION = {"mode": "form", "message": "Who are you?", "requestedSchema": FORM}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def receive() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    return json.loads(line)


def note(text: str) -> None:
    with open(NOTES, "a") as file:
        file.write(text + "\n")


def tool(name: str, schema: Any = OBJECT, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema, **more}


def listed() -> list[dict[str, Any]]:
    if MODE == "changing":  # the schema of each process is another
        return [tool("plain", {"type": "object", "properties": {f"p{os.getpid()}": {"type": "string"}}})]
    tools = [
        tool("plain", annotations={"readOnlyHint": True}),
        tool("die"),
        tool("huge", {"type": "object", "properties": {"size": {"type": "integer"}}}),
        *map(tool, ("progress", "junk", "endless", "ask", "sample", "never", "ask_later", "resource", "key")),
        tool("liar", outputSchema={"type": "object", "required": ["sum"], "properties": {}}),
    ]
    if MODE == "lying":
        tools += [
            tool("fat", {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(9000)}}),
            tool("odd.name"),
            tool("odd/name"),
            tool("final_answer"),
            {**tool("wordy"), "description": "w" * 1_000_000},
            tool("n" * 300),
        ]
    if MODE == "broken":
        tools.append(tool("array", {"type": "array"}))
    if MODE == "ours":
        tools.append(tool("recall"))
    return tools


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def ask_client(method: str, params: dict[str, Any]) -> dict[str, Any]:
    send({"id": "q1", "method": method, "params": params})
    while True:
        message = receive()
        if message.get("id") == "q1":
            return message.get("result") or {"error": message.get("error")}


def call(request: dict[str, Any]) -> dict[str, Any]:
    params = request["params"]
    note(params["name"])
    match params["name"]:
        case "die":
            os._exit(3)
        case "huge":
            return text("x" * params["arguments"]["size"])
        case "progress":
            token = params["_meta"]["progressToken"]
            for step in range(5000):
                data = {"progressToken": token, "progress": step, "message": f"step {step}"}
                send({"method": "notifications/progress", "params": data})
        case "junk":
            for _ in range(5000):
                print("what is this")
            sys.stdout.flush()
        case "endless":
            while True:
                sys.stdout.write("x" * 65536)
        case "never":
            time.sleep(3600)
        case "liar":
            return {**text("3"), "structuredContent": {"other": 3}}
        case "key":
            return text(params["_meta"]["turnlog/idempotencyKey"])
        case "resource":
            blob = {"uri": "file:///a.bin", "mimeType": "application/x-thing", "blob": "AAEC"}
            return {"content": [{"type": "resource", "resource": blob}]}
        case "ask":
            answer = ask_client("elicitation/create", QUESTION)
            return text(f"{answer.get('action')} {(answer.get('content') or {}).get('name')}")
        case "sample":
            message = {"role": "user", "content": {"type": "text", "text": "Say something."}}
            answer = ask_client("sampling/createMessage", {"messages": [message], "maxTokens": 10})
            return text(json.dumps(answer))
        case "ask_later":
            given = (params.get("inputResponses") or {}).get("who")
            if given is None:
                state = f"of {os.getpid()}"
                asked = {"who": {"method": "elicitation/create", "params": QUESTION}}
                return {"resultType": "input_required", "inputRequests": asked, "requestState": state}
            if params.get("requestState") != f"of {os.getpid()}":
                return {"error": {"code": -32602, "message": "no such state"}}
            return text(f"{given['action']} {(given.get('content') or {}).get('name')}")
    return text("done")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    match request["method"]:
        case "server/discover":
            if MODE != "modern":
                return {"error": {"code": -32601, "message": "no such method"}}
            offers = {"tools": {}}
            cached = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
            return {"supportedVersions": ["2026-07-28"], "capabilities": offers, **cached}
        case "initialize":
            info = {"name": "hostile", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            if MODE == "endless":
                return {"tools": [tool(f"t{time.time_ns()}")], "nextCursor": "more"}
            more = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"} if MODE == "modern" else {}
            return {"tools": listed(), **more}
        case "tools/call":
            found = call(request)
            if MODE == "modern" and "error" not in found:
                found.setdefault("resultType", "complete")
            return found
        case method:
            return {"error": {"code": -32601, "message": f"no such method: {method}"}}


if MODE == "silent":
    time.sleep(3600)
while True:
    received = receive()
    if "id" in received and "method" in received:
        reply = answer(received)
        send({"id": received["id"], **({"error": reply["error"]} if "error" in reply else {"result": reply})})
