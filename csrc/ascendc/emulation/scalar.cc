// The scalar unit: reads and writes of single elements, its data cache, and small state.
#include "internal.h"

namespace xyserve::emulation {

namespace {

constexpr uint64_t line_bytes = 64;

uint64_t first_bits(uint64_t n) {
  return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
}

// The part of a line that lies in a tensor: the ends of a tensor need not be aligned to lines.
struct Part {
  Span span;
  uint64_t lead;
  uint64_t bytes;
};

Part part_of(const Op& op, uint64_t line, uint64_t inside) {
  Span at = global_span(op, inside, 1);
  const uint64_t base = reinterpret_cast<uint64_t>(at.memory->data);
  const uint64_t begin = std::max(line, base);
  const uint64_t end = std::min(line + line_bytes, base + at.memory->bytes);
  return {{at.memory, begin - base}, begin - line, end - begin};
}

void write_back(const Op& op, uint64_t line, CacheLineCopy& copy) {
  if (copy.dirty == 0)
    return;
  uint64_t first = line;
  while ((copy.dirty >> (first - line) & 1) == 0)
    ++first;
  const Part part = part_of(op, line, first);
  const uint64_t known = bits_all(part.span.memory->written, part.span.offset, part.bytes);
  uint32_t* map = part.span.memory->written;
  // The whole line goes out: bytes that this core did not write overwrite what others wrote since.
  if (known || map == nullptr) {
    touch(op, part.span, part.bytes, true);
  } else {
    for (uint64_t i = 0; i < part.bytes; ++i) {
      const Span byte{part.span.memory, part.span.offset + i};
      if (copy.dirty >> (part.lead + i) & 1 || bits_all(map, byte.offset, 1)) {
        touch(op, byte, 1, true);
      }
    }
  }
  std::memcpy(part.span.data(), copy.data + part.lead, part.bytes);
  count(*op.core, "scalar.write.bytes", line_bytes);
  copy.dirty = 0;
}

CacheLineCopy& cached(const Op& op, uint64_t address) {
  auto& cache = op.core->cache;
  const uint64_t line = address / line_bytes * line_bytes;
  const auto found = cache.find(line);
  if (found != cache.end())
    return found->second;
  const Part part = part_of(op, line, address);
  CacheLineCopy copy;
  std::memcpy(copy.data + part.lead, part.span.data(), part.bytes);
  count(*op.core, "scalar.read.bytes", line_bytes);
  return cache[line] = copy;
}

}  // namespace

void count(Core& core, const char* what, uint64_t amount) {
  core.counts[what] += amount;
}

namespace engine {

bool on_cube() {
  return here().cube;
}
int64_t block_count() {
  return active->options->blocks;
}
int64_t sub_block_index() {
  return here().sub;
}
int64_t sub_block_count() {
  return !here().cube && active->options->type == KERNEL_TYPE_MIX_AIC_1_2 ? 2 : 1;
}
int64_t task_ratio() {
  return sub_block_count();
}
int64_t block_index() {
  const Core& core = here();
  return static_cast<int64_t>(core.block) * sub_block_count() + core.sub;
}
void*& tpipe_pointer() {
  return here().tpipe;
}
bool cancelled() {
  return active->stopping;
}

void declare_kernel_type(Site site, KernelMetaType type) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "KERNEL_TASK_TYPE_DEFAULT", pipe_s);
  require(op, type == active->options->type, "the launch's kernel type; declared", type);
}

void trap(Site site) {
  if (active->stopping)
    return;
  fail(issuing(site, "Trap", pipe_s), "no trap", 1);
}

uint64_t scalar_read(Site site, Local tensor) {
  if (active->stopping)
    return 0;
  const Op op = issuing(site, "LocalTensor::GetValue", pipe_s);
  require(op, tensor.buffer == Buffer::ub, "UB on AIV for scalar accesses; buffer",
          static_cast<int64_t>(tensor.buffer));
  require(op, !op.core->cube, "AIV for scalar accesses to UB", 0);
  const uint32_t bytes = size_of(tensor.type);
  uint64_t bits = 0;
  enqueue(op, [&](Op& run) {
    const Span from = local_span(run, tensor, 0, bytes);
    require_written(run, from, bytes);
    touch(run, from, bytes, false);
    std::memcpy(&bits, from.data(), bytes);
  });
  return bits;
}

void scalar_write(Site site, Local tensor, uint64_t bits) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "LocalTensor::SetValue", pipe_s);
  require(op, tensor.buffer == Buffer::ub, "UB on AIV for scalar accesses; buffer",
          static_cast<int64_t>(tensor.buffer));
  require(op, !op.core->cube, "AIV for scalar accesses to UB", 0);
  const uint32_t bytes = size_of(tensor.type);
  enqueue(op, [&](Op& run) {
    const Span to = local_span(run, tensor, 0, bytes);
    touch(run, to, bytes, true);
    std::memcpy(to.data(), &bits, bytes);
  });
}

uint64_t scalar_read(Site site, Global tensor) {
  if (active->stopping)
    return 0;
  const Op op = issuing(site, "GlobalTensor::GetValue", pipe_s);
  const uint32_t bytes = size_of(tensor.type);
  require(op, tensor.address % bytes == 0, "a global address aligned to the element size",
          static_cast<int64_t>(tensor.address));
  uint64_t bits = 0;
  enqueue(op, [&](Op& run) {
    const Span from = global_span(run, tensor.address, bytes);
    CacheLineCopy& line = cached(run, tensor.address);
    const uint64_t at = tensor.address % line_bytes;
    std::memcpy(&bits, line.data + at, bytes);
    const bool own = (line.dirty >> at & first_bits(bytes)) == first_bits(bytes);
    if (own)
      return;
    require_written(run, from, bytes);
    touch(run, from, bytes, false);
    uint64_t now = 0;
    std::memcpy(&now, from.data(), bytes);
    require(run, now == bits,
            "DataCacheCleanAndInvalid before reading what changed since the line was cached; byte",
            static_cast<int64_t>(from.offset));
  });
  return bits;
}

void scalar_write(Site site, Global tensor, uint64_t bits) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "GlobalTensor::SetValue", pipe_s);
  const uint32_t bytes = size_of(tensor.type);
  require(op, tensor.address % bytes == 0, "a global address aligned to the element size",
          static_cast<int64_t>(tensor.address));
  enqueue(op, [&](Op& run) {
    const Span to = global_span(run, tensor.address, bytes);
    require(run, !to.memory->constant, "no write to a constant tensor; byte",
            static_cast<int64_t>(to.offset));
    CacheLineCopy& line = cached(run, tensor.address);
    const uint64_t at = tensor.address % line_bytes;
    std::memcpy(line.data + at, &bits, bytes);
    line.dirty |= first_bits(bytes) << at;
  });
}

void clean_and_invalidate(Site site, Global tensor, bool entire) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "DataCacheCleanAndInvalid", pipe_s);
  if (dropped(find_site(site, "DataCacheCleanAndInvalid", 3000, "clean")))
    return;
  enqueue(op, [&](Op& run) {
    auto& cache = run.core->cache;
    if (entire) {
      for (auto& line : cache)
        write_back(run, line.first, line.second);
      cache.clear();
      return;
    }
    const uint64_t line = tensor.address / line_bytes * line_bytes;
    const auto found = cache.find(line);
    if (found == cache.end())
      return;
    write_back(run, line, found->second);
    cache.erase(found);
  });
}

}  // namespace engine
}  // namespace xyserve::emulation
