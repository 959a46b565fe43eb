"""What the host starts: `python -m hello_provider`."""

from sandport_sdk.worker import serve

serve("hello_provider.provider:HelloProvider")
