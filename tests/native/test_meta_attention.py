"""Meta-Attention: every kernel of the registry against the fp32 twin, and the rules K1 to K9."""

import os
import secrets
from dataclasses import replace

import pytest
import torch

from tests.helpers.attention import (
    Batch,
    Layer,
    Twin,
    assert_matches,
    make_batch,
    plan,
    run,
    twin,
)
from vllm_xyserve.ops import attention, registry
from vllm_xyserve.ops.reference import pages

KERNELS = [
    k for k in registry.kernels("meta_attention") if k.isa != registry.REFERENCE and k.available
]
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=[k.name for k in KERNELS])
pytestmark = pytest.mark.usefixtures("needs_native")

# Case E 29 of the reported failures.
MIX = [(257, 257), (1, 1), (1, 31), (1, 32), (1, 33), (1, 1095), (5, 100), (5, 5), (64, 1000)]
MIX += [(1, 129)] * 7
SMALL = [(0, 0), (5, 5), (1, 1), (0, 50), (1, 33), (17, 70), (40, 40), (3, 130), (0, 0)]


def checked(
    kernel: registry.Kernel,
    batch: Batch,
    table: torch.Tensor | None = None,
    known: Twin | None = None,
) -> torch.Tensor:
    """Run exactly this kernel, prove it by its counter, compare with the twin."""
    before = registry.calls()[kernel.name]
    with registry.isa_cap(kernel.isa):
        out = run(batch, table)
    assert registry.calls()[kernel.name] == before + 1, f"{kernel.name} did not run"
    assert_matches(batch, out, kernel.isa == "avx512_bf16", known)
    return out


@pytest.fixture(scope="module")
def mixes() -> dict[torch.dtype, tuple[Batch, Twin]]:
    """A mix of rows per dtype, which all its kernels answer: the twin takes longer than they do."""
    seed = int(os.environ.get("XYSERVE_TEST_SEED") or secrets.randbits(31))
    print(f"XYSERVE_TEST_SEED={seed}")
    rng = torch.Generator().manual_seed(seed)
    batches = [make_batch(Layer(dtype=dtype), MIX, rng) for dtype in registry.DTYPES.values()]
    return {batch.layer.dtype: (batch, twin(batch)) for batch in batches}


def layer_of(kernel: registry.Kernel, **options: object) -> Layer:
    return replace(Layer(dtype=registry.DTYPES[kernel.dtype]), **options)


# The bf16 dot product runs tiles of any size where it is fast, and small ones everywhere.
@each_kernel
@pytest.mark.parametrize("tile_rows", [(6, 12), (6, 24, 96, 192)])
def test_every_mix_of_rows(
    kernel: registry.Kernel,
    tile_rows: tuple[int, ...],
    mixes: dict[torch.dtype, tuple[Batch, Twin]],
) -> None:
    batch, known = mixes[registry.DTYPES[kernel.dtype]]
    out = checked(kernel, batch, plan(batch, tile_rows=tile_rows), known)
    limit = 1e-5 if kernel.dtype == "f32" else 2e-2
    assert (out.float() - known[0]).abs().max() <= limit


@each_kernel
@pytest.mark.parametrize("heads", [(8, 1), (14, 2), (4, 4)])
def test_head_groups(kernel: registry.Kernel, heads: tuple[int, int], rng: torch.Generator) -> None:
    layer = layer_of(kernel, num_heads=heads[0], num_kv_heads=heads[1])
    checked(kernel, make_batch(layer, SMALL, rng))


@each_kernel
@pytest.mark.parametrize("size", [16, 48, 80, 128, 512])
def test_head_sizes(kernel: registry.Kernel, size: int, rng: torch.Generator) -> None:
    layer = layer_of(kernel, num_heads=2, num_kv_heads=1, head_size=size, scale=size**-0.5)
    checked(kernel, make_batch(layer, SMALL, rng))


@each_kernel
@pytest.mark.parametrize("block_size", [16, 48, 128])
def test_block_sizes(kernel: registry.Kernel, block_size: int, rng: torch.Generator) -> None:
    checked(kernel, make_batch(layer_of(kernel, block_size=block_size), SMALL, rng))


@each_kernel
@pytest.mark.parametrize(
    ("window", "causal"), [(1, True), (4, True), (31, True), (32, True), (33, False), (64, True)]
)
def test_windows(kernel: registry.Kernel, window: int, causal: bool, rng: torch.Generator) -> None:
    layer = layer_of(kernel, window=window, causal=causal)
    batch = make_batch(layer, [*SMALL, (1, 300), (70, 200)], rng)
    checked(kernel, batch, plan(batch, tile_rows=(6, 12) if kernel.isa.endswith("bf16") else (96,)))


@each_kernel
@pytest.mark.parametrize("name", ["softcap", "alibi", "sinks", "all", "not causal", "scale < 0"])
def test_options(kernel: registry.Kernel, name: str, rng: torch.Generator) -> None:
    slopes, sinks = torch.rand(9, generator=rng), torch.randn(9, generator=rng)
    options: dict[str, object] = {
        "softcap": {"softcap": 5.0, "scale": 1.0},
        "alibi": {"alibi_slopes": slopes},
        "sinks": {"sinks": sinks},
        "all": {"softcap": 20.0, "alibi_slopes": slopes, "sinks": sinks, "window": 33},
        "not causal": {"causal": False},
        "scale < 0": {"scale": -0.125},
    }[name]  # type: ignore[assignment]
    checked(kernel, make_batch(layer_of(kernel, **options), [*SMALL, (1, 300)], rng))


@each_kernel
def test_tree_masks(kernel: registry.Kernel, rng: torch.Generator) -> None:
    rows = [(7, 7), (70, 100), (1, 40), (5, 64), (30, 161)]
    batch = make_batch(layer_of(kernel), rows, rng)
    for length, _ in rows:
        seen = torch.rand(length, length, generator=rng) < 0.5
        batch.tree_masks.append((seen | torch.eye(length).bool()).tril())
    batch.tree_masks[2] = None
    with_tree = checked(kernel, batch)
    batch.tree_masks = []
    assert not torch.equal(checked(kernel, batch), with_tree)


def test_a_tree_mask_that_is_too_short_is_refused(rng: torch.Generator) -> None:
    batch = make_batch(Layer(), [(7, 7)], rng)
    batch.tree_masks = [torch.ones(7, 7).bool()]
    table = plan(batch)
    batch.tree_masks = [torch.ones(6, 6).bool()]
    with pytest.raises(RuntimeError, match="needs 7 words"):
        run(batch, table)


@each_kernel
def test_unused_memory_is_inert(kernel: registry.Kernel, rng: torch.Generator) -> None:
    layer = layer_of(kernel, window=40)
    batch = make_batch(layer, [*MIX, (3, 211)], rng)
    out = run(batch)
    clean = replace(batch, kv_cache=torch.nan_to_num(batch.kv_cache))
    with registry.isa_cap(kernel.isa):
        poisoned, plain = run(batch), run(clean)
    assert torch.equal(poisoned, plain)
    assert out.isfinite().all()
    # Beyond every window too: a whole block of the past, and the table entry that named it.
    old = replace(batch, kv_cache=clean.kv_cache.clone(), block_table=batch.block_table.clone())
    old.kv_cache[int(old.block_table[5, 0])] = torch.inf
    old.block_table[5, 1] = 2**30
    with registry.isa_cap(kernel.isa):
        assert torch.equal(run(old), plain)


@each_kernel
@pytest.mark.parametrize("invariant", [True, False])
def test_permuting_rows_permutes_the_output(
    kernel: registry.Kernel, invariant: bool, rng: torch.Generator
) -> None:
    batch = make_batch(layer_of(kernel), MIX, rng)
    order = torch.randperm(len(MIX), generator=rng)
    starts = batch.query_start_loc.tolist()
    tokens = [t for row in order.tolist() for t in range(starts[row], starts[row + 1])]
    lengths = torch.tensor([0] + [MIX[row][0] for row in order.tolist()])
    other = replace(
        batch,
        rows=[MIX[row] for row in order.tolist()],
        query=batch.query[tokens],
        query_start_loc=lengths.cumsum(0).int(),
        seq_lens=batch.seq_lens[order],
        block_table=batch.block_table[order],
    )
    with registry.isa_cap(kernel.isa):
        one = run(batch, plan(batch, invariant=invariant, levels=0))
        two = run(other, plan(other, invariant=invariant, levels=0))
    assert torch.equal(one[tokens], two)


@each_kernel
def test_invariant_rows_depend_on_nothing_but_themselves(
    kernel: registry.Kernel, rng: torch.Generator
) -> None:
    sinks = torch.randn(9, generator=rng)
    rows = [(1, 4097), (64, 2100), (1, 2049), (1, 90)]
    batch = make_batch(layer_of(kernel, sinks=sinks), rows, rng)
    with registry.isa_cap(kernel.isa):
        whole = run(batch, plan(batch, num_cores=2, invariant=True))
        for cores in (1, 3, 8):
            assert torch.equal(run(batch, plan(batch, cores, invariant=True)), whole)
        # Each query on its own, as a decode row, with the context that it had.
        starts = batch.query_start_loc.tolist()
        for row, query in ((0, 0), (1, 0), (1, 17), (1, 63), (2, 0), (3, 0)):
            length = rows[row][1] - rows[row][0] + query + 1
            token = starts[row] + query
            alone = replace(
                batch,
                rows=[(1, length)],
                query=batch.query[token : token + 1],
                query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
                seq_lens=torch.tensor([length], dtype=torch.int32),
                block_table=batch.block_table[row : row + 1],
            )
            assert torch.equal(run(alone, plan(alone, 1, invariant=True))[0], whole[token])


@each_kernel
@pytest.mark.parametrize("num_cores", [1, 2, 4, 8])
def test_splits_and_the_sink_counted_once(
    kernel: registry.Kernel, num_cores: int, rng: torch.Generator
) -> None:
    layer = layer_of(kernel, num_heads=2, num_kv_heads=1, sinks=torch.tensor([1.0, 6.0]))
    batch = make_batch(layer, [(1, 3001)], rng)
    table = plan(batch, num_cores)
    splits = int(table.view(torch.int32)[19])
    assert splits == 1 if num_cores == 1 else splits > 1
    checked(kernel, batch, table)
    # The device knows fewer keys than planned: later splits are empty.
    batch.rows, batch.seq_lens = [(1, 700)], torch.tensor([700], dtype=torch.int32)
    checked(kernel, batch, table)


@each_kernel
def test_softcap_of_extreme_scores(kernel: registry.Kernel, rng: torch.Generator) -> None:
    layer = layer_of(kernel, num_heads=1, num_kv_heads=1, softcap=50.0, scale=1.0)
    batch = make_batch(layer, [(1, 5)], rng)
    keys = torch.zeros(5, 1, 64, dtype=layer.dtype)
    keys[:, 0, 0] = torch.tensor([1.0, 3000.0, 4400.0, 5000.0, -10000.0]).to(layer.dtype)
    batch.query.zero_()
    batch.query[..., 0] = 1.0
    values = torch.randn(5, 1, 64, generator=rng).to(layer.dtype)
    slots = batch.block_table[0, 0].long() * 32 + torch.arange(5)
    pages.write(batch.kv_cache, keys, values, slots)
    assert checked(kernel, batch).isfinite().all()


@each_kernel
def test_nothing_outside_of_the_rows_is_written(
    kernel: registry.Kernel, rng: torch.Generator
) -> None:
    batch = make_batch(layer_of(kernel), [(3, 3), (1, 40)], rng)
    wide = torch.full((8, 11, 64), 7.0, dtype=batch.layer.dtype)
    query = torch.full_like(wide, torch.nan)
    query[:4, 1:10] = batch.query
    with registry.isa_cap(kernel.isa):
        attention.meta_attention(
            wide[:, 1:10],
            query[:, 1:10],
            batch.kv_cache,
            batch.block_table,
            batch.seq_lens,
            batch.query_start_loc,
            plan(batch),
            0.125,
        )
        assert torch.equal(wide[:4, 1:10], run(batch))
    wide[:4, 1:10] = 7.0
    assert (wide == 7.0).all()


def test_an_empty_batch_and_rows_without_queries(rng: torch.Generator) -> None:
    for rows in ([], [(0, 0), (0, 9)]):
        batch = make_batch(Layer(), rows, rng)
        assert run(batch).shape == (0, 9, 64)


def test_tables_of_other_batches_are_refused(rng: torch.Generator) -> None:
    batch = make_batch(Layer(), [(2, 20), (1, 5)], rng)
    other = make_batch(Layer(), [(1, 20), (2, 5)], rng)
    with pytest.raises(RuntimeError, match="planned for another batch"):
        run(batch, plan(other))
    with pytest.raises(RuntimeError, match="planned for 1 KV heads"):
        run(batch, plan(make_batch(Layer(num_heads=9, num_kv_heads=1), [(2, 20), (1, 5)], rng)))
    with pytest.raises(RuntimeError, match="cut short"):
        run(batch, plan(batch)[:-64])
    longer = replace(batch, seq_lens=batch.seq_lens + 1)
    with pytest.raises(RuntimeError, match="require seq_lens"):
        run(longer, plan(batch))
    gone = replace(batch, block_table=torch.full_like(batch.block_table, 99))
    with pytest.raises(RuntimeError, match="outside of the"):
        run(gone, plan(batch))


def test_the_reference_path_reads_the_same_pages(
    rng: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(Layer(window=40), SMALL, rng)
    batch.tree_masks = [torch.ones(q, q).bool().tril() for q, _ in SMALL]
    native_answer = run(batch)
    monkeypatch.setattr(attention, "_NATIVE", False)
    before = registry.calls()["meta_attention_f32_reference"]
    assert torch.allclose(run(batch), native_answer, atol=1e-5)
    assert registry.calls()["meta_attention_f32_reference"] == before + 1
