// The call cache. One boxed kernel serves every ATen overload: it packs the call's signature into a key (overload,
// each tensor's dtype, view and storage value, static arguments) and looks it up. A hit runs the cached program with
// the operands' values and wraps the results. A miss is Python's: torch_tpu/eager/dispatch.py makes the entry, and the
// call is tried again. Nothing here knows what an operator means.
#include "plug.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/stack.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/library.h>

#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace py = pybind11;
using torch::jit::Stack;

namespace torch_tpu {
namespace {

enum class Kind : uint8_t { kUnknown, kProgram, kPython, kComposite };
enum class ArgKind : uint8_t { kTensor, kTensorList, kScalar, kScalarList, kFloat, kFloatList, kGenerator, kOther };

struct Arg {
  ArgKind kind;
  bool written = false, is_static = false, is_static_integral = false, is_data = false;
  std::optional<c10::IValue> fallback;
};

struct Op {
  Op(c10::OperatorHandle handle, int64_t id) : handle(handle), id(id) {}

  c10::OperatorHandle handle;
  int64_t id;
  Kind kind = Kind::kUnknown;
  bool writes = false, is_copy = false, reads_views = false;
  std::vector<Arg> args;
  py::object overload;  // torch._ops.OpOverload
};

struct Result {
  enum { kNew, kArgument, kNone, kConstant } kind = kNew;
  std::vector<int64_t> size, stride;
  at::ScalarType dtype = at::kFloat;
  int64_t aval = 0, argument = 0;
  size_t bytes = 0;
};

struct Return {
  bool is_list = false;
  std::vector<Result> results;
};

struct Write {
  int64_t operand, aval;
  size_t bytes;
};

struct Entry {
  py::object program;  // called with the operands' values and the generator
  bool callback = false;  // the program returns the call's result itself
  std::vector<int64_t> inputs;
  std::vector<Return> returns;
  std::vector<Write> writes;
};

// Never destroyed: they hold Python objects, and the interpreter is gone when static destructors run.
auto& ops = *new std::vector<std::unique_ptr<Op>>;
auto& table = *new std::unordered_map<std::string, std::shared_ptr<Entry>>;  // shared with the calls that run them
int64_t epoch = 0;                 // part of every key: settings that change programs
size_t donation_threshold = 65536;  // bytes
bool debug = false;                // each call is checked before and waited for after, in torch_tpu/eager/debug.py

// ------------------------------------------------------------------------------------------- packing a call

struct Operand {
  Slot* slot = nullptr;
  const c10::IValue* scalar = nullptr;  // a number, or a tensor on the CPU without dimensions
  int64_t offset = 0;                   // where both are null: the storage offset of a tensor
};

// The arrays that storages hold, by the ids that torch_tpu/eager/program.py gives them.
struct Aval {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> size, stride;
};
auto& avals = *new std::vector<Aval>;

// A view *selects* if its dimensions are whole or cut dimensions of the array and it takes one index of at least one
// other: x[i], x[:, i], x[i, j]. Then only those indices vary in a loop, and they are data; `fixed` is the rest of the
// offset.
bool selects(const Slot* slot, const at::Tensor& t, int64_t& fixed) {
  if (!slot->value) return false;
  const auto& aval = avals[slot->aval];
  if (aval.dtype != t.scalar_type()) return false;
  const auto sizes = t.sizes(), strides = t.strides();
  const auto offset = t.storage_offset();
  int64_t matched = 0, wanted = 0, selected = 0, start = 0;
  for (int64_t size : sizes) {
    if (size == 0) return false;
    wanted += size > 1;
  }
  for (size_t dim = 0; dim < aval.size.size(); ++dim) {
    if (aval.size[dim] == 1) continue;
    if (aval.size[dim] == 0) return false;  // a storage that was made larger
    const auto index = offset / aval.stride[dim] % aval.size[dim];
    int64_t length = 0;
    for (size_t i = 0; i < sizes.size(); ++i)
      if (sizes[i] > 1 && strides[i] == aval.stride[dim]) length = length ? -1 : sizes[i];
    if (length < 0 || (length > 0 && index + length > aval.size[dim])) return false;
    if (length > 0) {
      ++matched, start += index * aval.stride[dim];
    } else {
      ++selected;
    }
  }
  if (matched != wanted || selected == 0 || offset / aval.stride[0] >= aval.size[0]) return false;
  fixed = start;
  return true;
}

struct Packed {
  std::string key;
  std::vector<Operand> operands;
  std::vector<int64_t> codes;    // per argument or list item: operand index, -1 default, -2 static
  std::vector<int64_t> lengths;  // per argument: number of list items, or -1
  std::vector<int64_t> written;
  c10::IValue generator;
  bool cacheable = true, reads_views = false;

  void clear() {
    key.clear(), operands.clear(), codes.clear(), lengths.clear(), written.clear();
    generator = c10::IValue();
    cacheable = true;
  }
  void put(int64_t number) { key.append(reinterpret_cast<const char*>(&number), sizeof number); }
  void put(double number) { key.append(reinterpret_cast<const char*>(&number), sizeof number); }

  int64_t operand(Slot* slot) {
    for (size_t i = 0; i < operands.size(); ++i)
      if (operands[i].slot == slot) return static_cast<int64_t>(i);
    operands.push_back({slot, nullptr, 0});
    return static_cast<int64_t>(operands.size()) - 1;
  }
  int64_t operand(const c10::IValue& scalar) {
    operands.push_back({nullptr, &scalar, 0});
    return static_cast<int64_t>(operands.size()) - 1;
  }

  int64_t tensor(const c10::IValue& value, bool is_written, bool is_static) {
    if (value.isNone()) return put(int64_t('N')), -2;
    const at::Tensor& t = value.toTensor();
    if (!t.defined()) return put(int64_t('N')), -2;
    const auto* impl = t.unsafeGetTensorImpl();
    const auto dtype = static_cast<int64_t>(t.scalar_type());
    if (t.device().type() != kTPU || t.layout() != at::kStrided || !t.has_storage()) {
      if (!t.device().is_cpu() || t.dim() != 0 || t.layout() != at::kStrided) {
        cacheable = false;
        return -2;
      }
      put(int64_t(impl->is_wrapped_number() ? 'W' : 'C') | dtype << 8);
      if (!impl->is_wrapped_number() || !is_static) return operand(value);
      const auto number = t.item();
      if (number.isComplex()) put(number.toComplexDouble().real()), put(number.toComplexDouble().imag());
      if (number.isFloatingPoint()) put(number.toDouble());
      if (number.isIntegral(true)) put(number.toLong());
      return -2;
    }
    auto* storage = t.storage().unsafeGetStorageImpl();
    Slot* slot = slot_of(t.storage());
    const auto index = operand(slot);
    const auto sizes = t.sizes(), strides = t.strides();
    int64_t fixed = 0;
    const bool by_offset = reads_views && selects(slot, t, fixed);
    if (!by_offset) fixed = t.storage_offset();
    put(int64_t('T') | dtype << 8 | int64_t(t.is_conj()) << 16 | int64_t(t.is_neg()) << 17 | int64_t(by_offset) << 18 |
        static_cast<int64_t>(sizes.size()) << 24 | index << 32);
    put(slot->aval);
    if (!slot->value) put(static_cast<int64_t>(storage->nbytes()));
    put(fixed);
    key.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t));
    key.append(reinterpret_cast<const char*>(strides.data()), strides.size() * sizeof(int64_t));
    if (is_written && std::find(written.begin(), written.end(), index) == written.end()) written.push_back(index);
    if (!by_offset) return index;
    operands.push_back({nullptr, nullptr, t.storage_offset()});
    return index | static_cast<int64_t>(operands.size()) << 32;
  }

  int64_t scalar(const Arg& arg, const c10::IValue& value) {
    if (value.isNone()) return put(int64_t('N')), -2;
    int64_t type = value.isBool() ? 0 : value.isInt() ? 1 : value.isDouble() ? 2 : value.isComplexDouble() ? 3 : 4;
    if (type == 4) return cacheable = false, -2;
    bool fixed = arg.is_static;
    if (arg.is_static_integral && !fixed) {
      const double number = type == 1 ? double(value.toInt()) : type == 2 ? value.toDouble() : 0.25;
      fixed = type < 2 || (type == 2 && (number == 0.5 || number == std::floor(number)));
    }
    if (!fixed) return put(int64_t('V') | type << 8), operand(value);
    put(int64_t('S') | type << 8);
    if (type == 0) put(int64_t(value.toBool()));
    if (type == 1) put(value.toInt());
    if (type == 2) put(value.toDouble());
    if (type == 3) put(value.toComplexDouble().real()), put(value.toComplexDouble().imag());
    return -2;
  }

  void other(const c10::IValue& value) {
    if (value.isNone()) {
      put(int64_t('N'));
    } else if (value.isInt()) {
      put(int64_t('i')), put(value.toInt());
    } else if (value.isBool()) {
      put(int64_t('b') | int64_t(value.toBool()) << 8);
    } else if (value.isDouble()) {
      put(int64_t('d')), put(value.toDouble());
    } else if (value.isIntList()) {
      const auto list = value.toIntList();
      put(int64_t('I') | static_cast<int64_t>(list.size()) << 8);
      for (int64_t item : list) put(item);
    } else if (value.isBoolList()) {
      const auto list = value.toBoolList();
      put(int64_t('B') | static_cast<int64_t>(list.size()) << 8);
      for (bool item : list) put(int64_t(item));
    } else if (value.isDoubleList()) {
      const auto list = value.toDoubleList();
      put(int64_t('D') | static_cast<int64_t>(list.size()) << 8);
      for (double item : list) put(item);
    } else if (value.isString()) {
      const auto& text = value.toStringRef();
      put(int64_t('s') | static_cast<int64_t>(text.size()) << 8);
      key.append(text);
    } else if (value.isDevice()) {
      const auto device = value.toDevice();
      TORCH_CHECK(device.type() != kTPU || device.index() <= 0, "this process drives one tpu device; there is no ",
                  device);
      put(int64_t('v') | static_cast<int64_t>(device.type()) << 8);
    } else {
      cacheable = false;
    }
  }

  void argument(const Arg& arg, const c10::IValue& value) {
    bool is_list = false;
    const auto before = codes.size();
    auto absent = [&] { put(int64_t('N')), codes.push_back(-2); };
    if (arg.fallback && (value.isInt() || value.isDouble() || value.isBool()) &&
        value.tagKind() == arg.fallback->tagKind() && value == *arg.fallback) {
      put(int64_t('='));
      codes.push_back(-1);
    } else if (arg.kind == ArgKind::kTensor) {
      codes.push_back(tensor(value, arg.written, arg.is_static));
    } else if (arg.kind == ArgKind::kScalar || (arg.kind == ArgKind::kFloat && arg.is_data && value.isDouble())) {
      codes.push_back(scalar(arg, value));
    } else if (arg.kind == ArgKind::kTensorList || arg.kind == ArgKind::kScalarList) {
      if (value.isNone()) {
        absent();
      } else {
        is_list = true;
        const auto list = value.toListRef();
        put(int64_t('L') | static_cast<int64_t>(list.size()) << 8);
        for (const auto& item : list) {
          if (arg.kind == ArgKind::kTensorList) {
            codes.push_back(tensor(item, arg.written, arg.is_static));
          } else {
            kept.push_back(item);
            codes.push_back(scalar(arg, kept.back()));
          }
        }
      }
    } else if (arg.kind == ArgKind::kGenerator) {
      put(int64_t('G'));
      generator = value;
      codes.push_back(-2);
    } else {
      other(value), codes.push_back(-2);
    }
    lengths.push_back(is_list ? static_cast<int64_t>(codes.size() - before) : -1);
  }

  std::deque<c10::IValue> kept;  // list items that have no IValue of their own
};

void pack(const Op& op, at::ArrayRef<c10::IValue> args, Packed& packed) {
  packed.clear();
  packed.kept.clear();
  packed.reads_views = op.reads_views;
  packed.put(op.id | epoch << 20);
  packed.put(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  for (size_t i = 0; i < args.size(); ++i) packed.argument(op.args[i], args[i]);
  for (int64_t index : packed.written) {
    const Slot* slot = packed.operands[index].slot;
    const bool donate = slot->value && slot->bytes >= donation_threshold && Py_REFCNT(slot->value) == 1;
    packed.put(int64_t(donate));
  }
}

// ---------------------------------------------------------------------------------------- running an entry

py::object to_python(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& t = value.toTensor();
    if (t.defined() && t.device().is_cpu() && t.unsafeGetTensorImpl()->is_wrapped_number())
      return torch::jit::toPyObject(c10::IValue(t.item()));
  }
  return torch::jit::toPyObject(value);
}

py::list operand_values(const Entry& entry, const Packed& packed) {
  py::list values(entry.inputs.size());
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    const auto& operand = packed.operands[entry.inputs[i]];
    PyObject* value;
    if (operand.slot) {
      value = operand.slot->value ? operand.slot->value : Py_None;
      Py_INCREF(value);
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

at::Tensor make_result(const Result& result, PyObject* value) {
  auto tensor = new_tensor(result.size, result.stride, result.dtype);
  set_slot(slot_of(tensor.storage()), value, result.aval, result.bytes);
  return tensor;
}

void push_result(const Op& op, const py::object& result, Stack* stack) {
  const auto& returns = op.handle.schema().returns();
  if (returns.empty()) return;
  if (returns.size() == 1) {
    torch::jit::push(stack, torch::jit::toIValue(result, returns[0].type()));
    return;
  }
  auto items = py::reinterpret_borrow<py::tuple>(py::tuple(result));
  TORCH_INTERNAL_ASSERT(items.size() == returns.size());
  for (size_t i = 0; i < returns.size(); ++i) torch::jit::push(stack, torch::jit::toIValue(items[i], returns[i].type()));
}

void run_entry(const Op& op, const Entry& entry, const Packed& packed, Stack* stack) {
  const auto count = op.args.size();
  py::object generator = packed.generator.isNone() ? py::object(py::none()) : torch::jit::toPyObject(packed.generator);
  py::list values = operand_values(entry, packed);
  PyObject* arguments[] = {values.ptr(), generator.ptr()};
  auto answer = py::reinterpret_steal<py::object>(PyObject_Vectorcall(entry.program.ptr(), arguments, 2, nullptr));
  if (!answer) throw py::error_already_set();
  values = py::list();
  if (entry.callback) {
    torch::jit::drop(stack, count);
    push_result(op, answer, stack);
    return;
  }
  TORCH_INTERNAL_ASSERT(PyList_Check(answer.ptr()));
  Py_ssize_t next = 0;
  std::vector<c10::IValue> outputs;
  outputs.reserve(entry.returns.size());
  for (const auto& spec : entry.returns) {
    auto make = [&](const Result& result) -> at::Tensor {
      if (result.kind == Result::kArgument) return torch::jit::peek(*stack, result.argument, count).toTensor();
      if (result.kind == Result::kNone) return at::Tensor();
      return make_result(result, PyList_GET_ITEM(answer.ptr(), next++));
    };
    if (spec.is_list) {
      std::vector<at::Tensor> list;
      for (const auto& result : spec.results) list.push_back(make(result));
      outputs.emplace_back(std::move(list));
    } else if (spec.results[0].kind == Result::kConstant) {
      const auto number = spec.results[0].argument;
      const bool is_bool = op.handle.schema().returns()[outputs.size()].type()->kind() == c10::TypeKind::BoolType;
      outputs.push_back(is_bool ? c10::IValue(number != 0) : c10::IValue(number));
    } else {
      outputs.emplace_back(make(spec.results[0]));
    }
  }
  for (const auto& write : entry.writes)
    set_slot(packed.operands[write.operand].slot, PyList_GET_ITEM(answer.ptr(), next++), write.aval, write.bytes);
  torch::jit::drop(stack, count);
  for (auto& output : outputs) torch::jit::push(stack, std::move(output));
}

// A copy between tensors that are all of their storages, in the same order, shares the value: values are immutable.
bool share_copy(at::ArrayRef<c10::IValue> args) {
  const auto &target = args[0].toTensor(), &source = args[1].toTensor();
  if (source.device().type() != kTPU || target.device().type() != kTPU || target.scalar_type() != source.scalar_type() ||
      target.sizes() != source.sizes() || target.strides() != source.strides() || target.is_conj() != source.is_conj() ||
      target.is_neg() != source.is_neg() || target.storage_offset() || source.storage_offset() ||
      !target.is_non_overlapping_and_dense())
    return false;
  const auto bytes = target.numel() * target.itemsize();
  if (target.storage().nbytes() != static_cast<size_t>(bytes) || source.storage().nbytes() != static_cast<size_t>(bytes))
    return false;
  Slot *to = slot_of(target.storage()), *from = slot_of(source.storage());
  if (!from->value) return false;
  if (to != from) set_slot(to, from->value, from->aval, from->bytes);
  return true;
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
      if (op->handle.hasKernelForDispatchKey(key)) return op->handle.callBoxedForDispatchKey(key, *stack);
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, op->handle.operator_name(), " has no composite definition");
  }

  bool run_checked(Stack* stack) {
    if (op->kind == Kind::kUnknown) prepare();
    if (op->kind == Kind::kComposite) return true;
    auto args = python_arguments(*op, *stack);
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
      if (op->kind == Kind::kProgram) {
        pack(*op, args, *packed);
        if (packed->cacheable) {
          auto found = table.find(packed->key);
          if (found != table.end()) {
            const auto entry = found->second;  // another thread may clear the table meanwhile
            run_entry(*op, *entry, *packed, stack);
            break;
          }
        }
      }
      TORCH_INTERNAL_ASSERT(tries < 8, op->handle.operator_name(), ": the entry made for a call is not found");
      auto answer = miss(*packed, stack);
      if (answer.ptr() == Py_Ellipsis) continue;  // an entry was made, or an argument put in order: look again
      if (answer.ptr() == Py_NotImplemented) {
        is_composite = true;
        break;
      }
      torch::jit::drop(stack, count);
      push_result(*op, answer, stack);
      break;
    }
    packed->clear();
    pool.push_back(std::move(packed));
    return is_composite;
  }

  py::object miss(const Packed& packed, Stack* stack) {
    auto args = python_arguments(*op, *stack);
    if (op->kind == Kind::kPython) return hook("call_python")(op->overload, args);
    py::list codes;
    size_t next = 0;
    for (int64_t length : packed.lengths) {
      if (length < 0) {
        codes.append(packed.codes[next++]);
      } else {
        codes.append(std::vector<int64_t>(packed.codes.begin() + next, packed.codes.begin() + next + length));
        next += length;
      }
    }
    py::list arrays, donated;
    for (const auto& operand : packed.operands)
      arrays.append(operand.slot && operand.slot->value ? operand.slot->aval : -1);
    for (int64_t index : packed.written) {
      const Slot* slot = packed.operands[index].slot;
      if (slot->value && slot->bytes >= donation_threshold && Py_REFCNT(slot->value) == 1) donated.append(index);
    }
    py::object key = packed.cacheable ? py::object(py::bytes(packed.key)) : py::object(py::none());
    return hook("miss")(op->overload, args, codes, arrays, donated, key);
  }

  void prepare() {
    const auto& name = op->handle.operator_name();
    op->overload = hook("resolve")(name.name, name.overload_name);
    py::dict plan = hook("prepare")(op->overload);
    const auto kind = plan["kind"].cast<std::string>();
    auto names = [&](const char* field) { return plan[field].cast<std::unordered_set<std::string>>(); };
    const auto fixed = names("static"), integral = names("static_integral"), data = names("data");
    const auto& arguments = op->handle.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      op->args[i].is_static = fixed.count(arguments[i].name()) || fixed.count("*");
      op->args[i].is_static_integral = integral.count(arguments[i].name());
      op->args[i].is_data = data.count(arguments[i].name());
    }
    op->reads_views = plan["views"].cast<bool>();
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

// Operators that a backend must answer for: all but those that PyTorch defines by others with their gradients, the views
// (their composite kernels do) and what device.cpp registers.
bool wants_kernel(const c10::OperatorHandle& handle, const std::unordered_set<std::string>& skipped) {
  const auto& name = handle.operator_name();
  if (name.name.rfind("aten::", 0) != 0) return false;
  const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  if (skipped.count(full) || is_view(handle.schema()) || handle.hasTag(at::Tag::inplace_view)) return false;
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return false;
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    return handle.hasKernelForDispatchKey(c10::DispatchKey::CPU);  // and so has gradients of its own
  return true;
}

int64_t register_kernels(const std::unordered_set<std::string>& skipped) {
  static auto& library =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
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
    result.argument = item.cast<int64_t>();
  } else {
    auto fields = item.cast<py::tuple>();
    if (fields.size() == 2) {  // ("constant", number)
      result.kind = Result::kConstant;
      result.argument = fields[1].cast<int64_t>();
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

}  // namespace

void bind_dispatch(py::module_& m) {
  m.def("register_kernels", &register_kernels, "Registers the boxed kernel for all of ATen but the named overloads.");
  m.def("install", [](py::bytes key, py::object program, bool callback, std::vector<int64_t> inputs, py::list returns,
                      py::list writes) {
    auto entry = std::make_shared<Entry>();
    entry->program = std::move(program);
    entry->callback = callback;
    entry->inputs = std::move(inputs);
    for (const auto& item : returns) {
      Return spec;
      spec.is_list = py::isinstance<py::list>(item);
      if (spec.is_list) {
        for (const auto& part : item.cast<py::list>()) spec.results.push_back(parse_result(part));
      } else {
        spec.results.push_back(parse_result(item));
      }
      entry->returns.push_back(std::move(spec));
    }
    for (const auto& item : writes) {
      auto fields = item.cast<py::tuple>();
      entry->writes.push_back({fields[0].cast<int64_t>(), fields[1].cast<int64_t>(), fields[2].cast<size_t>()});
    }
    table.emplace(std::string(key), std::move(entry));  // two threads may make the same entry: the first one stays
  }, "Adds an entry to the call cache; returns and writes are described in torch_tpu/eager/dispatch.py.");
  m.def("set_debug", [](bool on) { debug = on; }, "Whether calls go through check_call and finish_call.");
  m.def("define_aval", [](size_t id, std::vector<int64_t> size, py::object dtype) {
    if (avals.size() <= id) avals.resize(id + 1);
    Aval aval{reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type, size, size};
    int64_t step = 1;
    for (size_t dim = size.size(); dim-- > 0;) aval.stride[dim] = step, step *= std::max<int64_t>(size[dim], 1);
    avals[id] = std::move(aval);
  }, "Tells the shape and dtype that an array id stands for.");
  m.def("clear_table", [] { table.clear(); }, "Forgets every entry.");
  m.def("table_size", [] { return table.size(); });
  m.def("set_epoch", [](int64_t number) { epoch = number; }, "Programs made under another epoch are not found.");
  m.def("set_donation_threshold", [](size_t bytes) { donation_threshold = bytes; });
  m.def("composite_keys", [](const std::string& name, const std::string& overload) {
    auto handle = c10::Dispatcher::singleton().findOp({name, overload});
    std::vector<std::string> keys;
    if (handle) {
      for (auto key : {c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
                       c10::DispatchKey::CompositeExplicitAutograd, c10::DispatchKey::CompositeImplicitAutograd})
        if (handle->hasKernelForDispatchKey(key)) keys.emplace_back(c10::toString(key));
    }
    return keys;
  }, "The composite kernels an overload has.");
}

}  // namespace torch_tpu

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The C++ part of torch_tpu: PrivateUse1 as a device, and the call cache.";
  torch_tpu::bind_device(m);
  torch_tpu::bind_dispatch(m);
}
