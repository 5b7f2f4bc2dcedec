#include "bindings/bindings.h"

NB_MODULE(_native, m) {
    m.doc() = "Pellucid's CPU kernels.";
    pellucid::bind_machine(m);
    pellucid::bind_linear(m);
    pellucid::bind_ops(m);
    pellucid::bind_tape(m);
}
