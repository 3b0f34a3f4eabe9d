"""``archipelago validate``: answers, exit codes, the page, and what happens without data."""

import json
from pathlib import Path

import pytest

from archipelago.planner.commands.validate import run
from archipelago.planner.errors import InputError

DATA = Path(__file__).parents[2] / "../shared/data"
CAPACITY = "measured/distserve/simdistserve/estimators/profile_data"
ROW = "model,tp,pp,max_num_tokens\nfacebook/opt-13b,1,1,{tokens}\n"


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    (tmp_path / CAPACITY).mkdir(parents=True)
    return tmp_path


def write(folder: Path, tokens: int) -> None:
    (folder / CAPACITY / "max_num_tokens.csv").write_text(ROW.format(tokens=tokens))


def test_a_bar_that_is_reached_gives_zero(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(measured, 66_144)  # DistServe's own figure for one A100
    assert run(str(measured), ["distserve"], "table", None, quiet=True) == 0
    assert "bar <= 0.5%: reached" in capsys.readouterr().out


def test_a_bar_that_is_missed_gives_one(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(measured, 60_000)
    assert run(str(measured), ["distserve"], "json", None, quiet=True) == 1
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    (bar,) = case["reports"][0]["bars"]
    assert bar["kept"] is False
    assert bar["reached"] == pytest.approx(66_112 / 60_000 - 1)  # 66,112: the formula


def test_no_measurements_at_all_is_an_error_that_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing to compare with .*no measured/distserve"):
        run(str(tmp_path), ["distserve"], "table", None, quiet=True)


def test_the_page_names_every_skipped_case(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(measured, 66_144)
    page = measured / "accuracy.md"
    run(str(measured), ["distserve", "kv-blocks"], "table", str(page), quiet=True)
    assert "Skipped: no measured/llmservingsim_rtx4090" in page.read_text()
    assert "skipped: no measured/llmservingsim_rtx4090" in capsys.readouterr().out


@pytest.mark.skipif(not (DATA / "measured").exists(), reason="reference data are absent")
def test_pictures_lie_beside_the_page(tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    run(str(DATA), ["distserve"], "table", str(page), quiet=True)
    assert (tmp_path / "accuracy" / "kv-capacity-distserve.png").stat().st_size > 1000
    assert "(accuracy/kv-capacity-distserve.png)" in page.read_text()
