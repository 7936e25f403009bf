// What the parts of the engine share: cores, pipes, queued operations, memory with its shadows.
// Nothing here is seen by kernels.
#pragma once

#include <ucontext.h>

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <unordered_map>

#include "emulation.h"

namespace xyserve::emulation {

enum Pipe : uint8_t {
  pipe_s,
  pipe_v,
  pipe_m,
  pipe_mte1,
  pipe_mte2,
  pipe_mte3,
  pipe_fix,
  pipe_count
};
const char* name_of(Pipe);
const char* name_of(Buffer);
const char* name_of(Type);
uint32_t size_of(Type);
constexpr uint32_t cell_bytes = 32;

// Thrown after a finding was recorded, and to unwind the other cores' programs.
struct Stopped {};

// One vector clock: how far each (core, pipe) is known to be complete.
using Clock = std::vector<uint32_t>;
using SharedClock = std::shared_ptr<const Clock>;
void join(Clock& into, const SharedClock& from);

// An access to a cell that later accesses must be ordered after. `mask` has a bit per byte.
struct Record {
  uint32_t clock;
  uint32_t mask;
  uint16_t thread;
  uint16_t label;  // index into Launch::labels, top bits: write, atomic
};
constexpr uint16_t label_write = 0x8000;
constexpr uint16_t label_atomic = 0x4000;
struct Cell {
  Record inline_records[2];
  uint32_t used;
  uint32_t more;  // index + 1 into Launch::overflow
};

struct Core;

struct Op {
  Core* core;
  Pipe pipe;
  const char* api;
  Site site;
  uint32_t clock = 0;
  uint16_t label = 0;
};

// A stretch of memory with its shadows. `written` has a bit per byte, null stands for all written.
struct Memory {
  const char* name = "";
  uint8_t* data = nullptr;
  uint64_t bytes = 0;
  uint32_t* written = nullptr;
  Cell* cells = nullptr;
  uint64_t dirty = 0;  // on-chip: bytes below this were touched since the last reset
  bool constant = false;
};

struct Token {
  SharedClock clock;
  uint32_t site = 0;
};

// One event id of one kind: the k-th wait takes the k-th set.
struct Channel {
  uint64_t sets_issued = 0;
  uint64_t waits_issued = 0;
  uint64_t waits_done = 0;
  std::map<uint64_t, Token> arrived;
  uint32_t last_set_site = 0;
  int last_set_line = 0;
};

struct Entry {
  enum Kind : uint8_t { run, set, wait, barrier, cross_set } kind = run;
  Op op;
  std::function<void(Op&)> work;
  SharedClock issue;  // what the scalar program had waited for, where that changed
  uint16_t channel = 0;
  uint64_t number = 0;
  uint32_t site = 0;
  uint8_t mode = 0;
};

struct Mmadding {
  uint32_t begin, end;
};

struct CacheLineCopy {
  uint8_t data[64];
  uint64_t dirty = 0;  // a bit per byte
};

struct Core {
  uint32_t index = 0;  // within the launch
  bool cube = false;
  uint32_t block = 0;
  uint32_t sub = 0;
  Memory memory[static_cast<int>(Buffer::count)];
  std::deque<Entry> queue[pipe_count];
  Clock clock[pipe_count];
  uint32_t counter[pipe_count] = {};
  SharedClock issued;  // snapshot of what the scalar program knows
  uint64_t issued_version = 0;
  uint64_t joined_version[pipe_count] = {};
  std::vector<Channel> channels;  // HardEvent * 8 + id
  std::deque<Token> cross[16];
  std::vector<Mmadding> mmads;  // results since the last PIPE_M barrier
  std::unordered_map<uint64_t, CacheLineCopy> cache;
  uint64_t mask[2] = {~uint64_t{0}, ~uint64_t{0}};
  bool mask_counts = false;
  uint64_t compare_mask[2] = {0, 0};
  float deq_scale = 1.0f;
  engine::AtomicOp atomic = engine::AtomicOp::none;
  Type atomic_type = Type::f32;
  bool row_major = false;
  void* tpipe = nullptr;
  bool synced = false;
  // fiber
  ucontext_t context;
  void* stack = nullptr;
  bool started = false;
  bool finished = false;
  std::function<bool()> blocked;  // empty: may run
  const char* blocked_api = "";
  Site blocked_site;
  int64_t blocked_value = 0;
  int64_t budget = 0;
  uint64_t calls = 0;
  std::map<std::pair<const char*, uint8_t>, uint64_t> vector_repeats;
  std::map<const char*, uint64_t> counts;
};

struct SiteState {
  std::string key;
  const char* kind;
  uint64_t hits = 0;
  int action = -1;  // Mutation, or -1
  std::map<uint32_t, bool> partners;
};

struct Gather {
  std::map<uint32_t, std::deque<Token>> from;
};

struct Delivery {
  uint32_t core;
  uint16_t id;
  Token token;
};

struct Launch {
  const Options* options = nullptr;
  const std::function<void()>* kernel = nullptr;
  std::vector<std::unique_ptr<Core>> cores;
  std::vector<Memory> regions;  // sorted by address
  std::vector<std::pair<void*, uint64_t>> mapped;
  std::vector<std::pair<const char*, Site>> labels;
  std::map<std::pair<const char*, std::pair<const char*, int>>, uint16_t> label_index;
  std::vector<std::vector<Record>> overflow;
  std::vector<SiteState> sites;
  std::map<std::tuple<const char*, int, const char*, int>, uint32_t> site_index;
  std::map<std::tuple<uint32_t, uint16_t, uint8_t, bool>, Gather> gathers;
  std::deque<Delivery> transit;
  uint64_t sync_generation[2] = {0, 0};
  uint32_t sync_arrived[2] = {0, 0};
  Clock sync_clock[2];
  SharedClock sync_released[2];
  std::mt19937_64 random;
  bool stopping = false;
  bool eager = true;
  Core* current = nullptr;
  ucontext_t scheduler;
  Report report;
};

extern Launch* active;  // null outside launch()
inline Core& here() {
  return *active->current;
}
inline bool hb() {
  return active->options->happens_before;
}

// --- findings
[[noreturn]] void fail(const Op& op, const char* rule, int64_t value, const std::string& more = "");
inline void require(const Op& op, bool holds, const char* rule, int64_t value) {
  if (__builtin_expect(!holds, 0))
    fail(op, rule, value);
}

// --- issuing. Checks in the program's context use `issuing`, then `enqueue` hands over the work.
Op issuing(Site site, const char* api, Pipe pipe);
void enqueue(const Op& op, std::function<void(Op&)> work);
uint32_t find_site(Site site, const char* api, int kind, const char* kind_name);
bool dropped(uint32_t site);
void block(const char* api, Site site, int64_t value, std::function<bool()> ready);
void switch_to_scheduler();
bool run_head(Core& core, Pipe pipe);
void count(Core& core, const char* what, uint64_t amount);

// --- vector clocks
void joined_all(Core& core);  // after PIPE_ALL: everything of this core is complete and known
void program_learns(Core& core, const SharedClock& clock);

// --- memory: bounds, what was written, who touched it
bool bits_all(const uint32_t* map, uint64_t offset, uint64_t length);
void bits_set(uint32_t* map, uint64_t offset, uint64_t length);
void bits_copy(uint32_t* to, uint64_t to_offset, const uint32_t* from, uint64_t from_offset,
               uint64_t length);

struct Span {
  Memory* memory;
  uint64_t offset;
  uint8_t* data() const { return memory->data + offset; }
};
Span global_span(const Op& op, uint64_t address, uint64_t bytes);
Span local_span(const Op& op, const Local& tensor, uint64_t offset, uint64_t bytes);
void touch(const Op& op, const Span& span, uint64_t bytes, bool write, bool atomic = false);
void require_written(const Op& op, const Span& span, uint64_t bytes);
// Copies bytes and what is known of them; counts nothing.
void move(const Op& op, const Span& to, const Span& from, uint64_t bytes);
void map_regions(Launch& launch);
void attach_memory(Core& core);
void release_memory(Launch& launch);

// --- conversions, also vectorised
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
void halves_to_floats(const uint16_t* from, float* to, uint64_t count);
void bf16_to_floats(const uint16_t* from, float* to, uint64_t count);

}  // namespace xyserve::emulation
