"""Tools of MCP servers, as a toolset. Needs the extra ``mcp``."""

from ._server import MCPServer

__all__ = ["MCPServer"]
