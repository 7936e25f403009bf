"""`ops` reads task tables without `plan`, which it may not import: its places are the layout's."""

from __future__ import annotations

from vllm_xyserve.ops import attention as ops
from vllm_xyserve.plan import layout


def test_places_of_fields() -> None:
    def word(dtype: object, name: str) -> int:
        fields = dtype.fields  # type: ignore[attr-defined]
        offset: int = fields[name][1]
        assert offset % 4 == 0
        return offset // 4

    header, segment = layout.HEADER, layout.SEGMENT
    assert word(header, "flags") == ops.FLAGS_AT
    assert word(header, "window") == ops.WINDOW_AT
    assert word(header, "num_segments") == ops.NUM_SEGMENTS_AT
    assert word(header, "num_partial_rows") == ops.NUM_PARTIAL_ROWS_AT
    assert word(header, "segments_offset") == ops.SEGMENTS_AT
    assert word(segment, "batch_row") == ops.BATCH_ROW_AT
    assert word(segment, "query_len") == ops.QUERY_LEN_AT
    assert word(segment, "mask_offset") == ops.MASK_OFFSET_AT
    assert segment.itemsize == 4 * ops.SEGMENT_SIZE
    assert layout.FLAG_CAUSAL == ops.FLAG_CAUSAL
