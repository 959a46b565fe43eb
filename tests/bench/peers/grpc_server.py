"""An echo on grpc.aio over a Unix socket, in the manner of a plugin: one line on stdout says where it listens."""

import asyncio
import sys
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import StringValue

NO_CEILING = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


async def echo(request: Any, context: Any) -> Any:
    return StringValue(value=request.value)


async def main(path: str) -> None:
    server = grpc.aio.server(options=NO_CEILING)
    method = grpc.unary_unary_rpc_method_handler(
        echo, request_deserializer=StringValue.FromString, response_serializer=StringValue.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", {"Echo": method}),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    print(path, flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the host closes it
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
