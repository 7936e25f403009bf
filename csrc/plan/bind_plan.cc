// The planner's C interface, for ctypes: the scheduler must not import torch to plan a step.
#include <new>
#include <string>

#include "xyserve/plan.h"

#define XYSERVE_EXPORT extern "C" __attribute__((visibility("default")))

using xyserve::Merge;
using xyserve::Planner;
using xyserve::PlanParams;
using xyserve::PlanRows;
using xyserve::Segment;
using xyserve::TableHeader;
using xyserve::Task;

constexpr int64_t kNoMemory = -3;

XYSERVE_EXPORT Planner* xyserve_planner_create(const PlanParams* params) {
  try {
    return new Planner(*params);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

XYSERVE_EXPORT void xyserve_planner_destroy(Planner* planner) {
  delete planner;
}

// No exception may cross into Python; memory is all that can fail here.
XYSERVE_EXPORT int64_t xyserve_planner_plan(Planner* planner, int32_t num_rows,
                                            const int32_t* query_len, const int32_t* key_len,
                                            const int32_t* kind, const int32_t* mask_offset) {
  try {
    return planner->plan(PlanRows{num_rows, query_len, key_len, kind, mask_offset});
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

XYSERVE_EXPORT void xyserve_planner_write(const Planner* planner, int32_t step, void* out) {
  planner->write(step, out);
}

// The kernels' own arithmetic, for the tests. keys: begin and end.
XYSERVE_EXPORT void xyserve_task_keys(const Segment* segment, const Task* task, int32_t causal,
                                      int32_t key_len, int32_t* keys) {
  const xyserve::KeyRange range = xyserve::task_keys(*segment, *task, causal != 0, key_len);
  keys[0] = range.begin;
  keys[1] = range.end;
}

// Sizes and offsets as compiled, "struct.field offset size" per line; Python compares its own.
XYSERVE_EXPORT const char* xyserve_table_layout() {
  static const std::string text = [] {
    std::string lines;
    const auto add = [&lines](const char* name, size_t offset, size_t size) {
      lines += std::string(name) + " " + std::to_string(offset) + " " + std::to_string(size) + "\n";
    };
#define XYSERVE_FIELD(type, field) \
  add(#type "." #field, offsetof(type, field), sizeof(type::field));
#define XYSERVE_STRUCT(type) add(#type, 0, sizeof(type));
#include "layout.inc"
#undef XYSERVE_FIELD
#undef XYSERVE_STRUCT
    return lines;
  }();
  return text.c_str();
}
