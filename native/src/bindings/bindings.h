// What each file of this folder adds to the Python module.
#pragma once
#include <nanobind/nanobind.h>

namespace pellucid {

void bind_machine(nanobind::module_& m);  // instruction sets, thread pool
void bind_linear(nanobind::module_& m);   // packed matrices
void bind_ops(nanobind::module_& m);      // the kernel interface, one call at a time
void bind_tape(nanobind::module_& m);     // a whole step, recorded and replayed
void bind_sampling(nanobind::module_& m); // passes over rows of logits

}  // namespace pellucid
