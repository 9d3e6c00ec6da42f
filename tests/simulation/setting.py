"""A life before it is lived: device, bounds, calls and faults, all drawn from one seed.

Everything is drawn beforehand and is plain data, so that a life with a fault less is the same life
otherwise; that is what shrinking does.
"""

from dataclasses import dataclass
from random import Random

from protocol.link import LinkConfig
from protocol.sampling import Sampling
from tests.simulation.faults import KINDS, Fault
from tests.unit.worker.world import device, shape
from worker.core.config import CoreConfig
from worker.executors.base import DeviceInfo, ModelShape

VOCAB = 60
POLICIES = (
    ("muxwise", ()),
    ("muxwise", ("split=2", "depth=3", "token_cap=24")),
    ("chunked", ("token_budget=8",)),
    ("chunked", ("token_budget=3", "depth=2")),
    ("prefill_first", ()),
    ("prefill_first", ("token_chunk=5", "depth=4")),
    ("reckless", ("seed=1",)),
    ("reckless", ("seed=2",)),
    ("reckless", ("seed=3",)),
)
"""Names and options; `reckless` is the simulation's own."""


@dataclass(frozen=True)
class CallPlan:
    """One request that will come."""

    at: float
    gateway: int
    prompt: tuple[int, ...]
    sampling: Sampling
    cached: bool


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A life before it is lived. Seconds throughout."""

    seed: int
    device: DeviceInfo
    core: CoreConfig
    link: LinkConfig
    latency_s: float
    gateways: int
    worker_wait_s: float
    clocks: tuple[float, ...]
    """By how much the clocks of processes are ahead, in the order of their starts, in turns."""
    policies: tuple[int, ...]
    """Of schedulers, in the order of their starts, in turns: indices of POLICIES."""
    calls: tuple[CallPlan, ...]
    faults: tuple[Fault, ...]
    chaos_s: float
    """Faults happen before; then all is healed."""

    @property
    def model(self) -> ModelShape:
        """The only model."""
        return self.device.models[0]


def draw(seed: int) -> Setting:
    """Return the life of `seed`: small, and unlike its neighbours."""
    dice = Random(seed)
    length = dice.choice([12, 20, 32])
    page_size = dice.choice([1, 2, 4, 8])
    least = -(-length // page_size)
    chaos_s = dice.choice([0.3, 0.6, 1.2])
    slots = dice.choice([1, 3, 8])
    info = device(
        models=(shape(layers=dice.randint(1, 4), length=length, vocab=VOCAB),),
        page_size=page_size,
        num_pages=dice.choice([least, least + 2, 2 * least, 4 * least]),
        max_slots=slots,
        max_prefill_tokens=dice.choice([3, 16, 64]),
    )
    core = CoreConfig(
        max_queued_requests=dice.choice([2, 4, 100, 100]),
        max_num_seqs=dice.choice([1, 3, 8]),
        gateway_grace_s=dice.choice([0.5, 3.0]),
        ticket_deadline_s=2.0,
    )
    window = dice.choice([8, 64, 4096])
    return Setting(
        seed=seed,
        device=info,
        core=core,
        link=LinkConfig(window=window, heartbeat_s=0.25, silence_s=dice.choice([0.6, 1.5])),
        latency_s=dice.choice([1e-4, 1e-3, 0.01]),
        gateways=dice.choice([1, 2]),
        worker_wait_s=dice.choice([4.0, 1000.0]),
        clocks=tuple(dice.choice([0.0, 5.0, 1e6 * dice.random()]) for _ in range(4)),
        policies=tuple(dice.randrange(len(POLICIES)) for _ in range(4)),
        calls=_draw_calls(dice, length, chaos_s),
        faults=_draw_faults(dice, chaos_s),
        chaos_s=chaos_s,
    )


def _draw_calls(dice: Random, length: int, chaos_s: float) -> tuple[CallPlan, ...]:
    prefix = [dice.randrange(VOCAB) for _ in range(length)]
    return tuple(
        CallPlan(
            at=dice.random() * chaos_s,
            gateway=dice.randrange(2),
            prompt=draw_prompt(dice, prefix, length),
            sampling=draw_sampling(dice),
            cached=dice.random() < 0.8,
        )
        for _ in range(dice.randint(2, 10))
    )


def draw_prompt(dice: Random, prefix: list[int], length: int) -> tuple[int, ...]:
    """Return a prompt that is shorter than `length` and may share its beginning."""
    head = prefix[: dice.randint(0, length - 2)] if dice.random() < 0.5 else []
    tail = [dice.randrange(VOCAB) for _ in range(dice.randint(1, length // 2))]
    return tuple((head + tail)[: length - 1])


def draw_sampling(dice: Random) -> Sampling:
    """Return any way to sample that the fake model knows."""
    return Sampling(
        max_tokens=dice.randint(1, 16),
        seed=dice.randrange(4),
        temperature=dice.choice([0.0, 1.0]),
        ignore_eos=dice.random() < 0.5,
        min_tokens=dice.choice([0, 0, 4]),
        stop_token_ids=tuple(dice.sample(range(VOCAB), dice.choice([0, 1, 3]))),
    )


def _draw_faults(dice: Random, chaos_s: float) -> tuple[Fault, ...]:
    """Swarm: each life knows only some kinds of fault, so that some meet more often."""
    names = list(KINDS)
    kinds = dice.sample(names, dice.randint(1, 6))
    if "old_plan" in kinds:
        kinds.append("crash_worker")  # or hardly any plan would be of another boot
    faults = [
        Fault(
            at=dice.random() * chaos_s,
            kind=dice.choice(kinds),
            which=dice.randrange(12),
            span=dice.choice([0.02, 0.1, 0.4, 1.0, 3.0]),
            keep=dice.choice([0, 0, 1, 2, 5, 100]),
            back=dice.choice([0, 0, 1, 2, 5, 100]),
        )
        for _ in range(dice.randint(0, 9))
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at))


def steady(
    *,
    calls: int,
    over_s: float,
    policies: tuple[int, ...] = (0, 2),
    faults: tuple[Fault, ...] = (),
    seed: int = 0,
    num_pages: int = 200,
    output: int = 5,
    latency_s: float = 1e-3,
) -> Setting:
    """Return a life in which nothing but `faults` goes wrong: requests of all kinds over `over_s`
    seconds, outputs of up to `output` tokens, and room enough unless `num_pages` says otherwise.
    """
    dice = Random(seed)
    length = 24
    info = device(models=(shape(layers=2, length=length, vocab=VOCAB),), num_pages=num_pages)
    return Setting(
        seed=seed,
        device=info,
        core=CoreConfig(gateway_grace_s=1.0, ticket_deadline_s=5.0),
        link=LinkConfig(window=64, heartbeat_s=0.25, silence_s=0.6),
        latency_s=latency_s,
        gateways=2,
        worker_wait_s=1000.0,
        clocks=(0.0, 100.0),
        policies=policies,
        calls=tuple(
            CallPlan(
                at=over_s * number / calls,
                gateway=number,
                prompt=draw_prompt(dice, [], length // 2),
                sampling=Sampling(
                    max_tokens=1 + (number + output - 1) % output, seed=number, ignore_eos=True
                ),
                cached=False,
            )
            for number in range(calls)
        ),
        faults=faults,
        chaos_s=over_s + 0.1,
    )
