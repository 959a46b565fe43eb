"""The worker: one line, so that its standard streams are taken before anything else is imported."""

from sandport_sdk.worker import serve

serve("sandport_provider_local.provider:LocalProvider")
