// A call of an operator as the call cache sees it: the operator, the call packed into a key, and the entry that serves it.
#pragma once

#include "plug.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/as_strided_native.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace torch_tpu {

namespace py = pybind11;

enum class Kind : uint8_t { kUnknown, kProgram, kPython, kComposite };
enum class ArgKind : uint8_t { kTensor, kTensorList, kScalar, kScalarList, kFloat, kFloatList, kGenerator, kOther };

// What a call is of: an operator, or a graph of torch.compile. An inference graph ends a recording, since nothing is
// known to follow; a forward one waits for its backward one and the optimizer, so that a step is one program.
enum class Part : uint8_t { kOperator, kInference, kForward, kBackward };

// Which elements a tensor that is read may share with one that is written: any, none, or only all of them in the same order.
enum class Overlap : uint8_t { kAny, kWhole, kNone };

struct Arg {
  ArgKind kind;
  Overlap overlap = Overlap::kAny;
  bool written = false, is_static = false, is_static_integral = false, is_data = false, is_fitted = false;
  bool varies = false;          // data where `numbers_vary`
  double above = 0, below = 0;  // the numbers between which it does
  std::optional<c10::IValue> fallback;
};

// An ATen overload, or a graph of torch.compile, which has no handle.
struct Op {
  Op(std::optional<c10::OperatorHandle> handle, int64_t id) : handle(handle), id(id) {}

  std::optional<c10::OperatorHandle> handle;
  int64_t id;
  Kind kind = Kind::kUnknown;
  Part part = Part::kOperator;
  bool writes = false, is_copy = false, is_item = false, is_foreach = false, reads_views = false, refuses_overlap = false,
       refuses_numbers = false, has_varying = false;
  int64_t from = -1, to = -1;  // of what draws numbers from a range: the arguments that say which
  int64_t counted = -1;  // of arange: the argument that says where to end
  std::vector<Arg> args;
  py::object overload;  // torch._ops.OpOverload
};

struct Result {
  enum { kNew, kArgument, kNone, kConstant, kViewOfArgument, kViewOfResult } kind = kNew;
  std::vector<int64_t> size, stride;
  at::ScalarType dtype = at::kFloat;
  int64_t aval = 0;
  int64_t place = 0;   // of the argument, or of the result that a view is of
  int64_t offset = 0;  // of a view, in bytes, behind that of what it is a view of
  bool conj = false, neg = false;  // of a view: unlike what it is a view of
  size_t bytes = 0;
  c10::IValue constant;
};

struct Return {
  bool is_list = false;
  std::vector<Result> results;
};

struct Write {
  int64_t operand, aval;
  size_t bytes;
};

// A number among a program's operands, and the array that it was last.
struct Number {
  int64_t place;
  py::object dtype;
  c10::IValue last;
  py::object array;
};

struct Entry {
  py::object program;  // called with the operands' values and the generator; None until it runs by itself
  py::object execute, handlers;  // of a program that needs no more than arrays: what its `run` calls
  std::vector<Number> numbers;   // of such a program, in order
  py::object recipe;   // what the program is made of (torch_tpu/eager/program.py), or None where a call cannot be recorded
  bool callback = false;  // the program returns the call's result itself
  std::vector<int64_t> inputs;
  std::vector<Return> returns;
  std::vector<Write> writes;
  int64_t serial = 0;       // unlike any other entry's
  uint64_t digest = 0;      // of the recipe's text
  int64_t num_outputs = 0;  // new tensors and written storages
  int64_t increment = 0;    // random numbers taken

  void set_program(py::object made);
};

struct Operand {
  Slot* slot = nullptr;
  const c10::IValue* scalar = nullptr;  // a number, or a tensor on the CPU without dimensions
  int64_t offset = 0;                   // where both are null: the storage offset of a tensor
};

struct Packed {
  std::string key;
  std::vector<Operand> operands;
  std::vector<int64_t> codes;    // per argument or list item: operand index, -1 default, -2 static
  std::vector<int64_t> lengths;  // per argument: number of list items, or -1
  std::vector<int64_t> written;
  c10::IValue generator;
  bool cacheable = true, reads_views = false;
  bool shares = false;  // two of the tensors are on one storage

  void pack(const Op& op, at::ArrayRef<c10::IValue> args);
  void clear();
  bool can_donate(const Slot* slot) const;  // nothing else holds the value of a written argument

 private:
  void put(int64_t number) { key.append(reinterpret_cast<const char*>(&number), sizeof number); }
  void put(double number) { key.append(reinterpret_cast<const char*>(&number), sizeof number); }
  int64_t operand(Slot* slot);
  int64_t operand(const c10::IValue& scalar);
  void pack_all(const Op& op, at::ArrayRef<c10::IValue> args);
  int64_t tensor(const c10::IValue& value, bool is_written, bool is_static);
  bool count(const Op& op, at::ArrayRef<c10::IValue> args);
  int64_t scalar(const Arg& arg, const c10::IValue& value);
  bool vary = false;  // arguments that vary are data in this call
  void other(const c10::IValue& value);
  void argument(const Arg& arg, const c10::IValue& value);

  std::deque<c10::IValue> kept;  // list items that have no IValue of their own
};

// A kernel is below what subclasses of tensors override, such as the shape of an uninitialized parameter.
class BelowSubclasses {
  using State = at::impl::TorchFunctionDisabledState;
  const State before = at::impl::PythonTorchFunctionTLS::get_disabled_state();

 public:
  BelowSubclasses() {
    if (before == State::ENABLED) at::impl::PythonTorchFunctionTLS::set_disabled_state(State::SUBCLASSES_DISABLED);
  }
  ~BelowSubclasses() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before); }
};

py::object to_python(const c10::IValue& value);
bool is_number(int64_t aval, at::ScalarType dtype);               // an array of one element of that dtype
bool is_same(const c10::IValue& one, const c10::IValue& other);  // numbers, bit by bit

// Answers a call by a Python function that takes the overload and its arguments in the schema's order.
void call_hook(const char* name, const c10::OperatorHandle& op, torch::jit::Stack* stack);

extern size_t donation_threshold;  // bytes: smaller arrays are not given away

// Records a call that is to run together with others; returns what the call does.
std::vector<c10::IValue> record(const std::shared_ptr<Entry>& entry, const Packed& packed, at::ArrayRef<c10::IValue> args,
                                Part part);

// A change of the base counts for the view, as it does for views that autograd makes.
inline at::Tensor view_of(const at::Tensor& base, const Result& view) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
                                                       c10::scalarTypeToTypeMeta(view.dtype));
  const auto bytes = base.storage_offset() * static_cast<int64_t>(base.itemsize()) + view.offset;
  made.unsafeGetTensorImpl()->set_sizes_and_strides(view.size, view.stride, bytes / static_cast<int64_t>(made.itemsize()));
  if (view.conj) made._set_conj(!made.is_conj());
  if (view.neg) made._set_neg(!made.is_neg());
  if (!made.is_inference()) made.unsafeGetTensorImpl()->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
  return made;
}

// The returns of an entry; `fill` gives the slot of a new tensor, or of a written argument, its value.
template <typename Fill>
std::vector<c10::IValue> results_of(const Entry& entry, const Packed& packed, at::ArrayRef<c10::IValue> args,
                                    Fill fill) {
  int64_t next = 0;
  auto make = [&](const Result& result) -> at::Tensor {
    if (result.kind == Result::kArgument) return args[result.place].toTensor();
    if (result.kind != Result::kNew) return at::Tensor();
    auto tensor = new_tensor(result.size, result.stride, result.dtype);
    fill(slot_of(tensor.storage()), next++, result.aval, result.bytes);
    return tensor;
  };
  std::vector<c10::IValue> outputs;
  outputs.reserve(entry.returns.size());
  for (const auto& spec : entry.returns) {
    if (spec.is_list) {
      std::vector<at::Tensor> list;
      list.reserve(spec.results.size());
      for (const auto& result : spec.results) list.push_back(make(result));
      outputs.emplace_back(std::move(list));
    } else if (spec.results[0].kind == Result::kConstant) {
      outputs.push_back(spec.results[0].constant);
    } else {
      outputs.emplace_back(make(spec.results[0]));
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (entry.returns[i].is_list) continue;
    const auto& view = entry.returns[i].results[0];
    if (view.kind == Result::kViewOfArgument) outputs[i] = view_of(args[view.place].toTensor(), view);
    if (view.kind == Result::kViewOfResult) outputs[i] = view_of(outputs[view.place].toTensor(), view);
  }
  for (const auto& write : entry.writes) fill(packed.operands[write.operand].slot, next++, write.aval, write.bytes);
  return outputs;
}

}  // namespace torch_tpu
