#include "isa.h"

#include <stdexcept>

#if defined(PELLUCID_WITH_amx)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pellucid {

#if defined(PELLUCID_WITH_amx)
namespace {

// Whether the processor has tiles with products of int8 and of bf16, and the system lets this process use them: Linux
// wants to be asked once a process, because the registers add 8 KiB to what it saves for each thread.
bool may_use_tiles() {
    constexpr unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    if ((edx & (bf16 | tile | int8)) != (bf16 | tile | int8)) return false;
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl's ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool allowed = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return allowed;
}

}  // namespace
#endif

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::avx2: return "avx2";
        case Isa::avx512: return "avx512";
        case Isa::avx512bf16: return "avx512bf16";
        case Isa::amx: return "amx";
        default: return "portable";
    }
}

std::vector<Isa> available_isas() {
    std::vector<Isa> isas{Isa::portable};
#if defined(PELLUCID_WITH_avx512bf16)
    // __builtin_cpu_supports also asks the operating system (XGETBV) whether it saves the wide registers.
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool bf16 = avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
    if (avx2) isas.push_back(Isa::avx2);
    if (avx512) isas.push_back(Isa::avx512);
    if (bf16) isas.push_back(Isa::avx512bf16);
#if defined(PELLUCID_WITH_amx)
    if (bf16 && may_use_tiles()) isas.push_back(Isa::amx);
#endif
#endif
    return isas;
}

Isa best_isa() { return available_isas().back(); }

Isa isa_from_name(const std::string& name) {
    std::string names;
    for (Isa isa : available_isas()) {
        if (name == isa_name(isa)) return isa;
        names += std::string(names.empty() ? "" : ", ") + isa_name(isa);
    }
    throw std::invalid_argument("isa=\"" + name + "\" is not available here; available: " + names);
}

}  // namespace pellucid
