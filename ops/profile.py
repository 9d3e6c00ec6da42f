"""`tandem profile`: measure a model on this device, once, for the scheduler's estimator.

Run it on a machine that does nothing else. It goes on with a profile that it finds, so that a
budget can be spent in parts; the budget is that of the whole run, loading the model included.
"""

import gc
import platform
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from os import environ
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ops import config
from ops.profiling.launches import Driver, LaunchFailed
from ops.profiling.session import Session, Step, fitted
from protocol.lifecycle import EXIT_CONFIG
from protocol.model_files import LoadFormat, ModelNotFound, resolve
from scheduler.estimator import library
from scheduler.estimator.profile import Hardware, Profile, ProfileError, Shape, load, save
from worker.executors import factory
from worker.executors.base import DeviceInfo, Executor
from worker.settings import Device, DType, WorkerSettings

SAVE_EVERY_S = 20.0
PACKAGES = ("tandem-serve", "torch", "flashinfer-python", "cuda-python", "numpy")
POLL_S = 2e-5
WAIT_MS = 50
TOLD_EVERY = 25
"""Cells between two lines where no bar can be shown."""


class ProfileSettings(Struct, frozen=True, kw_only=True):
    """What to measure, for how long. Fields that a worker has too go to it as they are."""

    output: (
        Annotated[
            str,
            Meta(
                description="profile to write, or to go on with; default: where schedulers look "
                "for it, by model and device"
            ),
        ]
        | None
    ) = None
    budget: Annotated[
        str, Meta(pattern="^[0-9]+(\\.[0-9]+)?[smh]?$", description="time to spend, as 8m or 500s")
    ] = "8m"
    model: Annotated[
        str,
        Meta(
            description="a Hugging Face folder, a .gguf file, `demo`, or with --load-format dummy "
            "a shape by name, as llama-3.1-8b"
        ),
    ] = "demo"
    fit_only: Annotated[
        bool, Meta(description="measure nothing: fit the samples of --output anew")
    ] = False
    splits: (
        Annotated[
            tuple[int, ...],
            Meta(description="SMs of the prefill side of each split to measure; default: all"),
        ]
        | None
    ) = None
    device: Annotated[Device, Meta(description="auto takes CUDA when there is one")] = Device.AUTO
    dtype: Annotated[DType, Meta(description="auto: bfloat16 on CUDA, float32 on the CPU")] = (
        DType.AUTO
    )
    load_format: Annotated[
        LoadFormat, Meta(description="dummy: random weights of the shape in config.json")
    ] = LoadFormat.AUTO
    max_num_seqs: Annotated[int, Meta(ge=16, le=4096, description="slots of the device")] = 256
    max_model_len: Annotated[int, Meta(ge=1, description="longest sequence")] | None = None
    max_prefill_tokens: Annotated[int, Meta(ge=1, description="new tokens of a prefill")] = 8192
    num_pages: Annotated[int, Meta(ge=2, description="pages of the KV pool")] | None = None


def main(arguments: Sequence[str]) -> int:
    """Take a profile; return the exit status."""
    began = time.monotonic()
    chosen = config.parse(ProfileSettings, arguments, prog="tandem profile", description=__doc__)
    try:
        found = refit(given(chosen)) if chosen.fit_only else measure(chosen, began)
    except (ModelNotFound, factory.DeviceUnavailable) as error:
        return _fail(error, EXIT_CONFIG)
    except (ProfileError, LaunchFailed) as error:
        return _fail(error, 1)
    except ValueError as error:
        return _fail(error, EXIT_CONFIG)
    print(summary(found))
    return 0


def _fail(error: Exception, status: int) -> int:
    print(f"tandem profile: {error}", file=sys.stderr)
    return status


def given(chosen: ProfileSettings) -> Path:
    """Return --output. Raises ValueError without it."""
    if chosen.output is None:
        raise ValueError("--fit-only: say with --output which profile to fit anew")
    return Path(chosen.output)


def refit(path: Path) -> Profile:
    """Fit the samples of a profile anew, and write it. Raises ProfileError."""
    found = fitted(load(path))
    save(path, found)
    return found


def measure(chosen: ProfileSettings, began: float) -> Profile:
    """Measure within the budget, which runs since `began`; write and return what there is then.

    Raises DeviceUnavailable, ModelNotFound, ProfileError, LaunchFailed, ValueError.
    """
    if chosen.output is not None and Path(chosen.output).exists():
        load(Path(chosen.output))  # what cannot be gone on with is said before the model is loaded
    executor = start(chosen)
    console = Console(stderr=True)
    try:
        info = executor.info
        path = Path(chosen.output) if chosen.output else place_of(info)
        base = load(path) if path.exists() else empty(info)
        console.print(f"profile {path}", highlight=False)
        if info.unit == "SM" and not base.rates:
            from ops.profiling.kernels import rates

            base = replace(base, rates=rates(executor))
        driver = Driver(executor, waiting(executor))
        spent = time.monotonic() - began
        console.print(f"started in {spent:.0f} s", highlight=False)
        session = Session(info, driver, base, time.monotonic, spent)
        gc.collect()
        gc.freeze()  # as the worker does: a full collection takes tens of milliseconds
        take(session, seconds_of(chosen.budget) - spent, path, console)
    finally:
        executor.close()
    return refit(path)


def place_of(info: DeviceInfo) -> Path:
    """Return the file where schedulers find the profile of this device and model."""
    folder = library.own_folder(environ)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / library.file_name(info.models[0].name, info.device, 1)


def start(chosen: ProfileSettings) -> Executor:
    """Load the model and start its lanes. Raises DeviceUnavailable, ModelNotFound, ValueError."""
    files = resolve(chosen.model)
    shared = [name for name in chosen.__struct_fields__ if name in WorkerSettings.__struct_fields__]
    values = {name: getattr(chosen, name) for name in shared}
    worker = WorkerSettings(run_dir="", **values)
    console = Console(stderr=True)

    def tell(stage: str, done: int, total: int) -> None:
        if done in (0, total):
            console.print(stage, highlight=False)

    device = factory.choose(chosen.device)
    if device is not Device.CUDA:
        if chosen.splits is not None:
            raise ValueError("--splits: only a GPU's splits can be chosen")
        return factory.build(worker, device, files, tell)
    from worker.executors.cuda.config import PREFILL_SMS
    from worker.executors.cuda.start import start_from_settings

    splits = PREFILL_SMS if chosen.splits is None else chosen.splits
    executor = start_from_settings(worker, files.name, files, tell, splits)
    executor.pool.fill()
    return executor


def waiting(executor: Executor) -> Callable[[], None]:
    """Return a function that waits until `poll` may have something."""
    descriptor = executor.fileno()
    if descriptor is None:
        return lambda: time.sleep(POLL_S)
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)

    def wait() -> None:
        poller.poll(WAIT_MS)

    return wait


def empty(info: DeviceInfo) -> Profile:
    """Return a profile of this device without samples."""
    model = info.models[0]
    return Profile(
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        hardware=Hardware(name=info.device, unit=info.unit, units=info.units, notes=info.notes),
        software={"python": platform.python_version(), **versions()},
        model=Shape(
            name=model.name,
            num_layers=model.num_layers,
            max_model_len=model.max_model_len,
            vocab_size=model.vocab_size,
            num_heads=model.num_heads,
        ),
        partitions=info.partitions,
        row_sizes=info.row_sizes,
    )


def versions() -> dict[str, str]:
    """Return the installed packages that decide how fast kernels are."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def seconds_of(budget: str) -> float:
    """Return a time as given on the command line: 8m, 500s, 1.5h, or plain seconds."""
    scale = {"s": 1, "m": 60, "h": 3600}.get(budget[-1])
    return float(budget[:-1]) * scale if scale else float(budget)


def take(session: Session, budget_s: float, path: Path, console: Console) -> Profile:
    """Measure until the budget is spent; save now and then, and at the end, also when stopped.

    Raises LaunchFailed once the device has failed; what was measured is saved.
    """
    saved = time.monotonic()
    try:
        with shown(console, budget_s) as show:
            for step in session.run(budget_s):
                show(step)
                if time.monotonic() - saved >= SAVE_EVERY_S:
                    save(path, step.profile)
                    saved = time.monotonic()
    except KeyboardInterrupt:
        console.print("stopped; what was measured is kept")
    finally:
        save(path, session.measured())
    return session.measured()


@contextmanager
def shown(console: Console, budget_s: float) -> Iterator[Callable[[Step], None]]:
    """Show a bar of the budget on a terminal, and some cells elsewhere."""
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=budget_s)
        first: list[float] = []

        def show(step: Step) -> None:
            if not first:
                first.append(step.seconds)
            text = f"{step.done} of {step.total} cells"
            progress.update(bar, completed=step.seconds - first[0], description=text)
            if not console.is_terminal and step.done % TOLD_EVERY == 0:
                console.print(f"{text}, {step.seconds:.0f} s", highlight=False)

        yield show


def summary(found: Profile) -> str:
    """Say what there is now and how good its fit is."""
    counts = (
        f"{len(found.prefill)} prefill, {len(found.decode)} decode, {len(found.corun)} co-run "
        f"samples in {found.seconds:.0f} s"
    )
    if found.fit is None:
        return f"{counts}: too few for a fit, go on with a larger --budget"
    if found.failures:
        counts += f"; {len(found.failures)} cells failed, the first: {found.failures[0]}"
    worst = max((sample.slowdown for sample in found.corun), default=1.0)
    lines = [
        f"{name}: off by at most {d.largest:.1%}, {d.mean:.1%} in the mean, on {d.samples} held out"
        for name, d in (
            ("prefill", found.fit.prefill_deviation),
            ("decode", found.fit.decode_deviation),
        )
    ]
    return "\n".join([counts, *lines, f"decode beside prefill: at most {worst:.2f} times slower"])
