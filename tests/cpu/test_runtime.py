"""The PJRT adapter on XLA's CPU client: arrays in and out, programs through the caches, platforms, an orderly end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_tpu import errors, settings
from torch_tpu.runtime import cache, mlir, options, platform
from torch_tpu.runtime.client import NUMPY, Client, cpu_client

ROOT = Path(__file__).resolve().parents[2]
F32 = torch.float32
ADD = """module @add {
func.func public @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> tensor<8x8xf32> {
%0 = stablehlo.add %a, %b : tensor<8x8xf32>
return %0 : tensor<8x8xf32>
}
}
"""
DONATING = ADD.replace("%a: tensor<8x8xf32>", "%a: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}")


@pytest.fixture(scope="module")
def client() -> Client:
    return cpu_client()


def bits(tensor: torch.Tensor) -> list:
    """Something equal exactly where two tensors are the same bits."""
    return [tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).tolist()]


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("shape", [(4, 6), (), (1,), (0, 3), (3, 0, 2)])
@pytest.mark.parametrize("dtype", list(NUMPY))
def test_there_and_back(client, dtype, shape, owned):
    tensor = torch.rand(shape).mul(9).add(1).to(dtype)
    assert bits(client.get(client.put(tensor, owned=owned), dtype)) == bits(tensor)
    if len(shape) == 2:
        assert bits(client.get(client.put(tensor.t(), owned=owned), dtype)) == bits(tensor.t())


def test_lazy_bits_are_resolved(client):
    tensor = torch.randn(3, dtype=torch.complex64).conj()
    assert torch.equal(client.get(client.put(tensor), tensor.dtype), tensor.resolve_conj())
    assert tensor.imag.is_neg()
    assert torch.equal(client.get(client.put(tensor.imag), F32), tensor.imag.resolve_neg())


def test_special_values_keep_their_bits(client):
    tensor = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45, -1e-40])
    assert bits(client.get(client.put(tensor), F32)) == bits(tensor)


def test_unknown_dtypes_are_refused(client):
    with pytest.raises(TypeError, match=r"XLA has no element type for torch\.bits8; it has torch\.bool, "):
        client.put(torch.empty(2, dtype=torch.bits8))


def test_owned_memory_is_used_as_it_is_where_aligned(client):
    tensor = torch.rand(1 << 16)
    assert client.put(tensor, owned=True).unsafe_buffer_pointer() == tensor.data_ptr()
    assert client.put(tensor).unsafe_buffer_pointer() != tensor.data_ptr()
    shifted = torch.rand((1 << 16) + 1)[1:]
    assert client.put(shifted, owned=True).unsafe_buffer_pointer() != shifted.data_ptr()


def test_a_copy_is_made_before_put_returns(client):
    tensor = torch.zeros(1 << 20)
    array = client.put(tensor)
    tensor.fill_(1)
    assert client.get(array, F32).max() == 0


def test_get_shares_or_copies(client):
    array = client.put(torch.rand(64))
    assert client.get(array, F32).data_ptr() == array.unsafe_buffer_pointer()
    assert client.get(array, F32, copy=True).data_ptr() != array.unsafe_buffer_pointer()


def test_transfers_are_counted(client, counters):
    array = client.put(torch.zeros(10))
    client.get(array, F32)
    assert (counters.host_to_device, counters.host_to_device_bytes) == (1, 40)
    assert (counters.device_to_host, counters.device_to_host_bytes) == (1, 40)


@pytest.mark.parametrize("number", [0.0, -0.0, 1, True, 0.001, 1e300, float("nan"), float("-inf")])
@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_scalars(client, number, dtype):
    for _ in range(2):
        assert bits(client.get(client.scalar(number, dtype), dtype)) == bits(torch.tensor(number, dtype=dtype))


def test_scalars_are_made_once(client, counters):
    assert client.scalar(0.125, F32) is client.scalar(0.125, F32)
    assert client.scalar(0.0, F32) is not client.scalar(-0.0, F32)
    assert client.scalar(1 + 0j, torch.complex64) is not client.scalar(complex(1, -0.0), torch.complex64)
    assert client.scalar(1, torch.int64) is not client.scalar(1, torch.int32)
    assert counters.host_to_device == 0


def test_compile_and_run(client, counters, empty_cache):
    program = client.compile(ADD, [((8, 8), F32)])
    x = torch.rand(8, 8)
    (result,) = program.run([client.put(x), client.put(x)])
    assert torch.equal(client.get(result, F32), x + x)
    assert client.compile(ADD, [((8, 8), F32)]) is program
    assert (counters.compiles, counters.memory_hits, counters.executions) == (1, 1, 1)
    assert "add" in program.optimized_text()
    client._programs.clear()


def test_a_second_client_loads_from_disk(counters, empty_cache):
    x = torch.rand(8, 8)
    for _ in range(3):
        client = cpu_client()
        program = client.compile(DONATING, [((8, 8), F32)], donated=[0])
        array = client.put(x)
        (result,) = program.run([array, client.put(x)])
        assert torch.equal(client.get(result, F32), x + x)
        assert array.is_deleted() and program.donated == (0,)
    assert (counters.compiles, counters.disk_misses, counters.disk_hits) == (1, 1, 2)


def test_a_program_that_does_not_load_is_compiled_again(counters, empty_cache):
    cpu_client().compile(ADD, [((8, 8), F32)])
    (path,) = empty_cache.rglob("*.program")
    cache.disk().put(path.stem, b"neither a program nor damaged", {})
    cpu_client().compile(ADD, [((8, 8), F32)])
    cpu_client().compile(ADD, [((8, 8), F32)])
    assert (counters.compiles, counters.disk_errors, counters.disk_hits) == (2, 1, 1)


def test_without_a_disk_cache(counters, empty_cache):
    with settings.override(cache=False):
        cpu_client().compile(ADD, [((8, 8), F32)])
    assert counters.compiles == 1 and counters.disk_misses == 0 and not empty_cache.exists()


def test_arrays_in_use_are_never_overwritten(client):
    program = client.compile(DONATING, [((8, 8), F32)], donated=[0])
    host = torch.ones(8, 8)
    owned = client.put(host, owned=True)
    (result,) = program.run([owned, client.put(host)])
    assert client.get(result, F32).sum() == 128 and host.sum() == 64
    array = client.put(host)
    seen = client.get(array, F32)
    (result,) = program.run([array, client.put(host)])
    assert client.get(result, F32).sum() == 128 and seen.sum() == 64


@pytest.mark.parametrize("effort", ["least", "low", "normal"])
def test_efforts_agree(client, effort, empty_cache):
    text = ADD.replace("add %a", "power %a")
    x, y = torch.rand(8, 8), torch.rand(8, 8)
    with settings.override(xla_effort=effort):
        (result,) = client.compile(text, [((8, 8), F32)]).run([client.put(x), client.put(y)])
    torch.testing.assert_close(client.get(result, F32), x**y)


@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool])
def test_a_vector_of_numbers_holds_what_each_alone_holds(client, dtype):
    numbers = [1, 0, 3.0, True] if not dtype.is_floating_point else [0.1, -0.0, float("inf"), 1e40, 7]
    alone = torch.stack([client.get(client.scalar(number, dtype), dtype).clone() for number in numbers])
    vector = client.get(client.vector(numbers, dtype), dtype)
    assert bits(vector) == bits(alone) and vector.dtype is dtype
    assert client.vector(numbers, dtype) is client.vector(list(numbers), dtype)
    if dtype is torch.int8:
        with pytest.raises(RuntimeError, match="overflow"):
            client.vector([1, 1000], dtype)


def test_the_effort_follows_the_size():
    assert options.choose("low", [((64,), F32)], ADD) == "least"
    assert options.choose("low", [((1 << 20,), F32)], ADD) == "low"
    assert options.choose("low", [((64,), F32)], ADD.replace("stablehlo.add", "stablehlo.while")) == "low"
    assert options.choose("normal", [((64,), F32)], ADD) == "normal"
    with settings.override(xla_effort="normal"):
        assert options.choose("low", [((64,), F32)], ADD) == "normal"


def test_the_effort_follows_what_repeats():
    """Whose kernels the newer emitter makes once."""
    different = [((64, 64 + size), F32) for size in range(32)]
    assert options.choose("low", different, ADD) == "low"
    assert options.choose("low", different[:4] * 8, ADD) == "normal"
    assert options.choose("low", different[:1] * 4, ADD) == "low"


def test_programs_of_many_numbers_get_narrow_vectors():
    results = [((64,), F32)]
    vectors, numbers = (", ".join([f"%a: tensor<{kind}>"] * 500) + " -> " for kind in ("64xf32", "f32"))
    assert options.choose("normal", results, vectors) == "normal"
    assert options.choose("normal", results, numbers) == "narrow"
    assert options.choose("low", [((64, 64), F32)] * 8, numbers) == "narrow"
    slices = "stablehlo.slice %a [0:1:1] : (tensor<500xf32>) -> tensor<{}xf32>\n" * 500
    items, rows = (slices.replace("{}", size) for size in ("1", "1x8"))
    assert options.choose("normal", results, rows) == "normal"
    assert options.choose("normal", results, items) == "narrow"
    assert ("xla_cpu_prefer_vector_width", 128) in options.overrides("narrow", "cpu")


def test_options_of_the_user_are_passed_on():
    with settings.override(xla_options=("--xla_cpu_prefer_vector_width=256", "xla_dump_to=x")):
        chosen = dict(options.overrides("normal", "cpu"))
    assert chosen["xla_cpu_prefer_vector_width"] == 256 and chosen["xla_dump_to"] == "x"
    assert chosen["xla_allow_excess_precision"] is False and chosen["xla_cpu_enable_fast_math"] is False


def test_nan_is_kept_and_bfloat16_rounds_every_step(client, empty_cache):
    text = """module @m {
    func.func public @main(%a: tensor<64xbf16>, %b: tensor<64xbf16>) -> (tensor<64xbf16>, tensor<64xbf16>) {
    %0 = stablehlo.add %a, %b : tensor<64xbf16>
    %1 = stablehlo.multiply %0, %b : tensor<64xbf16>
    %2 = stablehlo.maximum %a, %b : tensor<64xbf16>
    return %1, %2 : tensor<64xbf16>, tensor<64xbf16> } }"""
    a, b = torch.randn(64).bfloat16(), torch.randn(64).bfloat16()
    a[3] = b[5] = float("nan")
    for effort in ("least", "low", "normal"):
        with settings.override(xla_effort=effort):
            program = client.compile(text, [((64,), torch.bfloat16)] * 2)
        product, largest = (client.get(array, torch.bfloat16) for array in program.run([client.put(a), client.put(b)]))
        assert torch.equal(product.nan_to_num(), ((a + b) * b).nan_to_num())
        assert torch.equal(largest.isnan(), torch.maximum(a, b).isnan())


def test_illegal_programs_name_themselves(client):
    with pytest.raises(errors.CompileError, match="XLA could not compile add") as caught:
        client.compile(ADD.replace("stablehlo.add", "stablehlo.frobnicate"), [((8, 8), F32)])
    assert "frobnicate" in str(caught.value) and "program:\nmodule @add" in str(caught.value)


def test_programs_can_be_kept_as_text(client, tmp_path, empty_cache):
    client._programs.clear()
    with settings.override(dump_dir=str(tmp_path / "texts")):
        client.compile(ADD, [((8, 8), F32)])
    (path,) = (tmp_path / "texts").iterdir()
    assert path.name.startswith("add_") and path.read_text() == ADD


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own."""
    variables = {**os.environ, "TORCH_TPU_CACHE": "0", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **environment}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(bool(platform.tpu_devices()), reason="this machine has a TPU")
def test_a_missing_tpu_is_explained():
    code = "from torch_tpu.runtime import platform; print(platform.is_available()); platform.client()"
    done = python(code, TORCH_TPU_PLATFORM="tpu")
    assert done.stdout.strip() == "False" and done.returncode == 1
    assert "the platform 'tpu' was asked for (TORCH_TPU_PLATFORM) and is not there" in done.stderr
    assert "looked for /dev/accel0" in done.stderr and "set TORCH_TPU_PLATFORM=cpu" in done.stderr


@pytest.mark.skipif(bool(platform.cuda_devices()), reason="this machine has an NVIDIA GPU")
def test_a_missing_gpu_is_explained():
    code = "from torch_tpu.runtime import platform; print(platform.is_available()); platform.client()"
    done = python(code, TORCH_TPU_PLATFORM="cuda")
    assert done.stdout.strip() == "False" and "looked for /dev/nvidia0" in done.stderr


def test_a_found_tpu_without_libtpu_is_explained(monkeypatch):
    monkeypatch.setattr(platform, "tpu_devices", lambda: ["/dev/accel0"])
    monkeypatch.setattr(platform, "libtpu_path", lambda: None)
    with pytest.raises(errors.PlatformError, match=r"pip install 'torch_tpu\[tpu\]'"):
        platform._start_tpu()


def test_a_forked_child_gets_an_error():
    code = """
import os
from torch_tpu import errors
from torch_tpu.runtime import platform
platform.client()
child = os.fork()
if not child:
    try:
        platform.client()
    except errors.ForkError:
        os._exit(7)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = python(code)
    assert done.stdout.strip() == "7", done.stderr


def test_the_process_ends_in_order_with_work_under_way():
    code = """
import builtins, torch
from torch_tpu.runtime import platform
client = platform.client()
side = "tensor<700x700xf32>"
text = f'''module @product {{ func.func public @main(%a: {side}) -> {side} {{
%0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : ({side}, {side}) -> {side}
return %0 : {side} }} }}'''
program = client.compile(text, [((700, 700), torch.float32)])
array = client.put(torch.rand(700, 700))
builtins.kept = [program.run([array])[0] for _ in range(20)], client.get(array, torch.float32)
"""
    done = python(code)
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr


def test_operators_of_objects_that_go_while_python_shuts_down(tmp_path):
    """What has been compiling can compile still; a process that has loaded programs only cannot import the compiler."""
    code = """
import torch
class Last:
    def __init__(self): self.x = torch.ones(3, device="tpu")
    def __del__(self):
        print((self.x + 1).sum().item())
        print(torch.NAME(self.x).sum().item())
last = Last(); (last.x + 1).sum().item()
"""
    variables = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1", "TORCH_TPU_CACHE": "1", "TORCH_TPU_CACHE_DIR": str(tmp_path)}
    done = python(code.replace("NAME", "exp2"), **variables)
    assert done.stdout.split() == ["6.0", "6.0"] and not done.stderr, done.stderr
    done = python(code.replace("NAME", "lgamma"), **variables)
    assert done.stdout.strip() == "6.0"
    assert "aten::lgamma cannot be compiled while Python shuts down" in done.stderr


def test_element_types_of_programs():
    kinds = "i1 i8 ui8 i32 ui64 f16 bf16 f32 f64 complex<f32> complex<f64> f8E5M2"
    text = f"@main({', '.join(f'%a: tensor<2x?x{kind}>' for kind in kinds.split())}) -> () {{\n%1 = tensor<i16>"
    words = "bool int8 uint8 int32 uint64 float16 bfloat16 float32 float64 complex64 complex128 f8E5M2"
    assert mlir.element_types(text) == words.split()


def test_the_first_operator_does_not_import_what_it_does_not_need():
    code = """
import sys, torch
print(torch.ones(3, device="tpu").sum().item())
print(sorted({"sympy", "torch._dynamo", "jaxlib.mlir.dialects.stablehlo"} & set(sys.modules)))
"""
    done = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    assert done.stdout.splitlines() == ["3.0", "[]"], done.stderr
