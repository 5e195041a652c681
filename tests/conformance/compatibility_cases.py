"""Six tools and five requests for each: lines, backticks, Cyrillic, Japanese, accents."""

from __future__ import annotations

from typing import Any, Final


def _tool(name: str, description: str, properties: dict[str, Any], *required: str) -> Any:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": {**parameters, "additionalProperties": False},
        "strict": False,
    }


_STRING: Final = {"type": "string"}

TOOLS: Final[dict[str, Any]] = {
    tool["name"]: tool
    for tool in (
        _tool("get_system_health", "How the language model's server is doing.", {}),
        _tool(
            "markdown_to_html",
            "Turn Markdown into HTML.",
            {"markdown": {"type": "string", "description": "The source."}},
            "markdown",
        ),
        _tool("detect_language", "Which language a text is in.", {"text": _STRING}, "text"),
        _tool(
            "generate_chart",
            "Draw a chart of pairs of numbers.",
            {
                "data": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                "chart_type": {"type": "string", "enum": ["line", "bar", "scatter"]},
                "title": _STRING,
                "x_label": _STRING,
                "y_label": _STRING,
            },
            "data",
            "chart_type",
        ),
        _tool(
            "query_database",
            "Read rows of a table.",
            {
                "table": _STRING,
                "columns": {"type": "array", "items": _STRING},
                "filters": _STRING,
                "limit": {"type": "integer", "minimum": 1, "maximum": 10_000},
                "order_by": _STRING,
            },
            "table",
            "columns",
        ),
        _tool("get_weather", "Current weather of a place.", {"location": _STRING}, "location"),
    )
}

PROMPTS: Final[dict[str, tuple[str, str, str, str, str]]] = {
    "get_system_health": (
        "Is everything up? Please run the system health check.",
        "Before we begin: check the health of the server.",
        "Quick status, nothing else — call get_system_health.",
        "I saw timeouts.\n\nCan you look at the health of the model?",
        "Проверь, пожалуйста: get_system_health. Всё в порядке?",
    ),
    "markdown_to_html": (
        "Turn this markdown into HTML: **bold** and _slanted_",
        "Convert the following markdown:\n\n# Title\n\n- one\n- two\n",
        "Please make HTML of `markdown` with a fence:\n```python\nprint('naïve')\n```",
        "Rends ce markdown en HTML : *crème brûlée* à l'œuf",
        "markdown_to_html を使ってください: ## 見出し\n\n本文です。",
    ),
    "detect_language": (
        "Which language is this? Detect: 'Où est la bibliothèque ?'",
        "detect_language for: Где находится вокзал?",
        "Find out the language of 「明日は雨が降るでしょう」.",
        'Tell me the language of "¿Dónde está el baño, señor?"',
        "What language might\nthis text\nbe in:\n'Füße über Straßen'",
    ),
    "generate_chart": (
        "Draw a line chart of [[1, 2], [2, 4], [3, 9]].",
        "I need a bar chart with the title 'Umsätze': (1, 10), (2, 20).",
        "generate_chart, type scatter, of these points:\n1.5, 2.5\n3.5, 1.0",
        "Please chart `[[0, 0], [1, 1]]` as a line, x_label: Zeit, y_label: Größe",
        "Построй chart (bar): [[1, 5], [2, 7]]",
    ),
    "query_database": (
        "Query the database: table users, columns name and email, limit 5.",
        "Read `id` and `total` from the database table `orders`, newest first.",
        "query_database:\n  table: städte\n  columns: name, größe",
        "From the database, give me columns 名前 and 年齢 of table 社員.",
        "Загляни в database: table клиенты, columns имя, город; limit 10000",
    ),
    "get_weather": (
        "How is the weather in San Francisco?",
        "What's the weather in São Paulo right now?",
        "Tell me the weather in Zürich,\nand nothing else.",
        "get_weather: 東京の天気はどうですか。",
        "Какая погода в Москве? Use `get_weather`.",
    ),
}
