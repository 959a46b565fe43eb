"""Workers: starting one, speaking with it, watching and stopping it."""
