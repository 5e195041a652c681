"""Bodies and objects of OpenAI's admin API, field by field as openai-python 3.54 has it."""
