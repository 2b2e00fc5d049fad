// Packing a call: its signature becomes a key (overload, each tensor's dtype, view and storage value, static arguments),
// what may vary without another program becomes its operands.
#include "call.h"

#include <ATen/ops/_local_scalar_dense_native.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/hash.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <cstring>
#include <unordered_map>

namespace torch_tpu {

size_t donation_threshold = 65536;

namespace {

int64_t epoch = 0;  // part of every key: settings that change programs

struct Aval {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> size, stride;
};
auto& avals = *new std::vector<Aval>;

// Windows that were seen: for the sizes and strides of each (their hash), the places where it started.
auto& places = *new std::unordered_map<size_t, std::vector<int64_t>>;
constexpr size_t kPlaces = 16;  // more than the parts that a program splits its tensors into, as a rule

// A window wanders if it was seen at many places: a random crop, or a loop that slides it. At few places, as the parts of
// a projection, it is a constant slice, which XLA fuses better.
bool wanders(const Slot* slot, const at::Tensor& t, int64_t start) {
  size_t hash = c10::hash_combine(0, static_cast<size_t>(slot->aval));
  for (int64_t size : t.sizes()) hash = c10::hash_combine(hash, static_cast<size_t>(size));
  for (int64_t stride : t.strides()) hash = c10::hash_combine(hash, static_cast<size_t>(stride));
  auto& seen = places[hash];
  if (seen.size() <= kPlaces && std::find(seen.begin(), seen.end(), start) == seen.end()) seen.push_back(start);
  return seen.size() > kPlaces;
}

// What of a view's offset is data: nothing, the indices that it selects, or these and where its windows start.
enum class Varies { kNothing, kSelected, kWindows };

// A view *selects* if its dimensions are whole or cut dimensions of the array and it takes one index of at least one
// other, x[i], x[:, i], x[i, j], or cuts the first one, x[i:j]. Then only those indices vary in a loop, and they are data;
// `fixed` is the rest of the offset. Where another dimension is cut, x[:, i:j], the place is data once it wanders.
Varies varies(const Slot* slot, const at::Tensor& t, int64_t& fixed) {
  if (!slot->holds()) return Varies::kNothing;
  const auto& aval = avals[slot->aval];
  if (aval.dtype != t.scalar_type()) return Varies::kNothing;
  const auto sizes = t.sizes(), strides = t.strides();
  const auto offset = t.storage_offset();
  int64_t matched = 0, wanted = 0, selected = 0, start = 0;
  bool cuts = false, windows = false;
  for (int64_t size : sizes) {
    if (size == 0) return Varies::kNothing;
    wanted += size > 1;
  }
  for (size_t dim = 0; dim < aval.size.size(); ++dim) {
    if (aval.size[dim] == 1) continue;
    if (aval.size[dim] == 0) return Varies::kNothing;  // a storage that was made larger
    const auto index = offset / aval.stride[dim] % aval.size[dim];
    int64_t length = 0;
    for (size_t i = 0; i < sizes.size(); ++i)
      if (sizes[i] > 1 && strides[i] == aval.stride[dim]) length = length ? -1 : sizes[i];
    if (length < 0 || (length > 0 && index + length > aval.size[dim])) return Varies::kNothing;
    const bool is_first = matched + selected == 0;
    if (length == 0) {
      ++selected;
    } else if (is_first && length < aval.size[dim]) {
      ++matched, cuts = true;
    } else {
      ++matched, start += index * aval.stride[dim];
      windows |= length < aval.size[dim];
    }
  }
  if (matched != wanted || !(selected || cuts || windows)) return Varies::kNothing;
  if (offset / aval.stride[0] >= aval.size[0]) return Varies::kNothing;
  if (windows && wanders(slot, t, start)) return fixed = 0, Varies::kWindows;
  if (!selected && !cuts) return Varies::kNothing;
  return fixed = start, Varies::kSelected;
}

}  // namespace

void Packed::clear() {
  key.clear(), operands.clear(), codes.clear(), lengths.clear(), written.clear(), kept.clear();
  generator = c10::IValue();
  cacheable = true, shares = false;
}

int64_t Packed::operand(Slot* slot) {
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].slot == slot) return shares = true, static_cast<int64_t>(i);
  operands.push_back({slot, nullptr, 0});
  return static_cast<int64_t>(operands.size()) - 1;
}
int64_t Packed::operand(const c10::IValue& scalar) {
  operands.push_back({nullptr, &scalar, 0});
  return static_cast<int64_t>(operands.size()) - 1;
}

int64_t Packed::tensor(const c10::IValue& value, bool is_written, bool is_static) {
  if (value.isNone()) return put(int64_t('N')), -2;
  const at::Tensor& t = value.toTensor();
  if (!t.defined()) return put(int64_t('N')), -2;
  const auto* impl = t.unsafeGetTensorImpl();
  const auto dtype = static_cast<int64_t>(t.scalar_type());
  if (t.device().type() != kTPU || t.layout() != at::kStrided || !t.has_storage()) {
    if (!t.device().is_cpu() || t.dim() != 0 || t.layout() != at::kStrided || is_written) {
      cacheable = false;
      return -2;
    }
    put(int64_t(impl->is_wrapped_number() ? 'W' : 'C') | dtype << 8);
    if (!impl->is_wrapped_number() || !is_static) return operand(value);
    const auto number = at::native::_local_scalar_dense_cpu(t);  // past any dispatch mode
    if (number.isComplex()) put(number.toComplexDouble().real()), put(number.toComplexDouble().imag());
    if (number.isFloatingPoint()) put(number.toDouble());
    if (number.isIntegral(true)) put(number.toLong());
    return -2;
  }
  auto* storage = t.storage().unsafeGetStorageImpl();
  Slot* slot = slot_of(t.storage());
  const auto index = operand(slot);
  const auto sizes = t.sizes(), strides = t.strides();
  int64_t fixed = t.storage_offset();
  const auto moves = reads_views ? varies(slot, t, fixed) : Varies::kNothing;
  put(int64_t('T') | dtype << 8 | int64_t(t.is_conj()) << 16 | int64_t(t.is_neg()) << 17 | int64_t(moves) << 18 |
      static_cast<int64_t>(sizes.size()) << 24 | index << 32);
  put(slot->aval);
  if (!slot->holds()) {
    put(static_cast<int64_t>(storage->nbytes())), put(static_cast<int64_t>(slot->planned.size()));
    for (int64_t size : slot->planned) put(size);
  }
  put(fixed);
  key.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t));
  key.append(reinterpret_cast<const char*>(strides.data()), strides.size() * sizeof(int64_t));
  if (is_written && std::find(written.begin(), written.end(), index) == written.end()) written.push_back(index);
  if (moves == Varies::kNothing) return index;
  operands.push_back({nullptr, nullptr, t.storage_offset()});
  return index | static_cast<int64_t>(operands.size()) << 32 | int64_t(moves == Varies::kWindows) << 62;
}

int64_t Packed::scalar(const Arg& arg, const c10::IValue& value) {
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

void Packed::other(const c10::IValue& value) {
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

namespace {

// Several numbers that are the same are one operand, such as the step size that an optimizer has for each parameter.
bool are_same(at::ArrayRef<c10::IValue> numbers) {
  auto alike = [&](const c10::IValue& other) { return is_same(numbers[0], other); };
  return numbers.size() > 1 && std::all_of(numbers.begin(), numbers.end(), alike);
}

}  // namespace

void Packed::argument(const Arg& arg, const c10::IValue& value) {
  bool is_list = false;
  const auto before = codes.size();
  auto absent = [&] { put(int64_t('N')), codes.push_back(-2); };
  if (arg.fallback && (value.isInt() || value.isDouble() || value.isBool()) &&
      value.tagKind() == arg.fallback->tagKind() && value == *arg.fallback) {
    put(int64_t('='));
    codes.push_back(-1);
  } else if (arg.kind == ArgKind::kTensor) {
    codes.push_back(tensor(value, arg.written, arg.is_static));
  } else if (arg.kind == ArgKind::kScalar || (arg.kind == ArgKind::kFloat && arg.is_data && value.isDouble()) ||
             (arg.varies && vary)) {
    codes.push_back(scalar(arg, value));
  } else if (arg.kind == ArgKind::kTensorList || arg.kind == ArgKind::kScalarList) {
    if (value.isNone()) {
      absent();
    } else {
      is_list = true;
      const auto list = value.toListRef();
      const bool same = arg.kind == ArgKind::kScalarList && are_same(list);
      put(int64_t('L') | int64_t(same) << 7 | static_cast<int64_t>(list.size()) << 8);
      for (const auto& item : list) {
        if (arg.kind == ArgKind::kTensorList) {
          codes.push_back(tensor(item, arg.written, arg.is_static));
        } else if (same && codes.size() > before) {
          codes.push_back(codes.back());
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

// While calls are recorded, what can be donated is known only when they run.
bool Packed::can_donate(const Slot* slot) const {
  return !recording && slot->value && slot->bytes >= donation_threshold && Py_REFCNT(slot->value) == 1;
}

// Of start, end and step only how many elements they give decides about the program. Both ways in which PyTorch counts are
// put, in whole numbers and in floating ones.
bool Packed::count(const Op& op, at::ArrayRef<c10::IValue> args) {
  auto number = [&](size_t i) { return args[i].isInt() ? double(args[i].toInt()) : args[i].toDouble(); };
  bool whole = true;
  for (size_t i = 0; i < 3; ++i) {
    if (i == 2 && (op.args.size() < 3 || op.args[2].kind != ArgKind::kScalar)) break;
    if (!args[i].isInt() && !args[i].isDouble()) return false;
    whole &= args[i].isInt();
  }
  const bool stepped = op.args.size() > 2 && op.args[2].kind == ArgKind::kScalar;
  const double step = stepped ? number(2) : 1, floating = std::ceil((number(1) - number(0)) / step);
  if (!(floating >= 0 && floating < double(int64_t(1) << 52))) return false;
  put(int64_t('#') | int64_t(whole) << 8);
  put(floating);
  if (whole) {
    const int64_t by = stepped ? args[2].toInt() : 1, span = args[1].toInt() - args[0].toInt();
    put((span + by - (by > 0 ? 1 : -1)) / by);
  }
  return true;
}

namespace {

// Whether the arguments that may be data are. Those that the lowering refuses, or treats by themselves, are constants.
bool numbers_vary(const Op& op, at::ArrayRef<c10::IValue> args) {
  auto number = [&](size_t i) { return args[i].isInt() ? double(args[i].toInt()) : args[i].toDouble(); };
  for (size_t i = 0; i < args.size(); ++i) {
    const Arg& arg = op.args[i];
    if (!arg.varies) continue;
    if (!args[i].isInt() && !args[i].isDouble()) return false;
    if (!(arg.above < number(i) && number(i) < arg.below)) return false;
  }
  if (op.to < 0) return true;
  if (args[op.to].isDouble()) return number(op.from) < number(op.to);
  // Whole numbers: int64 holds any of them, and random bits of 32 are enough for what is no power of two.
  const int64_t from = op.from < 0 ? 0 : args[op.from].toInt(), to = args[op.to].toInt();
  const auto span = static_cast<uint64_t>(to) - static_cast<uint64_t>(from);
  if (from >= to || span >> 32 || !(span & (span - 1))) return false;
  auto dtype = at::kLong;
  const auto& arguments = op.handle->schema().arguments();
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].isTensor() && arguments[i].name() == "self") dtype = args[i].toTensor().scalar_type();
    if (args[i].isInt() && arguments[i].name() == "dtype") dtype = static_cast<at::ScalarType>(args[i].toInt());
  }
  return dtype == at::kLong;
}

}  // namespace

// Of a list that is written, which tensors meet decides in what order it is: then offsets are no data.
void Packed::pack(const Op& op, at::ArrayRef<c10::IValue> args) {
  reads_views = op.reads_views;
  pack_all(op, args);
  if (!(op.is_foreach && op.writes && shares && reads_views)) return;
  reads_views = false;
  pack_all(op, args);
}

void Packed::pack_all(const Op& op, at::ArrayRef<c10::IValue> args) {
  clear();
  vary = op.has_varying && numbers_vary(op, args);
  put(op.id | epoch << 20);
  put(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  const bool is_counted = op.counted >= 0 && count(op, args);
  for (size_t i = 0; i < args.size(); ++i) {
    if (is_counted && static_cast<int64_t>(i) == op.counted) {
      codes.push_back(-2), lengths.push_back(-1);
    } else if (op.counted >= 0 && !is_counted && op.args[i].kind == ArgKind::kScalar) {
      Arg constant = op.args[i];
      constant.is_static = true;
      argument(constant, args[i]);
    } else {
      argument(op.args[i], args[i]);
    }
  }
  for (int64_t index : written) put(int64_t(can_donate(operands[index].slot)));
}

bool is_number(int64_t aval, at::ScalarType dtype) {
  const auto& found = avals[aval];
  return found.dtype == dtype && c10::multiply_integers(found.size) == 1;
}

// Python numbers come as they are or as 0-d tensors on the CPU.
bool is_same(const c10::IValue& one, const c10::IValue& other) {
  if (one.isTensor() && other.isTensor()) {
    const auto &a = one.toTensor(), &b = other.toTensor();
    return a.is_same(b) || (a.scalar_type() == b.scalar_type() &&
                            std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.itemsize()) == 0);
  }
  if (one.isDouble() && other.isDouble()) {
    const double a = one.toDouble(), b = other.toDouble();
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
  if (one.isInt() && other.isInt()) return one.toInt() == other.toInt();
  return one.isBool() && other.isBool() && one.toBool() == other.toBool();
}

py::object to_python(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& t = value.toTensor();
    if (t.defined() && t.device().is_cpu() && t.unsafeGetTensorImpl()->is_wrapped_number())
      return torch::jit::toPyObject(c10::IValue(at::native::_local_scalar_dense_cpu(t)));
  }
  return torch::jit::toPyObject(value);
}

void bind_pack(py::module_& m) {
  m.def("define_aval", [](size_t id, std::vector<int64_t> size, py::object dtype) {
    if (avals.size() <= id) avals.resize(id + 1);
    Aval aval{reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type, size, size};
    int64_t step = 1;
    for (size_t dim = size.size(); dim-- > 0;) aval.stride[dim] = step, step *= std::max<int64_t>(size[dim], 1);
    avals[id] = std::move(aval);
  }, "Tells the shape and dtype that an array id stands for.");
  m.def("set_epoch", [](int64_t number) { epoch = number; }, "Programs made under another epoch are not found.");
  m.def("set_donation_threshold", [](size_t bytes) { donation_threshold = bytes; });
}

}  // namespace torch_tpu
