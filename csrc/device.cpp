// What makes PrivateUse1 a device: an allocator whose opaque addresses are unique (so that aliasing, storage sizes and
// shared-weight detection work), a guard, hooks, a generator, and the view operators, which only change metadata.
#include "plug.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_has_compatible_shallow_copy_type_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_set>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winterference-size"  // of a header that every version of GCC warns of
#endif
#include <ATen/core/CachingHostAllocator.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

namespace py = pybind11;

namespace torch_tpu {

MemoryStats memory_stats;
bool in_bad_fork = false;

namespace {
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
PyObject* hooks_dict = nullptr;
}  // namespace

py::object hook(const char* name) {
  TORCH_CHECK(hooks_dict, "torch_tpu is not initialized");
  PyObject* function = PyDict_GetItemString(hooks_dict, name);
  TORCH_CHECK(function, "torch_tpu has no hook '", name, "'");
  return py::reinterpret_borrow<py::object>(function);
}

void rethrow(py::error_already_set& error) {
  error.restore();
  python_error raised;
  raised.persist();
  throw raised;
}

namespace {

template <typename... Args>
py::object call_hook(const char* name, Args&&... args) {
  try {
    return hook(name)(std::forward<Args>(args)...);
  } catch (py::error_already_set& error) {
    rethrow(error);
  }
}

}  // namespace

void check_fork() {
  if (!in_bad_fork) return;
  py::gil_scoped_acquire gil;
  call_hook("refuse_fork");
}

namespace {
std::atomic<int> active{0};
std::atomic<bool> closing{false}, several{false};  // several: threads other than the one that closes made calls
std::thread::id closer;
thread_local int depth = 0;
}  // namespace

Activity::Activity() {
  if (depth++) return;
  static const auto first = std::this_thread::get_id();
  if (std::this_thread::get_id() != first) several = true;
  ++active;
  if (!closing || std::this_thread::get_id() == closer) return;
  --active;
  if (PyGILState_Check()) PyEval_SaveThread();
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

Activity::~Activity() {
  if (--depth == 0) --active;
}

void close() {
  closer = std::this_thread::get_id();
  closing = true;
  py::gil_scoped_release no_gil;
  for (int tries = 0; active && tries < 5000; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  // A thread that has just left a kernel still has to take the interpreter's lock again, in PyTorch's binding: give it
  // the time to get to its next call, where it stays.
  if (several) std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

// ---------------------------------------------------------------------------------------------------- memory

namespace {

bool can_touch_python() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

void account(Slot* slot, size_t bytes, bool holds) {
  memory_stats.allocated += static_cast<int64_t>(bytes) - static_cast<int64_t>(slot->bytes);
  if (bytes > slot->bytes) memory_stats.total_allocated += static_cast<int64_t>(bytes - slot->bytes);
  memory_stats.num_values += int64_t(holds) - int64_t(slot->value != nullptr);
  memory_stats.peak = std::max(memory_stats.peak, memory_stats.allocated);
}

// Live slots. PyTorch writes checkpoints through tensors that it makes from a bare device address: only these are looked
// for, and a list costs new tensors less than a table.
struct Addresses {
  std::mutex mutex;
  Slot last;

  void add(Slot* slot) {
    std::lock_guard<std::mutex> lock(mutex);
    slot->after = &last, slot->before = last.before;
    (last.before ? last.before->after : first) = slot;
    last.before = slot;
  }
  void remove(Slot* slot) {
    std::lock_guard<std::mutex> lock(mutex);
    (slot->before ? slot->before->after : first) = slot->after;
    slot->after->before = slot->before;
  }
  Slot* find(const void* address) {
    std::lock_guard<std::mutex> lock(mutex);
    for (Slot* slot = first; slot != &last; slot = slot->after)
      if (slot->address == address) return slot;
    return nullptr;
  }

 private:
  Slot* first = &last;
};
auto& addresses = *new Addresses;  // never destroyed: storages may outlive it

// A value released by a thread of autograd's while the interpreter is taken down is left to the process's end: `close`
// waits for releases that have begun, and later ones of other threads do not touch Python.
struct Release {
  Release() {
    ++active;
    allowed = !closing || std::this_thread::get_id() == closer;
  }
  ~Release() { --active; }
  bool allowed;
};

void delete_slot(void* context) {
  auto* slot = static_cast<Slot*>(context);
  addresses.remove(slot);
  if (slot->holds() || slot->graphs) {
    Release release;
    if (!release.allowed || !can_touch_python() || in_bad_fork) return;  // the interpreter goes, and the value with it
    py::gil_scoped_acquire gil;
    slot->orphan = true;
    if (!slot->graphs) delete_slot_now(slot);
    return;
  }
  delete slot;
}

struct OpaqueAllocator final : c10::DeviceAllocator {
  std::atomic<uintptr_t> next{uintptr_t(1) << 44};

  c10::DataPtr allocate(size_t bytes) override {
    check_fork();
    const auto address = next.fetch_add((bytes + 511) / 512 * 512 + 512);
    auto* slot = new Slot;
    slot->address = reinterpret_cast<void*>(address);
    addresses.add(slot);
    return {slot->address, slot, &delete_slot, c10::Device(kTPU, 0)};
  }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "tpu memory has no host address");
  }

  // What torch.accelerator asks: PJRT owns the memory, so nothing is cached or reserved beyond what values hold.
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& total = stats.allocated_bytes[0];
    total.current = memory_stats.allocated;
    total.peak = memory_stats.peak;
    total.allocated = memory_stats.total_allocated;
    total.freed = memory_stats.total_allocated - memory_stats.allocated;
    stats.active_bytes[0] = stats.reserved_bytes[0] = stats.requested_bytes[0] = total;
    stats.allocation[0].current = stats.active[0].current = memory_stats.num_values;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override { memory_stats.total_allocated = memory_stats.allocated; }
  void resetPeakStats(c10::DeviceIndex) override { memory_stats.peak = memory_stats.allocated; }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    py::gil_scoped_acquire gil;
    return hook("memory_info")().cast<std::pair<size_t, size_t>>();
  }
};
OpaqueAllocator opaque_allocator;
REGISTER_ALLOCATOR(kTPU, &opaque_allocator);

// Host memory that the device reads without a copy is ordinary memory, remembered so that is_pinned() can answer.
struct PinnedAllocator final : at::HostAllocator {
  static std::mutex mutex;
  static std::unordered_set<const void*> pinned;

  static void release(void* context) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      pinned.erase(context);
    }
    c10::GetDefaultCPUAllocator()->raw_deallocate(context);
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::GetDefaultCPUAllocator()->raw_allocate(std::max<size_t>(bytes, 1));
    std::lock_guard<std::mutex> lock(mutex);
    pinned.insert(data);
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }  // the device has read it when a copy returns
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};
std::mutex PinnedAllocator::mutex;
std::unordered_set<const void*> PinnedAllocator::pinned;
PinnedAllocator pinned_allocator;
const at::HostAllocatorRegistry<kTPU> pinned_registry(&pinned_allocator);

}  // namespace

void delete_slot_now(Slot* slot) {
  let_go(slot);
  account(slot, 0, false);
  give_up(slot->value, slot->bytes);
  delete slot;
}

c10::Allocator* allocator() { return &opaque_allocator; }

Slot* slot_of(const c10::Storage& storage) {
  const auto& data = storage.data_ptr();
  if (data.get_deleter() == &delete_slot) return static_cast<Slot*>(data.get_context());
  TORCH_CHECK(storage.device().type() == kTPU, "expected a storage on tpu, got one on ", storage.device());
  Slot* slot = addresses.find(data.get());
  TORCH_CHECK(slot, "this storage has a device address that belongs to no tensor on ", storage.device());
  return slot;
}

void set_slot(Slot* slot, PyObject* value, int64_t aval, size_t bytes) {
  if (capturing) keep_before(slot);
  PyObject* old = slot->value;
  const size_t old_bytes = slot->bytes;
  let_go(slot);
  account(slot, value ? bytes : 0, value != nullptr);
  Py_XINCREF(value);
  slot->value = value;
  slot->aval = value ? aval : 0;
  slot->bytes = value ? bytes : 0;
  give_up(old, old_bytes);
}

void share_slot(Slot* to, const Slot* from) {
  set_slot(to, from->value, from->aval, from->bytes);
  if (from->pending) hold(to, from->pending);
}

at::Tensor new_tensor(at::IntArrayRef size, at::IntArrayRef stride, at::ScalarType dtype) {
  return at::detail::empty_strided_generic(size, stride, &opaque_allocator, kKeys, dtype);
}

// ------------------------------------------------------------------------------- guard, events, generator, hooks

namespace {

// One device a process and one stream: XLA orders programs by their data. Events call back into Python.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static thread_local c10::StreamId current;

  c10::DeviceType type() const override { return kTPU; }
  c10::Device exchangeDevice(c10::Device device) const override {
    setDevice(device);
    return getDevice();
  }
  c10::Device getDevice() const override { return c10::Device(kTPU, 0); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() <= 0, "this process drives one tpu device; there is no ", device);
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, getDevice(), current);
  }
  c10::Stream getDefaultStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, getDevice()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    static std::atomic<c10::StreamId> next{1};
    return c10::Stream(c10::Stream::UNSAFE, getDevice(), next++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    auto previous = getStream(getDevice());
    current = stream.id();
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return c10::DeviceCapability(); }

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    py::gil_scoped_acquire gil;
    PyObject* made = call_hook("record_event").release().ptr();
    Py_XDECREF(static_cast<PyObject*>(*event));
    *event = made;
  }
  void block(void*, const c10::Stream&) const override {}  // streams are ordered already
  bool queryEvent(void* event) const override {
    if (!event) return true;
    py::gil_scoped_acquire gil;
    return call_hook("query_event", object(event)).cast<bool>();
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    py::gil_scoped_acquire gil;
    call_hook("synchronize_event", object(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (!event || !can_touch_python()) return;
    py::gil_scoped_acquire gil;
    Py_DECREF(static_cast<PyObject*>(event));
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    TORCH_CHECK(start && end, "both events must be recorded before their elapsed time is asked for");
    py::gil_scoped_acquire gil;
    return call_hook("elapsed_time", object(start), object(end)).cast<double>();
  }
  bool queryStream(const c10::Stream&) const override {
    py::gil_scoped_acquire gil;
    return call_hook("query_stream").cast<bool>();
  }
#if __has_include(<ATen/core/GraphImplInterface.h>)
  bool isStreamCapturing(const c10::Stream&) const override { return capturing; }
#endif
  void synchronizeStream(const c10::Stream&) const override { synchronizeDevice(0); }
  void synchronizeDevice(c10::DeviceIndex) const override {
    py::gil_scoped_acquire gil;
    call_hook("synchronize");
  }

  static py::object object(void* event) {
    return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(event));
  }
};
thread_local c10::StreamId Guard::current = 0;
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// A counter-based generator: random operators are functions of (seed, offset) and advance the offset.
struct Generator final : c10::GeneratorImpl {
  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;

  explicit Generator(c10::DeviceIndex index = 0) : GeneratorImpl(c10::Device(kTPU, std::max<int>(index, 0)), kKeys) {}
  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK_TYPE(state.layout() == c10::kStrided && state.device_type() == c10::kCPU &&
                         state.dtype() == caffe2::TypeMeta::Make<uint8_t>(),
                     "RNG state must be a torch.ByteTensor on the CPU");
    TORCH_CHECK_VALUE(state.numel() == 16 && state.is_contiguous(), "RNG state must have 16 bytes (seed, offset), got ",
                      state.numel());
    const auto* words = static_cast<const uint64_t*>(state.data());
    seed_ = words[0], offset_ = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({16}, at::kByte);
    auto* words = static_cast<uint64_t*>(state.mutable_data_ptr());
    words[0] = seed_, words[1] = offset_;
    return state.getIntrusivePtr();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override {
    seed_ = state->current_seed(), offset_ = state->get_offset();
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->seed_ = seed_, copy->offset_ = offset_;
    return copy;
  }
};

}  // namespace

thread_local uint64_t random_taken = 0;

std::pair<uint64_t, uint64_t> take_random(const at::Generator* given, uint64_t increment) {
  TORCH_CHECK(!given || given->device().type() == kTPU, "Expected a 'tpu' device type for generator but found '",
              given->device().type(), "'");
  at::Generator generator = given ? *given : at::globalContext().defaultGenerator(c10::Device(kTPU, 0));
  auto* state = generator.get<Generator>();
  std::lock_guard<std::mutex> lock(state->mutex_);
  const auto offset = state->offset_;
  state->offset_ += random_taken ? random_taken : increment;
  return {state->seed_, offset};
}

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return deviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override { check_fork(); }
  c10::DeviceIndex deviceCount() const override {
    py::gil_scoped_acquire gil;
    return call_hook("device_count").cast<c10::DeviceIndex>();
  }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    TORCH_CHECK(index <= 0, "this process drives one tpu device; there is no tpu:", static_cast<int>(index));
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    setCurrentDevice(index);
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto generator = at::make_generator<Generator>();
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return at::make_generator<Generator>(index); }
  at::Device getDeviceFromPtr(void*) const override { return c10::Device(kTPU, 0); }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> lock(PinnedAllocator::mutex);
    return PinnedAllocator::pinned.count(data) > 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
    if (bytes == 0) {
      py::gil_scoped_acquire gil;
      set_slot(slot_of(storage), nullptr, 0, 0);
    }
  }
};

// ------------------------------------------------------------------------------------ factories and views

// torch.use_deterministic_algorithms, with torch.utils.deterministic.fill_uninitialized_memory.
bool fills_memory() {
  return at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory();
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!layout || *layout == at::kStrided, "tpu tensors are strided; there is no layout ", *layout, " on tpu");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(!device || device->index() <= 0, "this process drives one tpu device; there is no ", *device);
  at::Tensor made = at::detail::empty_generic(size, &opaque_allocator, kKeys, c10::dtype_or_default(dtype), format);
  if (size.size() > 1 && made.is_contiguous()) slot_of(made.storage())->planned = size.vec();
  return fills_memory() ? at::native::fill_empty_deterministic_(made) : made;
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(!device || device->index() <= 0, "this process drives one tpu device; there is no ", *device);
  auto made = new_tensor(size, stride, c10::dtype_or_default(dtype));
  return fills_memory() ? at::native::fill_empty_deterministic_(made) : made;
}

void grow(c10::StorageImpl* storage, size_t bytes) {
  if (bytes > storage->nbytes()) storage->set_nbytes(bytes);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() == size) {
    if (format) impl->empty_tensor_restride(*format);
    return self;
  }
  impl->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve && *format != at::MemoryFormat::Contiguous)
    impl->empty_tensor_restride(*format);
  const auto before = self.storage().nbytes();
  grow(self.storage().unsafeGetStorageImpl(),
       (self.storage_offset() + at::detail::computeStorageNbytes(self.sizes(), self.strides(), 1)) * self.itemsize());
  return fills_memory() ? at::native::fill_resize_deterministic_(self, static_cast<int64_t>(before)) : self;
}

at::Tensor& set_storage_(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                         at::IntArrayRef stride) {
  TORCH_CHECK(source.device().type() == kTPU, "set_: expected a storage on tpu, got one on ", source.device());
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source);
  impl->set_storage_offset(offset);
  if (stride.data() == nullptr || stride.size() != size.size()) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  if (self.numel() > 0) {
    grow(source.unsafeGetStorageImpl(),
         (offset + at::detail::computeStorageNbytes(self.sizes(), self.strides(), 1)) * self.itemsize());
  }
  return self;
}

at::Tensor& set_all_(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_(self, std::move(source), 0, {count}, {1});
}

at::Tensor& set_tensor_(at::Tensor& self, const at::Tensor& source) {
  return set_storage_(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing_(at::Tensor& self) {
  auto fresh = at::detail::empty_generic({0}, &opaque_allocator, kKeys, self.scalar_type(), std::nullopt);
  return set_storage_(self, fresh.storage(), 0, {0}, {1});
}

// `parameter.data = moved` and Module.to keep the parameter's identity (and so tied weights) between CPU and device.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  auto dense = [](const at::Tensor& t) {
    return t.layout() == at::kStrided && (t.is_cpu() || t.device().type() == kTPU) &&
           !t.key_set().has(c10::DispatchKey::Python);
  };
  return (dense(self) && dense(from)) || at::native::_has_compatible_shallow_copy_type(self, from);
}

at::Tensor view_as_complex_tpu(const at::Tensor& self) { return at::native::view_as_complex(self); }
at::Tensor view_as_real_tpu(const at::Tensor& self) { return at::native::view_as_real(self); }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage", set_all_);
  m.impl("set_.source_Storage_storage_offset", set_storage_);
  m.impl("set_.source_Tensor", set_tensor_);
  m.impl("set_", set_nothing_);
  m.impl("as_strided", at::native::as_strided_tensorimpl);  // keeps the storage, so views alias for free
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("view_as_real", view_as_real_tpu);
  m.impl("view_as_complex", view_as_complex_tpu);
}

// Before `__torch_dispatch__`, as PyTorch's own definition is: tensor subclasses have never been asked this.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}

namespace {

c10::Storage storage_of(const py::handle& tensor) { return THPVariable_Unpack(tensor.ptr()).storage(); }

}  // namespace

void bind_device(py::module_& m) {
  m.def("set_hooks", [](py::dict hooks) {
    Py_XDECREF(hooks_dict);
    hooks_dict = hooks.inc_ref().ptr();
  }, "Sets the Python functions that the plug calls, by name.");
  m.def("register_device", [] { at::RegisterPrivateUse1HooksInterface(new Hooks()); });
  m.def("close", &close, "Waits for the calls of other threads; their next ones never return.");
  m.def("marker_of", [](uintptr_t event_id) -> py::object {
    if (!event_id) return py::none();
    return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(event_id));
  }, "The object that record_event made, from torch.Event.event_id; None before the event is recorded.");
  m.def("set_bad_fork", [] { in_bad_fork = true; });
  m.def("get_value", [](py::handle tensor, bool settled) -> py::object {
    Slot* slot = slot_of(storage_of(tensor));
    refuse_in_capture("the value of a tensor");
    flush_for(slot);
    if (settled) settle(slot);
    return slot->value ? py::reinterpret_borrow<py::object>(slot->value) : py::object(py::none());
  }, py::arg("tensor"), py::arg("settled") = true,
     "The device value of a tensor's storage, or None: an array, or as long as it is not settled a deferred value.");
  m.def("get_aval", [](py::handle tensor) { return slot_of(storage_of(tensor))->aval; });
  m.def("planned_size", [](py::handle tensor) { return slot_of(storage_of(tensor))->planned; },
        "The size that torch.empty was asked for, if it had several dimensions.");
  m.def("set_value", [](py::handle tensor, py::object value, int64_t aval, size_t bytes) {
    Slot* slot = slot_of(storage_of(tensor));
    if (slot->holds()) refuse_in_capture("to fill a tensor from the host");
    set_slot(slot, value.is_none() ? nullptr : value.ptr(), aval, bytes);
  }, "Replaces the device value of a tensor's storage.");
  m.def("new_tensor", [](std::vector<int64_t> size, std::vector<int64_t> stride, py::object dtype) {
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(
        new_tensor(size, stride, reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type)));
  });
  m.def("bump_version", [](py::handle tensor) { THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl()->bump_version(); });
  m.def("memory_stats", [] {
    py::dict stats;
    stats["allocated"] = memory_stats.allocated;
    stats["peak"] = memory_stats.peak;
    stats["num_values"] = memory_stats.num_values;
    stats["total_allocated"] = memory_stats.total_allocated;
    return stats;
  });
  m.def("reset_accumulated", [] { memory_stats.total_allocated = memory_stats.allocated; });
  m.def("default_generator", [] {
    return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(at::globalContext().defaultGenerator(
        c10::Device(kTPU, 0))));
  });
  m.def("take_random", [](const py::object& generator, uint64_t increment) {
    if (generator.is_none()) return take_random(nullptr, increment);
    const auto given = reinterpret_cast<THPGenerator*>(generator.ptr())->cdata;
    return take_random(&given, increment);
  }, "The seed and offset of a generator (None is the default one), whose offset then advances.");
  m.def("reset_peak", [] { memory_stats.peak = memory_stats.allocated; });
}

}  // namespace torch_tpu
