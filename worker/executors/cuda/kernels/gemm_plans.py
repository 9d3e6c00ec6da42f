"""Which cuBLASLt algorithm multiplies which shape on how many SMs, kept on disk between runs.

Pure data, apart from the device, so that keys, buckets and the file's treatment are tested without
one. An algorithm is 64 opaque bytes that only the same cuBLASLt understands, and it was chosen for
one GPU and driver: all three are in the file's name. A partition is known by its SM count, which is
unambiguous while prefill and decode sides differ in size (they do in the default table). What is
read back is validated by cuBLASLt before use: a damaged file costs a warning, nothing else.
"""

import json
import logging
import os
import re
import tempfile
from bisect import bisect_left
from dataclasses import asdict, dataclass
from pathlib import Path

log = logging.getLogger(__name__)

SCHEMA = 1

M_BUCKETS: tuple[int, ...] = (
    *(1, 8, 16, 32, 48, 64, 96, 128),
    *(192, 256, 288, 320, 352, 384),
    *range(448, 2305, 64),
    *(2560, 3072, 3584, 4096, 5120, 6144, 8192, 12288, 16384),
)
"""Upper ends, in rows. Small ones are close together: there a tile too large is mostly padding, and
a plan for 1,536 rows that runs 1,088 (a chunk of 1,024 and its decode rows) leaves SMs idle. A
single row has its own, for cuBLASLt takes it for a vector, whose algorithms differ; 288 and 352 are
chunks of 256 and 320 with 32 decode rows.
"""


@dataclass(frozen=True, slots=True)
class GemmKey:
    """One product: y [m, n] = x [m, k] · W [n, k]ᵀ (+ bias) on `sm_count` SMs, m a bucket's end."""

    m: int
    n: int
    k: int
    sm_count: int
    bias: bool

    def text(self) -> str:
        """Return the key as it stands in the file."""
        return f"m{self.m} n{self.n} k{self.k} sm{self.sm_count} bias{int(self.bias)}"


@dataclass(frozen=True, slots=True)
class GemmChoice:
    """An algorithm and the SM count it is launched for (0: cuBLASLt is told nothing)."""

    algorithm: str
    """Hexadecimal, 128 digits."""
    sm_target: int
    source: str
    """`heuristic` or `search`; a searched choice is never replaced by a heuristic one."""
    tflops: float = 0.0
    """As searched; 0 when not measured."""


def bucket_of(m: int, buckets: tuple[int, ...] = M_BUCKETS) -> int:
    """Return the smallest bucket end ≥ m, or the largest end for any m beyond it.

    Raises ValueError for m < 1.
    """
    if m < 1:
        raise ValueError(f"rows must be at least 1, got {m}")
    return buckets[min(bisect_left(buckets, m), len(buckets) - 1)]


def bucket_table(buckets: tuple[int, ...] = M_BUCKETS) -> list[int]:
    """Return `bucket_of` as a list over 0 .. largest end, for the launch path (entry 0 is void)."""
    return [buckets[0], *(bucket_of(m, buckets) for m in range(1, buckets[-1] + 1))]


def file_name(gpu: str, cublaslt: int, driver: str) -> str:
    """Return the name of the file for this GPU, cuBLASLt version and driver."""
    parts = (gpu, f"lt{cublaslt}", f"driver{driver}")
    return "gemm-" + "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", part) for part in parts) + ".json"


class GemmStore:
    """The choices of one GPU, in memory and in one JSON file that `save` replaces atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._choices: dict[str, GemmChoice] = _read(path)
        self._dirty = False

    def get(self, key: GemmKey) -> GemmChoice | None:
        """Return the choice for `key`, if there is one."""
        return self._choices.get(key.text())

    def put(self, key: GemmKey, choice: GemmChoice) -> None:
        """Keep `choice`, unless it is a guess and a measured one is there."""
        known = self._choices.get(key.text())
        if known is not None and known.source == "search" and choice.source != "search":
            return
        self._choices[key.text()] = choice
        self._dirty = True

    def drop(self, key: GemmKey) -> None:
        """Forget the choice for `key`: cuBLASLt refused it."""
        self._dirty |= self._choices.pop(key.text(), None) is not None

    def save(self) -> None:
        """Write the file if anything changed. A failure is logged: the cache is a convenience."""
        if not self._dirty:
            return
        content = {
            "schema": SCHEMA,
            "choices": {text: asdict(choice) for text, choice in sorted(self._choices.items())},
        }
        try:
            _replace(self.path, json.dumps(content, indent=0))
        except OSError as error:
            log.warning("GEMM choices not kept: %s", error)
            return
        self._dirty = False

    def __len__(self) -> int:
        return len(self._choices)


def _read(path: Path) -> dict[str, GemmChoice]:
    """Return what the file holds that can be used; nothing if there is no (sound) file."""
    try:
        content = json.loads(path.read_text())
        if content["schema"] != SCHEMA:
            return {}
        return {str(text): _choice(fields) for text, fields in content["choices"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("GEMM choices in %s ignored: %r", path, error)
        return {}


def _choice(fields: dict[str, object]) -> GemmChoice:
    choice = GemmChoice(
        algorithm=str(fields["algorithm"]),
        sm_target=int(str(fields["sm_target"])),
        source=str(fields["source"]),
        tflops=float(str(fields["tflops"])),
    )
    if len(bytes.fromhex(choice.algorithm)) != 64:
        raise ValueError(f"an algorithm has 64 bytes, got {len(choice.algorithm) // 2}")
    return choice


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(partial, path)
