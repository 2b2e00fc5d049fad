// Fused eager: calls are recorded and run together. A recording is a list of calls whose operands are arrays, numbers and
// results of earlier calls. It is cut where a value is needed, and where it has grown long: then at the place, of those
// that leave a program of allowed length, where the digests of the last few operators have the smallest hash. Such a cut
// depends on the operators around it alone, so the same stream of operators is cut in the same places whatever came
// before it, and identical layers of a model share one program. A few calls that are new in a long recording of known ones
// get a program of their own, and so do those of a value that needs few.
#include "record.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>

namespace torch_tpu {

bool recording = false;

namespace {

constexpr size_t kWindow = 4;  // operators that a cut depends on
size_t least = 32, most = 1024;  // calls in a program, where a recording is cut because of its length
int64_t most_bytes = int64_t(4) << 30;  // in results that are still held
constexpr size_t kLong = 128, kFew = 64;  // of so many calls one in so many may be new and run apart
constexpr size_t kAside = 8;  // calls that a value which is read may need without the others being run

// A fused program, and which results it computes and which arrays it reuses.
struct Variant {
  std::vector<int64_t> outputs;  // increasing
  std::vector<int64_t> donated;
  py::object program;
};

auto& current = *new Recording;  // never destroyed, as it holds Python objects
int64_t first_result = 0;  // index of current.results[0]
int64_t held_bytes = 0;
auto& programs = *new std::unordered_map<std::string, std::vector<Variant>>;
int64_t num_recorded = 0, num_cuts = 0;
auto& seen = *new std::unordered_set<uint64_t>;   // digests of calls for which a program was made
auto& apart = *new std::unordered_set<uint64_t>;  // of those that are kept out of the programs of others
auto& changed = *new std::unordered_set<uint64_t>;  // steps that had new calls once, by what was known of them
size_t num_new = 0;  // calls that were not seen before, of those that ran since the last flush
std::vector<PyTypeObject*> deferred;  // set when the first value of such a type is made

// One thread runs a batch at a time; others wait outside the interpreter's lock, which the runtime gives up meanwhile.
std::mutex mutex;
std::condition_variable freed;
bool busy = false;
std::thread::id runner;

void wait_until_free() {
  while (busy) {  // again: while this thread waits for the interpreter's lock, another one may start
    TORCH_CHECK(runner != std::this_thread::get_id(), "an operator on tpu was called while recorded ones are compiled");
    py::gil_scoped_release no_gil;
    std::unique_lock<std::mutex> lock(mutex);
    freed.wait(lock, [] { return !busy; });
  }
}

struct Running {
  Running() {
    std::lock_guard<std::mutex> lock(mutex);
    busy = true, runner = std::this_thread::get_id();
  }
  ~Running() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      busy = false;
    }
    freed.notify_all();
  }
};

// ------------------------------------------------------------------------------------------------------- cutting

// The first calls of the recording; what is left starts with the ones after them.
Recording take(size_t count) {
  Recording batch;
  auto move_front = [](auto& from, auto& to, size_t n) {
    to.assign(std::make_move_iterator(from.begin()), std::make_move_iterator(from.begin() + n));
    from.erase(from.begin(), from.begin() + n);
  };
  size_t num_sources = 0, num_results = 0;
  for (size_t i = 0; i < count; ++i) {
    num_sources += current.calls[i].num_sources;
    num_results += current.calls[i].entry->num_outputs;
  }
  move_front(current.calls, batch.calls, count);
  for (const auto& call : batch.calls) current.num_constants -= call.is_constant();
  move_front(current.sources, batch.sources, num_sources);
  move_front(current.results, batch.results, num_results);
  for (auto& source : batch.sources)
    if (source.kind == Source::kPending) --source.pending->reads;
  if (current.calls.empty()) current.has_backward = false;
  return batch;
}

// Puts the chosen calls before the others. None of them may need a result of the others.
void put_first(const std::vector<bool>& chosen) {
  Recording sorted;
  for (bool wanted : {true, false}) {
    size_t source = 0, result = 0;
    for (size_t i = 0; i < chosen.size(); ++i) {
      const auto& call = current.calls[i];
      const size_t sources_end = source + call.num_sources, results_end = result + call.entry->num_outputs;
      if (chosen[i] == wanted) {
        sorted.calls.push_back(call);
        for (; source < sources_end; ++source) sorted.sources.push_back(std::move(current.sources[source]));
        for (; result < results_end; ++result) sorted.results.push_back(std::move(current.results[result]));
      }
      source = sources_end, result = results_end;
    }
  }
  current.calls = std::move(sorted.calls), current.sources = std::move(sorted.sources);
  current.results = std::move(sorted.results);
  for (size_t i = 0; i < current.results.size(); ++i) current.results[i]->index = first_result + static_cast<int64_t>(i);
}

// Puts new tensors first that were filled with a constant and are written again. They are what an optimizer makes of its
// state in the first step: in a program of their own, they leave that of every other step.
void put_state_first() {
  if (!current.num_constants) return;
  std::vector<bool> is_state;
  size_t next = 0;
  for (auto& call : current.calls) {
    const auto* value = call.is_constant() && call.entry->num_outputs ? current.results[next].get() : nullptr;
    is_state.push_back(call.is_state = value && value->next && value->is_first);
    next += call.entry->num_outputs;
  }
  if (std::find(is_state.begin(), is_state.end(), true) != is_state.end()) put_first(is_state);
}

// Puts the calls first that a value needs, and says how many they are; 0 if they are more than a few, or all.
size_t put_needed_first(const Pending* value) {
  std::vector<bool> needs(current.results.size()), chosen(current.calls.size());
  needs[value->index - first_result] = true;
  size_t count = 0, source = current.sources.size(), result = current.results.size();
  for (size_t i = chosen.size(); i-- > 0;) {
    const auto& call = current.calls[i];
    const size_t sources_end = source, results_end = result;
    source -= call.num_sources, result -= call.entry->num_outputs;
    const auto first = needs.begin() + static_cast<int64_t>(result), last = needs.begin() + static_cast<int64_t>(results_end);
    if (std::find(first, last, true) == last) continue;
    if (++count > kAside) return 0;
    chosen[i] = true;
    for (size_t k = source; k < sources_end; ++k)
      if (const auto* pending = current.sources[k].pending) needs[pending->index - first_result] = true;
  }
  if (count == chosen.size()) return 0;
  // What stays must not point to what goes.
  std::unordered_set<const Pending*> going;
  result = 0;
  for (size_t i = 0; i < chosen.size(); ++i)
    for (int64_t k = 0; k < current.calls[i].entry->num_outputs; ++k, ++result)
      if (chosen[i]) going.insert(current.results[result].get());
  for (auto& kept : current.results)
    if (!going.count(kept.get()))
      while (kept->next && going.count(kept->next)) kept->next = kept->next->next;
  put_first(chosen);
  return count;
}

uint64_t mix(uint64_t x) {  // splitmix64's finalizer
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A few new calls among many known ones, such as those on a sequence that grows with each token, would make a new
// program of all of them, again and again. From now on they are kept apart. A training step may have new ones once: the
// second is the first with momentum.
void keep_newcomers_apart(bool ends_step) {
  if (current.calls.size() < kLong || seen.empty()) return;
  std::vector<uint64_t> found;
  uint64_t known = 0;
  for (const auto& call : current.calls) {
    if (seen.count(call.entry->digest)) {
      known = mix(known ^ call.entry->digest);
      continue;
    }
    found.push_back(call.entry->digest);
    if ((found.size() + num_new) * kFew > current.calls.size()) return;
  }
  if (found.empty() || (ends_step && changed.insert(known).second)) return;
  apart.insert(found.begin(), found.end());
}

// How many of the first calls the next program has: all, up to one that is kept apart or, of those, up to one that is
// not; fewer where that is more than the limit.
size_t next_cut(size_t limit) {
  const auto& calls = current.calls;
  auto kind = [](const Call& call) { return call.is_state ? 2 : int(apart.count(call.entry->digest)); };
  size_t end = apart.empty() && !calls[0].is_state ? calls.size() : 1;
  while (end < calls.size() && kind(calls[end]) == kind(calls[0])) ++end;
  if (end <= limit) return end;
  size_t best = std::min(least, end - 1);
  for (size_t i = best; i < end; ++i)
    if (calls[i].hash < calls[best].hash) best = i;
  return best + 1;
}

// ------------------------------------------------------------------------------------------------------- running

// Numbers at one place of calls that are alike, such as the epsilon of each layer: one operand, if all are equal.
struct Alike {
  const Source* first = nullptr;
  bool equal = true;
  int64_t place = -1;  // among the operands, once it has one
};

using Numbers = std::unordered_map<const Entry*, std::vector<Alike>>;

Numbers compare_numbers(const Recording& batch) {
  Numbers numbers;
  size_t next = 0;
  for (const auto& call : batch.calls) {
    std::vector<Alike>* alike = nullptr;
    for (size_t i = 0; i < call.num_sources; ++i) {
      const auto& source = batch.sources[next++];
      if (source.kind != Source::kNumber) continue;
      if (!alike) alike = &numbers[call.entry.get()], alike->resize(call.num_sources);
      auto& at = (*alike)[i];
      if (!at.first) at.first = &source;
      at.equal = at.equal && is_same(at.first->number, source.number);
    }
  }
  return numbers;
}

}  // namespace

Wiring wire(const Recording& batch) {
  Wiring wiring;
  std::unordered_map<const void*, int64_t> places;
  auto identity = [](const Source& source) -> const void* {
    return source.slot ? static_cast<const void*>(source.slot) : source.array;
  };
  auto put = [&](int64_t number) { wiring.key.append(reinterpret_cast<const char*>(&number), sizeof number); };
  const int64_t base = batch.results.empty() ? 0 : batch.results[0]->index;
  for (const auto& source : batch.sources) {
    if (source.kind != Source::kArray) continue;
    auto [found, is_new] = places.emplace(identity(source), static_cast<int64_t>(wiring.operands.size()));
    if (is_new) wiring.operands.push_back(&source), wiring.array_uses.push_back(0);
    ++wiring.array_uses[found->second];
  }
  auto numbers = compare_numbers(batch);
  auto add_number = [&](const Source& source) {
    wiring.numbers.push_back(&source);
    return static_cast<int64_t>(wiring.operands.size() + wiring.numbers.size()) - 1;
  };
  size_t next = 0;
  for (const auto& call : batch.calls) {
    put(call.entry->serial << 1 | int64_t(call.again));
    auto& places_of_call = wiring.sources.emplace_back();
    for (size_t i = 0; i < call.num_sources; ++i) {
      const auto& source = batch.sources[next++];
      int64_t place;
      if (source.kind == Source::kPending) {
        place = -1 - (source.pending->index - base);
      } else if (source.kind == Source::kArray) {
        place = places[identity(source)];
      } else if (auto* alike = source.kind == Source::kNumber ? &numbers[call.entry.get()][i] : nullptr;
                 alike && alike->equal) {
        if (alike->place < 0) alike->place = add_number(source);
        place = alike->place;
      } else {
        place = add_number(source);
      }
      put(place);
      places_of_call.push_back(place);
    }
  }
  return wiring;
}

PyObject* value_of(const Source& source) {
  if (source.kind == Source::kArray) return Py_NewRef(source.array);
  if (source.kind == Source::kRandom) return py::make_tuple(uint64_t(source.aval), source.bytes).release().ptr();
  if (source.number.isDouble()) return PyFloat_FromDouble(source.number.toDouble());
  if (source.number.isInt()) return PyLong_FromLongLong(source.number.toInt());
  return to_python(source.number).release().ptr();
}

py::object describe(const Recording& batch, const Wiring& wiring) {
  py::list calls;
  for (size_t i = 0; i < batch.calls.size(); ++i)
    calls.append(py::make_tuple(batch.calls[i].entry->recipe, wiring.sources[i], batch.calls[i].again));
  return calls;
}

void release(Recording& batch) {
  for (auto& source : batch.sources)
    if (source.kind == Source::kArray) Py_XDECREF(source.array);
  batch.sources.clear();
}

namespace {

// (operand, result) where the result takes the place of the array in its storage and nothing else needs that array.
std::vector<std::pair<int64_t, int64_t>> donatable(const Recording& batch, const Wiring& wiring,
                                                   const std::vector<int64_t>& outputs) {
  std::unordered_map<PyObject*, int64_t> places;
  for (size_t i = 0; i < wiring.operands.size(); ++i) {
    PyObject* array = wiring.operands[i]->array;
    if (wiring.operands[i]->bytes >= donation_threshold && Py_REFCNT(array) == wiring.array_uses[i])
      places.emplace(array, static_cast<int64_t>(i));
  }
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (int64_t output : outputs) {
    auto found = places.find(batch.results[output]->replaces);
    if (found == places.end()) continue;
    pairs.emplace_back(found->second, output);
    places.erase(found);
  }
  return pairs;
}

// A program that computes at least these results and donates at most these arrays. A second one for the same calls is
// made where the results differ, a few times; after that, one for all results that were ever asked for.
const Variant& variant_for(const Recording& batch, const Wiring& wiring, std::vector<int64_t> outputs) {
  constexpr size_t kExact = 3;
  auto& variants = programs[wiring.key];
  const auto pairs = donatable(batch, wiring, outputs);
  auto donates = [&](int64_t operand) {
    for (const auto& pair : pairs)
      if (pair.first == operand) return true;
    return false;
  };
  for (const auto& variant : variants) {
    const bool all = variants.size() < kExact
                         ? variant.outputs == outputs
                         : std::includes(variant.outputs.begin(), variant.outputs.end(), outputs.begin(), outputs.end());
    if (all && std::all_of(variant.donated.begin(), variant.donated.end(), donates)) return variant;
  }
  if (variants.size() >= kExact) {
    for (const auto& variant : variants) {
      std::vector<int64_t> joined;
      std::set_union(outputs.begin(), outputs.end(), variant.outputs.begin(), variant.outputs.end(),
                     std::back_inserter(joined));
      outputs = std::move(joined);
    }
  }
  py::list avals;
  for (const auto* source : wiring.operands) avals.append(source->aval);
  auto made = hook("fuse")(describe(batch, wiring), avals, outputs, pairs).cast<py::tuple>();
  for (const auto& call : batch.calls)
    if (seen.insert(call.entry->digest).second && !apart.count(call.entry->digest)) ++num_new;
  auto& kept = programs[wiring.key];  // to compile may have cleared the table
  kept.push_back({std::move(outputs), made[1].cast<std::vector<int64_t>>(), made[0]});
  return kept.back();
}

struct Arrays {  // of a batch's results, as far as they were computed
  explicit Arrays(size_t count) : items(count) {}
  std::vector<py::object> items;
};

void run_together(const Recording& batch, const Wiring& wiring, const std::vector<int64_t>& outputs, Arrays& arrays) {
  const auto& variant = variant_for(batch, wiring, outputs);
  py::list values;
  for (const auto* source : wiring.operands) values.append(py::reinterpret_steal<py::object>(value_of(*source)));
  for (const auto* source : wiring.numbers) values.append(py::reinterpret_steal<py::object>(value_of(*source)));
  const auto places = variant.outputs;
  py::list answer = py::object(variant.program)(values);
  for (size_t i = 0; i < places.size(); ++i) arrays.items[places[i]] = answer[i];
}

// Where the program of a batch cannot be made, or fails: one call after the other, so that an error names the operator,
// and costs only what depends on it.
void run_alone(const Recording& batch, const Wiring& wiring, Arrays& arrays) {
  size_t next = 0, result = 0;
  std::optional<py::error_already_set> first;
  for (size_t i = 0; i < batch.calls.size(); ++i) {
    py::list values;
    bool complete = true;
    for (int64_t place : wiring.sources[i]) {
      const auto& source = batch.sources[next++];
      if (place >= 0) {
        values.append(py::reinterpret_steal<py::object>(value_of(source)));
      } else if (arrays.items[-1 - place]) {
        values.append(arrays.items[-1 - place]);
      } else {
        complete = false;
      }
    }
    const size_t end = result + batch.calls[i].entry->num_outputs;
    if (complete) {
      try {
        py::list answer = hook("run_recipe")(batch.calls[i].entry->recipe, values);
        for (size_t k = 0; result + k < end; ++k) arrays.items[result + k] = answer[k];
      } catch (py::error_already_set& error) {
        if (!first) first.emplace(error);
      }
    }
    result = end;
  }
  if (first) throw *first;
}

void deliver(const Recording& batch, const Arrays& arrays, const py::object& otherwise) {
  for (size_t i = 0; i < batch.results.size(); ++i) {
    auto& result = *batch.results[i];
    PyObject* array = arrays.items[i] ? arrays.items[i].ptr() : otherwise.ptr();
    while (!result.holders.empty()) set_slot(result.holders.back(), array, result.aval, result.bytes);
    for (auto* later = result.next; later; later = later->next) later->replaces = array;
    if (!result.reads) continue;
    for (auto& source : current.sources) {
      if (source.kind != Source::kPending || source.pending != &result) continue;
      source.kind = Source::kArray;
      source.pending = nullptr;
      source.array = Py_NewRef(array);
      source.aval = result.aval;
      source.bytes = result.bytes;
    }
  }
}

void compute(const Recording& batch, const std::vector<int64_t>& outputs, Arrays& arrays) {
  const auto wiring = wire(batch);
  try {
    run_together(batch, wiring, outputs, arrays);
  } catch (py::error_already_set& error) {
    py::list arrays_given;
    for (const auto* source : wiring.operands) arrays_given.append(py::reinterpret_borrow<py::object>(source->array));
    if (!hook("can_run_alone")(error.value(), arrays_given).cast<bool>()) throw;
    run_alone(batch, wiring, arrays);
  }
}

void fail(Recording& batch, const Arrays& arrays, const py::object& error) {
  const auto failed = hook("failed_value")(error);
  deliver(batch, arrays, failed);
  release(batch);
}

void run(size_t count) {
  if (count == 0) return;
  // What runs was asked for under other dispatch modes than the one that is active now.
  c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  Running running;
  Recording batch = take(count);
  first_result += static_cast<int64_t>(batch.results.size());
  ++num_cuts;
  std::vector<int64_t> outputs;
  for (size_t i = 0; i < batch.results.size(); ++i)
    if (!batch.results[i]->holders.empty() || batch.results[i]->reads) outputs.push_back(static_cast<int64_t>(i));
  Arrays arrays(batch.results.size());
  try {
    if (!outputs.empty()) compute(batch, outputs, arrays);
  } catch (py::error_already_set& error) {
    fail(batch, arrays, error.value());
    throw;
  } catch (const std::exception& error) {
    fail(batch, arrays, py::str(error.what()));
    throw;
  }
  deliver(batch, arrays, py::none());
  release(batch);
}

// Runs what is recorded, until at most so many calls wait.
void run_all(size_t may_wait = 0, bool ends_step = false) {
  keep_newcomers_apart(ends_step);
  // Other threads may record and run calls while a program is compiled.
  const int64_t last = num_recorded;
  auto num_taken = [] { return num_recorded - static_cast<int64_t>(current.calls.size()); };
  put_state_first();
  while (current.calls.size() > may_wait && num_taken() < last) {
    run(next_cut(may_wait ? may_wait : most));
    wait_until_free();
  }
}

Source source_of(const Operand& operand) {
  Source source;
  if (operand.slot && operand.slot->pending) {
    source.kind = Source::kPending;
    source.pending = operand.slot->pending;
    ++source.pending->reads;
  } else if (operand.slot) {
    TORCH_INTERNAL_ASSERT(operand.slot->value);
    settle(operand.slot);
    source.kind = Source::kArray;
    if (capturing) {
      source.slot = operand.slot;
      read_in_capture(operand.slot);
    } else {
      source.array = Py_NewRef(operand.slot->value);
    }
    source.aval = operand.slot->aval;
    source.bytes = operand.slot->bytes;
  } else {
    source.kind = Source::kNumber;
    if (!operand.scalar) {
      source.number = operand.offset;
    } else if (operand.scalar->isTensor() && !operand.scalar->toTensor().unsafeGetTensorImpl()->is_wrapped_number()) {
      source.number = operand.scalar->toTensor().clone();  // the caller may write to it
    } else {
      source.number = *operand.scalar;
    }
  }
  return source;
}

}  // namespace

void hold(Slot* slot, Pending* pending) {
  PyObject* before = slot->value ? slot->value : slot->pending ? slot->pending->replaces : nullptr;
  if (pending->holders.empty()) {
    held_bytes += static_cast<int64_t>(pending->bytes);
    pending->replaces = before;
  }
  pending->holders.push_back(slot);
  set_slot(slot, nullptr, 0, 0);
  slot->pending = pending;
  slot->aval = pending->aval;
}

void let_go(Slot* slot) {
  if (!slot->pending) return;
  auto& holders = slot->pending->holders;
  holders.erase(std::find(holders.begin(), holders.end(), slot));
  if (holders.empty()) held_bytes -= static_cast<int64_t>(slot->pending->bytes);
  slot->pending = nullptr;
}

// torch_tpu/eager/padded.py: an object of a deferred type gives its array when it is called, or raises.
void settle(Slot* slot) {
  if (!slot->value || std::find(deferred.begin(), deferred.end(), Py_TYPE(slot->value)) == deferred.end()) return;
  auto array = py::reinterpret_borrow<py::object>(slot->value)();
  set_slot(slot, array.ptr(), slot->aval, slot->bytes);
}

std::vector<c10::IValue> record(const std::shared_ptr<Entry>& entry, const Packed& packed,
                                at::ArrayRef<c10::IValue> args, Part part) {
  wait_until_free();
  // One forward and backward pass: with several, as in gradient accumulation, each runs by itself.
  if (!capturing) {
    if (part == Part::kForward && current.has_backward) run_all();
    if (current.calls.size() - current.num_constants >= most) run_all(most - 1);
  }
  Call call{entry, entry->inputs.size()};
  for (int64_t index : entry->inputs) current.sources.push_back(source_of(packed.operands[index]));
  if (entry->increment) {
    const auto generator = packed.generator.isNone() ? std::nullopt : packed.generator.toOptional<at::Generator>();
    Source source;
    source.kind = Source::kRandom;
    if (capturing) {
      source.generator = generator, source.bytes = random_taken ? random_taken : entry->increment;
    } else {
      const auto [seed, offset] = take_random(generator ? &*generator : nullptr, entry->increment);
      source.aval = static_cast<int64_t>(seed), source.bytes = offset;
    }
    current.sources.push_back(std::move(source));
    ++call.num_sources;
  }
  // A backward pass runs without gradients, but for what it computes again (and where it is differentiated itself).
  call.again = at::GradMode::is_enabled() && torch::autograd::get_current_graph_task_id() != -1;
  call.hash = entry->digest;
  for (size_t i = 1; i < kWindow && i <= current.calls.size(); ++i)
    call.hash = mix(call.hash) ^ (current.calls.end() - i)->entry->digest;
  call.hash = mix(call.hash);
  current.num_constants += call.is_constant();
  current.calls.push_back(std::move(call));
  ++num_recorded;
  const auto base = current.results.size();
  for (int64_t i = 0; i < entry->num_outputs; ++i) {
    current.results.push_back(std::make_unique<Pending>());
    current.results.back()->index = first_result + static_cast<int64_t>(base) + i;
  }
  auto outputs = results_of(*entry, packed, args, [&](Slot* slot, int64_t index, int64_t aval, size_t bytes) {
    auto* pending = current.results[base + index].get();
    pending->aval = aval, pending->bytes = bytes;
    pending->is_first = !slot->holds();
    if (slot->pending) slot->pending->next = pending;
    hold(slot, pending);
  });
  current.has_backward |= part == Part::kBackward;
  const bool ends = part == Part::kInference && entry->num_outputs;  // one that only makes views computes nothing
  if (!capturing && (held_bytes > most_bytes || ends)) run_all();
  return outputs;
}

namespace {

void run_recorded(bool ends_step) {
  if (current.calls.empty() && !busy) return;
  refuse_in_capture("the result of an operator");
  wait_until_free();
  run_all(0, ends_step);
  num_new = 0;
}

}  // namespace

void flush() { run_recorded(false); }

void flush_for(Slot* slot) {
  if (!slot->pending) return;
  wait_until_free();
  const size_t count = slot->pending ? put_needed_first(slot->pending) : 0;
  if (count) run(count);
  if (slot->pending) flush();
}

Recording take_all() {
  Recording batch = take(current.calls.size());
  first_result += static_cast<int64_t>(batch.results.size());
  return batch;
}

void bind_record(py::module_& m) {
  m.def("defer", [](py::type type) { deferred.push_back(reinterpret_cast<PyTypeObject*>(type.release().ptr())); },
        "Values of this type give their array when they are called, or raise.");
  m.def("flush", &flush, "Runs the calls that were recorded.");
  m.def("end_step", [] { if (!capturing) run_recorded(true); }, "As flush; a captured graph goes on.");
  m.def("set_recording", [](bool on) {
    flush();
    recording = on;
  }, "Whether calls are recorded.");
  m.def("set_cuts", [](size_t low, size_t high, int64_t bytes) {
    flush();
    least = low, most = high, most_bytes = bytes;
  }, "The least and the most calls in a program cut for its length, and the most bytes of results not yet computed.");
  m.def("recording_stats", [] {
    py::dict stats;
    stats["recorded"] = num_recorded;
    stats["waiting"] = current.calls.size();
    stats["cuts"] = num_cuts;
    int64_t count = 0;
    for (const auto& [key, variants] : programs) count += static_cast<int64_t>(variants.size());
    stats["programs"] = count;
    return stats;
  });
  m.def("clear_fused", [] {
    programs.clear();
    seen.clear();
    apart.clear();
    changed.clear();
  }, "Forgets every fused program.");
}

}  // namespace torch_tpu
