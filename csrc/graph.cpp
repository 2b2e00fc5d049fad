// torch.accelerator.Graph: what was recorded between capture_begin and capture_end is one program, and `replay` runs it on
// what the storages hold by then. Storages are for it what addresses are for a CUDA graph: it reads those that the
// captured calls read, and writes those that they wrote or made. It keeps the slots of both, so that they outlive their
// tensors. Numbers are those of the capture; random numbers are new ones in each replay.
#include "record.h"

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#endif

#include <pybind11/stl.h>

#include <unordered_map>

namespace torch_tpu {

bool capturing = false;

namespace {

struct Before {
  py::object value;
  int64_t aval;
  size_t bytes;
};

// Of the capture that is under way.
auto& before = *new std::unordered_map<Slot*, Before>;
auto& used = *new std::vector<Slot*>;  // kept alive, once for each time they are listed
bool is_broken = false;

void keep(Slot* slot) {
  ++slot->graphs;
  used.push_back(slot);
}

void let_go_of(std::vector<Slot*>& slots) {
  for (Slot* slot : slots)
    if (--slot->graphs == 0 && slot->orphan) delete_slot_now(slot);
  slots.clear();
}

void put_back() {
  for (auto& [slot, held] : before) set_slot(slot, held.value.ptr(), held.aval, held.bytes);
  before.clear();
}

}  // namespace

void keep_before(Slot* slot) {
  if (!slot->value || before.count(slot)) return;
  before.emplace(slot, Before{py::reinterpret_borrow<py::object>(slot->value), slot->aval, slot->bytes});
  keep(slot);
}

void read_in_capture(Slot* slot) { keep(slot); }

void refuse_in_capture(const char* what) {
  if (!capturing) return;
  is_broken = true;
  TORCH_CHECK(false, what, " was needed while a graph was captured, and nothing runs meanwhile: move it out of the "
              "capture (warm up before it, and read results after `replay`)");
}

#if __has_include(<ATen/core/GraphImplInterface.h>)

namespace {

struct Output {
  int64_t index;  // among the recording's results
  int64_t aval;
  size_t bytes;
  std::vector<Slot*> holders;
};

struct Variant {
  std::vector<int64_t> donated;  // operands
  py::object program;
};

class CapturedProgram {
 public:
  CapturedProgram(Recording made, std::vector<Slot*> slots)
      : batch(std::move(made)), wiring(wire(batch)), slots(std::move(slots)) {}

  // Called when capturing has ended: results leave their storages until the first replay.
  void collect_outputs() {
    for (size_t i = 0; i < batch.results.size(); ++i) {
      auto& result = *batch.results[i];
      if (result.holders.empty()) continue;
      outputs.push_back({static_cast<int64_t>(i), result.aval, result.bytes, result.holders});
      for (Slot* slot : outputs.back().holders) {
        ++slot->graphs;
        slots.push_back(slot);
        set_slot(slot, nullptr, 0, 0);
      }
    }
  }

  void release_all() {
    release(batch);
    let_go_of(slots);
  }

  void prepare() {
    if (variants.empty() && !outputs.empty()) make(true);
  }

  void run() {
    flush();
    if (outputs.empty()) return;
    const auto& variant = choose();
    py::list values;
    for (const auto* source : wiring.operands) values.append(py::reinterpret_borrow<py::object>(source->slot->value));
    for (const auto* source : wiring.numbers) values.append(number(*source));
    py::list answer = py::object(variant.program)(values);
    for (size_t i = 0; i < outputs.size(); ++i)
      for (Slot* slot : outputs[i].holders)
        set_slot(slot, PyList_GET_ITEM(answer.ptr(), i), outputs[i].aval, outputs[i].bytes);
  }

  py::object text() const { return variants.empty() ? py::object(py::none()) : variants[0].program; }

 private:
  static py::object number(const Source& source) {
    if (source.kind != Source::kRandom) return py::reinterpret_steal<py::object>(value_of(source));
    const auto [seed, offset] = take_random(source.generator ? &*source.generator : nullptr, source.bytes);
    return py::make_tuple(seed, offset);
  }

  // Whether the operand's array can be given to the program: only its storage holds it.
  bool is_sole(int64_t operand) const {
    const Slot* slot = wiring.operands[operand]->slot;
    return slot->bytes >= donation_threshold && Py_REFCNT(slot->value) == 1;
  }

  const Variant& choose() {
    for (const auto* source : wiring.operands) {
      Slot* slot = source->slot;
      TORCH_CHECK(slot->value || slot->pending, "a tensor that a captured graph reads has no value");
      settle(slot);
      TORCH_CHECK(slot->aval == source->aval, "a tensor that a captured graph reads has another layout in memory by now");
    }
    for (const auto& variant : variants)
      if (std::all_of(variant.donated.begin(), variant.donated.end(), [&](int64_t i) { return is_sole(i); }))
        return variant;
    return make(variants.empty());
  }

  const Variant& make(bool may_donate) {
    py::list avals;
    std::vector<int64_t> results;
    std::vector<std::pair<int64_t, int64_t>> pairs;
    for (const auto* source : wiring.operands) avals.append(source->aval);
    for (const auto& output : outputs) {
      results.push_back(output.index);
      for (size_t i = 0; may_donate && i < wiring.operands.size(); ++i) {
        if (wiring.operands[i]->slot != output.holders[0] || !is_sole(static_cast<int64_t>(i))) continue;
        pairs.emplace_back(static_cast<int64_t>(i), output.index);
      }
    }
    auto made = hook("fuse")(describe(batch, wiring), avals, results, pairs).cast<py::tuple>();
    variants.push_back({made[1].cast<std::vector<int64_t>>(), made[0]});
    return variants.back();
  }

  Recording batch;
  Wiring wiring;
  std::vector<Slot*> slots;  // kept alive, once for each time they are listed
  std::vector<Output> outputs;
  std::vector<Variant> variants;
};

struct Graph final : at::GraphImplInterface {
  explicit Graph(const at::GraphImplArgs& args) : keep_graph(args.keep_graph) {}
  ~Graph() override {
    if (!program) return;
    if (!Py_IsInitialized() || in_bad_fork) {
      (void)program.release();  // the interpreter is gone, and what the program holds with it
      return;
    }
    py::gil_scoped_acquire gil;
    drop();
  }

  void capture_begin(c10::MempoolId_t, at::GraphCaptureMode) override {
    with_python([&] {
      TORCH_CHECK(!capturing, "a graph is being captured already");
      TORCH_CHECK(!program, "this graph was captured before; reset it first");
      flush();
      hook("begin_capture")();
      capturing = is_capturing = true, is_broken = false;
    });
  }

  void capture_end() override {
    with_python([&] {
      TORCH_CHECK(is_capturing, "this graph is not being captured");
      capturing = is_capturing = false;
      program = std::make_unique<CapturedProgram>(take_all(), std::move(used));
      used.clear();
      program->collect_outputs();
      put_back();
      hook("end_capture")();
      if (is_broken) {
        drop();
      } else if (!keep_graph) {
        program->prepare();
      }
    });
  }

  void instantiate() override {
    with_python([&] { captured().prepare(); });
  }
  void replay() override {
    with_python([&] { captured().run(); });
  }
  void reset() override {
    if (program) with_python([&] { drop(); });
  }
  c10::MempoolId_t pool() const override { return {0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string& path) override {
    with_python([&] {
      captured().prepare();
      hook("dump_graph")(captured().text(), path);
    });
  }

 private:
  CapturedProgram& captured() {
    TORCH_CHECK(program, "this graph holds no capture: none was made, it failed, or it was reset");
    return *program;
  }

  void drop() {
    program->release_all();
    program.reset();
  }

  template <typename Function>
  static void with_python(Function function) {
    check_fork();
    Activity activity;
    py::gil_scoped_acquire gil;
    try {
      function();
    } catch (py::error_already_set& error) {
      rethrow(error);
    }
  }

  bool keep_graph, is_capturing = false;
  std::unique_ptr<CapturedProgram> program;
};

}  // namespace

void bind_graph(py::module_& m) {
  m.def("register_graphs", [] {
    at::GraphImplRegistry()->Register(c10::DeviceTypeName(kTPU, false), [](const at::GraphImplArgs& args) {
      return std::unique_ptr<at::GraphImplInterface>(new Graph(args));
    });
  }, "Makes torch.accelerator.Graph work.");
}

#else

void bind_graph(py::module_& m) {
  m.def("register_graphs", [] {}, "This PyTorch has no torch.accelerator.Graph.");
}

#endif

}  // namespace torch_tpu
