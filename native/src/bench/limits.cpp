#include "bench/limits.h"

namespace pellucid {

PELLUCID_DECLARE_PER_ISA(const LimitKernels& limit_kernels())

const LimitKernels& limit_kernels(Isa isa) { PELLUCID_DISPATCH(isa, limit_kernels()) }

}  // namespace pellucid
