"""The calls of `overloads.py`: for each overload a function that makes one, of a dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing import make_tensor
from torch.testing._internal.opinfo.core import SampleInput as Call

from torch_tpu.device import recurrent


@dataclass(frozen=True)
class Maker:
    """Makes the tensors of a sample."""

    dtype: torch.dtype
    requires_grad: bool = False

    def __call__(self, *shape: int, low: float | None = None, high: float | None = None) -> torch.Tensor:
        """A tensor of the case's dtype, which gradients are taken of."""
        differentiable = self.dtype.is_floating_point or self.dtype.is_complex
        if differentiable and low is None:  # as large as what networks have
            low, high = -1, 1
        return make_tensor(
            shape,
            dtype=self.dtype,
            device="cpu",
            low=low,
            high=high,
            requires_grad=self.requires_grad and differentiable,
        )

    def of(self, dtype: torch.dtype, *shape: int, low: float = 0, high: float = 2) -> torch.Tensor:
        """A tensor of one dtype in all cases."""
        return make_tensor(shape, dtype=dtype, device="cpu", low=low, high=high)

    def two(self, low: float | None = None, high: float | None = None) -> list[torch.Tensor]:
        """A list of tensors of different shapes."""
        return [self(3, low=low, high=high), self(2, 2, low=low, high=high)]

    @property
    def new(self) -> dict[str, Any]:
        """The keywords of a tensor made from nothing."""
        return {"dtype": self.dtype, "device": "cpu"}


Table = dict[str, Callable[[Maker], Call]]


def _recurrence(t: Maker) -> Call:
    weights = t(20, 3), t(20, 5), t(20), t(20), None
    return Call(t(4, 2, 3), t(2, 5), t(2, 5), *weights, torch.tensor([4, 2]), "lstm", False, False)


def _recurrence_backward(t: Maker) -> Call:
    """Of numbers above zero: no sums whose terms cancel, of which less is left than was rounded."""
    x, hx, *weights = (t(*shape, low=0.1, high=0.5) for shape in ((4, 2, 3), (2, 5), (5, 3), (5, 5), (5,), (5,)))
    layer: tuple[Any, ...] = (x, hx, None, *weights, None, torch.tensor([4, 2]), "relu", True)
    grads = t(4, 2, 5, low=0.1, high=0.5), t(2, 5, low=0.1, high=0.5), None
    states, nothing = recurrent.unrolled(*layer)[0].detach(), t(0)
    return Call(*grads, states, nothing, nothing, *layer, [True, True, False, True, True, True, True, False])


def _steps(t: Maker) -> list[torch.Tensor]:
    return [t.of(torch.float32, low=2, high=9) for _ in range(2)]


def _adam(t: Maker, **rate: Any) -> Call:
    lists = [t.two() for _ in range(3)] + [t.two(1, 3) for _ in range(2)]
    factors = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
    return Call(*lists, _steps(t), **(rate | factors), amsgrad=True, maximize=False)


def _adagrad(t: Maker, **rate: Any) -> Call:
    factors = {"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8}
    return Call(t.two(), t.two(), t.two(1, 3), _steps(t), **rate, **factors, maximize=False)


def _sgd(t: Maker, **rate: Any) -> Call:
    factors = {"weight_decay": 0.1, "momentum": 0.9, "dampening": 0.1}
    flags = {"nesterov": False, "maximize": False, "is_first_step": False}
    return Call(t.two(), t.two(), t.two(), **rate, **factors, **flags)


def _float8(t: Maker, rows: int, columns: int, *groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The operands of a scaled product: the second one is stored by columns.

    Raises:
        NotImplementedError: the result cannot be of the case's dtype.
    """
    if t.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise NotImplementedError("a product of 8-bit floats has at most 32 bits")
    one, other = t.of(torch.float32, rows, 32), t.of(torch.float32, *groups, columns, 32)
    return one.to(torch.float8_e4m3fn), other.to(torch.float8_e4m3fn).mT


def _statistics(t: Maker, count: int) -> list[torch.Tensor]:
    """Per-channel numbers of a batch norm, in the dtype of its accumulation."""
    return [t.of(torch.float64 if t.dtype is torch.float64 else torch.float32, 3, low=1) for _ in range(count)]


def _gathered(t: Maker) -> list[torch.Tensor]:
    """Means and inverse deviations of two processes."""
    return [t.of(torch.float64 if t.dtype is torch.float64 else torch.float32, 2, 3, low=1) for _ in range(2)]


def _aligned(t: Maker) -> list[torch.Tensor]:
    """The first arguments of a CTC loss."""
    return [t(6, 2, 4), torch.tensor([[1, 2], [3, 3]]), torch.tensor([6, 6]), torch.tensor([2, 2])]


def _alignment(t: Maker) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.aten._ctc_loss.Tensor(*_aligned(t))


def _gated(t: Maker) -> list[torch.Tensor]:
    """The gradient of a gated linear unit's input, that of its result, and its input."""
    grad, x = t(2, 3), t(2, 6)
    return [torch.ops.aten.glu_backward(grad, x, 1), grad, x]


def _attended(t: Maker) -> list[torch.Tensor]:
    """Query, key and value of an attention, its result and its log-sum-exp."""
    inputs = [t(2, 2, 3, 8), t(2, 2, 5, 8), t(2, 2, 5, 8)]
    return [*inputs, *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*inputs)]


SAMPLES: Table = {
    # arithmetic
    "_add_relu.Scalar": lambda t: Call(t(3, 4), 2),
    "_add_relu.Tensor": lambda t: Call(t(3, 4), t(4), alpha=2),
    "bucketize.Scalar": lambda t: Call(3, t(6).sort().values),
    "clamp_max": lambda t: Call(t(3, 4), 1),
    "copysign.Scalar": lambda t: Call(t(3, 4), -1.5),
    "div.Scalar_mode": lambda t: Call(t(3, 4), 3, rounding_mode="floor"),
    "fill.Tensor": lambda t: Call(t(3, 4), t()),
    "floor_divide.Scalar": lambda t: Call(t(3, 4), 2),
    "fmod.Scalar": lambda t: Call(t(3, 4), 2),
    "isin.Scalar_Tensor": lambda t: Call(1, t(6, low=0, high=3)),
    "isin.Tensor_Scalar": lambda t: Call(t(6, low=0, high=3), 1),
    "norm.Scalar": lambda t: Call(t(3, 4), 3),
    "norm.ScalarOpt_dim_dtype": lambda t: Call(t(3, 4), 2, [1], True, dtype=t.dtype),
    "norm.ScalarOpt_dtype": lambda t: Call(t(3, 4), 1, dtype=t.dtype),
    "remainder.Scalar_Tensor": lambda t: Call(7, t(3, 4, low=1, high=5)),
    "searchsorted.Scalar": lambda t: Call(t(6).sort().values, 3),
    # lists, optimizers
    "_foreach_add.Tensor": lambda t: Call(t.two(), t(), alpha=2),
    "_foreach_addcdiv.ScalarList": lambda t: Call(t.two(), t.two(), t.two(1, 5), [2, 3]),
    "_foreach_addcmul.ScalarList": lambda t: Call(t.two(), t.two(), t.two(), [2, 3]),
    "_foreach_div.Tensor": lambda t: Call(t.two(), t(low=1, high=5)),
    "_foreach_lerp.Scalar": lambda t: Call(t.two(), t.two(), 0.25),
    "_foreach_lerp.ScalarList": lambda t: Call(t.two(), t.two(), [0.25, 0.75]),
    "_foreach_mul.Tensor": lambda t: Call(t.two(), t()),
    "_foreach_pow.Scalar": lambda t: Call(t.two(1, 3), 2),
    "_foreach_pow.ScalarAndTensor": lambda t: Call(2, t.two(1, 3)),
    "_foreach_pow.ScalarList": lambda t: Call(t.two(1, 3), [2, 3]),
    "_foreach_powsum.Scalar": lambda t: Call(t.two(), 2),
    "_amp_foreach_non_finite_check_and_unscale": lambda t: Call(
        t.two(), torch.zeros(1), t.of(torch.float32, 1)
    ),
    "_amp_update_scale": lambda t: Call(
        t(1, low=1), t.of(torch.int32, 1), torch.zeros(1), 2.0, 0.5, 2
    ),
    # made from nothing, random
    "empty.memory_format": lambda t: Call([3, 4], **t.new),
    "empty_strided": lambda t: Call([3, 4], [4, 1], **t.new),
    "eye": lambda t: Call(4, **t.new),
    "hamming_window.periodic_alpha": lambda t: Call(8, True, 0.5, **t.new),
    "hamming_window.periodic_alpha_beta": lambda t: Call(8, False, 0.5, 0.4, **t.new),
    "kaiser_window.beta": lambda t: Call(8, True, 6.0, **t.new),
    "linspace.Scalar_Tensor": lambda t: Call(1, t(low=5, high=9), 4, **t.new),
    "logspace.Tensor_Scalar": lambda t: Call(t(low=0, high=2), 3, 4, 2.0, **t.new),
    "range": lambda t: Call(1, 6, **t.new),
    "range.step": lambda t: Call(1, 9, 2, **t.new),
    "rand.generator": lambda t: Call([3, 4], generator=None, **t.new),
    "randn.generator": lambda t: Call([3, 4], generator=None, **t.new),
    "randint": lambda t: Call(9, [3, 4], **t.new),
    "randint.generator": lambda t: Call(9, [3, 4], generator=None, **t.new),
    "randint.low_generator": lambda t: Call(2, 9, [3, 4], generator=None, **t.new),
    "randperm": lambda t: Call(9, **t.new),
    "randperm.generator": lambda t: Call(9, generator=None, **t.new),
    "rand_like": lambda t: Call(t(3, 4)),
    "rand_like.generator": lambda t: Call(t(3, 4), generator=None),
    "randn_like.generator": lambda t: Call(t(3, 4), generator=None),
    "randint_like": lambda t: Call(t(3, 4), 9),
    "randint_like.Tensor": lambda t: Call(t(3, 4), torch.tensor(9)),
    "randint_like.Tensor_generator": lambda t: Call(t(3, 4), torch.tensor(9), generator=None),
    "randint_like.generator": lambda t: Call(t(3, 4), 9, generator=None),
    "randint_like.low_generator_dtype": lambda t: Call(t(3, 4), 2, 9, generator=None),
    "random": lambda t: Call(t(3, 4)),
    "random.from": lambda t: Call(t(3, 4), 2, 9),
    "random.to": lambda t: Call(t(3, 4), 9),
    "bernoulli.Tensor": lambda t: Call(t(3, 4), t.of(torch.float32, 3, 4, high=1)),
    "bernoulli.p": lambda t: Call(t(3, 4), 0.3),
    "binomial": lambda t: Call(t(3, 4, low=1, high=9), t.of(t.dtype, 3, 4, high=1)),
    "normal.Tensor_float": lambda t: Call(t(3, 4), 2.0),
    "normal.float_Tensor": lambda t: Call(2.0, t(3, 4, low=1, high=2)),
    "poisson": lambda t: Call(t(3, 4, low=1, high=9)),
    "_fused_dropout": lambda t: Call(t(3, 4), 0.3),
    "_sample_dirichlet": lambda t: Call(t(3, 4, low=1, high=3)),
    "_standard_gamma": lambda t: Call(t(3, 4, low=1, high=3)),
    "_standard_gamma_grad": lambda t: Call(t(3, 4, low=1, high=3), t(3, 4, low=1, high=3)),
    # moved
    "_conj_copy": lambda t: Call(t(3, 4)),
    "_neg_view_copy": lambda t: Call(t(3, 4)),
    "_reshape_alias_copy": lambda t: Call(t(2, 6), [3, 4], [4, 1]),
    "_reshape_copy": lambda t: Call(t(2, 6), [3, 4]),
    "_to_copy": lambda t: Call(t(3, 4), dtype=torch.float32),
    "_unsafe_index.Tensor": lambda t: Call(t(5, 4), [t.of(torch.int64, 3, high=5)]),
    "_unsafe_index_put": lambda t: Call(t(5, 4), [torch.tensor([3, 1])], t(2, 4)),
    "_unsafe_view": lambda t: Call(t(2, 6), [3, 4]),
    "clone": lambda t: Call(t(3, 4).t()),
    "detach_copy": lambda t: Call(t(3, 4)),
    "lift_fresh_copy": lambda t: Call(t(3, 4)),
    "native_channel_shuffle": lambda t: Call(t(2, 6, 2, 2), 3),
    "reflection_pad3d": lambda t: Call(t(2, 3, 4, 5), [1, 2, 1, 0, 2, 1]),
    "reflection_pad3d_backward": lambda t: Call(t(2, 6, 5, 8), t(2, 3, 4, 5), [1, 2, 1, 0, 2, 1]),
    "replication_pad1d": lambda t: Call(t(2, 3), [1, 2]),
    "replication_pad1d_backward": lambda t: Call(t(2, 6), t(2, 3), [1, 2]),
    "replication_pad3d": lambda t: Call(t(2, 3, 4, 5), [1, 2, 1, 0, 2, 1]),
    "replication_pad3d_backward": lambda t: Call(t(2, 6, 5, 8), t(2, 3, 4, 5), [1, 2, 1, 0, 2, 1]),
    "scatter.value_reduce": lambda t: Call(t(3, 4), 0, torch.tensor([[0, 2, 1, 0]]), 2, reduce="multiply"),
    "select_copy.int": lambda t: Call(t(3, 4), 1, 2),
    "slice_copy.Tensor": lambda t: Call(t(3, 4), 1, 1, 4, 2),
    "split_copy.Tensor": lambda t: Call(t(5, 4), 2),
    "squeeze_copy": lambda t: Call(t(3, 1, 4, 1)),
    "squeeze_copy.dims": lambda t: Call(t(3, 1, 4, 1), [1, 3]),
    "unsafe_split.Tensor": lambda t: Call(t(5, 4), 2),
    "unsafe_split_with_sizes": lambda t: Call(t(5, 4), [2, 3]),
    "view_as_complex_copy": lambda t: Call(t(3, 2)),
    "view_as_real_copy": lambda t: Call(t(3, 4)),
    "view_copy.dtype": lambda t: Call(t(3, 8), torch.uint8),
    # reduced, sorted
    "_aminmax": lambda t: Call(t(3, 4)),
    "_aminmax.dim": lambda t: Call(t(3, 4), 1),
    "_histogramdd_from_bin_tensors": lambda t: Call(t(9, 2), [t(4).sort().values, t(3).sort().values]),
    "_is_all_true": lambda t: Call(t(3, 4)),
    "_is_any_true": lambda t: Call(t(3, 4)),
    "_logcumsumexp": lambda t: Call(t(3, 4), 1),
    "_masked_softmax": lambda t: Call(t(2, 2, 3, 4), t.of(torch.bool, 2, 2, 3, 4), 3, 2),
    "_masked_softmax_backward": lambda t: Call(t(2, 3, 4), t(2, 3, 4), t.of(torch.bool, 2, 3, 4), 2),
    "_unique2": lambda t: Call(t(9, low=0, high=4), True, True, True),
    "all.dims": lambda t: Call(t(3, 4, 2), [0, 2]),
    "any.dims": lambda t: Call(t(3, 4, 2), [0, 2]),
    "count_nonzero.dim_IntList": lambda t: Call(t(3, 4, 2), [0, 2]),
    "histogram.bins_tensor": lambda t: Call(t(9), t(4).sort().values),
    "median.dim": lambda t: Call(t(3, 5), 1),
    "prod": lambda t: Call(t(3, 2, low=1, high=3)),
    "unique_dim_consecutive": lambda t: Call(t(6, 1, low=0, high=2), 0, True, True),
    # products
    "_addmm_activation": lambda t: Call(t(4), t(2, 3), t(3, 4), use_gelu=True),
    "_cholesky_solve_helper": lambda t: Call(t(3, 2), t(3, 3, low=1, high=3), False),
    "_compute_linear_combination": lambda t: Call(t(3, 4, 2), t(5, 3)),
    "_euclidean_dist": lambda t: Call(t(3, 4), t(5, 4)),
    "_grouped_mm": lambda t: Call(t(12, 16), t(2, 16, 8), torch.tensor([4, 12], dtype=torch.int32)),
    "_int_mm": lambda t: Call(t(18, 8), t(8, 16)),
    "_scaled_grouped_mm": lambda t: Call(
        *_float8(t, 32, 16, 2),
        t.of(torch.float32, 32, low=1),
        t.of(torch.float32, 2, 16, low=1),
        torch.tensor([16, 32], dtype=torch.int32),
        out_dtype=t.dtype,
    ),
    "_scaled_mm": lambda t: Call(
        *_float8(t, 16, 32), t.of(torch.float32, low=1), t.of(torch.float32, low=1), out_dtype=t.dtype
    ),
    "_scaled_mm_v2": lambda t: Call(
        *_float8(t, 16, 32),
        [t.of(torch.float32, low=1)],
        [0],
        [0],
        [t.of(torch.float32, low=1)],
        [0],
        [0],
        None,
        t.dtype,
    ),
    "_weight_int8pack_mm": lambda t: Call(t(4, 32), t.of(torch.int8, 16, 32, low=-9, high=9), t(16)),
    "_weight_norm_interface": lambda t: Call(t(3, 4), t(3, 1)),
    "_weight_norm_interface_backward": lambda t: Call(
        t(3, 4), t(3, 4), t(3, 1), t.of(torch.float32 if t.dtype.itemsize < 4 else t.dtype, 3, 1, low=1), 0
    ),
    "addmm.dtype": lambda t: Call(t.of(torch.float32, 4), t(2, 3), t(3, 4), torch.float32, beta=2, alpha=3),
    "baddbmm.dtype": lambda t: Call(t.of(torch.float32, 2, 2, 4), t(2, 2, 3), t(2, 3, 4), torch.float32),
    "bmm.dtype": lambda t: Call(t(2, 2, 3), t(2, 3, 4), torch.float32),
    "linear_backward": lambda t: Call(t(2, 3), t(2, 4), t(4, 3), [True, True, True]),
    "mm.dtype": lambda t: Call(t(2, 3), t(3, 4), torch.float32),
    # convolutions
    "_conv_depthwise2d": lambda t: Call(t(2, 3, 5, 5), t(6, 1, 3, 3), [3, 3], t(6), [1, 1], [1, 1], [1, 1]),
    "_convolution": lambda t: Call(
        t(2, 4, 5), t(6, 2, 3), t(6), [2], [1], [1], False, [0], 2, False, False, True, True
    ),
    "_slow_conv2d_backward.output_mask": lambda t: Call(
        t(2, 3, 5, 5), t(2, 2, 5, 5), t(3, 2, 3, 3), [3, 3], [1, 1], [1, 1], [True, True, True]
    ),
    "_slow_conv2d_forward": lambda t: Call(t(2, 2, 5, 5), t(3, 2, 3, 3), [3, 3], t(3), [1, 1], [1, 1]),
    "conv_depthwise3d": lambda t: Call(t(2, 3, 4, 4, 4), t(3, 1, 3, 3, 3), [3, 3, 3], t(3), [1, 1, 1], [1, 1, 1], [1, 1, 1]),
    "conv_tbc": lambda t: Call(t(5, 2, 3), t(3, 3, 4), t(4), 1),
    "convolution_backward_overrideable": lambda t: Call(
        t(2, 3, 5, 5), t(2, 2, 5, 5), t(3, 2, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]
    ),
    "convolution_overrideable": lambda t: Call(
        t(2, 2, 5, 5), t(3, 2, 3, 3), t(3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    ),
    "slow_conv3d_forward": lambda t: Call(t(2, 2, 4, 4, 4), t(3, 2, 2, 2, 2), [2, 2, 2], t(3), [1, 1, 1], [1, 1, 1]),
    "slow_conv_dilated2d": lambda t: Call(t(2, 2, 6, 6), t(3, 2, 2, 2), [2, 2], t(3), [1, 1], [1, 1], [2, 2]),
    "slow_conv_dilated3d": lambda t: Call(t(2, 2, 4, 4, 4), t(3, 2, 2, 2, 2), [2, 2, 2], t(3), [1, 1, 1], [1, 1, 1], [2, 2, 2]),
    "slow_conv_transpose2d": lambda t: Call(t(2, 2, 4, 4), t(2, 3, 3, 3), [3, 3], t(3), [2, 2], [1, 1], [1, 1]),
    "slow_conv_transpose3d": lambda t: Call(t(2, 2, 3, 3, 3), t(2, 3, 2, 2, 2), [2, 2, 2], t(3), [2, 2, 2], [1, 1, 1]),
    # networks
    "_batch_norm_no_update": lambda t: Call(
        t(2, 3, 4), t(3), t(3), t.of(t.dtype, 3), t.of(t.dtype, 3, low=1), 0.1, 1e-5
    ),
    "_native_batch_norm_legit.no_stats": lambda t: Call(t(2, 3, 4), t(3), t(3), True, 0.1, 1e-5),
    "_native_batch_norm_legit_no_training": lambda t: Call(
        t(2, 3, 4), t(3), t(3), t.of(t.dtype, 3), t.of(t.dtype, 3, low=1), 0.1, 1e-5
    ),
    "batch_norm_backward_elemt": lambda t: Call(
        t(2, 3, 4), t(2, 3, 4), *_statistics(t, 2), t(3), *_statistics(t, 2), torch.tensor([8], dtype=torch.int32)
    ),
    "batch_norm_backward_reduce": lambda t: Call(
        t(2, 3, 4), t(2, 3, 4), *_statistics(t, 2), t(3), True, True, True
    ),
    "batch_norm_elemt": lambda t: Call(t(2, 3, 4), t(3), t(3), *_statistics(t, 2), 1e-5),
    "batch_norm_gather_stats": lambda t: Call(t(2, 3, 4), *_gathered(t), *_statistics(t, 2), 0.1, 1e-5, 8),
    "batch_norm_gather_stats_with_counts": lambda t: Call(
        t(2, 3, 4), *_gathered(t), *_statistics(t, 2), 0.1, 1e-5, t.of(torch.float32, 2, low=4, high=9)
    ),
    "batch_norm_stats": lambda t: Call(t(2, 3, 4), 1e-5),
    "batch_norm_update_stats": lambda t: Call(t(2, 3, 4), t.of(t.dtype, 3), t.of(t.dtype, 3, low=1), 0.1),
    "_ctc_loss.Tensor": lambda t: Call(*_aligned(t)),
    "_ctc_loss_backward.Tensor": lambda t: Call(t(2), *_aligned(t), *_alignment(t), 0),
    "_embedding_bag_dense_backward": lambda t: Call(
        t(2, 3), torch.tensor([0, 4, 2, 2]), torch.tensor([0, 0, 1, 1]), torch.tensor([2, 2]),
        torch.zeros(2, dtype=torch.int64), 5, False, 0, None,
    ),
    "_embedding_bag_per_sample_weights_backward": lambda t: Call(
        t(2, 3), t(5, 3), torch.tensor([0, 4, 2, 2]), torch.tensor([0, 2]), torch.tensor([0, 0, 1, 1]), 0
    ),
    "_native_multi_head_attention": lambda t: Call(
        t(2, 3, 8), t(2, 3, 8), t(2, 3, 8), 8, 2, t(24, 8), t(24), t(8, 8), t(8)
    ),
    "_scaled_dot_product_flash_attention_for_cpu": lambda t: Call(t(2, 2, 3, 8), t(2, 2, 5, 8), t(2, 2, 5, 8)),
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda t: Call(
        t(2, 2, 3, 8), *_attended(t), 0.0, False
    ),
    "torch_tpu::recurrence": _recurrence,
    "torch_tpu::recurrence_backward": _recurrence_backward,
    "_thnn_fused_gru_cell": lambda t: Call(t(2, 12), t(2, 12), t(2, 4), t(12), t(12)),
    "_thnn_fused_gru_cell_backward": lambda t: Call(t(2, 4), t(2, 20), True),
    "_thnn_fused_lstm_cell": lambda t: Call(t(2, 16), t(2, 16), t(2, 4), t(16), t(16)),
    "_thnn_fused_lstm_cell_backward_impl": lambda t: Call(t(2, 4), t(2, 4), t(2, 4), t(2, 4), t(2, 16), True),
    "_transform_bias_rescale_qkv": lambda t: Call(t(2, 3, 24), t(24), 2),
    "_transformer_encoder_layer_fwd": lambda t: Call(
        t(2, 3, 8), 8, 2, t(24, 8), t(24), t(8, 8), t(8), True, False, 1e-5,
        t(8), t(8), t(8), t(8), t(16, 8), t(16), t(8, 16), t(8),
    ),
    "glu_jvp": lambda t: Call(t(2, 3), t(2, 6), t(2, 6), 1),
    "glu_backward_jvp": lambda t: Call(*_gated(t), t(2, 3), t(2, 6), 1),
    "nll_loss2d_forward": lambda t: Call(t(2, 3, 2, 2), t.of(torch.int64, 2, 2, 2, high=3), t(3), 1, -100),
    "nll_loss2d_backward": lambda t: Call(
        t(), t(2, 3, 2, 2), t.of(torch.int64, 2, 2, 2, high=3), t(3), 1, -100, t(low=3, high=4)
    ),
}  # fmt: skip
for _name in ("__lshift__", "__rshift__"):
    SAMPLES[f"{_name}.Scalar"] = lambda t: Call(t(3, 4, low=0, high=9), 2)
    SAMPLES[f"{_name}.Tensor"] = lambda t: Call(t(3, 4, low=0, high=9), t(4, low=0, high=3))
for _name in ("and", "or", "xor"):
    SAMPLES[f"bitwise_{_name}.Scalar"] = lambda t: Call(t(3, 4), 1)
    SAMPLES[f"bitwise_{_name}.Scalar_Tensor"] = lambda t: Call(1, t(3, 4))
for _name in ("left", "right"):
    SAMPLES[f"bitwise_{_name}_shift.Scalar_Tensor"] = lambda t: Call(9, t(3, 4, low=0, high=3))
    SAMPLES[f"bitwise_{_name}_shift.Tensor_Scalar"] = lambda t: Call(t(3, 4, low=0, high=9), 2)
_KINDS = [f"{prefix}chebyshev_polynomial_{kind}" for prefix in ("", "shifted_") for kind in "tuvw"]
for _name in (
    *_KINDS,
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
):
    SAMPLES[f"special_{_name}.n_scalar"] = lambda t: Call(t(3, 4), 3)
    SAMPLES[f"special_{_name}.x_scalar"] = lambda t: Call(0.5, t(3, 4, low=0, high=6))
for _name in ("special_xlog1py", "special_zeta", "xlogy"):
    _one, _other = ("Scalar_Self", "Scalar_Other") if _name == "xlogy" else ("self_scalar", "other_scalar")
    SAMPLES[f"{_name}.{_one}"] = lambda t: Call(2, t(3, 4, low=1, high=5))
    SAMPLES[f"{_name}.{_other}"] = lambda t: Call(t(3, 4, low=2, high=5), 3)
for _name in ("add", "clamp_max", "clamp_min", "div", "maximum", "minimum", "mul", "sub"):
    SAMPLES[f"_foreach_{_name}.Scalar"] = lambda t: Call(t.two(), 2)
    SAMPLES[f"_foreach_{_name}.ScalarList"] = lambda t: Call(t.two(), [2, 3])
for _name, _make in (("adam", _adam), ("adamw", _adam), ("adagrad", _adagrad), ("sgd", _sgd)):
    SAMPLES[f"_fused_{_name}"] = lambda t, make=_make: make(t, lr=0.1)  # type: ignore[misc]
    SAMPLES[f"_fused_{_name}.tensor_lr"] = lambda t, make=_make: make(t, lr=torch.tensor(0.1))  # type: ignore[misc]
for _name in ("bartlett", "blackman", "hamming", "hann", "kaiser"):
    SAMPLES[f"{_name}_window"] = lambda t: Call(8, **t.new)
    SAMPLES[f"{_name}_window.periodic"] = lambda t: Call(8, False, **t.new)
for _name in ("bicubic", "lanczos"):
    SAMPLES[f"_upsample_{_name}2d_aa"] = lambda t: Call(t(1, 2, 6, 6), [4, 3], False)
    SAMPLES[f"_upsample_{_name}2d_aa_backward"] = lambda t: Call(t(1, 2, 4, 3), [4, 3], [1, 2, 6, 6], False)
for _name, _dims in (
    ("_upsample_nearest_exact", 1),
    ("_upsample_nearest_exact", 3),
    ("upsample_nearest", 1),
    ("upsample_nearest", 3),
):
    SAMPLES[f"{_name}{_dims}d"] = lambda t, dims=_dims: Call(t(1, 2, *[3] * dims), [5] * dims)  # type: ignore[misc]
    SAMPLES[f"{_name}{_dims}d_backward"] = lambda t, dims=_dims: Call(  # type: ignore[misc]
        t(1, 2, *[5] * dims), [5] * dims, [1, 2, *[3] * dims]
    )

_SCALES, _POINTS = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 0, 3], dtype=torch.int32)
SAMPLES |= {
    "fake_quantize_per_tensor_affine_cachemask": lambda t: Call(t(3, 4), 0.1, 3, 0, 255),
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": lambda t: Call(
        t(3, 4), _SCALES[:1], _POINTS[:1], torch.tensor([1]), 0, 255
    ),
    "fake_quantize_per_channel_affine_cachemask": lambda t: Call(t(3, 4), _SCALES, _POINTS, 0, 0, 255),
    "_fake_quantize_learnable_per_tensor_affine": lambda t: Call(t(3, 4), _SCALES[:1], _POINTS[:1].float(), 0, 255),
    "_fake_quantize_learnable_per_tensor_affine_backward": lambda t: Call(
        t(3, 4), t(3, 4), _SCALES[:1], _POINTS[:1].float(), 0, 255
    ),
    "_fake_quantize_learnable_per_channel_affine": lambda t: Call(t(3, 4), _SCALES, _POINTS.float(), 0, 0, 255),
    "_fake_quantize_learnable_per_channel_affine_backward": lambda t: Call(
        t(3, 4), t(3, 4), _SCALES, _POINTS.float(), 0, 0, 255
    ),
    "_jagged_to_padded_dense_forward": lambda t: Call(t(5, 3), [torch.tensor([0, 2, 5])], [4], 0.5),
    "_padded_dense_to_jagged_forward": lambda t: Call(t(2, 3, 4), [torch.tensor([0, 2, 5])], 5),
}
FALLBACKS: Table = {
    "_dirichlet_grad": lambda t: Call(*(t(3, 4, low=1, high=3) for _ in range(3))),
    "_convert_weight_to_int4pack_for_cpu": lambda t: Call(t(32, 64, low=0, high=16), 2),
    "_dyn_quant_matmul_4bit": lambda t: Call(
        t(4, 64),
        torch.ops.aten._dyn_quant_pack_4bit_weight(
            t.of(torch.uint8, 16, 32, high=255), torch.ones(16, 1), None, 64, 64, 16
        ),
        64,
        64,
        16,
    ),
    "_dyn_quant_pack_4bit_weight": lambda t: Call(
        t(16, 32, low=0, high=255), t.of(torch.float32, 16, 1), None, 64, 64, 16
    ),
    "_fused_moving_avg_obs_fq_helper": lambda t: Call(
        t(3, 4),
        torch.tensor([1]),
        torch.tensor([1]),
        torch.zeros(1),
        torch.ones(1),
        _SCALES[:1],
        _POINTS[:1],
        0.1,
        0,
        255,
        0,
    ),
    "_weight_int4pack_mm_for_cpu": lambda t: Call(
        t(4, 64),
        torch.ops.aten._convert_weight_to_int4pack_for_cpu(t.of(torch.int32, 32, 64, high=16), 2),
        32,
        t(2, 32, 2),
    ),
}
"""What has neither a lowering nor a decomposition."""
