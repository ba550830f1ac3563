// Attention of every instruction set: against references in double, and bit for bit against itself under everything
// that may not show: company, unseen slots, tiling.
#include <algorithm>
#include <limits>
#include <memory>

#include "../cpu/elementwise.h"
#include "../cpu/half.h"
#include "check.h"

using namespace vivace;
using namespace vivace::testing;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kPages = kChunk / kPage;

struct Query {
  std::vector<float> q;
  int first;
  int last;
  std::vector<float> bias;  // 256, or empty
};

// A chunk of keys and values.
struct Cells {
  Cells(int dim, uint64_t seed) : dim(dim) {
    Random random(seed);
    for (int page = 0; page < kPages; ++page) {
      k[page] = std::make_unique<Guarded<uint16_t>>(dim * kPage);
      v[page] = std::make_unique<Guarded<uint16_t>>(dim * kPage);
      for (int i = 0; i < dim * kPage; ++i) {
        (*k[page])[i] = float_to_half(static_cast<float>(4.0 * random.uniform() - 2.0));
        (*v[page])[i] = float_to_half(static_cast<float>(4.0 * random.uniform() - 2.0));
      }
    }
  }
  uint16_t& key(int i, int d) { return (*k[i / kPage])[d * kPage + i % kPage]; }
  uint16_t& value(int i, int d) { return (*v[i / kPage])[(i % kPage) * dim + d]; }

  // Fills slots outside [first, last) with NaN, infinity and huge values.
  void spoil_outside(int first, int last) {
    const uint16_t garbage[] = {0x7e00, 0x7c00, 0xfc00, 0x7bff, 0xfe01};
    for (int i = 0; i < kChunk; ++i) {
      if (i >= first && i < last) continue;
      for (int d = 0; d < dim; ++d) key(i, d) = garbage[(i + d) % 5], value(i, d) = garbage[(i * 3 + d) % 5];
    }
  }

  int dim;
  std::unique_ptr<Guarded<uint16_t>> k[kPages], v[kPages];
};

struct Result {
  std::vector<float> max, sum, out, prob;
  bool operator==(const Result& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
    };
    return same(max, other.max) && same(sum, other.sum) && same(out, other.out) && same(prob, other.prob);
  }
};

// Pages that no query sees are passed as null.
Result attend(const Kernels& kernels, Cells& cells, const std::vector<Query>& queries, float softcap, bool with_prob) {
  const int count = static_cast<int>(queries.size());
  const int dim = cells.dim;
  const bool with_bias = !queries[0].bias.empty();
  Guarded<float> q(count * dim), bias(with_bias ? count * kChunk : 0);
  Guarded<int32_t> first(count), last(count);
  Guarded<float> max(count, 77.0f), sum(count, 77.0f), out(count * dim, 77.0f),
      prob(with_prob ? count * kChunk : 0, 77.0f);
  AttendChunk chunk = {};
  for (int i = 0; i < count; ++i) {
    std::copy(queries[i].q.begin(), queries[i].q.end(), q.data() + i * dim);
    if (with_bias) std::copy(queries[i].bias.begin(), queries[i].bias.end(), bias.data() + i * kChunk);
    first[i] = queries[i].first;
    last[i] = queries[i].last;
    for (int page = 0; page < kPages; ++page) {
      if (std::max(first[i], page * kPage) >= std::min(last[i], (page + 1) * kPage)) continue;
      chunk.k[page] = cells.k[page]->data();
      chunk.v[page] = cells.v[page]->data();
    }
  }
  chunk.dim = dim;
  chunk.queries = count;
  chunk.q = q.data();
  chunk.first = first.data();
  chunk.last = last.data();
  chunk.bias = with_bias ? bias.data() : nullptr;
  chunk.softcap = softcap;
  chunk.max = max.data();
  chunk.sum = sum.data();
  chunk.out = out.data();
  chunk.prob = with_prob ? prob.data() : nullptr;
  kernels.attend(chunk);
  return {max.copy(), sum.copy(), out.copy(), prob.copy()};
}

Result part(const Result& all, int i, int dim) {
  Result one = {{all.max[i]}, {all.sum[i]}, {}, {}};
  one.out.assign(all.out.begin() + i * dim, all.out.begin() + (i + 1) * dim);
  if (!all.prob.empty()) one.prob.assign(all.prob.begin() + i * kChunk, all.prob.begin() + (i + 1) * kChunk);
  return one;
}

bool near(double value, double want, double tolerance) { return std::abs(value - want) <= tolerance; }

void check_against_double(Cells& cells, const Query& query, float softcap, const Result& got, const std::string& what) {
  std::vector<double> logits(kChunk, -kInfinity);
  for (int i = query.first; i < query.last; ++i) {
    double logit = 0;
    for (int d = 0; d < cells.dim; ++d) logit += static_cast<double>(query.q[d]) * half_to_float(cells.key(i, d));
    if (softcap != 0) logit = softcap * std::tanh(logit / softcap);
    logits[i] = logit + (query.bias.empty() ? 0.0f : query.bias[i]);
  }
  const double max = *std::max_element(logits.begin(), logits.end());
  if (max == -kInfinity) {
    expect(got.max[0] == -kInfinity && got.sum[0] == 0.0f, what + ": nothing visible");
    for (const float x : got.out) expect(x == 0.0f, what + ": out of nothing");
    for (const float x : got.prob) expect(x == 0.0f, what + ": prob of nothing");
    return;
  }
  double sum = 0, prob_sum = 0;
  std::vector<double> out(cells.dim, 0.0);
  for (int i = 0; i < kChunk; ++i) {
    const double prob = std::exp(logits[i] - max);
    sum += prob;
    for (int d = 0; d < cells.dim && prob > 0; ++d) out[d] += prob * half_to_float(cells.value(i, d));
    if (got.prob.empty()) continue;
    expect(logits[i] == -kInfinity ? std::bit_cast<uint32_t>(got.prob[i]) == 0 : near(got.prob[i], prob, 4e-6),
           what + ": prob");
    prob_sum += got.prob[i];
  }
  expect(near(got.max[0], max, 4e-6), what + ": max");
  expect(near(got.sum[0], sum, 4e-6 * sum), what + ": sum");
  if (!got.prob.empty()) expect(near(prob_sum, got.sum[0], 1e-6 * sum), what + ": sum of prob");
  for (int d = 0; d < cells.dim; ++d) expect(near(got.out[d], out[d], 3e-6 * sum), what + ": out");
}

Query random_query(Random& random, int dim, bool with_bias) {
  Query query = {random.normals(dim, 1.0f / std::sqrt(static_cast<float>(dim))), 0, kChunk, {}};
  if (with_bias) {
    query.bias = random.normals(kChunk);
    for (int i = 0; i < kChunk; i += 1 + random.below(9)) query.bias[i] = -kInfinity;
  }
  switch (random.below(5)) {
    case 0: break;
    case 1: query.last = random.below(kChunk + 1); break;
    case 2: query.first = random.below(kChunk + 1); break;
    case 3: query.first = random.below(kChunk), query.last = query.first + 1; break;
    default: query.first = random.below(kChunk), query.last = random.below(kChunk + 1);
  }
  return query;
}

// Right, and the same whatever the company and whatever lies in unseen slots.
void test_queries(const Kernels& k, int dim, bool with_bias, float softcap) {
  const std::string what = std::string(k.isa) + " dim " + std::to_string(dim) + (with_bias ? " bias" : "") +
                           (softcap != 0 ? " softcap" : "");
  for (int count : {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 24, 64, 100}) {
    for (bool causal : {false, true}) {
      Random random(dim * 1000 + count * 2 + causal);
      Cells cells(dim, dim + count);
      std::vector<Query> queries;
      for (int i = 0; i < count; ++i) {
        queries.push_back(random_query(random, dim, with_bias));
        if (causal) queries[i].first = i / 3, queries[i].last = 60 + i / 3;  // rows of a prefill with a window
      }
      const Result all = attend(k, cells, queries, softcap, true);
      expect(attend(k, cells, queries, softcap, false).out == all.out, what + ": asking for prob changes out");
      for (int i = 0; i < count; ++i) {
        const Result together = part(all, i, dim);
        if (count > 8 && i % 5 != 0) continue;
        check_against_double(cells, queries[i], softcap, together, what);
        const Result alone = attend(k, cells, {queries[i]}, softcap, true);
        expect(alone == together, what + ": differs in company of " + std::to_string(count));
        Cells spoilt(dim, dim + count);
        spoilt.spoil_outside(queries[i].first, queries[i].last);
        expect(attend(k, spoilt, {queries[i]}, softcap, true) == alone, what + ": unseen slots show");
      }
      int first = kChunk, last = 0;
      for (const Query& query : queries) first = std::min(first, query.first), last = std::max(last, query.last);
      Cells spoilt(dim, dim + count);
      spoilt.spoil_outside(first, last);
      expect(attend(k, spoilt, queries, softcap, true) == all, what + ": slots that none sees show");
    }
  }
}

// A neighbour's key that this query does not see may hold NaN.
void test_neighbours(const Kernels& k) {
  const int dim = 64;
  for (int count : {2, 3, 6, 7, 30}) {
    Random random(count);
    Cells cells(dim, 5);
    std::vector<Query> queries(count, Query{random.normals(dim, 0.1f), 3, 100, {}});
    const Result clean = attend(k, cells, {queries[0]}, 0.0f, true);
    for (int d = 0; d < dim; ++d) cells.key(100, d) = cells.value(100, d) = cells.value(2, d) = 0x7e00;
    queries[count - 1].last = 101;
    queries[count / 2].first = count == 2 ? 3 : 2;
    const Result all = attend(k, cells, queries, 0.0f, true);
    expect(part(all, 0, dim) == clean, std::string(k.isa) + ": a neighbour's NaN shows");
    const Result poisoned = part(all, count - 1, dim);
    expect(std::isnan(poisoned.max[0]) && std::isnan(poisoned.sum[0]), std::string(k.isa) + ": a visible NaN is lost");
    for (int d = 0; d < dim; ++d) expect(std::isnan(poisoned.out[d]), std::string(k.isa) + ": NaN is lost in out");
    for (int i = 101; i < kChunk; ++i) expect(poisoned.prob[i] == 0.0f, std::string(k.isa) + ": masked prob of NaN");
  }
}

// A query that sees nothing but NaN says so, and has probability 0 where it sees nothing.
void test_all_nan(const Kernels& k) {
  const int dim = 64;
  Cells cells(dim, 6);
  for (int i = 3; i < 112; ++i) cells.key(i, 5) = 0x7e00;
  const Result got = attend(k, cells, {Query{Random(1).normals(dim), 3, 112, {}}}, 0.0f, true);
  expect(std::isnan(got.max[0]) && std::isnan(got.sum[0]) && std::isnan(got.out[0]), std::string(k.isa) + ": all NaN");
  for (int i = 0; i < kChunk; ++i) {
    expect(i >= 3 && i < 112 ? std::isnan(got.prob[i]) : got.prob[i] == 0.0f, std::string(k.isa) + ": prob of all NaN");
  }
}

struct Running {
  explicit Running(int queries, int dim) : max(queries, -kInfinity), sum(queries), out(queries * dim) {}
  Result copy() { return {max.copy(), sum.copy(), out.copy(), {}}; }
  Guarded<float> max, sum, out;
};

void fold(const Kernels& k, Running& run, const Result& chunk, int dim) {
  Guarded<float> max(chunk.max), sum(chunk.sum), out(chunk.out);
  k.fold(static_cast<int>(chunk.max.size()), dim, max.data(), sum.data(), out.data(), run.max.data(), run.sum.data(),
         run.out.data());
}

void test_fold(const Kernels& k, int dim) {
  const std::string what = std::string(k.isa) + " fold dim " + std::to_string(dim);
  const int count = 5, chunks = 4;
  Random random(dim);
  std::vector<Query> queries;
  for (int i = 0; i < count; ++i) queries.push_back({random.normals(dim, 2.0f / std::sqrt(float(dim))), 0, kChunk, {}});
  Running run(count, dim), alone(1, dim);
  std::vector<std::vector<double>> logits(count), out(count, std::vector<double>(dim, 0.0));
  std::vector<std::unique_ptr<Cells>> cells;
  for (int c = 0; c < chunks; ++c) {
    cells.push_back(std::make_unique<Cells>(dim, 10 * dim + c));
    const int last = c == 2 ? 0 : c == chunks - 1 ? 77 : kChunk;  // the third chunk is empty
    for (Query& query : queries) query.last = last;
    const Result before = run.copy();
    const Result chunk = attend(k, *cells[c], queries, 0.0f, false);
    fold(k, run, chunk, dim);
    fold(k, alone, part(chunk, 1, dim), dim);
    if (c == 0) expect(run.copy() == chunk, what + ": the first fold is not a copy");
    if (c == 2) expect(run.copy() == before, what + ": an empty chunk is not an identity");
    for (int i = 0; i < count; ++i) {
      for (int t = 0; t < kChunk; ++t) {
        double logit = t < last ? 0 : -kInfinity;
        for (int d = 0; d < dim && t < last; ++d) logit += double(queries[i].q[d]) * half_to_float(cells[c]->key(t, d));
        logits[i].push_back(logit);
      }
    }
  }
  expect(part(run.copy(), 1, dim) == alone.copy(), what + ": differs in company");

  Guarded<float> result(count * dim), lse(count), bare(count * dim);
  k.finish(count, dim, run.max.data(), run.sum.data(), run.out.data(), result.data(), lse.data());
  k.finish(count, dim, run.max.data(), run.sum.data(), run.out.data(), bare.data(), nullptr);
  expect(same_bits(result.data(), bare.data(), count * dim), what + ": lse changes out");
  for (int i = 0; i < count; ++i) {
    const double max = *std::max_element(logits[i].begin(), logits[i].end());
    double sum = 0;
    for (int t = 0; t < chunks * kChunk; ++t) {
      const double prob = std::exp(logits[i][t] - max);
      sum += prob;
      for (int d = 0; d < dim; ++d) out[i][d] += prob * half_to_float(cells[t / kChunk]->value(t % kChunk, d));
    }
    for (int d = 0; d < dim; ++d) expect(near(result[i * dim + d], out[i][d] / sum, 2.2e-6), what + ": out");
    expect(near(lse[i], max + std::log(sum), 4e-6), what + ": lse");
  }

  Running nothing(1, dim);
  Result empty = {{-kInfinity}, {0.0f}, std::vector<float>(dim, 0.0f), {}};
  fold(k, nothing, empty, dim);
  expect(nothing.max[0] == -kInfinity && nothing.sum[0] == 0.0f, what + ": nothing into nothing");
  k.finish(1, dim, nothing.max.data(), nothing.sum.data(), nothing.out.data(), result.data(), lse.data());
  expect(lse[0] == -kInfinity && result[0] == 0.0f && result[dim - 1] == 0.0f, what + ": finish of nothing");

  // Order matters and is the documented one: left to right.
  Result a = {{1.0f}, {3.0f}, std::vector<float>(dim, 0.3f), {}};
  Result b = {{2.5f}, {1.7f}, std::vector<float>(dim, -0.9f), {}};
  Running pair(1, dim);
  fold(k, pair, a, dim);
  fold(k, pair, b, dim);
  const double keep = std::exp(-1.5);
  expect(pair.max[0] == 2.5f && near(pair.sum[0], 3.0 * keep + 1.7, 1e-6) && near(pair.out[0], 0.3 * keep - 0.9, 1e-6),
         what + ": of two");
  Result broken = {{std::numeric_limits<float>::quiet_NaN()}, {1.0f}, std::vector<float>(dim, 1.0f), {}};
  fold(k, pair, broken, dim);
  fold(k, pair, a, dim);
  expect(std::isnan(pair.max[0]) && std::isnan(pair.sum[0]) && std::isnan(pair.out[dim - 1]), what + ": NaN is lost");
}

void test_same_across_sets(int dim) {
  Random random(dim);
  Cells cells(dim, dim);
  std::vector<Query> queries;
  for (int i = 0; i < 9; ++i) queries.push_back(random_query(random, dim, true));
  const Result want = attend(*select_kernels("portable"), cells, queries, 20.0f, true);
  for (const Kernels* k : all_kernels()) {
    const Result got = attend(*k, cells, queries, 20.0f, true);
    for (size_t i = 0; i < want.out.size(); ++i) {
      expect(near(got.out[i], want.out[i], 5e-6 * (1 + want.sum[i / dim])), std::string(k->isa) + " against portable");
    }
  }
}

}  // namespace

int main() {
  for (const Kernels* kernels : all_kernels()) {
    for (int dim : {16, 32, 48, 64, 80, 96, 112, 128, 256}) {
      for (bool with_bias : {false, true}) {
        for (float softcap : {0.0f, 2.0f}) test_queries(*kernels, dim, with_bias, softcap);
      }
      test_fold(*kernels, dim);
    }
    test_neighbours(*kernels);
    test_all_nan(*kernels);
  }
  for (int dim : {64, 80, 256}) test_same_across_sets(dim);
  return report("attention_test");
}
