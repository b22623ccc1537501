from __future__ import annotations

from pathlib import Path

import pytest

import otelctx
from otelctx.errors import ConfigError
from otelctx.settings import Settings

SECRET = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVoxMjM0NTY="
API_KEY = "sk-somebodys-key"


def test_nothing_set_is_safe() -> None:
    settings = Settings.from_env({"HOME": "/home/me"})
    assert (settings.keys, settings.trusted_clients, settings.trusted_proxies, settings.egress_allow) == (
        "",
        (),
        (),
        (),
    )
    assert settings.capture_content == "NO_CONTENT"
    assert settings.cache_dir == Path("/home/me/.cache/otelctx")


def test_everything_is_read() -> None:
    settings = Settings.from_env(
        {
            "OTELCTX_KEYS": f"1:{SECRET}",
            "OTELCTX_TRUSTED_CLIENTS": "10.0.0.0/8, ::1",
            "OTELCTX_TRUSTED_PROXIES": "192.168.0.1",
            "OTELCTX_EGRESS_ALLOW": "api.example.com,*.corp",
            "OTELCTX_UNTRUSTED_TRACE": "Link",
            "OTELCTX_ON_UNKNOWN_BASE": "proceed",
            "OTELCTX_BAGGAGE": "never",
            "OTELCTX_EVENTS": "both",
            "OTELCTX_EXCLUDED": "/health, /static/*",
            "OTELCTX_CACHE_DIR": "/var/cache/x",
            "OTELCTX_API_KEY": API_KEY,
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only",
        }
    )
    assert settings.trusted_clients == ("10.0.0.0/8", "::1")
    assert (settings.untrusted_trace, settings.on_unknown_base, settings.baggage) == ("link", "proceed", "never")
    assert (settings.events, settings.cache_dir) == ("both", Path("/var/cache/x"))
    assert (settings.capture_content, settings.api_key) == ("SPAN_ONLY", API_KEY)
    assert settings.egress_allow == ("api.example.com", "*.corp")
    assert settings.excluded == ("/health", "/static/*")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTELCTX_KEYS", "nonsense"),
        ("OTELCTX_TRUSTED_CLIENTS", "everyone"),
        ("OTELCTX_TRUSTED_PROXIES", "10.0.0.0/99"),
        ("OTELCTX_EGRESS_ALLOW", "http://x"),
        ("OTELCTX_UNTRUSTED_TRACE", "maybe"),
        ("OTELCTX_ON_UNKNOWN_BASE", "panic"),
        ("OTELCTX_BAGGAGE", "sometimes"),
        ("OTELCTX_EVENTS", "none"),
        ("OTELCTX_EXCLUDED", "health"),
        ("OTELCTX_CACHE_DIR", "~nobody.of.that.name/x"),
        ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "yes"),
    ],
)
def test_a_bad_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Settings.from_env({name: value})


def test_secrets_are_not_in_the_repr() -> None:
    shown = repr(Settings.from_env({"OTELCTX_KEYS": f"1:{SECRET}", "OTELCTX_API_KEY": API_KEY}))
    assert not [secret for secret in (SECRET, API_KEY) if secret in shown]


def test_an_xdg_cache_is_respected_if_it_is_a_whole_path() -> None:
    assert Settings.from_env({"XDG_CACHE_HOME": "/xdg"}).cache_dir == Path("/xdg/otelctx")
    assert Settings.from_env({"XDG_CACHE_HOME": "xdg", "HOME": "/h"}).cache_dir == Path("/h/.cache/otelctx")


def test_a_user_without_a_home_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number of its own."""

    def homeless(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert Settings.from_env({}).cache_dir.is_absolute()


def test_the_default_cache_needs_no_shell_to_be_found() -> None:
    assert Settings().cache_dir.is_absolute()


def test_empty_values_count_as_unset() -> None:
    names = [f"OTELCTX_{n}" for n in ("KEYS", "TRUSTED_CLIENTS", "EGRESS_ALLOW", "UNTRUSTED_TRACE", "CACHE_DIR")]
    assert Settings.from_env(dict.fromkeys(names, "")) == Settings.from_env({})


def test_nothing_else_decides_by_the_environment() -> None:
    """``sdk.environment`` sets the SDK's variables for the SDK; the demo and the test helpers run programs."""
    package = Path(otelctx.__file__).parent
    readers = {
        path.relative_to(package).parts[:2]
        for path in package.rglob("*.py")
        if "os.environ" in path.read_text() or "getenv" in path.read_text()
    }
    assert {r for r in readers if r[0] not in ("demo", "testing")} == {("settings.py",), ("sdk", "environment.py")}


def test_keys_come_from_a_file_in_lines_or_with_commas(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for text in (f"1:{SECRET},2:{SECRET}", f"1:{SECRET}\n2:{SECRET}\n", f"  1:{SECRET} , 2:{SECRET}\r\n"):
        path.write_text(text)
        settings = Settings.from_env({"OTELCTX_KEYS_FILE": str(path)})
        assert [key.partition(":")[0] for key in settings.keys.split(",") if key] == ["1", "2"]
        assert settings.keys_file == path
        assert SECRET not in repr(settings)


@pytest.mark.parametrize("text", [None, "", " \n", ",", "nonsense", "1:YWJj", "\u00e4", "x" * 70_000])
def test_a_file_without_good_keys_is_told_at_start(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="OTELCTX_KEYS") as caught:
        Settings.from_env({"OTELCTX_KEYS_FILE": str(path)})
    assert "x" * 100 not in str(caught.value)


def test_keys_in_two_places_are_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"1:{SECRET}")
    with pytest.raises(ConfigError, match="both set"):
        Settings.from_env({"OTELCTX_KEYS": f"1:{SECRET}", "OTELCTX_KEYS_FILE": str(tmp_path / "keys")})
