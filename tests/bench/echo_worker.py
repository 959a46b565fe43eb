"""The program of the echo provider, as a provider's `__main__` is."""

from sandport_sdk.worker import serve

if __name__ == "__main__":
    serve("tests.bench.echo_provider:EchoProvider")
