#include "partition/downsets.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trainwright {
namespace {

constexpr double kWorkUnits = 0x1p40;
constexpr double kMemoryWeight = 0.25;  // in the order of a family; time alone and 1 are slower

uint64_t mix(uint64_t x) {  // splitmix64: fixed keys, the same on every run
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Sets found so far with an open-addressing index over exclusive-or hashes.
class SetIndex {
 public:
  explicit SetIndex(int32_t num_words) : num_words_(num_words), slots_(1024, -1) {}

  // Index of the set, adding it when new.
  int32_t find_or_add(const std::vector<uint64_t>& set, uint64_t hash) {
    const size_t place = probe(set.data(), hash);
    if (slots_[place] >= 0) return slots_[place];
    const int32_t added = size();
    slots_[place] = added;
    bits_.insert(bits_.end(), set.begin(), set.end());
    hashes_.push_back(hash);
    if (hashes_.size() * 2 > slots_.size()) grow();
    return added;
  }
  int32_t find(const std::vector<uint64_t>& set, uint64_t hash) const {
    return slots_[probe(set.data(), hash)];
  }
  int32_t size() const { return static_cast<int32_t>(hashes_.size()); }
  const uint64_t* row(int32_t i) const { return bits_.data() + int64_t{i} * num_words_; }
  uint64_t hash(int32_t i) const { return hashes_[i]; }

 private:
  size_t probe(const uint64_t* set, uint64_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t place = hash & mask;
    while (slots_[place] >= 0 && (hashes_[slots_[place]] != hash ||
                                  !std::equal(set, set + num_words_, row(slots_[place]))))
      place = (place + 1) & mask;
    return place;
  }
  void grow() {
    slots_.assign(slots_.size() * 4, -1);
    const size_t mask = slots_.size() - 1;
    for (int32_t i = 0; i < size(); ++i) {
      size_t place = hashes_[i] & mask;
      while (slots_[place] >= 0) place = (place + 1) & mask;
      slots_[place] = i;
    }
  }

  int32_t num_words_;
  std::vector<int32_t> slots_;
  std::vector<uint64_t> bits_, hashes_;
};

uint64_t layer_key(int32_t layer) { return mix(static_cast<uint64_t>(layer) + 1); }

uint64_t hash_of(const std::vector<uint64_t>& set) {
  uint64_t hash = 0;
  for (size_t w = 0; w < set.size(); ++w)
    for (uint64_t rest = set[w]; rest != 0; rest &= rest - 1)
      hash ^= layer_key(static_cast<int32_t>(w * 64 + std::countr_zero(rest)));
  return hash;
}

// A set in the order of the family: by work, then by size, then as a binary number.
struct Place {
  Place(const uint64_t* row, int32_t num_words, int64_t work)
      : row(row), num_words(num_words), work(work) {}
  bool operator<(const Place& other) const {
    if (work != other.work) return work < other.work;
    if (const int32_t a = size(), b = other.size(); a != b) return a < b;
    int32_t w = num_words - 1;
    while (w > 0 && row[w] == other.row[w]) --w;
    return row[w] < other.row[w];
  }
  int32_t size() const {
    int32_t size = 0;
    for (int32_t w = 0; w < num_words; ++w) size += std::popcount(row[w]);
    return size;
  }
  const uint64_t* row;
  int32_t num_words;
  int64_t work;
};

int64_t work_of(const std::vector<int64_t>& layer_work, const uint64_t* row) {
  int64_t work = 0;
  for (size_t v = 0; v < layer_work.size(); ++v)
    if (row[v >> 6] >> (v & 63) & 1) work += layer_work[v];
  return work;
}

// Shares of all time and, with a weight, of all memory, at a layer's first degree. Whole numbers,
// for sums that do not fall under inclusion.
std::vector<int64_t> work_of_layers(const Instance& in) {
  std::vector<double> time(in.num_layers, 0), saved(in.num_layers, 0);
  for (int32_t v = 0; v < in.num_layers; ++v) {
    int32_t t = 0;
    while (t < in.num_degrees && !in.offers(v, t)) ++t;
    if (t == in.num_degrees) continue;
    const auto first = in.options.begin() + in.option_first[in.slot(v, t)];
    const auto end = in.options.begin() + in.option_first[in.slot(v, t) + 1];
    time[v] = first->time_s;  // the fastest
    saved[v] = first->saved_bytes;
    for (auto option = first; option != end; ++option)
      saved[v] = std::min(saved[v], option->saved_bytes);
  }
  std::vector<int64_t> work(in.num_layers, 0);
  const auto add_shares = [&](const std::vector<double>& values, double units) {
    const double total = std::accumulate(values.begin(), values.end(), 0.0);
    if (!(total > 0) || !std::isfinite(units / total)) return;
    for (int32_t v = 0; v < in.num_layers; ++v)
      work[v] += static_cast<int64_t>(values[v] / total * units);
  };
  add_shares(time, kWorkUnits);
  add_shares(saved, kMemoryWeight * kWorkUnits);
  return work;
}

bool has(const std::vector<uint64_t>& set, int32_t layer) {
  return set[layer >> 6] >> (layer & 63) & 1;
}

bool is_addable(const Instance& in, const std::vector<uint64_t>& set, int32_t layer) {
  if (has(set, layer)) return false;
  for (int32_t e : in.out_edges[layer])
    if (!has(set, in.edges[e].target)) return false;
  return true;
}

// Members in their final order, with the links given as (member, layer, member with the layer).
struct RawLinks {
  std::vector<int32_t> from, layer, to;
};

Links tabulate(int32_t count, const std::vector<int32_t>& key, const std::vector<int32_t>& layer,
               const std::vector<int32_t>& target) {
  Links links;
  links.offset.assign(count + 1, 0);
  for (int32_t k : key) ++links.offset[k + 1];
  std::partial_sum(links.offset.begin(), links.offset.end(), links.offset.begin());
  links.layer.resize(key.size());
  links.target.resize(key.size());
  std::vector<int32_t> next(links.offset.begin(), links.offset.end() - 1);
  for (size_t i = 0; i < key.size(); ++i) {
    links.layer[next[key[i]]] = layer[i];
    links.target[next[key[i]]++] = target[i];
  }
  return links;
}

void intersect_groups(Downsets& sets) {
  const int64_t words = sets.num_words, groups = sets.num_groups();
  sets.group_and.assign(groups * words, ~uint64_t{0});
  for (int32_t i = 0; i < sets.count; ++i)
    for (int64_t w = 0; w < words; ++w) {
      const uint64_t word = sets.row(i)[w];
      const int64_t group = i / Downsets::kGroup;
      sets.group_and[group * words + w] &= word;
    }
}

Downsets arrange(const Instance& in, const SetIndex& found, RawLinks links, bool complete) {
  Downsets sets;
  sets.num_layers = in.num_layers;
  sets.num_words = in.num_words;
  sets.count = found.size();
  sets.complete = complete;
  sets.layer_work = work_of_layers(in);
  std::vector<int32_t> order(sets.count), place(sets.count);
  std::vector<Place> places;
  for (int32_t i = 0; i < sets.count; ++i) {
    const uint64_t* row = found.row(i);
    places.emplace_back(row, in.num_words, work_of(sets.layer_work, row));
  }
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return places[a] < places[b]; });
  for (int32_t i = 0; i < sets.count; ++i) {
    place[order[i]] = i;
    sets.bits.insert(sets.bits.end(), found.row(order[i]), found.row(order[i]) + in.num_words);
    sets.work.push_back(places[order[i]].work);
  }
  for (int32_t& i : links.from) i = place[i];
  for (int32_t& i : links.to) i = place[i];
  sets.up = tabulate(sets.count, links.from, links.layer, links.to);
  sets.down = tabulate(sets.count, links.to, links.layer, links.from);
  intersect_groups(sets);
  return sets;
}

}  // namespace

Downsets enumerate_downsets(const Instance& in, int64_t limit, const Stop& stop) {
  SetIndex found(in.num_words);
  RawLinks links;
  // Layers that may join each set found so far: all their successors are inside.
  std::vector<uint64_t> addable(in.num_words, 0), set(in.num_words, 0), next(in.num_words);
  for (int32_t v = 0; v < in.num_layers; ++v)
    if (in.out_edges[v].empty()) addable[v >> 6] |= uint64_t{1} << (v & 63);
  found.find_or_add(set, 0);
  for (int32_t i = 0; i < found.size(); ++i) {
    if (found.size() > limit || ((i & 255) == 0 && stop())) return {};
    for (int32_t w = 0; w < in.num_words; ++w)
      for (uint64_t rest = addable[int64_t{i} * in.num_words + w]; rest != 0; rest &= rest - 1) {
        const int32_t v = w * 64 + std::countr_zero(rest);
        set.assign(found.row(i), found.row(i) + in.num_words);
        set[w] |= rest & -rest;
        const int32_t known = found.size();
        const int32_t to = found.find_or_add(set, found.hash(i) ^ layer_key(v));
        links.from.push_back(i);
        links.layer.push_back(v);
        links.to.push_back(to);
        if (to < known) continue;
        next.assign(addable.begin() + int64_t{i} * in.num_words,
                    addable.begin() + int64_t{i + 1} * in.num_words);
        next[w] &= ~(rest & -rest);
        for (int32_t e : in.in_edges[v]) {
          const int32_t u = in.edges[e].source;
          if (is_addable(in, set, u)) next[u >> 6] |= uint64_t{1} << (u & 63);
        }
        addable.insert(addable.end(), next.begin(), next.end());
      }
  }
  return arrange(in, found, std::move(links), true);
}

Downsets family_of(const Instance& in, const std::vector<uint64_t>& rows) {
  SetIndex found(in.num_words);
  std::vector<uint64_t> set(in.num_words, 0);
  found.find_or_add(set, 0);
  for (int32_t v = 0; v < in.num_layers; ++v) set[v >> 6] |= uint64_t{1} << (v & 63);
  found.find_or_add(set, hash_of(set));
  for (size_t begin = 0; begin < rows.size(); begin += in.num_words) {
    set.assign(rows.begin() + begin, rows.begin() + begin + in.num_words);
    found.find_or_add(set, hash_of(set));
  }
  RawLinks links;
  for (int32_t i = 0; i < found.size(); ++i) {
    set.assign(found.row(i), found.row(i) + in.num_words);
    for (int32_t v = 0; v < in.num_layers; ++v) {
      if (!is_addable(in, set, v)) continue;
      set[v >> 6] ^= uint64_t{1} << (v & 63);
      const int32_t to = found.find(set, found.hash(i) ^ layer_key(v));
      set[v >> 6] ^= uint64_t{1} << (v & 63);
      if (to < 0) continue;
      links.from.push_back(i);
      links.layer.push_back(v);
      links.to.push_back(to);
    }
  }
  return arrange(in, found, std::move(links), false);
}

int32_t Downsets::find(const uint64_t* wanted) const {
  const Place place(wanted, num_words, work_of(layer_work, wanted));
  int32_t first = 0, end = count;
  while (first < end) {
    const int32_t middle = first + (end - first) / 2;
    if (Place(row(middle), num_words, work[middle]) < place) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return first < count && std::equal(wanted, wanted + num_words, row(first)) ? first : -1;
}

void Downsets::add_up(const std::vector<int32_t>& per_layer, int32_t lanes,
                      std::vector<int32_t>& out) const {
  out.assign(int64_t{count} * lanes, 0);
  for (int32_t i = 1; i < count; ++i) {
    int32_t* sum = out.data() + int64_t{i} * lanes;
    const auto add_layer = [&](int32_t v) {
      for (int32_t j = 0; j < lanes; ++j) sum[j] += per_layer[int64_t{v} * lanes + j];
    };
    if (down.offset[i] == down.offset[i + 1]) {
      for_each_between(*this, 0, i, add_layer);
      continue;
    }
    const int32_t* from = out.data() + int64_t{down.target[down.offset[i]]} * lanes;
    for (int32_t j = 0; j < lanes; ++j) sum[j] = from[j];
    add_layer(down.layer[down.offset[i]]);
  }
}

void Downsets::add_up(const std::vector<double>& per_layer, std::vector<double>& out) const {
  out.assign(count, 0);
  for (int32_t i = 1; i < count; ++i) {
    if (down.offset[i] == down.offset[i + 1]) {
      for_each_between(*this, 0, i, [&](int32_t v) { out[i] += per_layer[v]; });
      continue;
    }
    const int32_t link = down.offset[i];
    out[i] = out[down.target[link]] + per_layer[down.layer[link]];
  }
}

}  // namespace trainwright
