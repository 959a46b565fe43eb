"""The smallest server on the public MCP SDK for Python (2.x): one tool, which gives back what it is given."""

from mcp.server.mcpserver import MCPServer  # type: ignore[import-not-found,unused-ignore]  # only in a scratch venv

mcp = MCPServer("echo", version="1.0.0")


@mcp.tool()  # type: ignore[untyped-decorator,misc,unused-ignore]
def echo(text: str) -> str:
    """Give back the text."""
    return text


if __name__ == "__main__":
    mcp.run()
