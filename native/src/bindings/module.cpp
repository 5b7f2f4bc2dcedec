#include "bindings/bindings.h"

NB_MODULE(_native, m) {
    m.doc() = "Pellucid's CPU kernels.";
    nanobind::set_leak_warnings(false);  // what a program still holds when it ends is no leak
    pellucid::bind_machine(m);
    pellucid::bind_linear(m);
    pellucid::bind_ops(m);
    pellucid::bind_tape(m);
    pellucid::bind_sampling(m);
}
