"""What OpenAI's admin API takes and shows, field by field as openai-python 3.54 has it."""
