"""An echo on mcp's low level server: neither signatures nor schemas are looked at, and the text goes out once."""

from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server


async def call_tool(context: Any, params: Any) -> Any:
    return types.CallToolResult(content=[types.TextContent(type="text", text=params.arguments["text"])])


async def list_tools(context: Any, params: Any) -> Any:
    return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema={"type": "object"})])


async def main() -> None:
    server = Server("bench", on_call_tool=call_tool, on_list_tools=list_tools)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)
