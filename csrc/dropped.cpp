// Results that nobody holds any more, while the programs that compute them may still run: `synchronize` and events wait for
// all arrays that live. XLA keeps the memory until then in any case.

#include "plug.h"

#include <deque>

namespace torch_tpu {

namespace py = pybind11;

namespace {

// To ask whether an array is ready takes a microsecond. Of small ones the last are kept without asking: twice as many as
// XLA's CPU client has programs on their way (32, then it makes the caller wait); other platforms run programs in order.
constexpr size_t kKept = 64, kSmall = 1 << 16;

auto& small = *new std::deque<PyObject*>;  // never destroyed: storages may outlive it
auto& large = *new std::deque<PyObject*>;  // of these, those that were not ready

PyObject* const kDeleted = PyUnicode_InternFromString("is_deleted");
PyObject* const kReady = PyUnicode_InternFromString("is_ready");

bool says(PyObject* array, PyObject* question) {
  PyObject* answer = PyObject_CallMethodNoArgs(array, question);
  if (!answer) PyErr_Clear();  // it is no array of XLA's
  Py_XDECREF(answer);          // True and False live on
  return answer != Py_False;
}

PyObject* first_of(std::deque<PyObject*>& arrays) {
  PyObject* array = arrays.front();
  arrays.pop_front();
  return array;
}

void drop_finished(std::deque<PyObject*>& arrays, size_t count) {
  for (; count && !arrays.empty(); --count) {
    PyObject* array = first_of(arrays);
    if (says(array, kReady))
      Py_DECREF(array);
    else
      arrays.push_back(array);
  }
}

}  // namespace

void give_up(PyObject* value, size_t bytes) {
  if (!value) return;
  if (Py_REFCNT(value) > 1) {
    Py_DECREF(value);
  } else if (bytes <= kSmall) {
    small.push_back(value);
    if (small.size() > kKept) Py_DECREF(first_of(small));
  } else {
    py::error_scope raised;  // an exception that is on its way stays as it is
    if (says(value, kDeleted) || says(value, kReady))
      Py_DECREF(value);
    else
      large.push_back(value);
    drop_finished(large, 2);
  }
}

void bind_dropped(py::module_& m) {
  m.def("drop_finished", [] { drop_finished(small, small.size()), drop_finished(large, large.size()); },
        "Lets go of the results that are there of those that nobody holds.");
}

}  // namespace torch_tpu
