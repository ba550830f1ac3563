// A whole step of a model as a flat list of operations over a fixed set of buffers.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "vivace/kernels.h"
#include "vivace/largest.h"
#include "vivace/pool.h"
#include "vivace/weights.h"

namespace vivace {

constexpr int kMaxGroup = 256;  // query heads that share a KV head

struct Linear {
  PackedMatrix weight{};
  const float* bias = nullptr;
};

struct Layer {
  int32_t heads = 0, kv_heads = 0, head_dim = 0, rope_dim = 0, feed_forward = 0;
  int32_t window = 0;  // 0: none
  float scale = 1, softcap = 0;
  bool gelu = false;  // else silu
  const float* attention_norm = nullptr;
  const float* feed_forward_norm = nullptr;
  const float* q_norm = nullptr;  // null: none, as for all below
  const float* k_norm = nullptr;
  const float* post_attention_norm = nullptr;
  const float* post_feed_forward_norm = nullptr;
  const float* rope_cos = nullptr;  // [position][rope_dim / 2]
  const float* rope_sin = nullptr;
  Linear q, k, v, o, gate, up, down;
  uint8_t* kv = nullptr;  // cells [kv_heads][pages], each: keys [dim][64], values [64][dim]
  int64_t head_stride = 0, cell_bytes = 0;
};

struct Model {
  int32_t hidden = 0, vocab = 0;
  float eps = 0, embed_scale = 1, logit_softcap = 0;
  WeightType embed_type = WeightType::kF32;
  const uint8_t* embed = nullptr;  // stored rows, read one at a time
  int64_t embed_row_bytes = 0;
  const float* final_norm = nullptr;
  Linear head;
  std::vector<Layer> layers;
};

// The key list of one sequence, or of one (layer, head) of it where eviction made them differ.
struct KeyList {
  const int32_t* pages = nullptr;
  const int32_t* positions = nullptr;  // of each ordinal
  int32_t shift = 0;                   // its length less the sequence's
  const float* bias = nullptr;         // added to the logits of its ordinals below `biased`
  int32_t biased = 0;
};

struct Sequence {
  KeyList shared;
  const KeyList* lists = nullptr;  // [sum of kv_heads over layers]; pages null: the shared list. Null: all shared
  int32_t base = 0;                // keys before this step; rows with slots from here on bring new ones
};

// One step's rows. Ordinals count in the sequence's shared list; a ragged list shifts them.
struct Rows {
  int32_t rows = 0;
  const int32_t* tokens = nullptr;      // [rows], or
  const float* vectors = nullptr;       // [rows][hidden]
  const int32_t* positions = nullptr;   // [rows]
  const int32_t* sequence = nullptr;    // [rows]
  const int32_t* slot = nullptr;        // [rows] ordinal where the row's key goes
  const int32_t* visible = nullptr;     // [rows] keys 0..visible are seen,
  const int32_t* tail_begin =
      nullptr;  // [rows + 1] and then those at tail[tail_begin[r] .. tail_begin[r + 1]); or null
  const int32_t* tail = nullptr;
  const uint8_t* layer_mask = nullptr;  // [rows][layers] 0: the row passes the layer unchanged; null: none does
  std::vector<Sequence> sequences;
  std::vector<int32_t> wanted;  // rows whose logits are wanted
  int32_t top = 0;              // so many of the largest logits of each are found
  float* logits = nullptr;      // [wanted][vocab]
};

// What a step shows besides logits. Null: not wanted.
struct LayerTaps {
  float* hidden = nullptr;  // [rows][hidden] the stream that enters the layer
  float* query = nullptr;   // [rows][heads][dim]
  float* mass = nullptr;    // [rows][heads][mass_stride]
  float* lse = nullptr;     // [rows][heads]
};

struct LogitStats {
  float max;
  int32_t argmax;
  double log_sum_exp;
};

class Program {
 public:
  Program(Pool& pool, const Kernels& kernels, Model model, int32_t max_rows);

  struct Op;
  using OpFn = bool (Program::*)(const Op& op, int thread);  // true: the threads must meet after it
  struct Op {
    const char* name;
    OpFn fn;
    int32_t layer;
    int32_t index;
  };

  // Takes the rows of the next runs. Throws std::invalid_argument for more rows than max_rows.
  void begin(Rows rows);
  // Runs the operations first..last, all threads together. Layers a..b are layer_begin(a)..layer_begin(b).
  void run(int32_t first, int32_t last);
  int32_t op_count() const { return static_cast<int32_t>(ops_.size()); }
  int32_t layer_begin(int32_t layer) const { return layer_begin_[layer]; }  // layer == layers: the head's operations
  const std::vector<Op>& ops() const { return ops_; }

  Rows& rows() { return rows_; }
  const Rows& rows() const { return rows_; }
  const Model& model() const { return model_; }
  LayerTaps& taps(int32_t layer) { return taps_[layer]; }  // layer == layers: hidden only
  void clear_taps();
  int64_t mass_stride = 0;
  const std::vector<LogitStats>& stats() const { return stats_; }
  // [wanted][top] the ids of the largest logits, in order; -1 where there are no more.
  const std::vector<int32_t>& top() const { return top_; }

  // The residual stream with everything added, [rows][hidden], and its replacement between two runs.
  void read_hidden(float* out);
  void write_hidden(const float* in);
  // The same for the rotated queries, [rows][heads][dim], before the layer's "attend". Rows that skip it are left out.
  void read_query(float* out);
  void write_query(const float* in);

  bool timing = false;
  std::vector<int64_t> op_ns;  // per operation, summed over runs while timing

 private:
  struct ChunkResult {
    float *max, *sum, *out;
  };
  // Buffers of one row that each thread keeps for itself when a step has a single row.
  struct Private {
    float *hidden, *normed, *query, *attended;
    Quantised quantised;
    float *q, *chunk, *running;  // attention: gathered queries, one chunk's results, the fold so far
    float *prob, *bias;          // of the queries over one chunk
    std::vector<ChunkResult> parts;
    uint8_t* cells;              // pages gathered in ordinal order
    uint8_t* scratch;            // of the products
  };
  struct Block {  // consecutive rows of one sequence that attend together; where there are tails, each row's keys are
    int32_t row, rows;  // the first of the next one's
  };
  // The rows that run a layer, packed, and what each of them sees there: a key that a row did not write is in no list.
  struct LayerRows {
    int32_t rows = 0;
    const int32_t* row = nullptr;  // [rows] index in the step; null: the same
    const int32_t* place = nullptr;  // [rows of the step] index here, -1: not here; null: the same
    const int32_t *positions = nullptr, *sequence = nullptr, *slot = nullptr;  // [rows], as in Rows
    const int32_t *visible = nullptr, *tail_begin = nullptr, *tail = nullptr;
    std::vector<Block> blocks;
    std::vector<int64_t> block_partial;  // floats of partial results before each block

    int32_t tail_length(int32_t at) const { return tail_begin ? tail_begin[at + 1] - tail_begin[at] : 0; }
    int32_t step_row(int32_t at) const { return row ? row[at] : at; }
    int32_t place_of(int32_t step_row) const { return place ? place[step_row] : step_row; }
  };
  struct SomeRows : LayerRows {  // with arrays of its own
    std::vector<int32_t> row_, place_, positions_, sequence_, slot_, visible_, tail_begin_, tail_;
  };

  void build();
  void add(const char* name, OpFn fn, int32_t layer);
  float* allocate(int64_t floats);
  void choose_rows();
  void select_rows(int32_t layer, SomeRows& into) const;
  void prepare_blocks(LayerRows& in);
  bool continues(const LayerRows& in, int32_t at) const;
  const LayerRows& in_layer(int32_t layer) const { return *layer_rows_[layer]; }
  // A layer that no row runs still adds the branch of the layer below, which taps and edits see.
  bool idle(const Op& op) const {
    return rows_.layer_mask && op.index >= layer_begin_.front() && op.index < layer_begin_.back() &&
           op.fn != &Program::mix_attention && in_layer(op.layer).rows == 0;
  }
  void combine_stats();
  bool single() const { return rows_.rows == 1; }
  int64_t claim(const Op& op) { return claims_[op.index].value.fetch_add(1, std::memory_order_relaxed); }

  bool embed(const Op&, int);
  bool mix_attention(const Op&, int);
  bool project(const Op&, int);
  bool rotate(const Op&, int);
  bool attend(const Op&, int);
  bool fold(const Op&, int);
  bool quantise_attended(const Op&, int);
  bool output(const Op&, int);
  bool mix_feed_forward(const Op&, int);
  bool gate_up(const Op&, int);
  bool quantise_gated(const Op&, int);
  bool down(const Op&, int);
  bool absorb_last(const Op&, int);
  bool norm_wanted(const Op&, int);
  bool head(const Op&, int);
  bool logit_stats(const Op&, int);

  void absorb(const Op& op, int32_t row, int thread);
  int32_t branch_layer(const Op& op) const { return op.fn == &Program::mix_feed_forward ? op.layer : op.layer - 1; }
  const float* branch_norm(const Op& op) const;
  void norm_row(int32_t row, int32_t at, int thread, const float* weight);
  Quantised quantised_row(int64_t row, int32_t n) const;
  void take_row(const float* x, int32_t row, int32_t n, int thread);
  void quantise_row(const float* x, int32_t n, const Quantised& into);
  template <class Each>
  bool each_of(int32_t rows, int thread, Each each);
  template <class Each>
  bool each_row(int thread, Each each) {
    return each_of(rows_.rows, thread, each);
  }
  void multiply(const Linear* const* parts, float* const* outs, const int64_t* strides, int count, const Activations& a,
                const Op& op, int thread);
  Activations activations(int32_t rows, int32_t cols, int thread) const;
  float* hidden_row(int32_t row, int thread);
  // From here on rows are counted in the layer (LayerRows).
  float* query_row(int32_t row, int thread);
  int32_t next_attend() const;
  const KeyList& keys(int32_t row, int32_t layer, int32_t head) const;
  int32_t first_visible(int32_t layer, const KeyList& list, int32_t row) const;
  int32_t total_visible(int32_t layer, const KeyList& list, int32_t row) const;
  int32_t longest_list(const LayerRows& in, const Block& block) const;
  void append_row(int32_t layer, int32_t row, int32_t head, int thread);
  struct ChunkSpan {
    int32_t first, last;
  };
  ChunkSpan chunk_span(int32_t layer, const Block& block, int32_t head) const;
  void gather_queries(int32_t layer, const Block& block, int32_t head, int thread);
  void attend_chunk(int32_t layer, const Block& block, int32_t head, int32_t chunk, const ChunkResult& into,
                    int thread);
  void attend_whole(int32_t layer, const Block& block, int32_t head, int thread);
  void gather_cells(int32_t layer, const KeyList& list, int32_t head, int32_t row, int32_t chunk, int thread,
                    AttendChunk& args);
  void gather_biases(int32_t layer, const KeyList& list, int32_t row, int32_t chunk, int32_t queries, float* out) const;
  void finish_block(int32_t layer, const Block& block, int32_t head, const ChunkResult& running, int thread);
  void scale_mass(int32_t layer, const Block& block, int32_t head, const ChunkResult* chunks, ChunkSpan span,
                  const ChunkResult& running);
  bool splits(int32_t layer) const;
  ChunkResult partial(int32_t layer, int32_t block, int32_t head, int32_t chunk);

  struct alignas(64) Claim {
    std::atomic<int64_t> value{0};
  };

  Pool& pool_;
  const Kernels& k_;
  Model model_;
  int32_t max_rows_;
  std::vector<Op> ops_;
  std::vector<int32_t> layer_begin_;
  std::vector<int32_t> list_begin_;  // first (layer, head) list of each layer
  std::unique_ptr<Claim[]> claims_;
  Barrier barrier_;
  int width_ = 1;
  int32_t fresh_op_ = 0;  // the operation before which the stream was set: there is no branch to add yet
  int32_t next_op_ = 0;  // one past the last operation run
  bool stream_set_ = false;  // write_hidden came after the last run

  Rows rows_;
  LayerRows every_row_;
  std::deque<SomeRows> some_rows_;
  std::vector<LayerRows*> layer_rows_;  // [layers] every_row_ or one of some_rows_
  std::vector<float> partials_;
  std::vector<LayerTaps> taps_;
  std::vector<LogitStats> stats_;
  struct ChunkStats {
    float max;
    int64_t argmax;
    double sum;
  };
  std::vector<ChunkStats> chunk_stats_;
  std::vector<std::vector<Candidate>> chunk_top_;
  std::vector<int32_t> top_;
  std::vector<int64_t> waited_;

  std::unique_ptr<uint8_t[], void (*)(void*)> memory_;
  int64_t used_ = 0, capacity_ = 0;
  int32_t widest_ = 0;  // columns of the widest product input
  int32_t qkv_width_ = 0;  // widest q + k + v
  int32_t attended_width_ = 0, gated_width_ = 0;
  int32_t block_rows_ = 1, block_queries_ = 1, dim_ = 0;  // limits of an attention block; the widest head
  float *hidden_ = nullptr, *normed_ = nullptr, *y_ = nullptr, *qkv_ = nullptr, *attended_ = nullptr, *gate_ = nullptr,
        *up_ = nullptr;
  Quantised quantised_{};
  std::vector<Private> private_;
};

// One thread for itself when the step has a single row, a share of the rows each otherwise. True: the threads must
// meet.
template <class Each>
bool Program::each_of(int32_t rows, int thread, Each each) {
  if (single()) {
    each(0);
    return false;
  }
  const Range mine = share(rows, thread, width_);
  for (int64_t row = mine.begin; row < mine.end; ++row) each(static_cast<int32_t>(row));
  return true;
}

}  // namespace vivace
