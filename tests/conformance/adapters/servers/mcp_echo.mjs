// The smallest server on the public MCP SDK for Node (1.x): one tool, which gives back what it is given.
// Node looks for the SDK beside this file: copy it next to the `node_modules` that has it.
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";

const server = new McpServer({ name: "echo", version: "1.0.0" });

server.registerTool("echo", { description: "Give back the text.", inputSchema: { text: z.string() } }, async ({ text }) => ({
  content: [{ type: "text", text }],
}));

await server.connect(new StdioServerTransport());
