// Which of PyTorch's forms of attention F.scaled_dot_product_attention takes on this device. It is asked here, not in
// Python, because the answer must be the same for real tensors and for those that torch.compile traces with.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

namespace {

bool same(const at::Tensor& a, const at::Tensor& b, int64_t dim) {
  return TORCH_GUARD_OR_FALSE(a.sym_size(dim).sym_eq(b.sym_size(dim)));
}

// One program for the whole attention where its lowering takes the call, else PyTorch's own composition.
int64_t form_of_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool enable_gqa) {
  const auto math = static_cast<int64_t>(at::SDPBackend::math);
  if (!at::globalContext().userEnabledOverrideableSDP()) return math;
  for (const auto* t : {&query, &key, &value}) {
    if (t->dim() != 4 || !t->is_floating_point() || t->scalar_type() != query.scalar_type()) return math;
    if (!TORCH_GUARD_OR_FALSE(t->sym_numel().sym_gt(0)) || !same(*t, query, 0)) return math;
  }
  if (!same(query, key, 3) || !same(key, value, 1) || !same(key, value, 2)) return math;
  const bool grouped = enable_gqa && TORCH_GUARD_OR_FALSE((query.sym_size(1) % key.sym_size(1)).sym_eq(0));
  return grouped || same(query, key, 1) ? static_cast<int64_t>(at::SDPBackend::overrideable) : math;
}

}  // namespace

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &form_of_attention)
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_fused_sdp_choice", form_of_attention); }
