// On-chip and global memory with their shadows: bounds, what was written, who touched which bytes.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>

#include "internal.h"

namespace xyserve::emulation {

namespace {

constexpr uint32_t buffer_bytes[] = {192 * 1024, 512 * 1024, 64 * 1024, 64 * 1024,
                                     128 * 1024, 1024,       2048};
constexpr uint8_t poison = 0xcb;  // what memory holds that nobody wrote

void* reserve(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw std::bad_alloc();
  return memory;
}

uint64_t cells_of(uint64_t bytes) {
  return (bytes + cell_bytes - 1) / cell_bytes;
}

std::vector<Memory>& pool(Buffer buffer) {
  static std::vector<Memory> pools[static_cast<int>(Buffer::count)];
  return pools[static_cast<int>(buffer)];
}

Memory take(Buffer buffer) {
  auto& free = pool(buffer);
  if (!free.empty()) {
    Memory result = free.back();
    free.pop_back();
    return result;
  }
  Memory result;
  result.name = name_of(buffer);
  result.bytes = buffer_bytes[static_cast<int>(buffer)];
  result.data = static_cast<uint8_t*>(reserve(result.bytes));
  std::memset(result.data, poison, result.bytes);
  result.written = static_cast<uint32_t*>(reserve(cells_of(result.bytes) * sizeof(uint32_t)));
  result.cells = static_cast<Cell*>(reserve(cells_of(result.bytes) * sizeof(Cell)));
  return result;
}

void give_back(Buffer buffer, Memory memory) {
  const uint64_t cells = cells_of(memory.dirty);
  std::memset(memory.data, poison, memory.dirty);
  std::memset(memory.written, 0, cells * sizeof(uint32_t));
  std::memset(static_cast<void*>(memory.cells), 0, cells * sizeof(Cell));
  memory.dirty = 0;
  pool(buffer).push_back(memory);
}

// The vector pipe and the two transfer pipes overlap their own operations; the others run in order.
bool overlaps_itself(Pipe pipe) {
  return pipe == pipe_v || pipe == pipe_mte2 || pipe == pipe_mte3;
}

std::string describe_thread(uint16_t thread) {
  const Core& core = *active->cores[thread / pipe_count];
  return std::string(core.cube ? "AIC" : "AIV") + " block " + std::to_string(core.block) + " sub " +
         std::to_string(core.sub) + " " + name_of(static_cast<Pipe>(thread % pipe_count));
}

[[noreturn]] void fail_race(const Op& op, const Record& earlier, const Memory& memory,
                            uint64_t cell, bool write, bool same_thread) {
  const auto& label = active->labels[earlier.label & ~(label_write | label_atomic)];
  const std::string more = std::string(write ? "writes " : "reads ") + memory.name + " near byte " +
                           std::to_string(cell * cell_bytes) + ", which " + label.first + " at " +
                           label.second.file + ":" + std::to_string(label.second.line) +
                           ((earlier.label & label_write) != 0 ? " wrote" : " read") + " on " +
                           describe_thread(earlier.thread);
  fail(op,
       same_thread ? "a PipeBarrier between operations of one pipe that depend; race at byte"
                   : "an order by flags between conflicting accesses; race at byte",
       static_cast<int64_t>(cell * cell_bytes), more);
}

struct Toucher {
  const Op& op;
  const Memory& memory;
  const Clock& known;
  uint16_t thread;
  uint16_t label;
  bool write;
  bool atomic;
  bool in_order;

  bool after(const Record& record) const {
    if (record.thread == thread && in_order)
      return true;
    return record.clock <= known[record.thread];
  }

  // True if `record` is to be kept beside the new one.
  bool meet(const Record& record, uint32_t mask, uint64_t cell) const {
    const bool wrote = (record.label & label_write) != 0;
    const bool same = record.thread == thread;
    const bool ordered = after(record) || (same && !wrote);
    const bool both_atomic = atomic && (record.label & label_atomic) != 0;
    const bool same_op = same && record.clock == op.clock;
    if ((record.mask & mask) != 0 && (write || wrote) && !ordered && !both_atomic && !same_op) {
      fail_race(op, record, memory, cell, write, same);
    }
    // Whoever is ordered after this access is then ordered after that one too.
    const bool dominated = (ordered || same) && (record.mask & ~mask) == 0;
    return !(dominated && (write || !wrote));
  }

  void cell(uint64_t index, uint32_t mask) const {
    Cell& at = memory.cells[index];
    const Record fresh{op.clock, mask, thread, label};
    uint32_t kept = 0;
    bool placed = false;
    for (uint32_t i = 0; i < at.used; ++i) {
      Record record = at.inline_records[i];
      if (record.thread == thread && record.clock == op.clock && record.label == label) {
        record.mask |= mask;
        at.inline_records[kept++] = record;
        placed = true;
        continue;
      }
      if (meet(record, mask, index))
        at.inline_records[kept++] = record;
    }
    at.used = kept;
    if (at.more != 0)
      placed |= scan_overflow(at, index, mask);
    if (placed)
      return;
    if (at.used < 2) {
      at.inline_records[at.used++] = fresh;
      return;
    }
    if (at.more == 0) {
      active->overflow.emplace_back();
      at.more = static_cast<uint32_t>(active->overflow.size());
    }
    active->overflow[at.more - 1].push_back(fresh);
  }

  bool scan_overflow(Cell& at, uint64_t index, uint32_t mask) const {
    auto& records = active->overflow[at.more - 1];
    bool placed = false;
    size_t kept = 0;
    for (Record record : records) {
      if (record.thread == thread && record.clock == op.clock && record.label == label) {
        record.mask |= mask;
        placed = true;
      } else if (!meet(record, mask, index)) {
        continue;
      }
      records[kept++] = record;
    }
    records.resize(kept);
    return placed;
  }
};

uint32_t first_bits(uint64_t n) {
  return n >= 32 ? ~0u : (1u << n) - 1;
}

// Calls `visit(cell, mask)` for the cells of a range.
template <typename Visit>
void for_cells(uint64_t offset, uint64_t length, Visit visit) {
  uint64_t cell = offset / cell_bytes;
  const uint64_t lead = offset % cell_bytes;
  if (lead != 0) {
    const uint64_t n = std::min<uint64_t>(cell_bytes - lead, length);
    visit(cell++, first_bits(n) << lead);
    length -= n;
  }
  for (; length >= cell_bytes; length -= cell_bytes)
    visit(cell++, ~0u);
  if (length > 0)
    visit(cell, first_bits(length));
}

}  // namespace

const char* name_of(Pipe pipe) {
  static const char* const names[] = {"PIPE_S",    "PIPE_V",    "PIPE_M",  "PIPE_MTE1",
                                      "PIPE_MTE2", "PIPE_MTE3", "PIPE_FIX"};
  return names[pipe];
}

const char* name_of(Buffer buffer) {
  static const char* const names[] = {"UB",  "L1",         "L0A",           "L0B",
                                      "L0C", "bias table", "fixpipe buffer"};
  return names[static_cast<int>(buffer)];
}

const char* name_of(Type type) {
  static const char* const names[] = {"int8",  "uint8",  "int16", "uint16", "half",  "bf16",
                                      "int32", "uint32", "float", "int64",  "uint64"};
  return names[static_cast<int>(type)];
}

uint32_t size_of(Type type) {
  static const uint32_t sizes[] = {1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8};
  return sizes[static_cast<int>(type)];
}

bool bits_all(const uint32_t* map, uint64_t offset, uint64_t length) {
  if (map == nullptr)
    return true;
  bool all = true;
  for_cells(offset, length, [&](uint64_t cell, uint32_t mask) { all &= (~map[cell] & mask) == 0; });
  return all;
}

void bits_set(uint32_t* map, uint64_t offset, uint64_t length) {
  if (map == nullptr)
    return;
  for_cells(offset, length, [&](uint64_t cell, uint32_t mask) { map[cell] |= mask; });
}

void bits_copy(uint32_t* to, uint64_t to_offset, const uint32_t* from, uint64_t from_offset,
               uint64_t length) {
  if (to == nullptr)
    return;
  if (bits_all(from, from_offset, length)) {
    bits_set(to, to_offset, length);
    return;
  }
  for (uint64_t i = 0; i < length; ++i) {
    const uint64_t source = from_offset + i;
    const uint64_t target = to_offset + i;
    const uint32_t bit = from[source / 32] >> (source % 32) & 1u;
    uint32_t& word = to[target / 32];
    word = (word & ~(1u << target % 32)) | bit << target % 32;
  }
}

Span global_span(const Op& op, uint64_t address, uint64_t bytes) {
  auto& regions = active->regions;
  auto after = std::upper_bound(regions.begin(), regions.end(), address,
                                [](uint64_t at, const Memory& region) {
                                  return at < reinterpret_cast<uint64_t>(region.data);
                                });
  if (after != regions.begin()) {
    Memory& region = *std::prev(after);
    const uint64_t offset = address - reinterpret_cast<uint64_t>(region.data);
    if (offset <= region.bytes && bytes <= region.bytes - offset)
      return {&region, offset};
    if (offset < region.bytes + (1u << 20)) {
      fail(op, "global memory within a tensor; end of the access in bytes",
           static_cast<int64_t>(offset + bytes),
           std::string(region.name) + " has " + std::to_string(region.bytes));
    }
  }
  fail(op, "global memory within a tensor; address", static_cast<int64_t>(address));
}

Span local_span(const Op& op, const Local& tensor, uint64_t offset, uint64_t bytes) {
  require(op, tensor.buffer != Buffer::count, "a tensor in on-chip memory", 0);
  Memory& memory = op.core->memory[static_cast<int>(tensor.buffer)];
  require(op, memory.data != nullptr, "a buffer of this kind of core; buffer",
          static_cast<int64_t>(tensor.buffer));
  if (offset + bytes > tensor.bytes) {
    fail(op, "an access within the tensor; end in bytes", static_cast<int64_t>(offset + bytes),
         std::string("the tensor in ") + memory.name + " has " + std::to_string(tensor.bytes));
  }
  const uint64_t start = tensor.address + offset;
  require(op, start + bytes <= engine::capacity(tensor.buffer),
          "an access within the buffer; end in bytes", static_cast<int64_t>(start + bytes));
  return {&memory, start};
}

void touch(const Op& op, const Span& span, uint64_t bytes, bool write, bool atomic) {
  if (bytes == 0)
    return;
  Memory& memory = *span.memory;
  if (span.offset + bytes > memory.dirty)
    memory.dirty = span.offset + bytes;
  if (write) {
    require(op, !memory.constant, "no write to a constant tensor; byte",
            static_cast<int64_t>(span.offset));
    bits_set(memory.written, span.offset, bytes);
  }
  if (memory.cells == nullptr || !hb())
    return;
  const uint16_t flags =
      static_cast<uint16_t>((write ? label_write : 0) | (atomic ? label_atomic : 0));
  const Toucher toucher{op,
                        memory,
                        op.core->clock[op.pipe],
                        static_cast<uint16_t>(op.core->index * pipe_count + op.pipe),
                        static_cast<uint16_t>(op.label | flags),
                        write,
                        atomic,
                        !overlaps_itself(op.pipe)};
  for_cells(span.offset, bytes, [&](uint64_t cell, uint32_t mask) { toucher.cell(cell, mask); });
}

void require_written(const Op& op, const Span& span, uint64_t bytes) {
  if (bits_all(span.memory->written, span.offset, bytes))
    return;
  uint64_t at = 0;
  while (bits_all(span.memory->written, span.offset + at, 1))
    ++at;
  fail(op, "no read of memory that was never written; byte", static_cast<int64_t>(span.offset + at),
       span.memory->name);
}

void move(const Op& op, const Span& to, const Span& from, uint64_t bytes) {
  touch(op, from, bytes, false);
  touch(op, to, bytes, true);
  bits_copy(to.memory->written, to.offset, from.memory->written, from.offset, bytes);
  std::memmove(to.data(), from.data(), bytes);
}

uint32_t engine::capacity(Buffer buffer) {
  const Options& options = *active->options;
  uint32_t bytes = buffer_bytes[static_cast<int>(buffer)];
  const bool mixed =
      options.type == KERNEL_TYPE_MIX_AIC_1_1 || options.type == KERNEL_TYPE_MIX_AIC_1_2;
  if (mixed && (buffer == Buffer::ub || buffer == Buffer::l1))
    bytes -= 256;
  if (buffer == Buffer::ub && options.reserved_ub)
    bytes -= 8 * 1024;
  return bytes;
}

void map_regions(Launch& launch) {
  for (const Region& region : launch.options->regions) {
    Memory memory;
    memory.name = region.name.c_str();
    memory.data = static_cast<uint8_t*>(region.data);
    memory.bytes = region.bytes;
    memory.constant = region.constant;
    const uint64_t cells = cells_of(region.bytes);
    const auto reserve_here = [&](uint64_t bytes) {
      void* mapped = reserve(std::max<uint64_t>(bytes, 1));
      launch.mapped.push_back({mapped, std::max<uint64_t>(bytes, 1)});
      return mapped;
    };
    if (region.shadow != nullptr) {
      memory.written = reinterpret_cast<uint32_t*>(region.shadow);
    } else if (!region.written) {
      memory.written = static_cast<uint32_t*>(reserve_here(cells * sizeof(uint32_t)));
    }
    if (launch.options->happens_before && !region.constant) {
      memory.cells = static_cast<Cell*>(reserve_here(cells * sizeof(Cell)));
    }
    launch.regions.push_back(memory);
  }
  std::sort(launch.regions.begin(), launch.regions.end(),
            [](const Memory& a, const Memory& b) { return a.data < b.data; });
}

void attach_memory(Core& core) {
  const auto add = [&](Buffer buffer) { core.memory[static_cast<int>(buffer)] = take(buffer); };
  if (!core.cube) {
    add(Buffer::ub);
    return;
  }
  for (Buffer buffer :
       {Buffer::l1, Buffer::l0a, Buffer::l0b, Buffer::l0c, Buffer::bias, Buffer::fixpipe}) {
    add(buffer);
  }
}

void release_memory(Launch& launch) {
  for (auto& core : launch.cores) {
    for (int buffer = 0; buffer < static_cast<int>(Buffer::count); ++buffer) {
      if (core->memory[buffer].data != nullptr) {
        give_back(static_cast<Buffer>(buffer), core->memory[buffer]);
      }
    }
  }
  for (const auto& mapping : launch.mapped)
    munmap(mapping.first, mapping.second);
}

}  // namespace xyserve::emulation
