"""The environment becomes settings, or an error that says what to write."""

import re
from pathlib import Path

import pytest

from archipelago.operator.errors import SettingsError
from archipelago.operator.settings import Settings


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_environment({}) == Settings()


def test_variables_replace_defaults() -> None:
    settings = Settings.from_environment(
        {
            "ARCHIPELAGO_NAMESPACES": "b, a,b",
            "ARCHIPELAGO_HTTP_PORT": "0",
            "ARCHIPELAGO_PLANNERS": "3",
            "ARCHIPELAGO_RESYNC_SECONDS": "0.5",
            "ARCHIPELAGO_LOG_LEVEL": "debug",
        }
    )

    assert settings == Settings(
        namespaces=("a", "b"), http_port=0, planners=3, resync_seconds=0.5, log_level="DEBUG"
    )


def test_the_former_name_of_the_administrators_file_is_read_unless_the_present_one_is_set() -> None:
    before = {"ARCHIPELAGO_SOURCES": "/old.yaml"}
    assert Settings.from_environment(before).admin_file == "/old.yaml"
    both = {**before, "ARCHIPELAGO_ADMIN_FILE": "/new.yaml"}
    assert Settings.from_environment(both).admin_file == "/new.yaml"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_PORT", "70000"),
        ("PLANNERS", "0"),
        ("PLANNERS", "two"),
        ("RESYNC_SECONDS", "nan"),
        ("LOG_LEVEL", "loud"),
        ("NAMESPACES", "Team"),
        ("SOURCES", "sources.yaml"),
        ("ADMIN_FILE", "admin.yaml"),
    ],
)
def test_an_invalid_value_is_named_with_the_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"ARCHIPELAGO_{name}='{value}'")):
        Settings.from_environment({f"ARCHIPELAGO_{name}": value})


def test_every_setting_is_documented_with_its_default() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    for name, default in vars(Settings(namespaces=("all",))).items():
        (row,) = (line for line in rows if f"`{name.upper()}`" in line)
        value = default[0] if isinstance(default, tuple) else default or ""
        assert (f"{value:g}" if isinstance(value, float) else str(value)) in row, row
