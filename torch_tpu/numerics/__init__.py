"""Where a model's numbers on the device part from those of PyTorch's CPU, layer by layer and precision by precision.

    from torch_tpu import numerics
    report = numerics.compare(model, (tokens,))
    print(report["medium"].first_made)      # the first layer that makes an error beyond tolerance itself

`comparison` runs the model; `record` is the CPU's run, and layers called alone; `measures` is what an error is;
`results` holds what was found, `report` and `page` show it; `models` finds a model by name.
"""

from torch_tpu.numerics.comparison import at as at
from torch_tpu.numerics.comparison import available as available
from torch_tpu.numerics.comparison import compare as compare
from torch_tpu.numerics.measures import Errors as Errors
from torch_tpu.numerics.measures import Tolerance as Tolerance
from torch_tpu.numerics.measures import measure as measure
from torch_tpu.numerics.results import GradientResult as GradientResult
from torch_tpu.numerics.results import LayerResult as LayerResult
from torch_tpu.numerics.results import PrecisionResult as PrecisionResult
from torch_tpu.numerics.results import Report as Report
