// Call sites of what a mutation can take out.
#include "queue.h"

namespace xyserve::emulation {

using AscendC::HardEvent;

uint32_t find_site(Site site, const char* api, int kind, const char* kind_name) {
  const auto key = std::make_tuple(site.file, site.line, api, kind);
  const auto found = active->site_index.find(key);
  uint32_t index = 0;
  if (found != active->site_index.end()) {
    index = found->second;
  } else {
    const std::string path = site.file;
    size_t cut = path.rfind('/');
    if (cut != std::string::npos && cut > 0)
      cut = path.rfind('/', cut - 1);
    std::string name = (cut == std::string::npos ? path : path.substr(cut + 1)) + ":" +
                       std::to_string(site.line) + ":" + api;
    if (kind >= 0 && kind < static_cast<int>(HardEvent::MAX)) {
      name += std::string("<") + ends_of(static_cast<HardEvent>(kind)).name + ">";
    }
    SiteState state;
    state.key = name;
    state.kind = kind_name;
    for (const Mutant& mutant : active->options->mutants) {
      if (mutant.site == name)
        state.action = static_cast<int>(mutant.mutation);
    }
    index = static_cast<uint32_t>(active->sites.size());
    active->sites.push_back(std::move(state));
    active->site_index[key] = index;
  }
  ++active->sites[index].hits;
  return index;
}

bool dropped(uint32_t site) {
  return active->sites[site].action == static_cast<int>(Mutation::drop);
}

bool engine::bound_removed(Site site) {
  if (active == nullptr)
    return false;
  return dropped(find_site(site, "bound", -1, "bound"));
}

void note_partners(uint32_t a, uint32_t b) {
  active->sites[a].partners[b] = true;
  active->sites[b].partners[a] = true;
}

}  // namespace xyserve::emulation
