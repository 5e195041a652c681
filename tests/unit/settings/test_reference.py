"""The documentation of the settings is made from them and is complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from gateway.settings import Settings, load_settings
from gateway.settings.reference import example, rows
from gateway.settings.sections import Section
from tests.fakes.cases import each

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
SETTINGS_MAX = 200
EXAMPLE_LINES_MAX = 500
SUMMARY_CHARS_MAX = 92


def sections(kind: type[Section]) -> Iterator[type[BaseModel]]:
    for section in kind.__subclasses__():
        yield section
        yield from sections(section)


MODELS: list[type[BaseModel]] = [Settings, *sections(Section)]
UNITS = (
    "_min",
    "_start",
    "_s",
    "_bytes_max",
    "_max",
    "_size",
    "_tokens",
    "_share",
    "_weight",
    "_nice",
)


def test_the_example_file_is_the_one_that_the_command_prints() -> None:
    assert (ROOT / "gateway.example.yaml").read_text(encoding="utf-8") == example()


def test_the_example_file_is_valid_and_changes_nothing_but_models_and_backends() -> None:
    settings = load_settings(ROOT / "gateway.example.yaml", environ={})
    assert [model.id for model in settings.models] == ["gpt-oss-120b"]
    assert [backend.url for backend in settings.backends] == ["http://gpu-1:8000"]
    assert settings.model_copy(update={"models": (), "backends": ()}) == Settings()


def test_the_example_file_is_valid_with_every_default_written_out(tmp_path: Path) -> None:
    names = {name for model in MODELS for name in model.model_fields}
    commented = re.compile(rf"^(\s*)# ((?:{'|'.join(names)}):.*)$", re.MULTILINE)
    file = tmp_path / "gateway.yaml"
    file.write_text(commented.sub(r"\1\2", example()), encoding="utf-8")
    settings = load_settings(file, environ={})
    assert len(commented.findall(example())) > len(rows()) - 3
    (backend,) = settings.backends
    assert backend.models == ()
    assert settings.limits == Settings().limits


def test_every_variable_is_listed_once_with_a_description() -> None:
    table = rows()
    names = [row.name for row in table]
    assert len(names) == len(set(names))
    assert all(row.description for row in table)
    assert {"GATEWAY_CONFIG", "GATEWAY_SERVER__PORT", "GATEWAY_BACKENDS"} < set(names)


def test_every_listed_default_can_be_set_as_it_is_listed() -> None:
    environ = {row.name: row.default for row in rows() if row.name != "GATEWAY_CONFIG"}
    environ["GATEWAY_DATA_DIR"] = str(Settings().data_dir)
    assert load_settings(environ=environ) == Settings()


def test_settings_are_few_enough_to_be_known() -> None:
    """A number that no operator has a reason to change is a constant."""
    assert len(rows()) - 1 <= SETTINGS_MAX
    assert example().count("\n") <= EXAMPLE_LINES_MAX


@each("model", MODELS)
def test_help_says_what_a_setting_is_and_when_to_change_it(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            continue
        summary, *reason = re.split(r"(?<=\.) (?=[A-Z])", field.description or "", maxsplit=1)
        assert summary.endswith("."), name
        assert len(summary) <= SUMMARY_CHARS_MAX, name
        if not field.is_required():
            assert reason, name
            assert reason[0].endswith("."), name


@each("model", MODELS)
def test_every_setting_is_described_and_every_number_has_its_unit(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            continue
        assert field.description, name
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert name.endswith(UNITS) or name == "port", name
