// The only place where Python meets the native core: raw addresses in, no tensors kept.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <stdexcept>

#include "vivace/kernels.h"
#include "vivace/pool.h"
#include "vivace/probe.h"
#include "vivace/program.h"
#include "vivace/weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace vivace {
namespace {

template <class T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <class T, int N>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<N>>;

template <class T, int N>
Out<T, N> make(std::initializer_list<size_t> shape) {
  size_t size = 1;
  for (size_t n : shape) size *= n;
  T* data = new T[size]();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Out<T, N>(data, shape, owner);
}

// "" is what $VIVACE_ISA names, or the best.
const Kernels& kernels_named(const std::string& isa) {
  const char* forced = std::getenv("VIVACE_ISA");
  const std::string name = isa.empty() && forced ? forced : isa;
  if (const Kernels* kernels = select_kernels(name.c_str())) return *kernels;
  std::string known, usable;
  for (const char* each : kIsas) {
    known += (known.empty() ? "" : ", ") + std::string(each);
    if (select_kernels(each)) usable += (usable.empty() ? "" : ", ") + std::string(each);
  }
  const bool unknown = std::find(std::begin(kIsas), std::end(kIsas), name) == std::end(kIsas);
  const std::string from = isa.empty() ? "$VIVACE_ISA: " : "";
  throw nb::value_error((from + (unknown ? "unknown instruction set '" + name + "'; there are " + known
                                         : "this processor or build has no " + name + "; it has " + usable))
                            .c_str());
}

WeightType type_named(const std::string& name) {
  static const std::map<std::string, WeightType> types = {
      {"F32", WeightType::kF32},   {"F16", WeightType::kF16},       {"BF16", WeightType::kBF16},
      {"Q4_0", WeightType::kQ4_0}, {"Q4_1", WeightType::kQ4_1},     {"Q5_0", WeightType::kQ5_0},
      {"Q5_1", WeightType::kQ5_1}, {"Q8_0", WeightType::kQ8_0},     {"Q2_K", WeightType::kQ2_K},
      {"Q3_K", WeightType::kQ3_K}, {"Q4_K", WeightType::kQ4_K},     {"Q5_K", WeightType::kQ5_K},
      {"Q6_K", WeightType::kQ6_K}, {"IQ4_NL", WeightType::kIQ4_NL}, {"IQ4_XS", WeightType::kIQ4_XS}};
  const auto found = types.find(name);
  if (found == types.end()) throw nb::value_error(("no kernel for weights of type " + name).c_str());
  return found->second;
}

int64_t tile_bytes(const std::string& type, int64_t cols) {
  const int64_t bytes = packed_tile_bytes(type_named(type), cols);
  if (bytes == 0) throw nb::value_error((type + " rows cannot have " + std::to_string(cols) + " columns").c_str());
  return bytes;
}

// Packs a stored matrix into `target`, tiles shared out over the pool. `order` (0: none) is an int64 array of row
// numbers.
void pack_matrix(Pool& pool, const std::string& name, uintptr_t rows_at, int64_t row_bytes, int64_t rows, int64_t cols,
                 uintptr_t order, uintptr_t target) {
  struct Job {
    WeightType type;
    const uint8_t* source;
    int64_t row_bytes, rows, cols, bytes;
    const int64_t* order;
    uint8_t* target;
    std::atomic<int64_t> next{0};
  } job{type_named(name),
        reinterpret_cast<const uint8_t*>(rows_at),
        row_bytes,
        rows,
        cols,
        tile_bytes(name, cols),
        reinterpret_cast<const int64_t*>(order),
        reinterpret_cast<uint8_t*>(target)};
  nb::gil_scoped_release release;
  pool.run(
      pool.threads(),
      [](void* context, int, int) {
        auto& j = *static_cast<Job*>(context);
        const int64_t tiles = (j.rows + kTileRows - 1) / kTileRows;
        for (int64_t tile; (tile = j.next.fetch_add(1)) < tiles;) {
          const uint8_t* from[kTileRows];
          for (int64_t i = 0; i < kTileRows; ++i) {
            const int64_t row = tile * kTileRows + i;
            from[i] = row < j.rows ? j.source + (j.order ? j.order[row] : row) * j.row_bytes : nullptr;
          }
          pack_tile(j.type, from, j.cols, j.target + tile * j.bytes);
        }
      },
      &job);
}

// Anonymous memory that is zero until touched; freed with the object.
class Arena {
 public:
  explicit Arena(int64_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~Arena() { munmap(data_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(data_); }

 private:
  void* data_;
  int64_t bytes_;
};

// Tells the kernel that the whole pages within a mapped range are not needed for now.
void release_pages(uintptr_t address, int64_t bytes) {
  constexpr uintptr_t kSystemPage = 4096;
  const uintptr_t begin = (address + kSystemPage - 1) / kSystemPage * kSystemPage;
  const uintptr_t end = (address + bytes) / kSystemPage * kSystemPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Linear linear(const std::string& type, int64_t rows, int64_t cols, uintptr_t data, uintptr_t bias) {
  Linear made;
  made.weight = {type_named(type), static_cast<int32_t>(rows), static_cast<int32_t>(cols), tile_bytes(type, cols),
                 reinterpret_cast<const uint8_t*>(data)};
  made.bias = reinterpret_cast<const float*>(bias);
  return made;
}

template <class Class, class Member, class Owner>
void address_field(nb::class_<Class>& cls, const char* name, Member* Owner::* field) {
  cls.def_prop_rw(
      name, [field](const Class& self) { return reinterpret_cast<uintptr_t>(self.*field); },
      [field](Class& self, uintptr_t at) { self.*field = reinterpret_cast<Member*>(at); });
}

// One step's rows from NumPy arrays that the caller keeps alive until the run has ended.
// `tables` int64 [sequences, 3]: addresses of page ids and of positions, and the number of keys before the step.
// `lists` (or None): for each sequence the address of an int64 [lists, 5] array (page ids, positions, shift, biases,
// number of biases), or 0. `layer_mask` bool [rows, layers], or None.
void begin(Program& program, In<int32_t> tokens, std::optional<In<float>> vectors, In<int32_t> positions,
           In<int32_t> sequence, In<int32_t> slot, In<int32_t> visible, std::optional<In<int32_t>> tail,
           std::optional<In<int32_t>> tail_begin, In<int64_t> tables, std::optional<In<int64_t>> lists,
           std::optional<In<bool>> layer_mask, In<int32_t> wanted, In<float> logits, int32_t top) {
  static_assert(sizeof(KeyList) == 40);
  Rows rows;
  rows.rows = static_cast<int32_t>(positions.size());
  rows.tokens = tokens.data();
  rows.vectors = vectors ? vectors->data() : nullptr;
  rows.positions = positions.data();
  rows.sequence = sequence.data();
  rows.slot = slot.data();
  rows.visible = visible.data();
  rows.tail = tail ? tail->data() : nullptr;
  rows.tail_begin = tail_begin ? tail_begin->data() : nullptr;
  rows.layer_mask = layer_mask ? reinterpret_cast<const uint8_t*>(layer_mask->data()) : nullptr;
  const int64_t* table = tables.data();
  for (size_t i = 0; i < tables.size() / 3; ++i) {
    Sequence s;
    s.shared.pages = reinterpret_cast<const int32_t*>(table[3 * i]);
    s.shared.positions = reinterpret_cast<const int32_t*>(table[3 * i + 1]);
    s.base = static_cast<int32_t>(table[3 * i + 2]);
    if (lists && lists->data()[i]) s.lists = reinterpret_cast<const KeyList*>(lists->data()[i]);
    rows.sequences.push_back(s);
  }
  rows.wanted.assign(wanted.data(), wanted.data() + wanted.size());
  rows.logits = const_cast<float*>(logits.data());
  rows.top = top;
  program.begin(std::move(rows));
}

// Attention of queries over contiguous keys and values, chunk by chunk, as a step does it.
Out<float, 2> attend(In<float> q, In<float> k, In<float> v, In<int32_t> first, In<int32_t> last, float softcap,
                     const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const auto queries = static_cast<int32_t>(q.shape(0)), dim = static_cast<int32_t>(q.shape(1));
  const auto keys = static_cast<int32_t>(k.shape(0));
  const int32_t pages = (keys + kPage - 1) / kPage;
  const int64_t cell = int64_t{2} * kPage * dim;
  std::vector<uint16_t> cells(static_cast<size_t>(std::max(pages, 1)) * cell);
  for (int32_t key = 0; key < keys; ++key) {
    uint16_t* at = cells.data() + key / kPage * cell;
    kernels.append(k.data() + int64_t{key} * dim, v.data() + int64_t{key} * dim, dim, key % kPage, at, at + cell / 2);
  }
  std::vector<float> max(queries), sum(queries), out(static_cast<size_t>(queries) * dim);
  std::vector<float> run_max(queries, -std::numeric_limits<float>::infinity()), run_sum(queries), run_out(out.size());
  std::vector<int32_t> from(queries), to(queries);
  for (int32_t chunk = 0; chunk * kChunk < keys; ++chunk) {
    AttendChunk args{};
    args.dim = dim;
    args.queries = queries;
    args.q = q.data();
    for (int32_t page = 0; page < kChunk / kPage && chunk * (kChunk / kPage) + page < pages; ++page) {
      args.k[page] = cells.data() + (chunk * (kChunk / kPage) + page) * cell;
      args.v[page] = args.k[page] + cell / 2;
    }
    for (int32_t i = 0; i < queries; ++i) {
      from[i] = std::clamp(first.data()[i] - chunk * kChunk, 0, kChunk);
      to[i] = std::clamp(last.data()[i] - chunk * kChunk, 0, kChunk);
    }
    args.first = from.data();
    args.last = to.data();
    args.softcap = softcap;
    args.max = max.data();
    args.sum = sum.data();
    args.out = out.data();
    kernels.attend(args);
    kernels.fold(queries, dim, max.data(), sum.data(), out.data(), run_max.data(), run_sum.data(), run_out.data());
  }
  auto result = make<float, 2>({static_cast<size_t>(queries), static_cast<size_t>(dim)});
  kernels.finish(queries, dim, run_max.data(), run_sum.data(), run_out.data(), result.data(), nullptr);
  return result;
}

nb::tuple quantise(In<float> x, const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const size_t rows = x.shape(0), n = x.shape(1);
  if (n % kQuantBlock) throw nb::value_error("columns must be a multiple of 32");
  auto q = make<int8_t, 2>({rows, n});
  auto d = make<float, 2>({rows, n / kQuantBlock});
  auto z = make<int32_t, 2>({rows, n / kQuantBlock});
  auto s = make<int32_t, 2>({rows, n / kSumBlock});
  for (size_t row = 0; row < rows; ++row)
    kernels.quantise(x.data() + row * n, static_cast<int32_t>(n),
                     {q.data() + row * n, d.data() + row * n / kQuantBlock, z.data() + row * n / kQuantBlock,
                      s.data() + row * n / kSumBlock});
  return nb::make_tuple(q, d, z, s);
}

Out<float, 2> matmul(const std::string& type, In<uint8_t> packed, int64_t rows, int64_t cols, In<float> a,
                     std::optional<In<float>> bias, const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const PackedMatrix w{type_named(type), static_cast<int32_t>(rows), static_cast<int32_t>(cols), tile_bytes(type, cols),
                       packed.data()};
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  if (static_cast<int64_t>(packed.size()) != tiles * w.tile_bytes) throw nb::value_error("packed has the wrong size");
  if (a.ndim() != 2 || static_cast<int64_t>(a.shape(1)) != cols) throw nb::value_error("a must be [rows, cols]");
  const size_t m = a.shape(0), n = cols;
  const size_t blocks = n / kQuantBlock;
  std::vector<int8_t> q(m * n);
  std::vector<float> d(m * blocks);
  std::vector<int32_t> z(m * blocks), s(m * (n / kSumBlock));
  if (n % kQuantBlock == 0)
    for (size_t row = 0; row < m; ++row)
      kernels.quantise(a.data() + row * n, static_cast<int32_t>(n),
                       {&q[row * n], &d[row * blocks], &z[row * blocks], &s[row * (n / kSumBlock)]});
  auto out = make<float, 2>({m, static_cast<size_t>(rows)});
  std::vector<uint8_t> scratch(kMatmulScratch + 64);
  auto* aligned = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
  const Activations input{a.data(),
                          static_cast<int64_t>(n),
                          {q.data(), d.data(), z.data(), s.data()},
                          static_cast<int32_t>(m),
                          static_cast<int32_t>(cols)};
  kernels.matmul(w.type)(w, input, 0, static_cast<int32_t>(tiles), bias ? bias->data() : nullptr, out.data(), rows,
                         aligned);
  return out;
}

void bind_ops(nb::module_& m) {
  m.def("isas", [] {
    std::vector<std::string> found;
    for (const char* isa : kIsas)
      if (select_kernels(isa)) found.push_back(isa);
    return found;
  });
  m.def("isa", [](const std::string& isa) { return std::string(kernels_named(isa).isa); }, "isa"_a = "");
  m.def("tile_bytes", &tile_bytes);
  m.def("pack", [](const std::string& type, In<uint8_t> rows, int64_t cols) {
    const auto count = static_cast<int64_t>(rows.shape(0)), row_bytes = static_cast<int64_t>(rows.shape(1));
    if (stored_row_bytes(type_named(type), cols) != row_bytes) throw nb::value_error("rows have the wrong length");
    const int64_t bytes = tile_bytes(type, cols), tiles = (count + kTileRows - 1) / kTileRows;
    auto packed = make<uint8_t, 1>({static_cast<size_t>(tiles * bytes)});
    Pool pool(1);
    pack_matrix(pool, type, reinterpret_cast<uintptr_t>(rows.data()), row_bytes, count, cols, 0,
                reinterpret_cast<uintptr_t>(packed.data()));
    return packed;
  });
  m.def("dequantise", [](const std::string& type, In<uint8_t> rows, int64_t cols) {
    const int64_t bytes = stored_row_bytes(type_named(type), cols);
    if (bytes == 0 || static_cast<int64_t>(rows.shape(1)) != bytes) throw nb::value_error("rows have the wrong length");
    auto out = make<float, 2>({rows.shape(0), static_cast<size_t>(cols)});
    for (size_t row = 0; row < rows.shape(0); ++row)
      dequantise_row(type_named(type), rows.data() + row * bytes, cols, out.data() + row * cols);
    return out;
  });
  m.def("matmul", &matmul, "type"_a, "packed"_a, "rows"_a, "cols"_a, "a"_a, "bias"_a.none(), "isa"_a);
  m.def("quantise", &quantise);
  m.def("attend", &attend);
  m.def("rms_norm", [](In<float> x, In<float> w, float eps, const std::string& isa) {
    auto out = make<float, 2>({x.shape(0), x.shape(1)});
    for (size_t row = 0; row < x.shape(0); ++row)
      kernels_named(isa).rms_norm(x.data() + row * x.shape(1), w.data(), eps, static_cast<int32_t>(x.shape(1)),
                                  out.data() + row * x.shape(1));
    return out;
  });
  m.def("rope", [](In<float> x, In<float> cos, In<float> sin, const std::string& isa) {
    auto out = make<float, 2>({x.shape(0), x.shape(1)});
    const size_t half = cos.shape(1);
    if (2 * half > x.shape(1)) throw nb::value_error("cos is wider than half of x");
    std::memcpy(out.data(), x.data(), x.size() * sizeof(float));
    for (size_t row = 0; row < x.shape(0); ++row)
      kernels_named(isa).rope(cos.data() + row * half, sin.data() + row * half, static_cast<int32_t>(half),
                              out.data() + row * x.shape(1));
    return out;
  });
  const auto gated = [&m](const char* name, auto field) {
    m.def(name, [field](In<float> gate, In<float> up, const std::string& isa) {
      if (gate.size() != up.size()) throw nb::value_error("gate and up differ in size");
      auto out = make<float, 2>({gate.shape(0), gate.shape(1)});
      const size_t n = gate.shape(1);
      for (size_t row = 0; row < gate.shape(0); ++row)
        (kernels_named(isa).*field)(gate.data() + row * n, up.data() + row * n, static_cast<int32_t>(n),
                                    out.data() + row * n);
      return out;
    });
  };
  gated("silu_mul", &Kernels::silu_mul);
  gated("gelu_tanh_mul", &Kernels::gelu_tanh_mul);
  m.def("logit_stats", [](In<float> x, const std::string& isa) {
    float max;
    int64_t argmax;
    double sum;
    kernels_named(isa).logit_stats(x.data(), static_cast<int64_t>(x.size()), &max, &argmax, &sum);
    return std::tuple(max, argmax, sum);
  });
  m.def("largest", [](In<float> x, int count, const std::string& isa) {
    if (count < 1) throw nb::value_error("count must be at least 1");
    std::vector<Candidate> found;
    find_largest(kernels_named(isa), x.data(), static_cast<int64_t>(x.size()), 0, count, found);
    auto out = make<int32_t, 1>({found.size()});
    for (size_t i = 0; i < found.size(); ++i) out.data()[i] = found[i].id;
    return out;
  });
}

}  // namespace

NB_MODULE(_native, m) {
  bind_ops(m);
  nb::class_<Arena>(m, "Arena").def(nb::init<int64_t>()).def_prop_ro("address", &Arena::address);
  nb::class_<Pool>(m, "Pool")
      .def(nb::init<int>())
      .def_prop_ro("threads", &Pool::threads)
      .def_prop_ro("narrowed_runs", &Pool::narrowed_runs)
      .def("set_threads", &Pool::set_threads, nb::call_guard<nb::gil_scoped_release>());
  m.def("pack_matrix", &pack_matrix);
  m.def("release_pages", &release_pages);
  m.def(
      "probe_bandwidth",
      [](int threads, double seconds, int megabytes) {
        nb::gil_scoped_release release;
        Pool pool(threads);
        return probe_bandwidth(pool, seconds, megabytes);
      },
      "threads"_a, "seconds"_a = 0.3, "megabytes"_a = 256);
  m.def(
      "probe_int8",
      [](int threads, double seconds) {
        nb::gil_scoped_release release;
        Pool pool(threads);
        return probe_int8(pool, seconds);
      },
      "threads"_a, "seconds"_a = 0.3);

  nb::class_<Linear>(m, "Linear").def(nb::new_(&linear), "type"_a, "rows"_a, "cols"_a, "data"_a, "bias"_a = 0);
  nb::class_<Layer> layer(m, "Layer");
  layer.def(nb::init<>())
      .def_rw("heads", &Layer::heads)
      .def_rw("kv_heads", &Layer::kv_heads)
      .def_rw("head_dim", &Layer::head_dim)
      .def_rw("rope_dim", &Layer::rope_dim)
      .def_rw("feed_forward", &Layer::feed_forward)
      .def_rw("window", &Layer::window)
      .def_rw("scale", &Layer::scale)
      .def_rw("softcap", &Layer::softcap)
      .def_rw("gelu", &Layer::gelu)
      .def_rw("head_stride", &Layer::head_stride)
      .def_rw("cell_bytes", &Layer::cell_bytes)
      .def_rw("q", &Layer::q)
      .def_rw("k", &Layer::k)
      .def_rw("v", &Layer::v)
      .def_rw("o", &Layer::o)
      .def_rw("gate", &Layer::gate)
      .def_rw("up", &Layer::up)
      .def_rw("down", &Layer::down);
  address_field(layer, "attention_norm", &Layer::attention_norm);
  address_field(layer, "feed_forward_norm", &Layer::feed_forward_norm);
  address_field(layer, "q_norm", &Layer::q_norm);
  address_field(layer, "k_norm", &Layer::k_norm);
  address_field(layer, "post_attention_norm", &Layer::post_attention_norm);
  address_field(layer, "post_feed_forward_norm", &Layer::post_feed_forward_norm);
  address_field(layer, "rope_cos", &Layer::rope_cos);
  address_field(layer, "rope_sin", &Layer::rope_sin);
  address_field(layer, "kv", &Layer::kv);

  nb::class_<Model> model(m, "Model");
  model.def(nb::init<>())
      .def_rw("hidden", &Model::hidden)
      .def_rw("vocab", &Model::vocab)
      .def_rw("eps", &Model::eps)
      .def_rw("embed_scale", &Model::embed_scale)
      .def_rw("logit_softcap", &Model::logit_softcap)
      .def_rw("embed_row_bytes", &Model::embed_row_bytes)
      .def_rw("head", &Model::head)
      .def_prop_rw(
          "embed_type", [](const Model& self) { return static_cast<int>(self.embed_type); },
          [](Model& self, const std::string& type) { self.embed_type = type_named(type); })
      .def("add_layer", [](Model& self, const Layer& added) { self.layers.push_back(added); });
  address_field(model, "embed", &Model::embed);
  address_field(model, "final_norm", &Model::final_norm);

  nb::class_<Program>(m, "Program")
      .def(
          "__init__",
          [](Program* self, Pool& pool, const std::string& isa, const Model& made, int32_t max_rows) {
            new (self) Program(pool, kernels_named(isa), made, max_rows);
          },
          nb::keep_alive<1, 2>())
      .def("begin", &begin, "tokens"_a, "vectors"_a.none(), "positions"_a, "sequence"_a, "slot"_a, "visible"_a,
           "tail"_a.none(), "tail_begin"_a.none(), "tables"_a, "lists"_a.none(), "layer_mask"_a.none(), "wanted"_a,
           "logits"_a, "top"_a)
      .def("run", &Program::run, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("op_count", &Program::op_count)
      .def("layer_begin", &Program::layer_begin)
      .def("ops",
           [](const Program& self) {
             std::vector<std::tuple<std::string, int>> names;
             for (const auto& op : self.ops()) names.emplace_back(op.name, op.layer);
             return names;
           })
      .def("clear_taps", &Program::clear_taps)
      .def("tap",
           [](Program& self, const std::string& kind, int32_t at, uintptr_t address) {
             LayerTaps& taps = self.taps(at);
             float*& field = kind == "hidden"           ? taps.hidden
                             : kind == "query"          ? taps.query
                             : kind == "attention_mass" ? taps.mass
                                                        : taps.lse;
             field = reinterpret_cast<float*>(address);
           })
      .def_rw("mass_stride", &Program::mass_stride)
      .def("stats",
           [](const Program& self) {
             std::vector<std::tuple<float, int, double>> found;
             for (const LogitStats& row : self.stats()) found.emplace_back(row.max, row.argmax, row.log_sum_exp);
             return found;
           })
      .def("top",
           [](const Program& self) {
             const auto columns = static_cast<size_t>(self.rows().top);
             auto out = make<int32_t, 2>({columns ? self.top().size() / columns : 0, columns});
             std::copy(self.top().begin(), self.top().end(), out.data());
             return out;
           })
      .def("read_hidden", [](Program& self, uintptr_t out) { self.read_hidden(reinterpret_cast<float*>(out)); })
      .def("write_hidden", [](Program& self, uintptr_t in) { self.write_hidden(reinterpret_cast<const float*>(in)); })
      .def("read_query", [](Program& self, uintptr_t out) { self.read_query(reinterpret_cast<float*>(out)); })
      .def("write_query", [](Program& self, uintptr_t in) { self.write_query(reinterpret_cast<const float*>(in)); })
      .def_rw("timing", &Program::timing)
      .def_rw("op_ns", &Program::op_ns);
}

}  // namespace vivace
