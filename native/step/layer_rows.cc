// Which rows of a step run in which layer, what they see there, and which of them attend together.
#include <algorithm>

#include "vivace/program.h"

namespace vivace {

void Program::choose_rows() {
  const auto layers = static_cast<int32_t>(model_.layers.size());
  every_row_.rows = rows_.rows;
  every_row_.positions = rows_.positions;
  every_row_.sequence = rows_.sequence;
  every_row_.slot = rows_.slot;
  every_row_.visible = rows_.visible;
  every_row_.tail_begin = rows_.tail_begin;
  every_row_.tail = rows_.tail;
  layer_rows_.assign(layers, &every_row_);
  some_rows_.clear();
  const auto runs = [&](int32_t row, int32_t layer) { return rows_.layer_mask[int64_t{row} * layers + layer] != 0; };
  for (int32_t layer = 0; layer < layers && rows_.layer_mask; ++layer) {
    bool all = true, as_below = layer > 0;
    for (int32_t row = 0; row < rows_.rows; ++row) {
      all &= runs(row, layer);
      as_below = as_below && runs(row, layer) == runs(row, layer - 1);
    }
    if (as_below) {
      layer_rows_[layer] = layer_rows_[layer - 1];
    } else if (!all) {
      select_rows(layer, some_rows_.emplace_back());
      layer_rows_[layer] = &some_rows_.back();
    }
  }
  prepare_blocks(every_row_);
  for (SomeRows& in : some_rows_) prepare_blocks(in);
}

// Packs the rows that run `layer`; new keys of the others leave the lists of these.
void Program::select_rows(int32_t layer, SomeRows& into) const {
  const auto runs = [&](int32_t row) { return rows_.layer_mask[row * model_.layers.size() + layer] != 0; };
  std::vector<bool> absent;  // of the keys of one sequence from its base on
  into.tail_begin_ = {0};
  for (int32_t begin = 0, end; begin < rows_.rows; begin = end) {
    const int32_t base = rows_.sequences[rows_.sequence[begin]].base;
    absent.clear();
    for (end = begin; end < rows_.rows && rows_.sequence[end] == rows_.sequence[begin]; ++end) {
      const int32_t key = rows_.slot[end] - base;
      if (runs(end) || key < 0) continue;
      if (key >= static_cast<int32_t>(absent.size())) absent.resize(key + 1);
      absent[key] = true;
    }
    const auto is_absent = [&](int32_t ordinal) {
      const int32_t key = ordinal - base;
      return key >= 0 && key < static_cast<int32_t>(absent.size()) && absent[key];
    };
    const auto first = base + static_cast<int32_t>(std::find(absent.begin(), absent.end(), true) - absent.begin());
    for (int32_t row = begin; row < end; ++row) {
      into.place_.push_back(runs(row) ? into.rows : -1);
      if (!runs(row)) continue;
      ++into.rows;
      into.row_.push_back(row);
      into.positions_.push_back(rows_.positions[row]);
      into.sequence_.push_back(rows_.sequence[row]);
      into.slot_.push_back(rows_.slot[row]);
      const int32_t visible = absent.empty() ? rows_.visible[row] : std::min(rows_.visible[row], first);
      into.visible_.push_back(visible);
      for (int32_t ordinal = visible; ordinal < rows_.visible[row]; ++ordinal)
        if (!is_absent(ordinal)) into.tail_.push_back(ordinal);
      for (int32_t i = 0; i < every_row_.tail_length(row); ++i) {
        const int32_t ordinal = rows_.tail[rows_.tail_begin[row] + i];
        if (!is_absent(ordinal)) into.tail_.push_back(ordinal);
      }
      into.tail_begin_.push_back(static_cast<int32_t>(into.tail_.size()));
    }
  }
  into.row = into.row_.data();
  into.place = into.place_.data();
  into.positions = into.positions_.data();
  into.sequence = into.sequence_.data();
  into.slot = into.slot_.data();
  into.visible = into.visible_.data();
  into.tail_begin = into.tail_.empty() ? nullptr : into.tail_begin_.data();
  into.tail = into.tail_.data();
}

// Whether a row can join the block of the row before it.
bool Program::continues(const LayerRows& in, int32_t at) const {
  if (in.sequence[at - 1] != in.sequence[at]) return false;
  if (!in.tail_begin) return true;
  const int32_t *before = in.tail + in.tail_begin[at - 1], *own = in.tail + in.tail_begin[at];
  const int32_t length = in.tail_length(at - 1);
  if (length == 0) return in.visible[at - 1] <= in.visible[at];
  return in.visible[at - 1] == in.visible[at] && length <= in.tail_length(at) && std::equal(own, own + length, before);
}

int32_t Program::longest_list(const LayerRows& in, const Block& block) const {
  int32_t longest = 0;
  for (int32_t at = block.row; at < block.row + block.rows; ++at)
    longest = std::max(longest, in.visible[at] + in.tail_length(at));
  return longest;
}

// Groups rows that attend together, and lays out the partial results of every (block, head, chunk).
void Program::prepare_blocks(LayerRows& in) {
  in.blocks.clear();
  for (int32_t at = 0; at < in.rows; ++at) {
    if (at > 0 && in.blocks.back().rows < block_rows_ && continues(in, at))
      ++in.blocks.back().rows;
    else
      in.blocks.push_back({at, 1});
  }
  bool any_split = false;
  int32_t widest = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(model_.layers.size()); ++i) {
    if (layer_rows_[i] != &in) continue;
    any_split |= splits(i);
    widest = std::max(widest, model_.layers[i].heads * (model_.layers[i].head_dim + 2));
  }
  in.block_partial.assign(1, 0);
  for (const Block& block : in.blocks) {
    const int64_t chunks = any_split ? (longest_list(in, block) + kChunk - 1) / kChunk : 0;
    in.block_partial.push_back(in.block_partial.back() + chunks * block.rows * widest);
  }
  if (static_cast<int64_t>(partials_.size()) < in.block_partial.back()) partials_.resize(in.block_partial.back());
}

}  // namespace vivace
