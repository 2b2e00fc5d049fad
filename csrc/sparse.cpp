// Sparse COO tensors: a pair of dense device tensors, in PyTorch's own SparseTensorImpl. Most of PyTorch's kernels for
// them on the CPU touch no memory: they consist of other operators, and are registered for this device as they are. The
// others are in torch_tpu/eager/sparse.py, which also refuses what nothing serves.
#include "call.h"

#include <ATen/core/stack.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/library.h>

#include <unordered_set>

using torch::jit::Stack;

namespace torch_tpu {
namespace {

// Operators whose kernels touch no memory; each stands for its in-place and `out=` forms and its other overloads.
const std::unordered_set<std::string> kComposed = {
    // parts
    "_coalesced", "_dimI", "_dimV", "_indices", "_nnz", "_values", "dense_dim", "indices", "is_coalesced", "is_pinned",
    "sparse_dim", "values",
    // construction and copies
    "_pin_memory", "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "_to_dense",
    "_to_sparse", "clone", "copy", "copy_sparse_to_sparse", "empty", "empty_like", "resize_as_sparse", "sparse_resize",
    "sparse_resize_and_clear", "zero", "zeros",
    // shapes
    "_sparse_broadcast_to", "cat", "narrow_copy", "permute", "unsqueeze", "view_as_complex", "view_as_real",
    // arithmetic
    "add", "div", "floor_divide", "mm", "mul", "mv", "pow", "sub", "threshold_backward",
    // reductions
    "any", "native_norm", "norm", "sum",
    // one element at a time, zero where the element is zero
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "conj_physical", "deg2rad", "erf", "erfinv", "expm1", "floor",
    "frac", "isinf", "isnan", "isneginf", "isposinf", "log1p", "nan_to_num", "neg", "rad2deg", "relu", "round", "sgn", "sign",
    "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"};
const std::unordered_set<std::string> kWithMemory = {"add.out", "mul.out"};

bool is_composed(const std::string& packet, const std::string& overload) {
  if (kWithMemory.count(packet + "." + overload)) return false;
  const auto base = packet.back() == '_' ? packet.substr(0, packet.size() - 1) : packet;
  return kComposed.count(base) > 0;
}

// A kernel of PyTorch's CPU, as it is.
struct Borrowed final : c10::OperatorKernel {
  explicit Borrowed(c10::DispatchKey key) : key(key) {}
  c10::DispatchKey key;

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    check_fork();
    op.callBoxedForDispatchKey(key, *stack);
  }
};

void call_python(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) { call_hook("call_sparse", op, stack); }

void refuse_layout(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name(), ": the device has dense and sparse COO tensors only, no "
                              "compressed (CSR and its kin) or nested ones. Make them dense first, or keep them on the CPU");
}

torch::CppFunction borrowed(c10::DispatchKey key) {
  return torch::CppFunction::makeFromBoxedKernel(
      c10::BoxedKernel::makeFromFunctor<Borrowed>(std::make_unique<Borrowed>(key)));
}

void register_sparse() {
  using c10::DispatchKey;
  const auto to = DispatchKey::SparsePrivateUse1;
  static auto& library = *new torch::Library(torch::Library::IMPL, "aten", to, __FILE__, __LINE__);
  for (const auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(DispatchKey::SparseCPU)) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto packet = name.name.substr(6);
    const auto full = name.overload_name.empty() ? packet : packet + "." + name.overload_name;
    library.impl(full.c_str(), is_composed(packet, name.overload_name)
                                   ? borrowed(DispatchKey::SparseCPU)
                                   : torch::CppFunction::makeFromBoxedFunction<&call_python>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_python>()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>()); }
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {  // of dense tensors
  m.impl("_to_sparse", borrowed(c10::DispatchKey::CPU));
  m.impl("_to_sparse.sparse_dim", borrowed(c10::DispatchKey::CPU));
}

namespace {

// The number that the indices of each element are in row-major order: what composed kernels compare and sort by.
at::Tensor flatten_indices(const at::Tensor& indices, at::IntArrayRef size) {
  auto places = at::zeros({indices.size(1)}, indices.options().dtype(at::kLong));
  for (size_t dim = 0; dim < size.size(); ++dim)
    places = at::add(at::mul(places, size[dim]), indices[static_cast<int64_t>(dim)]);
  return places;
}

}  // namespace

void bind_sparse(py::module_& m) {
  m.def("register_sparse", &register_sparse, "Registers the kernels of sparse COO tensors.");
}

}  // namespace torch_tpu

namespace at::native {
DECLARE_DISPATCH(Tensor (*)(const Tensor&, IntArrayRef), flatten_indices_stub)  // of a header that is not installed
REGISTER_PRIVATEUSE1_DISPATCH(flatten_indices_stub, &torch_tpu::flatten_indices)
}  // namespace at::native
