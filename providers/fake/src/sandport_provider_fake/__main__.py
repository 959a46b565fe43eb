"""The worker: its standard streams are taken before anything else is imported."""

from sandport_provider_fake import wire
from sandport_sdk.worker import serve

wire.keep()
serve("sandport_provider_fake.provider:FakeProvider")
