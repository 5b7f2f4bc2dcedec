#include "isa.h"

#include <stdexcept>

namespace pellucid {

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::avx2: return "avx2";
        case Isa::avx512: return "avx512";
        case Isa::avx512bf16: return "avx512bf16";
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
