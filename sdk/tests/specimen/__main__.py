from sandport_sdk.worker import serve

serve("specimen.provider:Specimen")
print("printed after serving ended")
