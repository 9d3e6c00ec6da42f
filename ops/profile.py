"""`tandem profile`: measure a model on this device, once, for the scheduler's estimator.

Run it on a machine that does nothing else. It goes on with a profile that it finds, so that a
budget can be spent in parts.
"""

import os
import platform
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ops.profiling.launches import Driver, LaunchFailed
from ops.profiling.session import Session, Step
from protocol import settings
from protocol.lifecycle import EXIT_CONFIG
from protocol.model_files import ModelNotFound, resolve
from scheduler.estimator.profile import Hardware, Profile, ProfileError, Shape, load, save
from worker.executors import factory
from worker.executors.base import DeviceInfo, Executor
from worker.settings import Device, DType, LoadFormat, WorkerSettings

SAVE_EVERY_S = 20.0
PACKAGES = ("tandem-serve", "torch", "flashinfer-python", "cuda-python", "numpy")
POLL_S = 2e-5
WAIT_MS = 50


class ProfileSettings(Struct, frozen=True, kw_only=True):
    """What to measure, for how long. Fields that a worker has too go to it as they are."""

    output: Annotated[str, Meta(description="profile to write, or to go on with")]
    budget: Annotated[
        str, Meta(pattern="^[0-9]+(\\.[0-9]+)?[smh]?$", description="time to spend, as 8m or 500s")
    ] = "8m"
    model: Annotated[str, Meta(description="a Hugging Face folder, a .gguf file, or `demo`")] = (
        "demo"
    )
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
    chosen = settings.parse(
        ProfileSettings, arguments, os.environ, prog="tandem profile", description=__doc__ or ""
    )
    try:
        executor = start(chosen)
    except (ModelNotFound, factory.DeviceUnavailable, ValueError) as error:
        print(f"tandem profile: {error}", file=sys.stderr)
        return EXIT_CONFIG
    path = Path(chosen.output)
    try:
        base = load(path) if path.exists() else empty(executor.info)
        driver = Driver(executor, waiting(executor))
        session = Session(executor.info, driver, base, time.monotonic)
        found = take(session, seconds_of(chosen.budget), path, Console(stderr=True))
    except (ProfileError, LaunchFailed) as error:
        print(f"tandem profile: {error}", file=sys.stderr)
        return 1
    finally:
        executor.close()
    print(summary(found))
    return 0


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

    return factory.build(worker, factory.choose(chosen.device), files, tell)


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
        hardware=Hardware(
            name=device_name(info), unit=info.unit, units=info.units, notes=info.notes
        ),
        software={"python": platform.python_version(), **versions()},
        model=Shape(
            name=model.name, num_layers=model.num_layers, max_model_len=model.max_model_len
        ),
        partitions=info.partitions,
    )


def device_name(info: DeviceInfo) -> str:
    """Return what the device calls itself."""
    if info.unit == "SM":
        from ops import gpu_probe

        return gpu_probe.probe()[0].name
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


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
    """Measure until the budget is spent; save now and then, and at the end, also when stopped."""
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
        found = session.finish()
        save(path, found)
    return found


@contextmanager
def shown(console: Console, budget_s: float) -> Iterator[Callable[[Step], None]]:
    """Show a bar of the budget on a terminal, and every hundredth cell elsewhere."""
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=budget_s)
        first: list[float] = []

        def show(step: Step) -> None:
            if not first:
                first.append(step.seconds)
            text = f"{step.done} of {step.total} cells"
            progress.update(bar, completed=step.seconds - first[0], description=text)
            if not console.is_terminal and step.done % 100 == 0:
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
    worst = max((sample.slowdown for sample in found.corun), default=1.0)
    lines = [
        f"{name}: off by at most {d.largest:.1%}, {d.mean:.1%} in the mean, on {d.samples} held out"
        for name, d in (
            ("prefill", found.fit.prefill_deviation),
            ("decode", found.fit.decode_deviation),
        )
    ]
    return "\n".join([counts, *lines, f"decode beside prefill: at most {worst:.2f} times slower"])
