"""One message of each kind, every field set to something that is not its default."""

from typing import get_args

from msgspec import Struct

from protocol.activity import Activity, LaneActivity, PlanInForce, Sharing
from protocol.control_link import (
    Arrived,
    Attach,
    ControlToWorker,
    DecodePlan,
    Detach,
    DeviceWork,
    Disjoint,
    Exclusive,
    Fenced,
    FusedChunks,
    Lane,
    Left,
    Observe,
    Partition,
    Plan,
    PlanRejected,
    PoolState,
    PrefillBatch,
    PrefillDone,
    PrefillItem,
    PrefillPlan,
    PrefillStarted,
    Progress,
    QuantumDone,
    RefusedScheduler,
    RequestState,
    RequestView,
    Retracted,
    Shared,
    Snapshot,
    StartedBatch,
    StepDone,
    ToScheduler,
)
from protocol.data_link import (
    Abort,
    Accepted,
    Credits,
    Delivered,
    FailCode,
    Failed,
    Finished,
    FinishReason,
    Hello,
    Load,
    ModelInfo,
    Refused,
    Resync,
    Status,
    Stop,
    Submit,
    ToGateway,
    TokenLogprobs,
    TokenRun,
    Tokens,
    ToWorker,
    Usage,
    Welcome,
    WorkerLimits,
)
from protocol.ids import Epoch, RequestRef, pack_tokens
from protocol.sampling import LogitBias, Sampling
from protocol.slo import Deadlines, Slo

REF = RequestRef("0123456789abcdef0123456789abcdef", 2)
OTHER = RequestRef("fedcba9876543210fedcba9876543210")
EPOCH = Epoch(boot="boot-1", n=3)
SLO = Slo(ttft_s=1.5, tbt_s=0.05)
POOL = PoolState(total=1000, free=700, cached=200)
CREDITS = Credits(requests=64, tokens=1 << 20)
LIMITS = WorkerLimits(max_queued_requests=256, max_queued_tokens=1 << 21, max_num_seqs=128)
MODEL = ModelInfo(
    name="demo",
    num_layers=30,
    vocab_size=49152,
    max_model_len=8192,
    page_size=16,
    eos_token_ids=(2, 0),
)
SAMPLING = Sampling(
    max_tokens=128,
    seed=2**63 - 1,
    temperature=0.7,
    top_k=40,
    top_p=0.9,
    min_p=0.05,
    repetition_penalty=1.1,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    min_tokens=3,
    ignore_eos=True,
    stop_token_ids=(7, 8),
    logit_bias=(LogitBias(token=5, bias=-2.5),),
    logprobs=4,
)
VIEW = RequestView(
    ref=REF,
    model="demo",
    tenant="acme",
    state=RequestState.SUSPENDED,
    prompt_tokens=1500,
    computed=512,
    cached=256,
    output_tokens=1,
    max_tokens=128,
    arrival=12.25,
    slo=SLO,
    priority=-1,
)
WORK = DeviceWork(
    lane=Lane.PREFILL,
    partition=1,
    units=92,
    seconds=0.0115,
    new_tokens=2048,
    new_squared=2048**2,
    new_times_reused=4096,
    reused_tokens=64,
    batch_size=2,
    context_tokens=70_000,
    layers=8,
    overlap_s=0.009,
    queued_s=0.0002,
    started=812.5,
)
PROGRESS = (Progress(ref=REF, computed=1500, output_tokens=1),)

TO_WORKER: list[Struct] = [
    Hello(gateway="gw-1", version=1),
    Submit(
        ref=REF,
        model="demo",
        token_ids=pack_tokens([1, 49151, 2**31 - 1]),
        sampling=SAMPLING,
        tenant="acme",
        output_so_far=pack_tokens([9]),
        page_hashes=bytes(range(32)),
        root_hash=bytes(32),
        slo=SLO,
        deadlines=Deadlines(queue_s=10.0, ttft_s=20.0, total_s=60.0),
        priority=5,
        age_s=0.125,
    ),
    Stop(ref=REF, at_index=17),
    Abort(ref=REF),
    Resync(requests=(Delivered(ref=REF, tokens=4), Delivered(ref=OTHER, tokens=0))),
]
TO_GATEWAY: list[Struct] = [
    Welcome(boot="boot-1", version=1, models=(MODEL,), limits=LIMITS, credits=CREDITS),
    Refused(version=2, message="speak version 2"),
    Accepted(ref=REF, cached_tokens=256),
    Tokens(
        runs=(
            TokenRun(
                ref=REF,
                first=4,
                ids=pack_tokens([11, 12]),
                logprobs=(TokenLogprobs(drawn=-0.25, top_ids=(11, 12), top=(-0.25, -1.5)),),
            ),
            TokenRun(ref=OTHER, first=0, ids=pack_tokens([13])),
        )
    ),
    Finished(
        ref=REF,
        reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=1500, output_tokens=6, cached_tokens=256),
        stop_token=2,
    ),
    Failed(ref=REF, code=FailCode.TOO_LONG, message="9000 tokens, the limit is 8192"),
    Status(
        credits=CREDITS,
        load=Load(
            queued=3,
            running=8,
            pages_total=1000,
            pages_referenced=100,
            pages_cached=200,
            iterations=77,
            draining=True,
            scheduler="muxwise",
        ),
        activity=Activity(
            unit="SM",
            units=132,
            plan=PlanInForce(
                seq=41,
                sharing=Sharing.DISJOINT,
                prefill_units=92,
                decode_units=40,
                depth=1,
                layers_per_quantum=8,
                autopilot=True,
                reason="split 92/40",
            ),
            prefill=LaneActivity(units=92, launches=12, busy_s=1.5, tokens=4096),
            decode=LaneActivity(units=40, launches=65, busy_s=2.5, tokens=520),
            both_s=1.25,
            retractions=2,
        ),
    ),
]
PREFILL_PLAN = PrefillPlan(
    batches=(PrefillBatch(items=(PrefillItem(ref=REF, upto=1024), PrefillItem(ref=OTHER))),),
    layers_per_quantum=8,
    token_chunk=4096,
)
DECODE_PLAN = DecodePlan(
    wanted=(OTHER,),
    depth=2,
    fused=FusedChunks(requests=(REF,), token_budget=512, max_chunk=256),
)
TO_WORKER_FROM_SCHEDULER: list[Struct] = [
    Observe(scheduler="sched-1", policy="muxwise", version=1),
    Attach(scheduler="sched-1", policy="muxwise", version=1),
    *(
        Plan(
            epoch=EPOCH,
            seq=41,
            sharing=sharing,
            alone=1,
            decode=DECODE_PLAN,
            prefill=PREFILL_PLAN,
            victims=(OTHER, REF),
            reason="split 40/92: predicted 31 ms of 50 ms",
        )
        for sharing in (
            Disjoint(partition=2),
            Shared(),
            Exclusive(first=Lane.DECODE, quanta=2, iterations=4),
        )
    ),
    Detach(epoch=EPOCH),
]
TO_SCHEDULER: list[Struct] = [
    Snapshot(
        boot="boot-1",
        event=99,
        epoch=EPOCH,
        acting=True,
        now=1234.5,
        device="NVIDIA H200",
        unit="SM",
        units=132,
        partitions=(
            Partition(index=0, prefill_units=132, decode_units=132),
            Partition(index=1, prefill_units=92, decode_units=40),
        ),
        models=(MODEL,),
        limits=LIMITS,
        pool=POOL,
        requests=(VIEW,),
        batches=(StartedBatch(batch=(REF, OTHER), layers_done=8, layers_total=30),),
        plan_seq=41,
    ),
    Arrived(event=100, request=VIEW),
    PrefillStarted(event=108, lane=Lane.PREFILL, requests=(VIEW,), pool=POOL),
    QuantumDone(
        event=101,
        batch=(REF, OTHER),
        layers_done=16,
        layers_total=30,
        work=WORK,
        progress=PROGRESS,
        suspended=True,
    ),
    PrefillDone(event=102, progress=PROGRESS, pool=POOL),
    StepDone(event=103, work=WORK, progress=PROGRESS, pool=POOL),
    Retracted(event=104, request=VIEW, pool=POOL),
    Left(event=105, ref=REF, reason="finished", pool=POOL),
    PlanRejected(event=106, seq=42, why="partition 9 of 5"),
    Fenced(event=107, epoch=EPOCH),
    RefusedScheduler(version=2, message="speak version 2"),
]

SAMPLES = [*TO_WORKER, *TO_GATEWAY, *TO_WORKER_FROM_SCHEDULER, *TO_SCHEDULER]

KINDS = {
    kind
    for union in (ToWorker, ToGateway, ControlToWorker, ToScheduler)
    for kind in get_args(union)
}
"""Every kind of message that may be on a wire."""
