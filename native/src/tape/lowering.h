// From the graph to segments, steps and buffers.
#pragma once
#include <memory>

#include "tape/graph.h"

namespace pellucid {

std::unique_ptr<Tape> lower(const Graph& graph, Isa isa);

}  // namespace pellucid
