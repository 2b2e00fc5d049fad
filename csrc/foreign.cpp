// Operators of other libraries, such as torchvision::nms. A kernel that somebody registers for this device is found by
// PyTorch; the others get here, and torch_tpu/eager/foreign.py answers.
#include "call.h"

#include <ATen/core/stack.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/library.h>

namespace torch_tpu {

void call_hook(const char* name, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_fork();
  Activity activity;
  py::gil_scoped_acquire gil;
  try {
    const auto& full = op.operator_name();
    const auto& returns = op.schema().returns();
    const auto count = op.schema().arguments().size();
    const BelowSubclasses guard;
    py::list args;
    for (size_t i = 0; i < count; ++i) args.append(to_python(torch::jit::peek(stack, i, count)));
    const auto result = hook(name)(hook("resolve")(full.name, full.overload_name), args);
    torch::jit::drop(stack, count);
    if (returns.size() == 1) return torch::jit::push(stack, torch::jit::toIValue(result, returns[0].type()));
    const py::list items = returns.empty() ? py::list() : py::list(result);
    TORCH_INTERNAL_ASSERT(items.size() == returns.size());
    for (size_t i = 0; i < items.size(); ++i) torch::jit::push(stack, torch::jit::toIValue(items[i], returns[i].type()));
  } catch (py::error_already_set& error) {
    rethrow(error);
  }
}

namespace {

void call_foreign(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  call_hook("call_foreign", op, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_foreign>()); }

}  // namespace torch_tpu
