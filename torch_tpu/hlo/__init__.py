"""Building StableHLO; knows no ATen. Lowerings import this as `from torch_tpu import hlo`.

`core` holds values, blocks and functions; `types` the element types; `arith`, `shape`, `compute` and `collective` one
function an operation. Read `core.py` first. Only `ops` and what lies above it may import this package.
"""

from torch_tpu.hlo.arith import *
from torch_tpu.hlo.collective import all_gather as all_gather
from torch_tpu.hlo.collective import all_reduce as all_reduce
from torch_tpu.hlo.collective import all_to_all as all_to_all
from torch_tpu.hlo.collective import reduce_scatter as reduce_scatter
from torch_tpu.hlo.collective import replica_id as replica_id
from torch_tpu.hlo.compute import *
from torch_tpu.hlo.contraction import convolution as convolution
from torch_tpu.hlo.contraction import dot_general as dot_general
from torch_tpu.hlo.contraction import imitating as imitating
from torch_tpu.hlo.contraction import in_passes as in_passes
from torch_tpu.hlo.contraction import use_precision as use_precision
from torch_tpu.hlo.core import (  # noqa: F401
    Function,
    Number,
    Value,
    current,
    depth,
    emit,
    emit_many,
    outer_block,
    region,
)
from torch_tpu.hlo.dims import Computed as Computed
from torch_tpu.hlo.dims import Dim as Dim
from torch_tpu.hlo.dims import bound as bound
from torch_tpu.hlo.dims import varies as varies
from torch_tpu.hlo.layout import linear_index as linear_index
from torch_tpu.hlo.shape import *
from torch_tpu.hlo.types import (  # noqa: F401
    NAMES,
    bits_dtype,
    complex_dtype,
    compute_dtype,
    element_name,
    is_integer,
    is_unsigned,
    real_dtype,
    tensor_type,
)
