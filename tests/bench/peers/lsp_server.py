"""An echo on python-lsp-jsonrpc: one thread that reads, answers and writes."""

import sys

from pylsp_jsonrpc.endpoint import Endpoint
from pylsp_jsonrpc.streams import JsonRpcStreamReader, JsonRpcStreamWriter

writer = JsonRpcStreamWriter(sys.stdout.buffer)
endpoint = Endpoint({"echo": lambda params: {"text": params["text"]}}, writer.write)
JsonRpcStreamReader(sys.stdin.buffer).listen(endpoint.consume)
