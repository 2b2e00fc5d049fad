// A recording: calls that run together, as csrc/record.cpp makes it for fused eager and csrc/graph.cpp keeps it.
#pragma once

#include "call.h"

namespace torch_tpu {

struct Pending {
  std::vector<Slot*> holders;
  int64_t index = 0;             // among all results ever recorded
  int64_t reads = 0;             // by recorded calls
  int64_t aval = 0;
  size_t bytes = 0;
  PyObject* replaces = nullptr;  // the array that its storage held before; compared, never used
  bool is_first = false;         // its storage held nothing before
  Pending* next = nullptr;       // what a later call makes of its storage; never one that is first
};

struct Source {
  enum { kPending, kArray, kNumber, kRandom } kind;
  Pending* pending = nullptr;
  PyObject* array = nullptr;  // owned; null in a captured graph, which reads `slot` anew each time
  Slot* slot = nullptr;
  int64_t aval = 0;    // of an array; the seed
  uint64_t bytes = 0;  // of an array; the offset
  c10::IValue number;
  std::optional<at::Generator> generator;  // in a captured graph; `bytes` is how many numbers it takes
};

struct Call {
  std::shared_ptr<Entry> entry;
  size_t num_sources = 0;
  uint64_t hash = 0;
  bool again = false;  // part of the forward pass that the backward pass computes again, as checkpoints do

  bool is_state = false;  // fills a new tensor that is written again

  bool is_constant() const { return num_sources == 0; }
};

struct Recording {
  std::vector<Call> calls;
  std::vector<Source> sources;
  std::vector<std::unique_ptr<Pending>> results;
  size_t num_constants = 0;   // among the calls
  bool has_backward = false;  // of a compiled graph
};

// What a batch is called with and keyed by.
struct Wiring {
  std::string key;
  std::vector<const Source*> operands;        // arrays, each once
  std::vector<const Source*> numbers;         // behind them: numbers and random states
  std::vector<std::vector<int64_t>> sources;  // per call: an operand, or -1 - a result
  std::vector<int64_t> array_uses;            // how many sources hold each array
};

Wiring wire(const Recording& batch);
py::object describe(const Recording& batch, const Wiring& wiring);  // the calls as torch_tpu/eager/fused.py takes them
PyObject* value_of(const Source& source);                           // a new reference
void release(Recording& batch);                                     // lets go of arrays

Recording take_all();                                               // what was recorded, which then never runs

}  // namespace torch_tpu
