// Matrix multiply (M).
#include "internal.h"

namespace xyserve::emulation {

using AscendC::MmadParams;

namespace {

constexpr uint64_t fractal = 512;
constexpr uint64_t side = 16;

uint64_t up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit;
}

struct Shape {
  uint64_t m, n, k;
  uint64_t c0;      // elements of a fractal along k
  uint64_t m1, n1;  // fractals
  uint64_t k1;
  bool vector_a;  // m = 1: A is a plain row
};

void require_region(const Op& op, const Local& tensor, uint64_t start, uint64_t rows,
                    uint64_t row_bytes, uint64_t row_step) {
  const Span whole = local_span(op, tensor, start, rows * row_step);
  if (rows == side && row_bytes == row_step) {
    require_written(op, whole, rows * row_step);
    return;
  }
  for (uint64_t r = 0; r < rows; ++r) {
    require_written(op, {whole.memory, whole.offset + r * row_step}, row_bytes);
  }
}

// Fractals of `outer` x `k1`, or of `k1` x `outer` where `k_major`, inside `rows` x `k` elements.
void read_operand(const Op& op, const Local& tensor, uint64_t rows, const Shape& s, bool k_major) {
  const uint64_t size = size_of(tensor.type);
  const uint64_t outer = up(rows, side);
  touch(op, local_span(op, tensor, 0, outer * s.k1 * fractal), outer * s.k1 * fractal, false);
  for (uint64_t o = 0; o < outer; ++o) {
    for (uint64_t kk = 0; kk * s.c0 < s.k; ++kk) {
      const uint64_t index = k_major ? kk * outer + o : o * s.k1 + kk;
      const uint64_t valid = std::min(s.c0, s.k - kk * s.c0) * size;
      require_region(op, tensor, index * fractal, std::min(side, rows - o * side), valid, 32);
    }
  }
}

template <typename To>
void widen(const uint8_t* from, Type type, To* to, uint64_t n) {
  if constexpr (std::is_same_v<To, int32_t>) {
    for (uint64_t i = 0; i < n; ++i)
      to[i] = static_cast<int8_t>(from[i]);
  } else {
    const auto* words = reinterpret_cast<const uint16_t*>(from);
    if (type == Type::f32)
      std::memcpy(to, from, n * sizeof(float));
    if (type == Type::f16)
      halves_to_floats(words, to, n);
    if (type == Type::bf16)
      bf16_to_floats(words, to, n);
  }
}

// Both operands as floats (or ints), A as rows of k, B as panels of 16 columns: [n1][k][16].
template <typename To>
struct Packed {
  std::vector<To> wide, a, b;

  void pack_a(const uint8_t* from, Type type, const Shape& s) {
    a.resize(s.m * s.k);
    if (s.vector_a) {
      widen(from, type, a.data(), s.k);
      return;
    }
    wide.resize(s.m1 * s.k1 * side * s.c0);
    widen(from, type, wide.data(), wide.size());
    for (uint64_t m = 0; m < s.m; ++m) {
      for (uint64_t k = 0; k < s.k; k += s.c0) {
        const To* row = &wide[((m / side * s.k1 + k / s.c0) * side + m % side) * s.c0];
        std::memcpy(&a[m * s.k + k], row, std::min(s.c0, s.k - k) * sizeof(To));
      }
    }
  }

  void pack_b(const uint8_t* from, Type type, const Shape& s) {
    wide.resize(s.n1 * s.k1 * side * s.c0);
    widen(from, type, wide.data(), wide.size());
    b.assign(s.n1 * s.k * side, To(0));
    for (uint64_t k = 0; k < s.k; k += s.c0) {
      const uint64_t depth = std::min(s.c0, s.k - k);
      for (uint64_t n1 = 0; n1 < s.n1; ++n1) {
        const To* tile = &wide[(k / s.c0 * s.n1 + n1) * side * s.c0];
        To* panel = &b[(n1 * s.k + k) * side];
        const uint64_t columns = std::min(side, s.n - n1 * side);
        for (uint64_t n = 0; n < columns; ++n) {
          for (uint64_t d = 0; d < depth; ++d)
            panel[d * side + n] = tile[n * s.c0 + d];
        }
      }
    }
  }
};

// 16 columns at a time in a vector of the compiler's, which keeps the sums in registers.
template <typename To, int rows>
void multiply_rows(const To* a, const To* panel, uint64_t k, To* c) {
  typedef To Vector __attribute__((vector_size(side * sizeof(To))));
  Vector sum[rows];
  for (int r = 0; r < rows; ++r)
    std::memcpy(&sum[r], c + r * side, sizeof(Vector));
  for (uint64_t at = 0; at < k; ++at) {
    Vector b;
    std::memcpy(&b, panel + at * side, sizeof(Vector));
    for (int r = 0; r < rows; ++r)
      sum[r] += a[static_cast<uint64_t>(r) * k + at] * b;
  }
  for (int r = 0; r < rows; ++r)
    std::memcpy(c + r * side, &sum[r], sizeof(Vector));
}

// C in NZ: column blocks of 16, each m1 * 16 rows; rows beyond m and columns beyond n stay.
template <typename To>
void multiply(const Packed<To>& packed, const Shape& s, To* c) {
  constexpr uint64_t step = 8;
  To edge[side];
  for (uint64_t n1 = 0; n1 < s.n1; ++n1) {
    const To* panel = &packed.b[n1 * s.k * side];
    const uint64_t columns = std::min(side, s.n - n1 * side);
    for (uint64_t m = 0; m < s.m; m += step) {
      To* target = c + (n1 * s.m1 * side + m) * side;
      const uint64_t rows = std::min(step, s.m - m);
      const To* a = &packed.a[m * s.k];
      if (rows == step && columns == side) {
        multiply_rows<To, step>(a, panel, s.k, target);
        continue;
      }
      for (uint64_t r = 0; r < rows; ++r) {
        std::memcpy(edge, target + r * side, side * sizeof(To));
        multiply_rows<To, 1>(a + r * s.k, panel, s.k, edge);
        std::memcpy(target + r * side, edge, columns * sizeof(To));
      }
    }
  }
}

void require_numbers(const Op& op, const std::vector<float>& values, const char* rule) {
  uint32_t bad = 0;
  for (float value : values)
    bad |= value != value;
  if (bad == 0)
    return;
  int64_t at = 0;
  while (values[static_cast<size_t>(at)] == values[static_cast<size_t>(at)])
    ++at;
  fail(op, rule, at);
}

Shape shape_of(const Local& a, const MmadParams& p) {
  Shape s;
  s.m = p.m;
  s.n = p.n;
  s.k = p.k;
  s.c0 = 32 / size_of(a.type);
  s.m1 = up(s.m, side);
  s.n1 = up(s.n, side);
  s.k1 = p.kDirectionAlign && a.type == Type::f32 ? up(s.k, 16) * 2 : up(s.k, s.c0);
  s.vector_a = s.m == 1;
  return s;
}

// What C starts from, with the accesses noted.
void start_c(const Op& op, const Local& dst, const Local* bias, const MmadParams& p,
             const Shape& s) {
  const uint64_t bytes = s.m1 * s.n1 * 1024;
  const Span c = local_span(op, dst, 0, bytes);
  auto* words = reinterpret_cast<uint32_t*>(c.data());
  const bool accumulate = bias == nullptr && !p.cmatrixInitVal;
  for (uint64_t n1 = 0; n1 < s.n1; ++n1) {
    const uint64_t columns = std::min(side, s.n - n1 * side);
    const uint64_t start = n1 * s.m1 * 1024;
    if (accumulate) {
      for (uint64_t m = 0; m < s.m; ++m) {
        require_written(op, {c.memory, c.offset + start + m * 64}, columns * 4);
      }
    }
    if (accumulate) {
      touch(op, {c.memory, c.offset + start}, s.m * 64, false);
      continue;
    }
    for (uint64_t m = 0; m < s.m; ++m) {
      uint32_t* row = words + start / 4 + m * side;
      if (bias == nullptr) {
        std::memset(row, 0, columns * 4);
        continue;
      }
      const Span table = local_span(op, *bias, n1 * 64, columns * 4);
      if (m == 0) {
        require_written(op, table, columns * 4);
        touch(op, table, columns * 4, false);
      }
      std::memcpy(row, table.data(), columns * 4);
    }
  }
}

void finish_c(const Op& op, const Local& dst, const Shape& s) {
  const Span c = local_span(op, dst, 0, s.m1 * s.n1 * 1024);
  for (uint64_t n1 = 0; n1 < s.n1; ++n1) {
    const uint64_t columns = std::min(side, s.n - n1 * side);
    const uint64_t start = c.offset + n1 * s.m1 * 1024;
    if (columns == side) {
      touch(op, {c.memory, start}, s.m * 64, true);
      continue;
    }
    for (uint64_t m = 0; m < s.m; ++m)
      touch(op, {c.memory, start + m * 64}, columns * 4, true);
  }
}

void require_barrier(const Op& op, const Local& dst, const MmadParams& p, const Shape& s) {
  auto& earlier = op.core->mmads;
  const uint32_t begin = dst.address;
  const auto end = static_cast<uint32_t>(begin + s.m1 * s.n1 * 1024);
  if (!p.cmatrixInitVal && s.m1 * s.n1 < 10) {
    for (const Mmadding& other : earlier) {
      require(op, other.end <= begin || other.begin >= end,
              "PipeBarrier<PIPE_M> before an Mmad that accumulates into fewer than 10 fractals of "
              "an earlier one's result; fractals",
              static_cast<int64_t>(s.m1 * s.n1));
    }
  }
  for (Mmadding& other : earlier) {
    if (other.begin == begin) {
      other.end = std::max(other.end, end);
      return;
    }
  }
  earlier.push_back({begin, end});
}

template <typename To>
void run_mmad(Op& run, const Local& dst, const Local& a, const Local& b, const Local* bias,
              const MmadParams& p, const Shape& s) {
  static thread_local Packed<To> packed;
  require_barrier(run, dst, p, s);
  const uint64_t size = size_of(a.type);
  if (s.vector_a) {
    const Span row = local_span(run, a, 0, s.k * size);
    require_written(run, row, s.k * size);
    touch(run, row, s.k * size, false);
    packed.pack_a(row.data(), a.type, s);
  } else {
    read_operand(run, a, s.m, s, false);
    packed.pack_a(local_span(run, a, 0, 0).data(), a.type, s);
  }
  read_operand(run, b, s.n, s, true);
  packed.pack_b(local_span(run, b, 0, 0).data(), b.type, s);
  if constexpr (std::is_same_v<To, float>) {
    if (active->options->check_nan) {
      require_numbers(run, packed.a, "no NaN in A within m x k; element of the row-major m x k");
      require_numbers(run, packed.b, "no NaN in B within k x n; element of 16-column panels");
    }
  }
  start_c(run, dst, bias, p, s);
  multiply(packed, s, reinterpret_cast<To*>(local_span(run, dst, 0, 0).data()));
  finish_c(run, dst, s);
  const uint64_t passes = a.type == Type::f32 ? 2 : 1;
  count(*run.core, "mmad.count", 1);
  count(*run.core, "mmad.cycles", s.m1 * s.n1 * up(s.k, s.c0) * passes);
  count(*run.core, "mmad.macs", s.m * s.n * s.k);
}

}  // namespace

namespace engine {

void mmad(Site site, Local dst, Local a, Local b, const Local* bias, const MmadParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "Mmad", pipe_m);
  require(op, dst.buffer == Buffer::l0c, "L0C as the target; buffer",
          static_cast<int64_t>(dst.buffer));
  require(op, a.buffer == Buffer::l0a, "A in L0A; buffer", static_cast<int64_t>(a.buffer));
  require(op, b.buffer == Buffer::l0b, "B in L0B; buffer", static_cast<int64_t>(b.buffer));
  require(op, dst.address % 1024 == 0, "a target aligned to 1024 bytes", dst.address);
  require(op, a.address % 512 == 0, "A aligned to 512 bytes", a.address);
  require(op, b.address % 512 == 0, "B aligned to 512 bytes", b.address);
  require(op, p.m >= 1 && p.m <= 4095, "m 1..4095", p.m);
  require(op, p.n >= 1 && p.n <= 4095, "n 1..4095", p.n);
  require(op, p.k >= 1 && p.k <= 4095, "k 1..4095", p.k);
  require(op, p.unitFlag == 0, "unitFlag 0 (the others are not emulated)", p.unitFlag);
  const bool floating = a.type == Type::f16 || a.type == Type::bf16 || a.type == Type::f32;
  require(op, floating || a.type == Type::i8, "half, bf16, float or int8 operands; type",
          static_cast<int64_t>(a.type));
  require(op, a.type == b.type, "operands of one type; type of B", static_cast<int64_t>(b.type));
  require(op, dst.type == (floating ? Type::f32 : Type::i32),
          "a float result, int32 for int8; type", static_cast<int64_t>(dst.type));
  const bool from_table = bias != nullptr || (p.cmatrixSource && !p.cmatrixInitVal);
  require(op, !from_table || bias != nullptr, "the Mmad form with a bias tensor for cmatrixSource",
          1);
  if (bias != nullptr) {
    require(op, bias->buffer == Buffer::bias, "the bias in the bias table (C2); buffer",
            static_cast<int64_t>(bias->buffer));
    require(op, bias->address % 64 == 0, "a bias aligned to 64 bytes", bias->address);
    require(op, bias->type == dst.type, "a bias of the result's type; type",
            static_cast<int64_t>(bias->type));
  }
  const Local table = bias != nullptr ? *bias : Local();
  const bool has_bias = bias != nullptr;
  enqueue(op, [=](Op& run) {
    const Shape s = shape_of(a, p);
    const Local* start = has_bias ? &table : nullptr;
    if (floating) {
      run_mmad<float>(run, dst, a, b, start, p, s);
    } else {
      run_mmad<int32_t>(run, dst, a, b, start, p, s);
    }
  });
}

void set_mm_direction(Site site, bool row_major) {
  if (active->stopping)
    return;
  issuing(site, "SetMMRowMajor", pipe_m);
  here().row_major = row_major;
}

}  // namespace engine
}  // namespace xyserve::emulation
