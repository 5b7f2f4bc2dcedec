#include "ops/rope.h"

namespace pellucid {

PELLUCID_DECLARE_PER_ISA(const RopeKernels& rope_kernels())

const RopeKernels& rope_kernels(Isa isa) { PELLUCID_DISPATCH(isa, rope_kernels()) }

}  // namespace pellucid
