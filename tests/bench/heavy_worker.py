"""The program of the heavy provider."""

from sandport_sdk.worker import serve

if __name__ == "__main__":
    serve("tests.bench.heavy_provider:HeavyProvider")
