"""Tools of MCP servers, as a toolset. Needs the extra ``mcp``."""

from ._server import MCPOptions, MCPPrompt, MCPResource, MCPServer

__all__ = ["MCPOptions", "MCPPrompt", "MCPResource", "MCPServer"]
