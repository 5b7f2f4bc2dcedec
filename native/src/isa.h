// Instruction sets a kernel may be compiled for, and which of them this machine can run.
#pragma once
#include <string>
#include <vector>

namespace pellucid {

// amx: avx512bf16 and the tile registers.
enum class Isa { portable, avx2, avx512, avx512bf16, amx };

const char* isa_name(Isa isa);

// Throws std::invalid_argument for a name that is unknown or that this machine (or this build) cannot run.
Isa isa_from_name(const std::string& name);

// Compiled in and runnable here, least first.
std::vector<Isa> available_isas();

// The best of available_isas().
Isa best_isa();

}  // namespace pellucid

// PELLUCID_DECLARE_PER_ISA declares a function once per compiled-in instruction set; PELLUCID_DISPATCH(isa, f(x)) returns
// what that of `isa` gives.
#if defined(PELLUCID_WITH_amx)
#define PELLUCID_CASE_AMX(expression) \
    case ::pellucid::Isa::amx: { return ::pellucid::amx::expression; }
#define PELLUCID_DECLARE_AMX(declaration) \
    namespace amx { declaration; }
#else
#define PELLUCID_CASE_AMX(expression)
#define PELLUCID_DECLARE_AMX(declaration)
#endif
#if defined(PELLUCID_WITH_avx512bf16)
#define PELLUCID_DISPATCH(isa, expression)                               \
    switch (isa) {                                                       \
        PELLUCID_CASE_AMX(expression)                                    \
        case ::pellucid::Isa::avx512bf16: { return ::pellucid::avx512bf16::expression; } \
        case ::pellucid::Isa::avx512: { return ::pellucid::avx512::expression; }         \
        case ::pellucid::Isa::avx2: { return ::pellucid::avx2::expression; }             \
        default: return ::pellucid::portable::expression;                \
    }
#define PELLUCID_DECLARE_PER_ISA(declaration) \
    namespace portable { declaration; }       \
    namespace avx2 { declaration; }           \
    namespace avx512 { declaration; }         \
    namespace avx512bf16 { declaration; } \
    PELLUCID_DECLARE_AMX(declaration)
#else
#define PELLUCID_DISPATCH(isa, expression) \
    (void)(isa);                           \
    return ::pellucid::portable::expression;
#define PELLUCID_DECLARE_PER_ISA(declaration) \
    namespace portable { declaration; }
#endif
