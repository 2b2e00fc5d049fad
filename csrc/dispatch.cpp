// The call cache. One boxed kernel serves every ATen overload: it packs the call's signature into a key (overload,
// each tensor's dtype, view and storage value, static arguments) and looks it up. A hit runs the cached program with
// the operands' values and wraps the results. A miss is Python's: torch_tpu/eager/dispatch.py makes the entry, and the
// call is tried again. Nothing here knows what an operator means.
#include "call.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/library.h>

#include <unordered_map>
#include <unordered_set>

using torch::jit::Stack;

namespace torch_tpu {

void Entry::set_program(py::object made) {
  program = std::move(made);
  if (!py::isinstance<py::tuple>(program)) return;
  execute = program.attr("execute"), handlers = program.attr("handlers");
  for (const auto& item : program.attr("numbers")) {
    const auto number = item.cast<py::tuple>();
    numbers.push_back({number[0].cast<int64_t>(), number[1], c10::IValue(), py::object()});
  }
}

namespace {

// Never destroyed: they hold Python objects, and the interpreter is gone when static destructors run.
auto& ops = *new std::vector<std::unique_ptr<Op>>;
auto& table = *new std::unordered_map<std::string, std::shared_ptr<Entry>>;  // shared with the calls that run them
auto& graphs = *new std::vector<std::unique_ptr<Op>>;
int64_t num_entries = 0;
bool debug = false;  // each call is checked before and waited for after, in torch_tpu/eager/debug.py

// ---------------------------------------------------------------------------------------- running an entry

// A number's array. From call to call most are the same.
PyObject* array_of(Number& number, const c10::IValue& value) {
  py::object before;  // goes last: meanwhile other threads may run
  if (!number.array || !is_same(number.last, value)) {
    before = hook("scalar")(to_python(value), number.dtype);
    std::swap(number.array, before);
    number.last = value;
  }
  return Py_NewRef(number.array.ptr());
}

py::list operand_values(Entry& entry, const Packed& packed) {
  py::list values(entry.inputs.size());
  auto number = entry.numbers.begin();
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    const auto& operand = packed.operands[entry.inputs[i]];
    PyObject* value;
    if (operand.slot) {
      settle(operand.slot);
      value = Py_NewRef(operand.slot->value ? operand.slot->value : Py_None);
    } else if (number != entry.numbers.end() && number->place == static_cast<int64_t>(i)) {
      value = array_of(*number++, operand.scalar ? *operand.scalar : c10::IValue(operand.offset));
    } else if (!operand.scalar) {
      value = PyLong_FromLongLong(operand.offset);
    } else if (operand.scalar->isDouble()) {
      value = PyFloat_FromDouble(operand.scalar->toDouble());
    } else if (operand.scalar->isInt()) {
      value = PyLong_FromLongLong(operand.scalar->toInt());
    } else {
      value = to_python(*operand.scalar).release().ptr();
    }
    PyList_SET_ITEM(values.ptr(), i, value);
  }
  return values;
}

void push_result(const Op& op, const py::object& result, Stack* stack) {
  const auto& returns = op.handle->schema().returns();
  if (returns.empty()) return;
  if (returns.size() == 1) {
    torch::jit::push(stack, torch::jit::toIValue(result, returns[0].type()));
    return;
  }
  auto items = py::reinterpret_borrow<py::tuple>(py::tuple(result));
  TORCH_INTERNAL_ASSERT(items.size() == returns.size());
  for (size_t i = 0; i < returns.size(); ++i) torch::jit::push(stack, torch::jit::toIValue(items[i], returns[i].type()));
}

void count_execution() {
  static auto& counters = *new py::object(py::module_::import("torch_tpu.stats").attr("counters"));
  static PyObject* name = PyUnicode_InternFromString("executions");
  auto count = py::reinterpret_steal<py::object>(PyObject_GetAttr(counters.ptr(), name));
  auto next = py::reinterpret_steal<py::object>(PyLong_FromLongLong(PyLong_AsLongLong(count.ptr()) + 1));
  PyObject_SetAttr(counters.ptr(), name, next.ptr());
}

// What Program.run does (torch_tpu/eager/program.py), without its frames.
py::object start(const Entry& entry, const py::list& values) {
  static PyObject* consume = PyUnicode_InternFromString("consume_with_handlers");
  count_execution();
  PyObject* arrays[] = {values.ptr()};
  auto results = py::reinterpret_steal<py::object>(PyObject_Vectorcall(entry.execute.ptr(), arrays, 1, nullptr));
  PyObject* consumed[] = {results.ptr(), entry.handlers.ptr()};
  auto answer = py::reinterpret_steal<py::object>(results ? PyObject_VectorcallMethod(consume, consumed, 2, nullptr) : nullptr);
  if (answer) return answer;
  py::error_already_set error;
  entry.program.attr("explain")(error.value());
  throw error;
}

// Runs a program at once; `answer` is what it returned.
py::object run_program(Entry& entry, const Packed& packed) {
  refuse_in_capture("an operator that cannot be recorded");
  flush();
  if (entry.program.is_none()) {
    auto made = hook("compile_recipe")(entry.recipe);
    if (entry.program.is_none()) entry.set_program(std::move(made));  // another thread may have compiled it meanwhile
  }
  py::list values = operand_values(entry, packed);
  if (entry.execute) return start(entry, values);
  py::object generator = packed.generator.isNone() ? py::object(py::none()) : torch::jit::toPyObject(packed.generator);
  PyObject* arguments[] = {values.ptr(), generator.ptr()};
  auto answer = py::reinterpret_steal<py::object>(PyObject_Vectorcall(entry.program.ptr(), arguments, 2, nullptr));
  if (!answer) throw py::error_already_set();
  return answer;
}

std::vector<c10::IValue> run_entry(const Op& op, const std::shared_ptr<Entry>& entry, const Packed& packed,
                                   at::ArrayRef<c10::IValue> args) {
  if (recording && !entry->recipe.is_none()) return record(entry, packed, args, op.part);
  auto answer = run_program(*entry, packed);
  TORCH_INTERNAL_ASSERT(PyList_Check(answer.ptr()));
  return results_of(*entry, packed, args, [&](Slot* slot, int64_t index, int64_t aval, size_t bytes) {
    set_slot(slot, PyList_GET_ITEM(answer.ptr(), index), aval, bytes);
  });
}

// A copy from or to the host is no program.
bool crosses(at::ArrayRef<c10::IValue> args) { return args[0].toTensor().device() != args[1].toTensor().device(); }

// A copy between tensors that are all of their storages, in the same order, shares the value: values are immutable.
bool share_copy(at::ArrayRef<c10::IValue> args) {
  const auto &target = args[0].toTensor(), &source = args[1].toTensor();
  if (target.is_same(source)) return true;
  if (source.device().type() != kTPU || target.device().type() != kTPU || target.scalar_type() != source.scalar_type() ||
      target.sizes() != source.sizes() || target.strides() != source.strides() || target.is_conj() != source.is_conj() ||
      target.is_neg() != source.is_neg() || target.storage_offset() || source.storage_offset() ||
      !target.is_non_overlapping_and_dense())
    return false;
  const auto bytes = target.numel() * target.itemsize();
  if (target.storage().nbytes() != static_cast<size_t>(bytes) || source.storage().nbytes() != static_cast<size_t>(bytes))
    return false;
  Slot *to = slot_of(target.storage()), *from = slot_of(source.storage());
  if (!from->holds() || (capturing && !from->pending)) return false;  // a replay copies what is there then
  if (to != from) share_slot(to, from);
  return true;
}

// The number of a tensor that is all of an array of one element, where the device's memory is the host's.
std::optional<at::Scalar> read_number(const at::Tensor& tensor) {
  refuse_in_capture("the value of a tensor");
  Slot* slot = slot_of(tensor.storage());
  flush_for(slot);
  settle(slot);
  if (!slot->value || tensor.storage_offset() || tensor.is_conj() || tensor.is_neg() || !is_number(slot->aval, tensor.scalar_type()))
    return std::nullopt;
  const auto array = py::reinterpret_borrow<py::object>(slot->value);  // other threads may write to the tensor meanwhile
  auto* address = PyLong_AsVoidPtr(hook("address_of")(array, tensor.itemsize()).ptr());
  if (!address) return std::nullopt;
  return at::native::_local_scalar_dense_cpu(at::from_blob(address, {}, at::TensorOptions(tensor.scalar_type())));
}

// Refuses what PyTorch refuses: a tensor that is written and shares elements with one that is read. Items of lists are
// written from the items beside them. A mask among indices becomes integers, and the call is looked at again.
void refuse_overlap(const Op& op, at::ArrayRef<c10::IValue> args) {
  auto item = [&](size_t arg, size_t place) {
    if (args[arg].isTensor()) return args[arg].toTensor();
    if (!args[arg].isList()) return at::Tensor();
    const auto list = args[arg].toListRef();
    return place < list.size() && list[place].isTensor() ? list[place].toTensor() : at::Tensor();
  };
  auto length = [&](size_t arg) { return args[arg].isList() ? args[arg].toListRef().size() : 1; };
  for (size_t from = 0; from < args.size(); ++from) {
    const auto overlap = op.args[from].overlap;
    for (size_t to = 0; to < args.size() && overlap != Overlap::kAny; ++to) {
      for (size_t i = 0; i < std::max(length(to), length(from)) && op.args[to].written; ++i) {
        const auto target = item(to, i), source = item(from, i);
        if (!target.defined() || !source.defined()) continue;
        if (overlap == Overlap::kWhole) at::assert_no_partial_overlap(target, source);
        if (overlap == Overlap::kNone && source.scalar_type() == at::kBool && args[from].isList()) return;
        if (overlap == Overlap::kNone) at::assert_no_overlap(target, source);
      }
    }
  }
}

// Refuses a number that does not fit the dtype of what it fills, as PyTorch's kernels do, which make one element of fewer
// than 32 bits infinite.
void refuse_numbers(const Op& op, at::ArrayRef<c10::IValue> args) {
  std::optional<at::ScalarType> dtype, given;
  int64_t count = 1;
  const auto& arguments = op.handle->schema().arguments();
  for (size_t i = 0; i < args.size(); ++i) {
    const auto& name = arguments[i].name();
    if (name == "dtype" && args[i].isInt()) given = static_cast<at::ScalarType>(args[i].toInt());
    if (name == "size" && args[i].isIntList()) count = c10::multiply_integers(args[i].toIntList().vec());
    if (name == "self" && args[i].isTensor()) {
      dtype = args[i].toTensor().scalar_type();
      if (arguments[std::min(i + 1, args.size() - 1)].name() != "size") count = args[i].toTensor().numel();
    }
  }
  if (given) dtype = given;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!op.args[i].is_fitted || !args[i].isScalar()) continue;
    const auto number = args[i].toScalar();
    if (!dtype && !number.isFloatingPoint()) continue;  // the dtype is made for it
    const auto to = dtype.value_or(c10::get_default_dtype_as_scalartype());
    if (count == 1 && at::isFloatingType(to) && at::elementSize(to) < 4) continue;
    AT_DISPATCH_V2(to, "fill", AT_WRAP([&] { (void)number.to<scalar_t>(); }), AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX),
                   AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), AT_EXPAND(AT_FLOAT8_TYPES), at::kBool, at::kHalf,
                   at::kBFloat16, at::kComplexHalf);
  }
}

// Asks Python to serve a call that has no entry: see `miss` in torch_tpu/eager/dispatch.py.
py::object call_miss(const char* name, const py::object& callee, const py::list& args, const Packed& packed) {
  py::list codes, arrays, donated;
  size_t next = 0;
  for (int64_t length : packed.lengths) {
    if (length < 0) {
      codes.append(packed.codes[next++]);
    } else {
      codes.append(std::vector<int64_t>(packed.codes.begin() + next, packed.codes.begin() + next + length));
      next += length;
    }
  }
  for (const auto& operand : packed.operands)
    arrays.append(operand.slot && operand.slot->holds() ? operand.slot->aval : -1);
  for (int64_t index : packed.written)
    if (packed.can_donate(packed.operands[index].slot)) donated.append(index);
  py::object key = packed.cacheable ? py::object(py::bytes(packed.key)) : py::object(py::none());
  return hook(name)(callee, args, codes, arrays, donated, key);
}

// ------------------------------------------------------------------------------------------------- the kernel

py::list python_arguments(const Op& op, const Stack& stack) {
  py::list args;
  for (size_t i = 0; i < op.args.size(); ++i) args.append(to_python(torch::jit::peek(stack, i, op.args.size())));
  return args;
}

struct Kernel final : c10::OperatorKernel {
  explicit Kernel(Op* op) : op(op) {}
  Op* op;

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
    check_fork();
    Activity activity;
    if (op->kind == Kind::kComposite) return composite(stack);
    bool is_composite = false;
    {
      py::gil_scoped_acquire gil;
      try {
        is_composite = debug ? run_checked(stack) : run(stack);
      } catch (py::error_already_set& error) {
        rethrow(error);
      }
    }
    if (is_composite) composite(stack);
  }

  // PyTorch's own definition in terms of other operators.
  void composite(Stack* stack) {
    for (auto key : {c10::DispatchKey::CompositeExplicitAutogradNonFunctional, c10::DispatchKey::CompositeExplicitAutograd,
                     c10::DispatchKey::CompositeImplicitAutograd}) {
      if (op->handle->hasKernelForDispatchKey(key)) return op->handle->callBoxedForDispatchKey(key, *stack);
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, op->handle->operator_name(), " has no composite definition");
  }

  bool run_checked(Stack* stack) {
    if (op->kind == Kind::kUnknown) prepare();
    if (op->kind == Kind::kComposite) return true;
    auto args = python_arguments(*op, *stack);
    const BelowSubclasses guard;
    hook("check_call")(op->overload, args);
    try {
      const bool is_composite = run(stack);
      if (!is_composite) hook("finish_call")(op->overload, args);
      return is_composite;
    } catch (py::error_already_set& error) {
      hook("explain_error")(op->overload, args, error.value());
      throw;
    }
  }

  bool run(Stack* stack) {
    if (op->kind == Kind::kUnknown) prepare();
    if (op->kind == Kind::kComposite) return true;
    thread_local std::vector<std::unique_ptr<Packed>> pool;  // one for each depth of recursion
    std::unique_ptr<Packed> packed;
    if (pool.empty()) {
      packed = std::make_unique<Packed>();
    } else {
      packed = std::move(pool.back());
      pool.pop_back();
    }
    const auto count = op->args.size();
    bool is_composite = false;
    for (int tries = 0;; ++tries) {
      const auto args = torch::jit::last(*stack, count);
      if (op->is_copy && share_copy(args)) {
        auto self = args[0];
        torch::jit::drop(stack, count);
        torch::jit::push(stack, std::move(self));
        break;
      }
      if (op->is_item) {
        if (const auto number = read_number(args[0].toTensor())) {
          torch::jit::drop(stack, count);
          torch::jit::push(stack, *number);
          break;
        }
      }
      if (op->kind == Kind::kProgram && !(op->is_copy && crosses(args))) {
        if (op->refuses_numbers) refuse_numbers(*op, args);
        packed->pack(*op, args);
        if (packed->shares && op->refuses_overlap) refuse_overlap(*op, args);
        auto found = packed->cacheable ? table.find(packed->key) : table.end();
        if (found != table.end()) {
          const auto entry = found->second;  // another thread may clear the table meanwhile
          if (op->is_foreach) bump_versions(args);
          if (entry->callback) {
            auto answer = run_program(*entry, *packed);
            torch::jit::drop(stack, count);
            push_result(*op, answer, stack);
          } else {
            auto outputs = run_entry(*op, entry, *packed, args);
            torch::jit::drop(stack, count);
            for (auto& output : outputs) torch::jit::push(stack, std::move(output));
          }
          break;
        }
      }
      TORCH_INTERNAL_ASSERT(tries < 8, op->handle->operator_name(), ": the entry made for a call is not found");
      auto answer = miss(*packed, stack);
      if (answer.ptr() == Py_Ellipsis) continue;  // an entry was made, or an argument put in order: look again
      if (answer.ptr() == Py_NotImplemented) {
        is_composite = true;
        break;
      }
      if (op->is_foreach) bump_versions(torch::jit::last(*stack, count));
      torch::jit::drop(stack, count);
      push_result(*op, answer, stack);
      break;
    }
    packed->clear();
    pool.push_back(std::move(packed));
    return is_composite;
  }

  // For foreach operators PyTorch's kernels do it, not the layer above them that does it for all others.
  void bump_versions(at::ArrayRef<c10::IValue> args) const {
    for (size_t i = 0; i < args.size(); ++i) {
      if (op->args[i].kind != ArgKind::kTensorList || !op->args[i].written) continue;
      for (const c10::IValue& item : args[i].toListRef())
        if (const at::Tensor& tensor = item.toTensor(); !tensor.is_inference())
          tensor.unsafeGetTensorImpl()->bump_version();
    }
  }

  py::object miss(const Packed& packed, Stack* stack) {
    const BelowSubclasses guard;
    if (const auto given = torch::jit::last(*stack, op->args.size()); op->is_copy && crosses(given))
      return hook("copy_across")(torch::jit::toPyObject(given[0]), torch::jit::toPyObject(given[1]));
    auto args = python_arguments(*op, *stack);
    if (op->kind == Kind::kPython) return hook("call_python")(op->overload, args);
    return call_miss("miss", py::object(op->overload), args, packed);
  }

  void prepare() {
    const auto& name = op->handle->operator_name();
    op->overload = hook("resolve")(name.name, name.overload_name);
    py::dict plan = hook("prepare")(op->overload);
    const auto kind = plan["kind"].cast<std::string>();
    auto names = [&](const char* field) { return plan[field].cast<std::unordered_set<std::string>>(); };
    const auto fixed = names("static"), integral = names("static_integral"), data = names("data"), fitted = names("fitted");
    const auto varying = plan["varying"].cast<std::unordered_map<std::string, std::pair<double, double>>>();
    std::tie(op->from, op->to) = plan["range"].cast<std::pair<int64_t, int64_t>>();
    op->has_varying = !varying.empty();
    const auto overlap = plan["overlap"].cast<std::unordered_map<std::string, std::string>>();
    op->refuses_overlap = !overlap.empty();
    op->refuses_numbers = !fitted.empty();
    const auto& arguments = op->handle->schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (const auto found = overlap.find(arguments[i].name()); found != overlap.end())
        op->args[i].overlap = found->second == "none" ? Overlap::kNone : Overlap::kWhole;
      op->args[i].is_static = fixed.count(arguments[i].name()) || fixed.count("*");
      op->args[i].is_static_integral = integral.count(arguments[i].name());
      op->args[i].is_data = data.count(arguments[i].name());
      if (const auto found = varying.find(arguments[i].name()); found != varying.end()) {
        op->args[i].varies = true;
        std::tie(op->args[i].above, op->args[i].below) = found->second;
      }
      op->args[i].is_fitted = fitted.count(arguments[i].name());
    }
    op->reads_views = plan["views"].cast<bool>();
    op->counted = plan["counted"].cast<int64_t>();
    op->kind = kind == "program" ? Kind::kProgram : kind == "python" ? Kind::kPython : Kind::kComposite;
  }
};

ArgKind arg_kind(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (type->kind() == c10::TypeKind::TensorType) return ArgKind::kTensor;
  if (type->kind() == c10::TypeKind::NumberType) return ArgKind::kScalar;
  if (type->kind() == c10::TypeKind::FloatType) return ArgKind::kFloat;
  if (type->kind() == c10::TypeKind::GeneratorType) return ArgKind::kGenerator;
  if (auto list = type->cast<c10::ListType>()) {
    auto element = list->getElementType();
    if (auto optional = element->cast<c10::OptionalType>()) element = optional->getElementType();
    if (element->kind() == c10::TypeKind::TensorType) return ArgKind::kTensorList;
    if (element->kind() == c10::TypeKind::NumberType) return ArgKind::kScalarList;
  }
  return ArgKind::kOther;
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  return false;
}

// Operators that a backend must answer for, and this package's own: all but those that PyTorch defines by others with
// their gradients, the views (their composite kernels do) and what device.cpp registers.
bool wants_kernel(const c10::OperatorHandle& handle, const std::unordered_set<std::string>& skipped) {
  const auto& name = handle.operator_name();
  if (name.name.rfind("aten::", 0) != 0 && name.name.rfind("torch_tpu::", 0) != 0) return false;
  const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  if (skipped.count(full) || is_view(handle.schema()) || handle.hasTag(at::Tag::inplace_view)) return false;
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return false;
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    return handle.hasKernelForDispatchKey(c10::DispatchKey::CPU);  // and so has gradients of its own
  return true;
}

int64_t register_kernels(const std::unordered_set<std::string>& skipped) {
  auto library_for = [](const char* space) {
    return new torch::Library(torch::Library::IMPL, space, c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  };
  static auto &aten = *library_for("aten"), &own = *library_for("torch_tpu");
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    auto handle = c10::Dispatcher::singleton().findOp(name);
    if (!handle || !handle->hasSchema() || !wants_kernel(*handle, skipped)) continue;
    ops.push_back(std::make_unique<Op>(*handle, static_cast<int64_t>(ops.size())));
    Op* op = ops.back().get();
    for (const auto& argument : handle->schema().arguments()) {
      Arg arg{arg_kind(argument)};
      arg.written = argument.alias_info() && argument.alias_info()->isWrite();
      if (arg.kind != ArgKind::kTensor && argument.default_value()) arg.fallback = *argument.default_value();
      op->writes |= arg.written;
      op->args.push_back(std::move(arg));
    }
    op->is_copy = name.name == "aten::copy_" && name.overload_name.empty();
    op->is_item = name.name == "aten::_local_scalar_dense" && name.overload_name.empty();
    op->is_foreach = name.name.rfind("aten::_foreach_", 0) == 0;
    auto& library = name.name.rfind("aten::", 0) == 0 ? aten : own;
    library.impl(name.overload_name.empty() ? name.name.c_str() : (name.name + "." + name.overload_name).c_str(),
                 torch::CppFunction::makeFromBoxedKernel(
                     c10::BoxedKernel::makeFromFunctor<Kernel>(std::make_unique<Kernel>(op))));
  }
  return static_cast<int64_t>(ops.size());
}

Result parse_result(const py::handle& item) {
  Result result;
  if (item.is_none()) {
    result.kind = Result::kNone;
  } else if (py::isinstance<py::int_>(item)) {
    result.kind = Result::kArgument;
    result.place = item.cast<int64_t>();
  } else {
    auto fields = item.cast<py::tuple>();
    if (fields.size() == 2) {  // ("constant", number)
      result.kind = Result::kConstant;
      if (py::isinstance<py::bool_>(fields[1])) {
        result.constant = fields[1].cast<bool>();
      } else if (py::isinstance<py::float_>(fields[1])) {
        result.constant = fields[1].cast<double>();
      } else {
        result.constant = fields[1].cast<int64_t>();
      }
      return result;
    }
    if (py::isinstance<py::str>(fields[0])) {  // ("argument" or "result", place, size, stride, dtype, offset, conj, neg)
      result.kind = fields[0].cast<std::string>() == "argument" ? Result::kViewOfArgument : Result::kViewOfResult;
      result.place = fields[1].cast<int64_t>();
      result.size = fields[2].cast<std::vector<int64_t>>();
      result.stride = fields[3].cast<std::vector<int64_t>>();
      result.dtype = reinterpret_cast<THPDtype*>(fields[4].ptr())->scalar_type;
      result.offset = fields[5].cast<int64_t>();
      result.conj = fields[6].cast<bool>();
      result.neg = fields[7].cast<bool>();
      return result;
    }
    result.size = fields[0].cast<std::vector<int64_t>>();
    result.stride = fields[1].cast<std::vector<int64_t>>();
    result.dtype = reinterpret_cast<THPDtype*>(fields[2].ptr())->scalar_type;
    result.aval = fields[3].cast<int64_t>();
    result.bytes = fields[4].cast<size_t>();
  }
  return result;
}

// ------------------------------------------------------------------------------------------------------ graphs

int64_t define_graph(const std::vector<std::string>& kinds, const std::unordered_set<int64_t>& written,
                     const std::string& part) {
  auto op = std::make_unique<Op>(std::nullopt, static_cast<int64_t>(ops.size() + graphs.size()));
  op->reads_views = true;
  op->part = part == "forward" ? Part::kForward : part == "backward" ? Part::kBackward : Part::kInference;
  for (size_t i = 0; i < kinds.size(); ++i) {
    op->args.push_back({kinds[i] == "tensor"  ? ArgKind::kTensor
                        : kinds[i] == "float" ? ArgKind::kScalar
                                              : ArgKind::kOther});
    op->args.back().written = written.count(static_cast<int64_t>(i)) > 0;
  }
  graphs.push_back(std::move(op));
  return static_cast<int64_t>(graphs.size()) - 1;
}

c10::IValue to_ivalue(PyObject* item) {
  if (THPVariable_Check(item)) return THPVariable_Unpack(item);
  if (item == Py_None) return {};
  if (PyBool_Check(item)) return item == Py_True;
  if (PyLong_Check(item)) return static_cast<int64_t>(PyLong_AsLongLong(item));
  TORCH_CHECK_TYPE(PyFloat_Check(item), "a compiled graph takes tensors and numbers, not ", Py_TYPE(item)->tp_name);
  return PyFloat_AsDouble(item);
}

py::list call_graph(int64_t id, py::list args, const py::object& count_random) {
  check_fork();
  Activity activity;
  const Op& op = *graphs.at(id);
  std::vector<c10::IValue> values;
  values.reserve(args.size());
  for (const auto& item : args) values.push_back(to_ivalue(item.ptr()));
  TORCH_CHECK(values.size() == op.args.size(), "this graph takes ", op.args.size(), " arguments, not ", values.size());
  Packed packed;
  for (int tries = 0;; ++tries) {
    packed.pack(op, values);
    TORCH_CHECK(packed.cacheable, "a compiled graph takes strided tensors on tpu, 0-d tensors on the CPU, and numbers");
    auto found = table.find(packed.key);
    if (found == table.end()) {
      TORCH_INTERNAL_ASSERT(tries < 8, "the entry made for a graph is not found");
      call_miss("miss_graph", py::int_(id), args, packed);
      continue;
    }
    const auto entry = found->second;
    const auto restore = c10::make_scope_exit([] { random_taken = 0; });
    if (entry->increment && !count_random.is_none()) random_taken = count_random().cast<uint64_t>();
    auto outputs = run_entry(op, entry, packed, values);
    py::list results(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i)
      results[i] = py::reinterpret_steal<py::object>(
          outputs[i].isTensor() ? THPVariable_Wrap(std::move(outputs[i]).toTensor())
                                : torch::jit::toPyObject(std::move(outputs[i])).release().ptr());
    return results;
  }
}

}  // namespace

void bind_dispatch(py::module_& m) {
  m.def("register_kernels", &register_kernels, "Registers the boxed kernel for all of ATen but the named overloads.");
  m.def("define_graph", &define_graph,
        "A graph of torch.compile as an operator: the kinds of its arguments (tensor, float, other), which are written, and "
        "what the graph is: forward, backward or inference.");
  m.def("call_graph", &call_graph, py::arg("graph"), py::arg("args"), py::arg("count_random") = py::none(),
        "Runs a graph: its entry is found by its arguments, as an operator's. The function says how many random numbers the "
        "graph takes for the sizes of this call, if that varies.");
  m.def("install", [](py::bytes key, py::object program, bool callback, std::vector<int64_t> inputs, py::list returns,
                      py::list writes, py::object recipe) {
    auto entry = std::make_shared<Entry>();
    entry->set_program(std::move(program));
    entry->callback = callback;
    entry->inputs = std::move(inputs);
    entry->serial = ++num_entries;
    for (const auto& item : returns) {
      Return spec;
      spec.is_list = py::isinstance<py::list>(item);
      if (spec.is_list) {
        for (const auto& part : item.cast<py::list>()) spec.results.push_back(parse_result(part));
      } else {
        spec.results.push_back(parse_result(item));
      }
      for (const auto& result : spec.results) entry->num_outputs += result.kind == Result::kNew;
      entry->returns.push_back(std::move(spec));
    }
    for (const auto& item : writes) {
      auto fields = item.cast<py::tuple>();
      entry->writes.push_back({fields[0].cast<int64_t>(), fields[1].cast<int64_t>(), fields[2].cast<size_t>()});
    }
    entry->num_outputs += static_cast<int64_t>(entry->writes.size());
    if (!recipe.is_none()) {
      entry->digest = recipe.attr("digest").cast<uint64_t>();
      entry->increment = recipe.attr("increment").cast<int64_t>();
    }
    entry->recipe = std::move(recipe);
    table.emplace(std::string(key), std::move(entry));  // two threads may make the same entry: the first one stays
  }, py::arg("key"), py::arg("program"), py::arg("callback"), py::arg("inputs"), py::arg("returns"), py::arg("writes"),
     py::arg("recipe") = py::none(),
     "Adds an entry to the call cache; returns and writes are described in torch_tpu/eager/dispatch.py.");
  m.def("set_debug", [](bool on) { debug = on; }, "Whether calls go through check_call and finish_call.");
  m.def("clear_table", [] { table.clear(); }, "Forgets every entry.");
  m.def("table_size", [] { return table.size(); });
}

}  // namespace torch_tpu

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The C++ part of torch_tpu: PrivateUse1 as a device, and the call cache.";
  torch_tpu::bind_device(m);
  torch_tpu::bind_pack(m);
  torch_tpu::bind_dispatch(m);
  torch_tpu::bind_record(m);
  torch_tpu::bind_graph(m);
  torch_tpu::bind_dropped(m);
  torch_tpu::bind_sparse(m);
}
