#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "isa.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace pellucid {

void bind_machine(nb::module_& m) {
    m.def("available_isas", [] {
        std::vector<std::string> names;
        for (Isa isa : available_isas()) names.push_back(isa_name(isa));
        return names;
    }, "Instruction sets that are compiled in and that this machine runs, least first.");
    m.def("physical_cores", &physical_cores, "One hardware thread of each core this process may run on.");

    nb::class_<ThreadPool>(m, "ThreadPool")
        .def(nb::init<int>(), nb::arg("num_threads") = 0)
        .def_prop_ro("num_threads", &ThreadPool::num_threads);
}

}  // namespace pellucid
