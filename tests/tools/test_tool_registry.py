"""The tools of an agent: by name, in order, without doubles."""

from __future__ import annotations

import pytest

from turnlog.contract import AgentError, ToolPolicy, encode
from turnlog.tools import ToolRegistry, tool


def read(path: str) -> str:
    """Read a file."""
    return path


def write(path: str, text: str) -> None:
    """Write a file."""


def shell(command: str) -> str:
    """Run a command."""
    return command


def registry() -> ToolRegistry:
    return ToolRegistry([read, tool(write), tool(requires_approval=True)(shell)])


def names(specs: list) -> list[str]:  # type: ignore[type-arg]  # pyright: ignore
    return [spec.name for spec in specs]


def test_order_is_kept() -> None:
    found = registry()
    assert found.names == ["read", "write", "shell"]
    assert names(found.specs()) == ["read", "write", "shell"]
    assert names(found.specs(order=["shell", "nowhere", "read"])) == ["shell", "read", "write"]
    assert names(found.specs(allowed=["write", "read", "nowhere"])) == ["read", "write"]
    assert names(found.specs(["write", "shell"], ["shell", "read"])) == ["shell", "write"]
    assert (len(found), "read" in found, "nowhere" in found) == (3, True, False)
    assert [each.name for each in found] == ["read", "write", "shell"]
    assert found.unknown(["read", "raed"]) == ["raed"]


def test_what_a_run_offers() -> None:
    found = registry()
    assert found.offered(ToolPolicy(enabled=False)) == []
    assert names(found.offered(ToolPolicy())) == ["read", "write", "shell"]
    policy = ToolPolicy(allow_list=["shell", "read"])
    assert names(found.offered(policy)) == ["read", "shell"]
    assert names(found.offered(policy, ["write", "read"])) == ["read"]
    assert names(found.offered(ToolPolicy(), ["shell", "write"], ["shell"])) == ["shell", "write"]
    assert found.offered(ToolPolicy(allow_list=[])) == []
    assert found.offered(policy, []) == []


def test_two_of_one_name_are_refused_naming_both() -> None:
    @tool(name="read")
    def other(path: str) -> str:
        return path

    with pytest.raises(AgentError) as caught:
        ToolRegistry([read, other])
    assert caught.value.code == "ConfigInvalid"
    assert "two tools are named 'read'" in caught.value.message
    assert ".read and " in caught.value.message
    assert "test_two_of_one_name_are_refused_naming_both.<locals>.other" in caught.value.message


def test_the_same_tool_twice_is_one() -> None:
    item = tool(read)
    found = ToolRegistry([item, item])
    assert found.names == ["read"]
    assert found.get("read") is item


def test_specs_are_the_same_bytes_each_time() -> None:
    found = registry()
    assert encode(found.specs()) == encode(found.specs()) == encode(registry().specs())
    assert found.specs()[0] is found.specs()[0]


def test_what_is_offered_follows_the_tools_and_belongs_to_the_caller() -> None:
    found, policy = ToolRegistry([read]), ToolPolicy()
    found.offered(policy).clear()
    assert names(found.offered(policy)) == ["read"]
    found.add(write)
    assert names(found.offered(policy)) == ["read", "write"]
    assert names(found.offered(policy, ["write"])) == ["write"]
