// What the two halves of the plug share: the value that rides on a storage.
#pragma once

#include <vector>
#include <Python.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <pybind11/pybind11.h>

namespace torch_tpu {

constexpr auto kTPU = c10::DeviceType::PrivateUse1;

struct Pending;  // a result of a recorded call: csrc/record.cpp

// The device value of a storage: an array of the runtime, the result of a recorded call, or neither ("nothing yet").
// `aval` names its shape and dtype, `bytes` is what an array takes on the device.
struct Slot {
  PyObject* value = nullptr;
  Pending* pending = nullptr;
  int64_t aval = 0;
  size_t bytes = 0;
  void* address = nullptr;  // what data_ptr() shows
  std::vector<int64_t> planned;  // the size it was made with, by torch.empty: the shape of the array once it is written
  int32_t graphs = 0;       // captured graphs that need it: it outlives its storage until they let go
  bool orphan = false;      // its storage is gone
  Slot *before = nullptr, *after = nullptr;  // in the list of live ones

  bool holds() const { return value || pending; }
};

struct MemoryStats {
  int64_t allocated = 0, peak = 0, num_values = 0, total_allocated = 0;
};

extern MemoryStats memory_stats;
extern bool in_bad_fork;

Slot* slot_of(const c10::Storage& storage);                       // throws for a storage of another device
void set_slot(Slot* slot, PyObject* value, int64_t aval, size_t bytes);  // takes a new reference; needs the GIL
void give_up(PyObject* value, size_t bytes);                      // as Py_XDECREF; `synchronize` waits for it even so
void share_slot(Slot* to, const Slot* from);                      // values are immutable, so they can be shared
c10::Allocator* allocator();
at::Tensor new_tensor(at::IntArrayRef size, at::IntArrayRef stride, at::ScalarType dtype);
void check_fork();

// Around every call of a kernel. At exit `close` waits for calls of other threads; later ones never return, so that no
// thread needs the interpreter while it is taken down (it would be killed there, through C++ frames).
struct Activity {
  Activity();
  ~Activity();
};
void close();

// Python functions that the plug calls, by name; set once by torch_tpu/device/register.py.
pybind11::object hook(const char* name);

[[noreturn]] void rethrow(pybind11::error_already_set& error);  // as the exception that PyTorch hands on to Python

// Fused eager (csrc/record.cpp): calls are recorded and run together. All need the GIL.
extern bool recording;
void flush();                                                            // runs what was recorded
void flush_for(Slot* slot);                                              // and of that what a value needs
void hold(Slot* slot, Pending* pending);                                 // the slot's value is that result
void let_go(Slot* slot);                                                 // it no longer is
void settle(Slot* slot);                                                 // a deferred value becomes an array, or throws

// Captured graphs (csrc/graph.cpp): meanwhile calls are recorded and nothing runs. All need the GIL.
extern bool capturing;
void refuse_in_capture(const char* what);  // throws while a graph is captured
void read_in_capture(Slot* slot);
void keep_before(Slot* slot);              // its value, to be put back when the capture ends
void delete_slot_now(Slot* slot);

std::pair<uint64_t, uint64_t> take_random(const at::Generator* generator, uint64_t increment);  // (seed, offset)
// What this thread takes instead: a program for many sizes says how many numbers the largest need. 0 where it is right.
extern thread_local uint64_t random_taken;

void bind_device(pybind11::module_& m);
void bind_dropped(pybind11::module_& m);
void bind_pack(pybind11::module_& m);
void bind_record(pybind11::module_& m);
void bind_dispatch(pybind11::module_& m);
void bind_graph(pybind11::module_& m);
void bind_sparse(pybind11::module_& m);

}  // namespace torch_tpu
