"""An MCP server over standard input and output: what is in stock."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("stock")


@server.tool()
def in_stock(article: str) -> int:
    """How many of an article are in stock."""
    return len(article) * 3


if __name__ == "__main__":
    server.run("stdio")
