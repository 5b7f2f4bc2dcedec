#include "ops/row_kernels.h"

namespace pellucid {

PELLUCID_DECLARE_PER_ISA(const RowKernels& row_kernels())

const RowKernels& row_kernels(Isa isa) { PELLUCID_DISPATCH(isa, row_kernels()) }

}  // namespace pellucid
