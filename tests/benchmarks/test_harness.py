"""What a benchmark prints, when it is ok, and what a missing peer does to it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import __main__ as program
from benchmarks import harness
from benchmarks.harness import MissingPeer, Report, at_least, at_most

SHAPE = ["benchmark", "ratios", "targets", "ok", "missing", "figures", "options", "device", "commit"]


def report(**ratios: float) -> Report:
    return Report("x", {"small": at_most(0.5), "large": at_least(2)}, dict(ratios), options={"peer": "peer 1.0"})


def test_the_line_is_one_line_of_json_with_every_field() -> None:
    line = report(small=0.123456, large=3).line()
    assert "\n" not in line
    parsed = json.loads(line)
    assert list(parsed) == SHAPE
    assert parsed["targets"] == {"small": {"max": 0.5}, "large": {"min": 2}}
    assert parsed["ratios"] == {"small": 0.1235, "large": 3}
    assert parsed["ok"] is True


@pytest.mark.parametrize(
    ("ratios", "ok"),
    [
        ({"small": 0.5, "large": 2.0}, True),
        ({"small": 0.51, "large": 2.0}, False),
        ({"small": 0.5, "large": 1.99}, False),
        ({"small": 0.5}, False),
        ({"small": float("nan"), "large": 2.0}, False),
        ({"small": 0.5, "large": 2.0, "untargeted": 99.0}, True),
    ],
)
def test_ok_means_that_every_target_was_measured_and_met(ratios: dict[str, float], ok: bool) -> None:
    assert report(**ratios).ok is ok


def test_a_missing_peer_is_named_and_never_ok_and_the_rest_goes_on() -> None:
    found = report(small=0.1, large=3)
    with found.peer("other"):
        harness.versions("a-package-that-nobody-has")
    parsed = json.loads(found.line())
    assert parsed["ok"] is False
    assert "a-package-that-nobody-has" in parsed["missing"]["other"]
    assert parsed["ratios"] == {"small": 0.1, "large": 3}


def test_rounds_are_interleaved_and_another_one_goes_first_each_time() -> None:
    ran: list[str] = []
    times = harness.interleave(
        {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")},
        rounds=3,
        warmup=1,
        clock=iter(range(100)).__next__,
    )
    assert "".join(ran) == "ab" + "ab" + "ba" + "ab"
    assert times == {"a": [1, 1, 1], "b": [1, 1, 1]}


def test_a_ratio_is_of_each_rounds_own_times() -> None:
    """A round in which the machine was slow for both does not move it."""
    assert harness.median_ratio({"a": [1, 20, 3], "b": [2, 40, 6]}, "a", "b") == 0.5


def test_a_percentile_of_few_values_is_the_largest_of_them() -> None:
    assert harness.percentile([7], 99) == 7
    assert 4.9 < harness.percentile([1, 2, 3, 4, 5], 99) <= 5


def test_the_command_runs_the_benchmark_and_its_status_says_whether_targets_were_met(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = ModuleType("benchmarks.delta")
    monkeypatch.setitem(sys.modules, "benchmarks.delta", fake)
    for ratio, status in ((0.1, 0), (0.9, 1)):
        monkeypatch.setattr(fake, "run", lambda quick, r=ratio: report(small=r, large=3), raising=False)
        assert program.main(["delta", "--quick"]) == status
        assert json.loads(capsys.readouterr().out)["benchmark"] == "x"


def test_an_unknown_name_is_refused_with_the_list_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        program.main(["no-such-benchmark"])
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert "no-such-benchmark" in error
    assert all(name in error for name in ("batch", "delta", "turns"))


def test_without_matplotlib_a_plot_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(harness, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    with pytest.raises(SystemExit):
        program.main(["delta", "--plot", str(tmp_path / "out.png")])
    assert "matplotlib" in capsys.readouterr().err
    with pytest.raises(MissingPeer, match="matplotlib"):
        harness.plot(report(), tmp_path / "out.png")


def test_a_plot_is_a_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    harness.plot(report(small=0.1, large=3, other=1), tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 1000


def test_every_benchmark_can_be_listed_without_importing_it() -> None:
    assert {"batch", "delta", "turns"} <= set(program.names())
    assert "harness" not in program.names()
