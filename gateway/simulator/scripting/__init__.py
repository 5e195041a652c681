"""What a model would say next: a pure function of the conversation that the prompt holds."""
