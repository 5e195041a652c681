"""The script of a model's next turn: a pure function of the conversation in the prompt."""
