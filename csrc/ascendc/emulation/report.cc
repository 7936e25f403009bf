// The C interface and the report as JSON.
#include <cstdio>

#include "internal.h"

namespace xyserve::emulation {

namespace {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\')
      result += '\\';
    if (static_cast<unsigned char>(c) >= 0x20)
      result += c;
  }
  return result + "\"";
}

std::string object(const Counters& counters) {
  std::string result = "{";
  for (const auto& item : counters.values) {
    if (result.size() > 1)
      result += ",";
    result += quoted(item.first) + ":" + std::to_string(item.second);
  }
  return result + "}";
}

std::vector<Mutant> parse_mutants(const char* lines) {
  std::vector<Mutant> result;
  std::string text = lines == nullptr ? "" : lines;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const size_t tab = line.find('\t');
    if (tab != std::string::npos) {
      const bool neutral = line.substr(tab + 1) == "neutral";
      result.push_back({line.substr(0, tab), neutral ? Mutation::neutral : Mutation::drop});
    }
    at = end + 1;
  }
  return result;
}

}  // namespace

std::string Report::json() const {
  std::string result = std::string("{\"ok\":") + (ok ? "true" : "false");
  result += ",\"api\":" + quoted(finding.api) + ",\"rule\":" + quoted(finding.rule) +
            ",\"value\":" + std::to_string(finding.value) +
            ",\"message\":" + quoted(finding.message) + ",\"counters\":" + object(counters) +
            ",\"per_core\":[";
  for (size_t i = 0; i < per_core.size(); ++i)
    result += (i ? "," : "") + object(per_core[i]);
  result += "],\"sites\":[";
  for (size_t i = 0; i < sites.size(); ++i) {
    const SiteReport& site = sites[i];
    result += std::string(i ? "," : "") + "{\"key\":" + quoted(site.key) +
              ",\"kind\":" + quoted(site.kind) + ",\"hits\":" + std::to_string(site.hits) +
              ",\"partners\":[";
    for (size_t j = 0; j < site.partners.size(); ++j) {
      result += (j ? "," : "") + quoted(site.partners[j]);
    }
    result += "]}";
  }
  return result + "]}";
}

const char* run(const CLaunch* c, const std::function<void()>& kernel) {
  static std::string text;
  Options options;
  options.blocks = c->blocks;
  options.type = static_cast<KernelMetaType>(c->type);
  options.cores = c->cores;
  options.schedule = static_cast<Schedule>(c->schedule);
  options.seed = c->seed;
  options.starve = c->starve;
  options.happens_before = c->happens_before != 0;
  options.check_nan = c->check_nan != 0;
  options.reserved_ub = c->reserved_ub != 0;
  for (uint64_t i = 0; i < c->region_count; ++i) {
    const CRegion& region = c->regions[i];
    options.regions.push_back({region.name, region.data, region.bytes, region.written != 0,
                               region.constant != 0, region.shadow});
  }
  options.mutants = parse_mutants(c->mutants);
  text = launch(options, kernel).json();
  return text.c_str();
}

}  // namespace xyserve::emulation
