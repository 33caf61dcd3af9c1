# SPDX-License-Identifier: MIT
"""Opens a drafter checkpoint: a directory, a weight file next to its config.json, or a drafter's GGUF.

An opened checkpoint has the config, every tensor as a lazy `TensorSource`, and the data that identify the
source. If a directory has both safetensors and .bin files, the safetensors files are read. Dialects interpret
the contents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import safetensors_file, torch_zip
from .config import load_json, shown
from .errors import CheckpointError, SourceError
from .files import open_regular
from .gguf_checkpoint import read_drafter
from .gguf_head import Field
from .tensor import TensorSource

_Read = Callable[[Path], dict[str, TensorSource]]
# For each format: the name of its index file, two patterns of weight files (the usual file name first), and a
# reader.
_FORMATS: tuple[tuple[str, tuple[str, str], _Read], ...] = (
    ("model.safetensors.index.json", ("model*.safetensors", "*.safetensors"), safetensors_file.read_index),
    ("pytorch_model.bin.index.json", ("pytorch_model*.bin", "*.bin"), torch_zip.read_index),
)
_MAX_INDEX = 16 << 20  # Maximum bytes of an index file. An index has some hundred bytes for each tensor.
_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. name: Hub id, or name of the directory or file; tensors: tensors by original
    name; general: the `general.*` entries of a GGUF, which replace the model card.
    """

    name: str
    directory: Path
    config: dict[str, Any]
    tensors: dict[str, TensorSource]
    files: tuple[Path, ...]
    from_hub: bool = False
    general: dict[str, Field] | None = None
    notes: tuple[str, ...] = ()

    @property
    def short_name(self) -> str:
        """The name without the owner of a Hub id."""
        return self.name.rsplit("/", 1)[-1].partition("@")[0]

    def sha256(self) -> str:
        """Returns the SHA-256 of the weight file, as shown on the Hub. For several shards, returns the
        SHA-256 of the shards' sha256sum listing.
        """
        digests = [(path.name, _file_sha256(path)) for path in self.files]
        if len(digests) == 1:
            return digests[0][1]
        listing = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests))
        return hashlib.sha256(listing.encode()).hexdigest()


def open_checkpoint(src: str | Path) -> Checkpoint:
    """Opens the checkpoint at `src`. Raises SourceError, CheckpointError, and for a GGUF also GgufError and
    UnsupportedError.
    """
    path = Path(src)
    if path.is_dir():
        return _open_directory(path, path.resolve().name)
    if path.is_file():
        return _open_file(path)
    raise SourceError(
        f"{src}: expected a checkpoint directory or a .safetensors, .bin or .gguf file, found nothing. To "
        "download a checkpoint from the Hub, pass hf.co/OWNER/NAME"
    )


def _open_directory(directory: Path, name: str) -> Checkpoint:
    path = _config_path(directory)
    formats = [(index, _weight_files(directory, patterns), read) for index, patterns, read in _FORMATS]
    usable = [
        (index, files, read) for index, files, read in formats if files or (directory / index).is_file()
    ]
    if not usable:
        raise CheckpointError(
            f"{directory}: expected model.safetensors, pytorch_model.bin or their shards, found none of them"
        )
    index, files, read = usable[0]
    notes = ("read the .safetensors files and ignored the .bin files",) if len(usable) > 1 else ()
    shards = _shards(directory, index)
    if shards is not None:
        files = [directory / shard for shard in sorted(set(shards.values()))]
    elif len(files) > 1:
        raise CheckpointError(
            f"{directory}: expected one weight file or {index}, found {', '.join(f.name for f in files)}"
        )
    tensors = _merge(files, read)
    if shards is not None:
        _check_index(directory / index, shards, tensors)
    return Checkpoint(name, directory, load_json(path), tensors, tuple(files), notes=notes)


def _weight_files(directory: Path, patterns: tuple[str, ...]) -> list[Path]:
    for pattern in patterns:
        files = sorted(path for path in directory.glob(pattern) if path.name not in _NOT_WEIGHTS)
        if files:
            return files
    return []


def _open_file(path: Path) -> Checkpoint:
    if path.suffix == ".gguf":
        drafter = read_drafter(path)
        folder, notes = path.resolve().parent, (drafter.note,)
        return Checkpoint(
            drafter.name,
            folder,
            drafter.config,
            drafter.tensors,
            (path,),
            general=drafter.general,
            notes=notes,
        )
    readers = {".safetensors": safetensors_file.read_index, ".bin": torch_zip.read_index}
    read = readers.get(path.suffix)
    if read is None:
        raise SourceError(f"{path}: expected a .safetensors, .bin or .gguf file or a checkpoint directory")
    name = path.resolve().parent.name if path.stem in ("model", "pytorch_model") else path.stem
    config = load_json(_config_path(path.parent))
    return Checkpoint(name, path.resolve().parent, config, read(path), (path,))


def _config_path(directory: Path) -> Path:
    path = directory / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: not found; download it too, because it has the drafter's sizes")
    return path


def _shards(directory: Path, index: str) -> dict[str, str] | None:
    """Returns the shard file of each tensor name, or None if the checkpoint has no index. Rejects files
    outside the directory.
    """
    path = directory / index
    if not path.is_file():
        return None
    weight_map = load_json(path, _MAX_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: expected a non-empty weight_map")
    for shard in weight_map.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{path}: weight_map: expected plain file names, found {shown(shard)}")
        if not (directory / shard).is_file():
            raise CheckpointError(f"{path}: shard {shard} is missing; download the checkpoint completely")
    return weight_map


def _merge(files: Sequence[Path], read: _Read) -> dict[str, TensorSource]:
    tensors: dict[str, TensorSource] = {}
    for path in files:
        for name, source in read(path).items():
            if name in tensors:
                raise CheckpointError(f"{path}: tensor {name} is also in {tensors[name].path.name}")
            tensors[name] = source
    return tensors


def _check_index(path: Path, shards: dict[str, str], tensors: dict[str, TensorSource]) -> None:
    absent = sorted(name for name in shards if name not in tensors)
    if absent:
        raise CheckpointError(f"{path}: it lists tensors that no shard contains: {', '.join(absent[:8])}")


def _file_sha256(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
