"""Meta-Attention and the KV write against vLLM's CPU_ATTN, and torch's SDPA.

geomean_ratio            CPU_ATTN (ISA "vec") over ours, all attention cases
min_ratio                the least of them
prefill_share_of_limit   2,048 tokens, head size 64: share of the multiply-add limit, one core
decode_share_of_bound    least over the decode cases on one core: bound time over ours, the bound
                         being max(bytes / bandwidth in the same order, operations / 0.75 of the
                         limit; 0.86 at head size 128)
kv_write_ratio           CPU_ATTN over ours, least of 64 tokens and up

The limit is that of the bf16 dot product on AVX-512-BF16, of fp32 multiply-adds on AVX2 and for
other dtypes. The peer is vLLM's build for the CPU (XYSERVE_ISA=avx2 takes the one for AVX2), called
as its impl calls it, scheduler metadata made beforehand like our task table. `--amx` measures its
AMX form beside it, where the CPU has it.
"""

import argparse
import contextlib
import itertools
import math
import statistics
from pathlib import Path

import torch

from benchmarks import attention_limits as limits
from benchmarks import plan_traces
from benchmarks.attention_batches import BLOCK_SIZE, Batch, Heads, Rows, num_pairs
from benchmarks.harness import Case, Options, Result, Row, main, measure
from vllm_xyserve.ops import attention, native
from vllm_xyserve.ops.reference import pages

SMALL, LARGE = Heads(9, 3, 64), Heads(32, 8, 128)
CASES: dict[str, Rows] = {
    "prefill 512": [(512, 512)],
    "prefill 2048": [(2048, 2048)],
    "chunk 256 on 4096": [(256, 4352)],
    "decode 1 x 4096": [(1, 4096)],
    "decode 16 x 1024": [(1, 1024)] * 16,
    "decode 1 x 8192 + 15 x 128": [(1, 8192)] + [(1, 128)] * 15,
    "verify 8 x 5 on 1024": [(5, 1029)] * 8,
    "mixed 1 x 256 + 15 decodes on 700": [(256, 256)] + [(1, 700)] * 15,
    "16 prefills of 13": [(13, 13)] * 16,
}
QUICK = tuple(CASES)[1:2] + tuple(CASES)[3:5] + tuple(CASES)[6:]
TRACES = Path(__file__).parent / "data"
BUDGET, NUM_RUNNING = 4096, 64


def trace_cases(count: int) -> dict[str, Rows]:
    """Steps from both Azure traces at a 4,096-token budget."""
    found: dict[str, Rows] = {}
    for name in ("code", "conv"):
        requests = plan_traces.load(TRACES / f"azure_2023_{name}.csv")
        every = list(itertools.islice(plan_traces.steps(requests, BUDGET, NUM_RUNNING), 400))
        for i, step in enumerate(plan_traces.sample(every, count)):
            found[f"azure {name} {i}"] = list(zip(step.query_lens, step.key_lens, strict=True))
    return found


def bound_us(batch: Batch, dot: float) -> float:
    """The least time of a batch on one core, microseconds."""
    heads = batch.heads
    share = 0.86 if heads.head_size >= 128 else 0.75
    flops = 4 * heads.head_size * heads.num_heads * num_pairs(batch.rows)
    num_bytes = 4 * heads.head_size * heads.num_kv_heads * int(batch.seq_lens.sum())
    read = statistics.median(
        limits.read_gbytes(batch.kv_cache, batch.block_table, batch.num_blocks) for _ in range(5)
    )
    return max(flops / (share * dot), num_bytes / read) * 1e-3


def attention_row(name: str, heads: Heads, rows: Rows, threads: int, options: Options) -> Row:
    """One case against the peer, with its share of the limit."""
    torch.set_num_threads(threads)
    dtype = getattr(torch, options.extra.dtype)
    batch = Batch(heads, rows, "vec", threads, dtype)
    case = Case(name, batch.check, batch.ours(), batch.peer(), {"D": heads.head_size})
    limit = limits.dot_gflops if uses_dot(options) else limits.fma_gflops
    before = limit()
    timing, row = measure(case, options)
    dot = statistics.median([before, limit(), limit()])
    flops = 4 * heads.head_size * heads.num_heads * num_pairs(rows)
    row |= {"threads": threads, "gflops": flops / timing.ours_us * 1e-3, "dot_limit": dot}
    if threads == 1:
        row["share_of_limit"] = flops / timing.ours_us * 1e-3 / dot
        row["share_of_bound"] = bound_us(batch, dot) / timing.ours_us
    if not options.quick:
        sdpa = Case(name, lambda: None, batch.ours(), batch.sdpa())
        row["sdpa_ratio"] = measure(sdpa, options)[0].ratio
    if options.extra.amx:
        amx = Batch(heads, rows, "amx", threads, dtype)
        row["amx_ratio"] = measure(Case(name, amx.check, amx.ours(), amx.peer()), options)[0].ratio
    return row


def uses_dot(options: Options) -> bool:
    return native.load().isa == "avx512_bf16" and options.extra.dtype == "bfloat16"


def write_case(heads: Heads, num_tokens: int, dtype: torch.dtype) -> Case:
    """New tokens at shuffled places, whole blocks in order, as a step writes them."""
    batch = Batch(heads, [(1, max(num_tokens, BLOCK_SIZE))], "vec", 1, dtype)
    key, value = (t[:num_tokens].clone() for t in (batch.key, batch.value))
    slots = torch.arange(num_tokens) + (7 if num_tokens == 1 else 0)

    def check() -> None:
        want = batch.kv_cache.clone()
        pages.write(want, key, value, slots)
        attention.kv_write(key, value, batch.kv_cache, slots)
        if not torch.equal(want, batch.kv_cache):
            raise AssertionError(f"kv_write of {num_tokens} tokens differs from the twin")

    return Case(
        name=f"kv_write {num_tokens}",
        check=check,
        ours=lambda: attention.kv_write(key, value, batch.kv_cache, slots),
        peer=lambda: batch.write_peer(key, value, slots),
        facts={"D": heads.head_size, "threads": 1},
    )


def load_peer(isa: str) -> None:
    """vLLM's kernels for the same instruction set."""
    if isa == "avx2":
        # The file registers the operations; its name is not that of its module's function.
        with contextlib.suppress(ImportError):
            import vllm._C_AVX2
    else:
        import vllm._C  # noqa: F401
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        raise SystemExit(f"vLLM has no attention kernels for {isa}")


def run(options: Options) -> Result:
    status = native.load()
    if not status.loaded or status.isa not in ("avx512_bf16", "avx2"):
        raise SystemExit(f"needs the native library on AVX-512-BF16 or AVX2, have {status}")
    load_peer(status.isa)

    if options.extra.amx and not torch.cpu._init_amx():
        raise SystemExit("--amx: this CPU, or its kernel, offers no AMX")
    torch.manual_seed(0)
    cases = {name: CASES[name] for name in (QUICK if options.quick else CASES)}
    cases |= trace_cases(1 if options.quick else 2)
    rows: list[Row] = []
    for threads in options.extra.threads or ((1,) if options.quick else (1, 2)):
        for heads in (SMALL, LARGE):
            for name, shape in cases.items():
                if options.quick and heads is LARGE and "azure" in name:
                    continue  # seconds a call
                rows.append(attention_row(name, heads, shape, threads, options))
    ratios = [float(row["ratio"] or 0) for row in rows]
    single = [row for row in rows if row["threads"] == 1]
    torch.set_num_threads(1)
    dtype = getattr(torch, options.extra.dtype)
    sizes = (1, 64, 256) if options.quick else (1, 16, 64, 256, 1024)
    writes = [
        (n, *measure(write_case(heads, n, dtype), options))
        for n in sizes
        for heads in (SMALL, LARGE)
    ]
    prefill = next(r for r in single if r["name"] == "prefill 2048" and r["D"] == SMALL.head_size)
    summary = {
        "geomean_ratio": math.exp(statistics.mean(math.log(ratio) for ratio in ratios)),
        "min_ratio": min(ratios),
        "prefill_share_of_limit": float(prefill["share_of_limit"] or 0),
        "decode_share_of_bound": min(
            float(r["share_of_bound"] or 0) for r in single if str(r["name"]).startswith("decode")
        ),
        "kv_write_ratio": min(t.ratio or 0.0 for n, t, _ in writes if n >= 64),
    }
    return Result(summary, rows + [row for _, _, row in writes])


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, nargs="+", help="default: 1 2; --quick: 1")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--amx", action="store_true", help="the peer's AMX form in a column, too")


if __name__ == "__main__":
    main(run, __doc__, add_arguments=_add_arguments)
