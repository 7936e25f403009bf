// Meta-Attention for the tests: kernels on the emulated chip and the host side, through C.
#include "ascendc/host/meta_attention.h"

#include <cstring>

#include "ascendc/emulation/emulation.h"
#include "ascendc/kernel/meta_attention_kernels.h"

namespace attention = xyserve::meta_attention;

extern "C" {

// numbers: form, dtype, address of the arguments on this host.
const char* meta_attention(const xyserve::emulation::CLaunch* launch, void* const*,
                           const int64_t* numbers) {
  using Kernel = void (*)(uint64_t, attention::Args);
  static constexpr Kernel kKernels[3][2] = {
      {xyserve_meta_attention_three_stage_f16, xyserve_meta_attention_three_stage_bf16},
      {xyserve_meta_attention_four_stage_f16, xyserve_meta_attention_four_stage_bf16},
      {xyserve_meta_attention_two_stage_f16, xyserve_meta_attention_two_stage_bf16},
  };
  const Kernel kernel = kKernels[numbers[0]][numbers[1]];
  const attention::Args args = *reinterpret_cast<const attention::Args*>(numbers[2]);
  return xyserve::emulation::run(
      launch, [=] { kernel(xyserve::emulation::sync_base_address(), args); });
}

void meta_attention_make_args(const attention::Problem* problem, attention::Args* args) {
  *args = attention::make_args(*problem);
}

// The reason, empty where it can run; of at most `size` bytes with the final zero.
void meta_attention_can_run(const attention::Problem* problem, int32_t form,
                            const attention::Selection* selection, char* reason, int64_t size) {
  const std::string found =
      attention::can_run(*problem, static_cast<attention::Form>(form), *selection);
  std::strncpy(reason, found.c_str(), static_cast<size_t>(size) - 1);
}

int32_t meta_attention_select(const attention::Problem* problem,
                              const attention::Selection* selection) {
  return attention::select_form(*problem, *selection);
}

int64_t meta_attention_score_bytes(int32_t num_cores, int32_t tile_rows, int32_t max_keys) {
  return attention::three_stage_score_bytes(num_cores, tile_rows, max_keys);
}

int64_t meta_attention_workspace(const attention::Problem* problem, int32_t form) {
  return attention::workspace_bytes(*problem, static_cast<attention::Form>(form));
}

int64_t meta_attention_partial_floats(const attention::Problem* problem, int64_t rows) {
  return attention::partial_floats(*problem, rows);
}

int64_t meta_attention_sizes(int32_t which) {
  return which == 0   ? sizeof(attention::Args)
         : which == 1 ? sizeof(attention::Problem)
                      : sizeof(attention::Selection);
}

}  // extern "C"
