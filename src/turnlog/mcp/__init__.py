"""Tools of MCP servers as a toolset, and an agent as an MCP server. Needs the extra ``mcp``."""

from ._files import MCPServers, TrustQuestion
from ._serve import make_server, serve_http, serve_stdio
from ._server import MCPOptions, MCPPrompt, MCPResource, MCPServer

__all__ = [
    "MCPOptions",
    "MCPPrompt",
    "MCPResource",
    "MCPServer",
    "MCPServers",
    "TrustQuestion",
    "make_server",
    "serve_http",
    "serve_stdio",
]
